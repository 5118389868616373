"""Columns: many samples as the minimum and maximum of each column of a picture. Pure numbers.

A picture has about a thousand columns and a recording a million samples. A line through the minimum and maximum of each
column looks the same as a line through every sample, and it never hides a peak.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def column_starts(
    seconds: NDArray[np.float64], begin: float, end: float, columns: int
) -> NDArray[np.int64]:
    """The row at which each column begins, and where the last one ends. A sample at `end` is in the last column."""
    edges = np.linspace(begin, end, columns + 1)
    starts = np.searchsorted(seconds, edges, "left")
    starts[-1] = np.searchsorted(seconds, end, "right")
    return starts.astype(np.int64)


class ColumnBounds:
    """Takes samples piece by piece. A column without a sample, or with nothing but NaN, is NaN."""

    def __init__(self, starts: NDArray[np.int64], channels: int) -> None:
        self._starts = starts
        shape = (channels, len(starts) - 1)
        self.low = np.full(shape, np.nan, np.float32)
        self.high = np.full(shape, np.nan, np.float32)

    def add(self, first_row: int, samples: NDArray[np.float32]) -> None:
        """`samples` is [channel, row]; its first row has the number `first_row` in the recording."""
        edges = np.clip(self._starts, first_row, first_row + samples.shape[1]) - first_row
        filled = np.flatnonzero(edges[1:] > edges[:-1])
        if not filled.size:
            return
        # between the first and the last filled column every row belongs to a filled one, as reduceat needs it
        begins, inside = edges[filled], samples[:, : edges[-1]]
        for bounds, smaller in ((self.low, np.fmin), (self.high, np.fmax)):
            bounds[:, filled] = smaller(bounds[:, filled], smaller.reduceat(inside, begins, axis=1))

    def pairs(self) -> NDArray[np.float32]:
        """[channel, column, 2]."""
        return np.stack((self.low, self.high), axis=2)


def as_samples(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Rows of an array as [channel, row]. What does not fit a 32-bit float becomes infinite."""
    with np.errstate(over="ignore"):
        flat = rows.reshape(len(rows), -1).astype(np.float32)
    return np.ascontiguousarray(flat.T)
