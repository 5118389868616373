"""Whether an API key still counts, asked in the transaction that works on its behalf."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from rollbook.server.db import statements, tables
from rollbook.server.db.rows import AnyRow


def ask_key(connection: sa.Connection, key_id: str, refuse: Callable[[], None]) -> None:
    """`refuse` is called before anything that this transaction asks later has a result, and raises."""

    def answered(key: AnyRow | None) -> None:
        if key is None or key.revoked_at_us is not None:
            refuse()

    statements.ask(connection, tables.api_keys, {"key_id": key_id}, answered)
