"""The base of all queries of a tenant: a connection, a tenant, and conditions that always name the tenant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from rollbook.server.db import statements, tables
from rollbook.server.db.columns import now_us
from rollbook.server.db.rows import AnyRow


class TenantScope:
    """Reaches the rows of `org_id` and no others."""

    def __init__(
        self,
        connection: sa.Connection,
        org_id: str,
        clock: Callable[[], int] = now_us,
        recorded_by: str | None = None,
    ) -> None:
        """`recorded_by`: only episodes that this caller recorded exist; every other id of an episode is unknown."""
        self._connection = connection
        self.org_id = org_id
        self._now_us = clock
        self._recorded_by = recorded_by

    @property
    def _is_postgres(self) -> bool:
        return self._connection.dialect.name == "postgresql"

    def _of_tenant(self, table: sa.Table) -> sa.ColumnElement[bool]:
        """For queries with more than equalities."""
        whose = self._whose(table)
        return sa.and_(*(table.c[name] == value for name, value in whose.items()))

    def _whose(self, table: sa.Table) -> dict[str, object]:
        if self._recorded_by is None or table is not tables.episodes:
            return {"org_id": self.org_id}
        return {"org_id": self.org_id, "created_by": self._recorded_by}

    def _first(self, table: sa.Table, *, lock: bool = False, **equal: object) -> AnyRow | None:
        return statements.first(self._connection, table, {**self._whose(table), **equal}, lock=lock)

    def _insert(self, table: sa.Table, values: dict[str, Any]) -> None:
        statements.insert(self._connection, table, {"org_id": self.org_id, **values})

    def _insert_new(self, table: sa.Table, values: dict[str, Any]) -> bool:
        return statements.insert_new(self._connection, table, {"org_id": self.org_id, **values})

    def _update(self, table: sa.Table, values: dict[str, Any], **equal: object) -> int:
        """The number of rows that were changed."""
        return statements.update(self._connection, table, values, {**self._whose(table), **equal})

    def _delete(self, table: sa.Table, **equal: object) -> int:
        return statements.delete(self._connection, table, {**self._whose(table), **equal})
