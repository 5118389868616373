"""The plain statements, each built once: putting one together costs several times what SQLite takes to run it.

Conditions are equalities. Their parameters are called `is_<column>`, apart from those of the values that are written.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from rollbook.server.db.prepared import Prepared
from rollbook.server.db.rows import AnyRow
from rollbook.server.db.value_checks import is_storable

Names = tuple[str, ...]
_KEPT = 1024
"""Of each kind: what is changed together differs from call to call."""


def first(
    connection: sa.Connection, table: sa.Table, equal: Mapping[str, object], *, lock: bool = False
) -> AnyRow | None:
    """`lock`: nobody else changes the row until this transaction ends. SQLite has one writer anyway."""
    if not can_be_stored(equal):
        return None
    return _select(table, *_names(equal), lock).first(connection, _parameters(equal))


def ask(
    connection: sa.Connection,
    table: sa.Table,
    equal: Mapping[str, object],
    then: Callable[[AnyRow | None], None],
) -> None:
    """As `Prepared.ask` does."""
    if not can_be_stored(equal):
        then(None)
        return
    _select(table, *_names(equal), False).ask(connection, _parameters(equal), then)


def insert(connection: sa.Connection, table: sa.Table, rows: dict[str, Any] | list[Any]) -> None:
    """All rows with the same columns."""
    if isinstance(rows, dict):
        _insert(table, tuple(rows)).run(connection, rows)
    elif rows:
        _insert(table, tuple(rows[0])).run_many(connection, rows)


def insert_new(connection: sa.Connection, table: sa.Table, row: dict[str, Any]) -> bool:
    """False where a row with the same key stands already, also one that someone else is just writing."""
    return _insert_new(table, connection.dialect.name, tuple(row)).run(connection, row) == 1


def update(
    connection: sa.Connection,
    table: sa.Table,
    values: Mapping[str, object],
    equal: Mapping[str, object],
) -> int:
    """How many rows were changed."""
    if not can_be_stored(equal):
        return 0
    statement = _update(table, tuple(values), *_names(equal))
    return statement.run(connection, {**values, **_parameters(equal)})


def update_many(
    connection: sa.Connection,
    table: sa.Table,
    changes: Iterable[tuple[Mapping[str, object], Mapping[str, object]]],
) -> None:
    """Values and the row they are for, whose key has no column without a value. Those of the same columns go
    together."""
    alike: dict[tuple[Names, Names], list[dict[str, object]]] = {}
    for values, equal in changes:
        rows = alike.setdefault((tuple(values), tuple(equal)), [])
        rows.append({**values, **_parameters(equal)})
    for (columns, given), rows in alike.items():
        _update(table, columns, given, ()).run_many(connection, rows)


def delete(connection: sa.Connection, table: sa.Table, equal: Mapping[str, object]) -> int:
    if not can_be_stored(equal):
        return 0
    return _delete(table, *_names(equal)).run(connection, _parameters(equal))


def can_be_stored(equal: Mapping[str, object]) -> bool:
    """A text that cannot be stored is equal to nothing, rather than an error of the database."""
    return all(is_storable(value) for value in equal.values() if isinstance(value, str))


def upsert(dialect: str, table: sa.Table) -> Any:
    """An insert that may say what to do about a conflict, which each database spells in its own dialect."""
    return importlib.import_module(f"sqlalchemy.dialects.{dialect}").insert(table)


# ---------------------------------------------------------------------------------------- built once


@lru_cache(_KEPT)
def _select(table: sa.Table, given: Names, missing: Names, lock: bool) -> Prepared:
    query = sa.select(table).where(*_conditions(table, given, missing))
    return Prepared(query.with_for_update() if lock else query)


@lru_cache(_KEPT)
def _insert(table: sa.Table, columns: Names) -> Prepared:
    return Prepared(sa.insert(table).values(_bound(table, columns)).inline())


@lru_cache(_KEPT)
def _insert_new(table: sa.Table, dialect: str, columns: Names) -> Prepared:
    statement = upsert(dialect, table).values(_bound(table, columns)).on_conflict_do_nothing()
    return Prepared(statement.inline())


@lru_cache(_KEPT)
def _update(table: sa.Table, columns: Names, given: Names, missing: Names) -> Prepared:
    statement = sa.update(table).where(*_conditions(table, given, missing))
    return Prepared(statement.values(_bound(table, columns)))


@lru_cache(_KEPT)
def _delete(table: sa.Table, given: Names, missing: Names) -> Prepared:
    return Prepared(sa.delete(table).where(*_conditions(table, given, missing)))


def _bound(table: sa.Table, columns: Names) -> dict[str, sa.BindParameter[Any]]:
    return {name: sa.bindparam(name, type_=table.c[name].type) for name in columns}


def _conditions(table: sa.Table, given: Names, missing: Names) -> list[sa.ColumnElement[bool]]:
    equal = [
        table.c[name] == sa.bindparam(f"is_{name}", type_=table.c[name].type) for name in given
    ]
    return [*equal, *(table.c[name].is_(None) for name in missing)]


def _names(equal: Mapping[str, object]) -> tuple[Names, Names]:
    """Of the columns that have a value, and of those that must have none."""
    given = tuple(name for name, value in equal.items() if value is not None)
    return given, tuple(name for name, value in equal.items() if value is None)


def _parameters(equal: Mapping[str, object]) -> dict[str, object]:
    return {f"is_{name}": value for name, value in equal.items() if value is not None}
