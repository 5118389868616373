"""RowParts: rows of several stores that become one array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.row_numbers import Rows
from rollbook.store.schema import Column

Array = NDArray[Any]


class RowParts:
    """Which rows of which store go to which places of the result."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.each: list[tuple[int, slice | Rows, slice | Rows]] = []

    def add(self, store: int, rows: slice | Rows, places: slice | Rows) -> None:
        self.each.append((store, rows, places))


def put_rows(out: Array, places: slice | Rows, values: Array, column: Column) -> None:
    """Write rows into an array whose rows may be wider."""
    if values.shape[1:] == out.shape[1:]:
        out[places] = values
        return
    padding = [(0, 0)] + [
        (0, wide - size) for wide, size in zip(out.shape[1:], values.shape[1:], strict=True)
    ]
    if column.shape == ("N",) and values.shape[1]:
        # chains end within the horizon of their store, so longer sums equal the longest one
        out[places] = np.pad(values, padding, mode="edge")
    else:
        out[places] = np.pad(values, padding, constant_values=np.array(column.fill, column.numpy))
