"""Making instances of row classes from the rows of a query. The classes are beside their tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import sqlalchemy as sa

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")
AnyRow: TypeAlias = "sa.Row[*tuple[Any, ...]]"


def row_as(cls: type[R], row: AnyRow, **more: object) -> R:
    """An instance of `cls` from the columns it names. `more` holds fields that are not in the row."""
    found = row._mapping
    return cls(**{name: found[name] for name in _names_of(cls) if name not in more}, **more)


def rows_as(
    cls: type[R], rows: Sequence[AnyRow], more: Callable[[AnyRow], dict[str, Any]]
) -> list[R]:
    """The same for all rows of one query: the positions of the columns are looked up once."""
    if not rows:
        return []
    names = [name for name in _names_of(cls) if name not in more(rows[0])]
    picked = itemgetter(*map(rows[0]._fields.index, names))
    return [cls(**dict(zip(names, picked(row), strict=True)), **more(row)) for row in rows]


_columns: dict[type, tuple[str, ...]] = {}
"""The field names of each row class, looked up once."""


def _names_of(cls: type[R]) -> tuple[str, ...]:
    names = _columns.get(cls)
    if names is None:
        names = _columns[cls] = tuple(each.name for each in fields(cls))
    return names
