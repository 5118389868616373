"""QHRows: states of a collection by row, for batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.row_numbers import Rows, row_numbers
from rollbook.store.batches import StateColumn, state_columns
from rollbook.store.row_parts import RowParts, put_rows
from rollbook.store.schema import TABLES

if TYPE_CHECKING:
    from rollbook.store.collection import RolloutCollection

Array = NDArray[Any]


class QHRows:
    """States of a collection by global row: columns of `q_h` and `returns`. Narrow states are padded to the widest."""

    def __init__(
        self,
        collection: RolloutCollection,
        columns: Sequence[str] | None = None,
        global_ids: bool = False,
    ) -> None:
        paths = state_columns(collection, columns)
        self.names = tuple(paths)
        self._collection = collection
        for store in collection.stores if columns is None else ():
            store.local("q_h")  # all columns together: faster than one by one for a remote store
        self._columns = {
            name: _Column(collection, path, global_ids) for name, path in paths.items()
        }
        self._alone = len(collection.stores) == 1
        self._states = collection.num_rows("q_h")

    def __len__(self) -> int:
        return self._states

    def take(self, rows: ArrayLike) -> dict[str, Array]:
        """New arrays with these rows, in the order of `rows`, or with the rows that a mask selects."""
        return self.take_existing(row_numbers(rows, len(self), "q_h"))

    def take_existing(self, rows: Rows) -> dict[str, Array]:
        """`take` for row numbers that were checked, or that come from `epoch_order`."""
        if self._alone:  # its ids are the global ones, and nothing is padded
            return {name: column.sources[0].take(rows) for name, column in self._columns.items()}
        parts = self._collection.scattered("q_h", rows)
        return {name: column.take(parts) for name, column in self._columns.items()}

    def prefetch(self, rows: Rows) -> None:
        """Ask the system to read these rows ahead, without waiting for them."""
        for index, local, _ in self._collection.scattered("q_h", rows).each:
            assert not isinstance(local, slice)
            for column in self._columns.values():
                column.sources[index].prefetch(local)


class _Column:
    """One column of the states of all stores."""

    def __init__(self, collection: RolloutCollection, path: str, global_ids: bool) -> None:
        table, _, name = path.partition("/")
        self.sources = [StateColumn(store, path) for store in collection.stores]
        self._schema = TABLES[table].columns[name]
        self._row_shape = collection.row_shape(table, name)
        self._globalise = collection.global_values if global_ids else None

    def take(self, parts: RowParts) -> Array:
        shape = (parts.rows, *self._row_shape)
        out: Array | None = None
        for index, rows, places in parts.each:
            assert not isinstance(rows, slice)
            values = self.sources[index].take(rows)
            if self._globalise is not None:
                values = self._globalise(index, self._schema, values)
            if values.shape == shape:
                return values  # all rows are of one store, in order
            out = np.empty(shape, self._schema.numpy) if out is None else out
            put_rows(out, places, values, self._schema)
        return np.empty(shape, self._schema.numpy) if out is None else out
