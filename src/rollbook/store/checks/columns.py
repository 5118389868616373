"""StoreColumns: the columns of a store that is being validated. A column is exactly as declared, or not available.

A check gets arrays that it can rely on: of the declared type, row shape and length. If a column is not like that,
`NotUsable` ends this check and the other checks continue. The check of the columns reports what is wrong with it, once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError, RollbookError
from rollbook.store.schema import ROW_COUNTS, TABLES, Column, Table
from rollbook.store.stored_tables import StoredTables

Array = NDArray[Any]
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]

SIZES: Mapping[str, str] = {
    "A": "q_h_max_candidates",
    "N": "q_h_horizon",
    "H": "selected_depth_height_px",
    "W": "selected_depth_width_px",
    "P": "target_eval_crops_max_points",
}
"""Size that a store fixes → the root attribute that states it. Other sizes must be the same wherever they occur."""

ENABLED: Mapping[str, str] = {
    "selected_depth": "selected_depth_enabled",
    "target_eval_crops": "target_eval_crops_enabled",
}
"""Optional table → the root attribute that says whether the store has its payload."""


UNREADABLE = (
    *(RollbookError, OSError, ValueError, KeyError),
    *(TypeError, AttributeError, RecursionError),
)
"""Exceptions from reading JSON that is missing, damaged or of another form."""


class NotUsable(Exception):
    """A column or attribute that a check needs is missing or wrong. Only `validate` catches it."""


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why a column cannot be relied on."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array on disk: one column, or several columns of one type side by side."""

    table: str
    name: str
    dtype: str
    shape: tuple[int | str, ...]
    """Shape of one row."""
    columns: tuple[str, ...] = ()
    """The columns that share the array; empty if it is a single column."""
    optional: bool = False

    @property
    def path(self) -> str:
        return f"{self.table}/{self.name}"


def _stored_array(table: Table, column: Column) -> StoredArray:
    if column.packed is None:
        return StoredArray(
            table.name, column.name, column.numpy.name, column.shape, optional=column.optional
        )
    sharing = tuple(table.packed()[column.packed])
    return StoredArray(table.name, column.packed, column.numpy.name, (len(sharing),), sharing)


ARRAYS: Mapping[str, StoredArray] = {
    f"{table.name}/{name}": array
    for table in TABLES.values()
    for column in table.columns.values()
    for array in [_stored_array(table, column)]
    for name in (column.name, array.name)
}
"""The array of every column, by the path of the column and by the path of the array."""


def array_of(path: str) -> StoredArray:
    return ARRAYS[path]


@dataclass(frozen=True, slots=True)
class _Declared:
    """What the metadata of an array say. The array itself is not read."""

    dtype: str
    shape: tuple[int, ...]
    columns: tuple[str, ...]
    raw: bool


class Segments:
    """Rows that are grouped by owner, in order: the steps of every chain, the candidates of every step."""

    def __init__(self, counts: Array) -> None:
        self.counts: Rows = counts.astype(np.int64)
        self.ends: Rows = np.cumsum(self.counts)
        self.starts: Rows = self.ends - self.counts

    @cached_property
    def owner(self) -> Rows:
        """The owner of every row."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @cached_property
    def place(self) -> Rows:
        """The place of every row among the rows of its owner, from 0."""
        total = int(self.ends[-1]) if len(self.ends) else 0
        return np.arange(total) - np.repeat(self.starts, self.counts)

    def spread(self, values: Array) -> Array:
        """From one value per owner to one value per row."""
        return np.repeat(values, self.counts, axis=0)

    def sums(self, values: Array) -> NDArray[np.float64]:
        """Sums per owner. A NaN affects only its own owner."""
        sums = np.bincount(self.owner, weights=values, minlength=len(self.counts))
        return sums.astype(np.float64, copy=False)

    def counted(self, mask: Mask) -> Rows:
        """How many rows of each owner are true in the mask."""
        before = np.concatenate([[0], np.cumsum(mask)])
        counted: Rows = before[self.ends] - before[self.starts]
        return counted


class StoreColumns:
    """What the checks read."""

    def __init__(self, store: StoredTables, *, deep: bool = False) -> None:
        self.store = store
        self.attrs = store.attrs
        self.deep = deep
        self._flaws: dict[str, Flaw | None] = {}
        self._sizes: dict[str, int] = {}

    # ------------------------------------------------------------------------------------ columns

    def __getitem__(self, path: str) -> Array:
        """The whole column, read-only."""
        flaw = self.flaw(path) or self._opening_flaw(path)
        if flaw is not None:
            raise NotUsable(f"{path}: {flaw.message}")
        return self.store.array(path)

    def has(self, path: str) -> bool:
        return self.store.has(path)

    def rows(self, table: str) -> int | None:
        """How many rows a table must have according to the root attributes; None if they do not say."""
        count = self.attrs.get(ROW_COUNTS[table])
        return count if type(count) is int and count >= 0 else None

    def size(self, name: str) -> int:
        """A size that the root attributes state."""
        size = self.attrs.get(SIZES[name])
        if type(size) is not int:
            raise NotUsable(f"the root attribute {SIZES[name]} is {size!r}")
        return size

    def enabled(self, table: str) -> bool:
        """Whether the store has the payload of a table. Only optional tables can lack it."""
        return table not in ENABLED or self.attrs.get(ENABLED[table]) is True

    def flaw(self, path: str) -> Flaw | None:
        """What is wrong with a column. A compressed column is not read for this."""
        array = array_of(path)
        if array.path not in self._flaws:
            self._flaws[array.path] = self._find_flaw(array)
        return self._flaws[array.path]

    def _find_flaw(self, array: StoredArray) -> Flaw | None:
        try:
            declared = self._declared(array)
        except FileNotFoundError:
            return Flaw("missing_column", f"there is no {array.name}; write the store again")
        except UNREADABLE as error:
            return Flaw("unreadable_column", f"{array.name}/zarr.json cannot be read: {error}")
        flaw = self._declared_flaw(declared, array)
        # mapping a raw array shows whether its files are complete; a compressed one is read only when it is used
        return self._opening_flaw(array.path) if flaw is None and declared.raw else flaw

    def _declared(self, array: StoredArray) -> _Declared:
        metadata = json.loads((self.store.store_dir / array.path / "zarr.json").read_bytes())
        return _Declared(
            str(metadata["data_type"]),
            tuple(int(size) for size in metadata["shape"]),
            tuple(metadata.get("attributes", {}).get("columns", ())),
            [codec["name"] for codec in metadata["codecs"]] == ["bytes"],
        )

    def _declared_flaw(self, declared: _Declared, array: StoredArray) -> Flaw | None:
        if declared.dtype != array.dtype:
            return Flaw(
                "wrong_dtype", f"{array.name} holds {declared.dtype}, expected {array.dtype}"
            )
        expected = self._row_shape(array, declared.shape[1:])
        if declared.shape[1:] != expected:
            return Flaw(
                "wrong_row_shape",
                f"a row of {array.name} has shape {declared.shape[1:]}, expected {expected}",
            )
        if declared.columns != array.columns:
            return Flaw("wrong_row_shape", f"{array.name} does not hold {', '.join(array.columns)}")
        rows = self.rows(array.table)
        if rows is None or declared.shape[:1] != (rows,):
            return Flaw(
                "wrong_row_count",
                f"{array.name} is of shape {declared.shape}, the root attribute "
                f"{ROW_COUNTS[array.table]} says {self.attrs.get(ROW_COUNTS[array.table])}",
            )
        return None

    def _row_shape(self, array: StoredArray, found: tuple[int, ...]) -> tuple[int, ...]:
        """The expected shape of a row. A size that no attribute states is taken from the first column that has it."""
        if len(found) != len(array.shape):
            found = (0,) * len(array.shape)
        return tuple(
            size if isinstance(size, int) else self._size(size, actual)
            for size, actual in zip(array.shape, found, strict=True)
        )

    def _size(self, name: str, actual: int) -> int:
        named = self.attrs.get(SIZES.get(name, ""))
        return named if type(named) is int else self._sizes.setdefault(name, actual)

    def _opening_flaw(self, path: str) -> Flaw | None:
        try:
            self.store.array(path)
        except ConfigurationError:
            raise  # a missing library says nothing about the store
        except Exception as error:  # noqa: BLE001 - damaged bytes make a codec raise anything
            self._flaws[array_of(path).path] = flaw = Flaw(
                "unreadable_column", (str(error) or type(error).__name__).splitlines()[0]
            )
            return flaw
        return None

    # ---------------------------------------------------------------------------- words and groups

    def words(self, dictionary: str) -> tuple[str, ...]:
        try:
            words = self.store.words(dictionary)
            if not all(isinstance(word, str) for word in words):
                raise TypeError("its words are not all text")
            return words
        except UNREADABLE as error:
            raise NotUsable(f"the dictionary {dictionary} cannot be read: {error}") from error

    def group_attrs(self, table: str) -> Mapping[str, Any]:
        try:
            metadata = json.loads((self.store.store_dir / table / "zarr.json").read_bytes())
            attributes = metadata["attributes"]
        except UNREADABLE as error:
            raise NotUsable(f"the attributes of {table} cannot be read: {error}") from error
        if not isinstance(attributes, dict):
            raise NotUsable(f"the attributes of {table} are not a JSON object")
        return attributes

    # ------------------------------------------------------------------------------- rows by owner

    @cached_property
    def chains(self) -> Segments:
        """Steps by rollout."""
        return self._segments("rollouts/num_steps", "steps")

    @cached_property
    def shells(self) -> Segments:
        """Candidates by step."""
        return self._segments("steps/num_candidates", "candidates")

    def _segments(self, path: str, of: str) -> Segments:
        counts = self[path]
        if (counts < 0).any() or int(counts.sum(dtype=np.int64)) != self.rows(of):
            raise NotUsable(f"{path} does not add up to the rows of {of}")
        return Segments(counts)

    @cached_property
    def taken(self) -> Rows:
        """The selected candidate of every step, according to the mask."""
        rows = np.flatnonzero(self["candidates/selected_mask"])
        steps = self.rows("steps")
        if len(rows) != steps or (self.shells.owner[rows] != np.arange(steps)).any():
            raise NotUsable("candidates/selected_mask does not mark one candidate per step")
        return rows

    @cached_property
    def target_rows(self) -> tuple[Rows, Mask]:
        """The target row of every rollout, and whether that row exists."""
        rows = self["rollouts/target_row_id"]
        there = (rows >= 0) & (rows < (self.rows("targets") or 0))
        return np.where(there, rows, 0), there

    def of_target(self, column: str) -> Array:
        """A column of targets, for every rollout."""
        rows, there = self.target_rows
        if not there.all():
            raise NotUsable("rollouts/target_row_id names rows that targets does not have")
        return self[f"targets/{column}"][rows]

    @cached_property
    def source_rows(self) -> Rows:
        """The row of every rollout in the table sources."""
        ids = self["sources/source_row_id"]
        wanted = self["rollouts/source_row_id"]
        order = np.argsort(ids, kind="stable")
        at = np.searchsorted(ids[order], wanted)
        found = np.take(order, at, mode="clip") if len(order) else np.zeros(0, np.int64)
        if len(found) != len(wanted) or (ids[found] != wanted).any():
            raise NotUsable("rollouts/source_row_id names rows that sources does not have")
        return found
