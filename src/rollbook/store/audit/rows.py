"""From columns to what a person reads: row spans, named codes, plain dict rows, groups and their means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import InvalidNumber
from rollbook.store.stored_tables import StoredTables

Array = NDArray[Any]
Rows = slice | Array
Row = dict[str, Any]

_WIDEST_COUNT = 4_000_000
"""Counting beats sorting while the ids of a column lie in a range about as wide as a column is long."""


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """Codes, and what one of them is called. A code is named once, however many rows have it."""

    codes: Array
    name: Callable[[int], str | int | None]

    def __len__(self) -> int:
        return len(self.codes)

    def tolist(self) -> list[str | int | None]:
        names = {code: self.name(code) for code in np.unique(self.codes).tolist()}
        return [names[code] for code in self.codes.tolist()]


Values = Array | Coded


def word_of(words: Sequence[str]) -> Callable[[int], str | None]:
    """Names codes by their place in a dictionary; None where there is no word."""
    return lambda code: words[code] if 0 <= code < len(words) else None


def whole(numbers: Array) -> Coded:
    """Whole numbers that are None where they are negative: not known, or not limited."""
    return Coded(numbers, lambda number: number if number >= 0 else None)


# ------------------------------------------------------------------------------------ row spans


def step_span(reader: StoredTables, rollout_row_id: int | None, step_row_id: int | None) -> slice:
    """The steps of one rollout, one step, or all. No row has an id that the store does not know: the span is empty."""
    first, last = 0, reader.num_steps
    if rollout_row_id is not None:
        first, last = _steps_of_rollout(reader, rollout_row_id)
    if step_row_id is not None:
        inside = first <= step_row_id < last
        first, last = (step_row_id, step_row_id + 1) if inside else (0, 0)
    return slice(first, last)


def _steps_of_rollout(reader: StoredTables, rollout_row_id: int) -> tuple[int, int]:
    if not 0 <= rollout_row_id < reader.num_rollouts:
        return 0, 0
    first = int(reader.array("rollouts/step_offset")[rollout_row_id])
    return first, first + int(reader.array("rollouts/num_steps")[rollout_row_id])


def candidate_span(reader: StoredTables, steps: slice) -> slice:
    """The candidates of neighbouring steps."""
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
    """`values[ids]`, with `fill` where an id names no row: audits are read when a store is in doubt."""
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
    """Python scalars; None for what is not finite."""
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
    """Which group each row is in, and the key of every group, in order of the keys; None comes last."""

    of_row: NDArray[np.intp]
    keys: tuple[Any, ...]

    def counts(self, where: Array | None = None) -> list[int]:
        rows = self.of_row if where is None else self.of_row[where]
        counts: list[int] = np.bincount(rows, minlength=len(self.keys)).tolist()
        return counts

    def means(self, values: Array) -> list[float | None]:
        """Over what is finite; None for a group without any."""
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
        # all that is not finite is one group: nothing is known of it
        values = np.where(np.isfinite(values), values, np.nan)
    codes, present = _distinct(values)
    return Groups(codes, tuple(plain(present)))


def joint_groups(columns: Sequence[Values]) -> Groups:
    """Groups of rows that agree in every column; keys are tuples."""
    parts = [groups_of(each) for each in columns]
    joint, _ = _distinct(parts[0].of_row)
    for part in parts[1:]:
        # made dense again after every column, so that the product of many small ranges cannot overflow
        joint, _ = _distinct(joint * len(part.keys) + part.of_row)
    keys = [tuple(part.keys[part.of_row[row]] for part in parts) for row in _row_of_each(joint)]
    return _in_order(joint, keys)


def _row_of_each(dense: NDArray[np.intp]) -> list[int]:
    """Some row of every group; any will do, as all of a group agree."""
    some = np.zeros(int(dense.max()) + 1 if len(dense) else 0, np.intp)
    some[dense] = np.arange(len(dense))
    return some.tolist()


def _distinct(values: Array) -> tuple[NDArray[np.intp], Array]:
    """The place of each value among the distinct ones, and those, sorted. Counts where it can, sorts where it must."""
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
    """Sorted by key; codes that share a name become one group."""
    ordered = sorted(set(keys), key=_none_last)
    place = {key: at for at, key in enumerate(ordered)}
    moved = np.array([place[key] for key in keys], np.intp)
    return Groups(moved[codes] if len(keys) else codes, tuple(ordered))


def _none_last(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(_none_last(each) for each in key)
    return (key is None, key if key is not None else 0)
