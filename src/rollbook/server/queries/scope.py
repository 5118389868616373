"""The base of all queries of a tenant: a connection, a tenant, and conditions that always name the tenant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from rollbook.server.db import statements
from rollbook.server.db.columns import now_us
from rollbook.server.db.rows import AnyRow


class TenantScope:
    """Reaches the rows of `org_id` and no others."""

    def __init__(
        self, connection: sa.Connection, org_id: str, clock: Callable[[], int] = now_us
    ) -> None:
        self._connection = connection
        self.org_id = org_id
        self._now_us = clock

    @property
    def _is_postgres(self) -> bool:
        return self._connection.dialect.name == "postgresql"

    def _of_tenant(self, table: sa.Table) -> sa.ColumnElement[bool]:
        """For queries with more than equalities."""
        return table.c.org_id == self.org_id

    def _first(self, table: sa.Table, *, lock: bool = False, **equal: object) -> AnyRow | None:
        return statements.first(
            self._connection, table, {"org_id": self.org_id, **equal}, lock=lock
        )

    def _insert(self, table: sa.Table, values: dict[str, Any]) -> None:
        statements.insert(self._connection, table, {"org_id": self.org_id, **values})

    def _insert_new(self, table: sa.Table, values: dict[str, Any]) -> bool:
        return statements.insert_new(self._connection, table, {"org_id": self.org_id, **values})

    def _update(self, table: sa.Table, values: dict[str, Any], **equal: object) -> int:
        """The number of rows that were changed."""
        return statements.update(self._connection, table, values, {"org_id": self.org_id, **equal})

    def _delete(self, table: sa.Table, **equal: object) -> int:
        return statements.delete(self._connection, table, {"org_id": self.org_id, **equal})
