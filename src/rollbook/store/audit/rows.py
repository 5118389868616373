"""Helpers for audit rows: ranges of rows, codes with names, rows as dicts, groups and their means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import InvalidNumber
from rollbook.store.views.store_view import StoreView

Array = NDArray[Any]
Rows = slice | Array
Row = dict[str, Any]

_WIDEST_COUNT = 4_000_000
"""Up to this range of values, counting is faster than sorting."""


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """Codes and the function that names them. It is called once per distinct code."""

    codes: Array
    name: Callable[[int], str | int | None]

    def __len__(self) -> int:
        return len(self.codes)

    def tolist(self) -> list[str | int | None]:
        names = {code: self.name(code) for code in np.unique(self.codes).tolist()}
        return [names[code] for code in self.codes.tolist()]


Values = Array | Coded


def word_of(words: Sequence[str]) -> Callable[[int], str | None]:
    """A function from a code to its word in a dictionary; None if there is no word."""
    return lambda code: words[code] if 0 <= code < len(words) else None


def whole(numbers: Array) -> Coded:
    """Whole numbers; negative ones, which mean "unknown" or "no limit", become None."""
    return Coded(numbers, lambda number: number if number >= 0 else None)


# ------------------------------------------------------------------------------------ row spans


def step_span(reader: StoreView, rollout_row_id: int | None, step_row_id: int | None) -> slice:
    """The range of steps of one rollout, of one step, or all. It is empty for an id that does not exist."""
    first, last = 0, reader.num_steps
    if rollout_row_id is not None:
        first, last = _steps_of_rollout(reader, rollout_row_id)
    if step_row_id is not None:
        inside = first <= step_row_id < last
        first, last = (step_row_id, step_row_id + 1) if inside else (0, 0)
    return slice(first, last)


def _steps_of_rollout(reader: StoreView, rollout_row_id: int) -> tuple[int, int]:
    if not 0 <= rollout_row_id < reader.num_rollouts:
        return 0, 0
    first = int(reader.array("rollouts/step_offset")[rollout_row_id])
    return first, first + int(reader.array("rollouts/num_steps")[rollout_row_id])


def columns_of(
    reader: StoreView, table: str, names: Sequence[str], rows: slice | Array = slice(None)
) -> dict[str, Array]:
    return {name: reader.array(f"{table}/{name}")[rows] for name in names}


def candidate_span(reader: StoreView, steps: slice) -> slice:
    """The range of candidates of neighbouring steps."""
    if steps.start == 0 and steps.stop == reader.num_steps:
        return slice(0, reader.num_candidates)
    if steps.stop <= steps.start:
        return slice(0, 0)
    offsets = reader.array("steps/candidate_offset")
    last = steps.stop - 1
    return slice(
        int(offsets[steps.start]),
        int(offsets[last]) + int(reader.array("steps/num_candidates")[last]),
    )


def limited(span: slice, limit: int | None) -> slice:
    if limit is None:
        return span
    if limit < 0:
        raise InvalidNumber(
            record="audit rows", field="limit", value=str(limit), expected="0 or more, or none"
        )
    return slice(span.start, min(span.stop, span.start + limit))


def gather(values: Array, ids: Array, fill: bool | int | float) -> Array:
    """`values[ids]`, with `fill` where an id names no row. Audits must work on damaged stores too."""
    if not len(ids):
        return values[:0]
    if ids.min() >= 0 and ids.max() < len(values):
        return values[ids]
    there = (ids >= 0) & (ids < len(values))
    found = np.full((len(ids), *values.shape[1:]), fill, values.dtype)
    found[there] = values[ids[there]]
    return found


# ------------------------------------------------------------------------------------ dict rows


def plain(values: Values) -> list[Any]:
    """Values as Python scalars; None for numbers that are not finite."""
    listed: list[Any] = values.tolist()
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        for row in np.flatnonzero(~np.isfinite(values)).tolist():
            listed[row] = None
    return listed


def dict_rows(columns: Mapping[str, Values | list[Any]]) -> list[Row]:
    names = tuple(columns)
    lists = [each if isinstance(each, list) else plain(each) for each in columns.values()]
    return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]


# --------------------------------------------------------------------------------------- groups


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The group of each row, and the key of every group. Groups are sorted by key; None comes last."""

    of_row: NDArray[np.intp]
    keys: tuple[Any, ...]

    def counts(self, where: Array | None = None) -> list[int]:
        rows = self.of_row if where is None else self.of_row[where]
        counts: list[int] = np.bincount(rows, minlength=len(self.keys)).tolist()
        return counts

    def means(self, values: Array) -> list[float | None]:
        """Means over the finite values; None for a group without any."""
        finite = np.isfinite(values)
        rows = self.of_row[finite]
        size = len(self.keys)
        counts = np.bincount(rows, minlength=size)
        sums = np.bincount(rows, weights=values[finite], minlength=size)
        return plain(np.divide(sums, counts, out=np.full(size, np.nan), where=counts > 0))


def groups_of(values: Values) -> Groups:
    if isinstance(values, Coded):
        codes, present = _distinct(values.codes)
        return _in_order(codes, [values.name(code) for code in present.tolist()])
    if values.dtype.kind == "f":
        # all values that are not finite form one group
        values = np.where(np.isfinite(values), values, np.nan)
    codes, present = _distinct(values)
    return Groups(codes, tuple(plain(present)))


def joint_groups(columns: Sequence[Values]) -> Groups:
    """Groups of rows with equal values in every column. Keys are tuples."""
    parts = [groups_of(each) for each in columns]
    joint, _ = _distinct(parts[0].of_row)
    for part in parts[1:]:
        # renumbered after every column, so that the product of many small ranges cannot overflow
        joint, _ = _distinct(joint * len(part.keys) + part.of_row)
    keys = [tuple(part.keys[part.of_row[row]] for part in parts) for row in _row_of_each(joint)]
    return _in_order(joint, keys)


def _row_of_each(dense: NDArray[np.intp]) -> list[int]:
    """One row of every group; any row will do."""
    some = np.zeros(int(dense.max()) + 1 if len(dense) else 0, np.intp)
    some[dense] = np.arange(len(dense))
    return some.tolist()


def _distinct(values: Array) -> tuple[NDArray[np.intp], Array]:
    """The index of each value among the distinct values, and the distinct values, sorted."""
    if values.dtype.kind == "b":
        codes, present = _distinct(values.view(np.uint8))
        return codes, present.astype(bool)
    if values.dtype.kind in "iu" and len(values):
        low, high = int(values.min()), int(values.max())
        if high - low < _WIDEST_COUNT:
            return _distinct_by_counting(values, low, high)
    present, codes = np.unique(values, return_inverse=True)
    return codes, present


def _distinct_by_counting(values: Array, low: int, high: int) -> tuple[NDArray[np.intp], Array]:
    shifted = values.astype(np.intp) - low
    there = np.zeros(high - low + 1, bool)
    there[shifted] = True
    present = np.flatnonzero(there)
    places = np.cumsum(there) - 1
    return places[shifted], (present + low).astype(values.dtype)


def _in_order(codes: NDArray[np.intp], keys: Sequence[Any]) -> Groups:
    """Groups sorted by key. Codes with the same name become one group."""
    ordered = sorted(set(keys), key=_none_last)
    place = {key: at for at, key in enumerate(ordered)}
    moved = np.array([place[key] for key in keys], np.intp)
    return Groups(moved[codes] if len(keys) else codes, tuple(ordered))


def _none_last(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(_none_last(each) for each in key)
    return (key is None, key if key is not None else 0)
