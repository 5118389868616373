"""QHRows: states of a collection by row, for batches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.row_numbers import Rows, row_numbers
from rollbook.store.batches import StateColumn, state_columns
from rollbook.store.listed_stores import ListedStores
from rollbook.store.row_parts import RowParts, put_rows
from rollbook.store.schema import TABLES

if TYPE_CHECKING:
    from rollbook.store.collection import RolloutCollection

Array = NDArray[Any]
_MOST_OPEN = 1024
"""Listed stores whose states stay mapped. All columns of one store take about 40 maps of the 65,530 of a process."""


class QHRows:
    """States of a collection by global row: columns of `q_h` and `returns`. Narrow states are padded to the widest."""

    def __init__(
        self,
        collection: RolloutCollection,
        columns: Sequence[str] | None = None,
        global_ids: bool = False,
    ) -> None:
        self._paths = state_columns(collection, columns)
        self.names = tuple(self._paths)
        self._collection = collection
        self._whole = columns is None
        listed = isinstance(collection.stores, ListedStores)
        self._opened = lru_cache(_MOST_OPEN if listed else None)(self._open)
        for index in () if listed else range(len(collection.stores)):
            self._opened(index)  # a lost file is reported now, not in the middle of training
        self._columns = {
            name: _Column(collection, path, global_ids) for name, path in self._paths.items()
        }
        self._alone = len(collection.stores) == 1
        self._states = collection.num_rows("q_h")

    def __len__(self) -> int:
        return self._states

    def _open(self, index: int) -> dict[str, StateColumn]:
        store = self._collection.stores[index]
        if self._whole:
            store.local("q_h")  # all columns together: faster than one by one for a remote store
        return {name: StateColumn(store, path) for name, path in self._paths.items()}

    def take(self, rows: ArrayLike) -> dict[str, Array]:
        """New arrays with these rows, in the order of `rows`, or with the rows that a mask selects."""
        return self.take_existing(row_numbers(rows, len(self), "q_h"))

    def take_existing(self, rows: Rows) -> dict[str, Array]:
        """`take` for row numbers that were checked, or that come from `epoch_order`."""
        if self._alone:  # its ids are the global ones, and nothing is padded
            return {name: source.take(rows) for name, source in self._opened(0).items()}
        parts = self._collection.scattered("q_h", rows)
        opened = [self._opened(index) for index, _, _ in parts.each]
        return {
            name: column.take(parts, [each[name] for each in opened])
            for name, column in self._columns.items()
        }

    def prefetch(self, rows: Rows) -> None:
        """Ask the system to read these rows ahead, without waiting for them."""
        for index, local, _ in self._collection.scattered("q_h", rows).each:
            assert not isinstance(local, slice)
            for source in self._opened(index).values():
                source.prefetch(local)


class _Column:
    """One column of the states of all stores."""

    def __init__(self, collection: RolloutCollection, path: str, global_ids: bool) -> None:
        table, _, name = path.partition("/")
        self._schema = TABLES[table].columns[name]
        self._row_shape = collection.row_shape(table, name)
        self._globalise = collection.global_values if global_ids else None

    def take(self, parts: RowParts, sources: Sequence[StateColumn]) -> Array:
        """`sources` has the column of the store of every part."""
        shape = (parts.rows, *self._row_shape)
        out: Array | None = None
        for (index, rows, places), source in zip(parts.each, sources, strict=True):
            assert not isinstance(rows, slice)
            values = source.take(rows)
            if self._globalise is not None:
                values = self._globalise(index, self._schema, values)
            if values.shape == shape:
                return values  # all rows are of one store, in order
            out = np.empty(shape, self._schema.numpy) if out is None else out
            put_rows(out, places, values, self._schema)
        return np.empty(shape, self._schema.numpy) if out is None else out
