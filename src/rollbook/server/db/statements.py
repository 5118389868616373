"""The plain statements: select, insert, update and delete of rows whose columns equal given values."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from rollbook.server.db.rows import AnyRow
from rollbook.server.db.value_checks import is_storable

Values = Mapping[str, object]


def first(
    connection: sa.Connection, table: sa.Table, equal: Values, *, lock: bool = False
) -> AnyRow | None:
    """`lock`: nobody else changes the row until this transaction ends. SQLite has one writer anyway."""
    if not can_be_stored(equal):
        return None
    query = sa.select(table).where(*_conditions(table, equal))
    return connection.execute(query.with_for_update() if lock else query).first()


def insert(connection: sa.Connection, table: sa.Table, rows: dict[str, Any] | list[Any]) -> None:
    """All rows have the same columns."""
    if rows:
        connection.execute(sa.insert(table).inline(), rows)


def insert_new(connection: sa.Connection, table: sa.Table, row: dict[str, Any]) -> bool:
    """False where a row with the same key exists, or where another transaction is writing one."""
    statement = upsert(connection.dialect.name, table).on_conflict_do_nothing().inline()
    counted = statement.execution_options(preserve_rowcount=True)
    return bool(connection.execute(counted, row).rowcount == 1)


def update(connection: sa.Connection, table: sa.Table, values: Values, equal: Values) -> int:
    """The number of rows that were changed."""
    if not can_be_stored(equal):
        return 0
    return connection.execute(
        sa.update(table).where(*_conditions(table, equal)), dict(values)
    ).rowcount


def update_many(
    connection: sa.Connection, table: sa.Table, changes: Iterable[tuple[Values, Values]]
) -> None:
    """Each change is the new values and the key of its row. Changes of the same columns are sent together."""
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[dict[str, object]]] = {}
    for values, equal in changes:
        rows = alike.setdefault((tuple(values), tuple(equal)), [])
        rows.append({**values, **{f"is_{name}": value for name, value in equal.items()}})
    for (_, key), rows in alike.items():
        same = [table.c[name] == sa.bindparam(f"is_{name}") for name in key]
        connection.execute(sa.update(table).where(*same), rows)


def delete(connection: sa.Connection, table: sa.Table, equal: Values) -> int:
    """The number of rows that were deleted."""
    if not can_be_stored(equal):
        return 0
    return connection.execute(sa.delete(table).where(*_conditions(table, equal))).rowcount


def can_be_stored(equal: Values) -> bool:
    """A text that cannot be stored equals no stored text. The database would refuse it with an error."""
    return all(is_storable(value) for value in equal.values() if isinstance(value, str))


def upsert(dialect: str, table: sa.Table) -> Any:
    """An insert that can say what to do about a conflict. Each dialect of SQLAlchemy has its own."""
    return importlib.import_module(f"sqlalchemy.dialects.{dialect}").insert(table)


def _conditions(table: sa.Table, equal: Values) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == value for name, value in equal.items()]
