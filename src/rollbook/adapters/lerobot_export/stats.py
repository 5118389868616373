"""ColumnStats: minimum, maximum, mean and standard deviation of a column, block by block, and of sampled pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.client.video import Picture

_FEWEST_PICTURES, _MOST_PICTURES = 100, 10_000
_SMALL_PICTURE, _PICTURE_SIDE = 300, 150


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """All lengths but the last are added up, as LeRobot does."""

    rows: int
    """Frames, or pictures."""
    values: int
    """Numbers for each entry of the last length."""
    least: NDArray[Any]
    most: NDArray[Any]
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]
    """Sum of the squares of the distances from the mean."""

    @classmethod
    def of_block(cls, block: NDArray[Any]) -> ColumnStats:
        """Of at least one row."""
        flat = block.reshape(-1, 1) if block.ndim == 1 else block.reshape(-1, block.shape[-1])
        entries = np.ascontiguousarray(
            flat.T
        )  # NumPy adds up numbers that lie side by side five times faster
        # infinite values have no standard deviation: NaN says so, and NumPy need not warn
        with np.errstate(invalid="ignore", over="ignore"):
            numbers = entries.astype(np.float64)
            mean = numbers.mean(axis=1)
            numbers -= mean[:, None]
            squares = np.einsum("ij,ij->i", numbers, numbers)
        least, most = entries.min(axis=1), entries.max(axis=1)
        return cls(len(block), len(flat), least, most, mean, squares)

    @classmethod
    def of_picture(cls, shown: Picture) -> ColumnStats:
        """From sums of whole numbers. (LeRobot 0.4.4 squares numbers of 8 bits, so its deviations are wrong.)"""
        flat = _smaller(shown).reshape(-1, 3)
        numbers = flat.astype(np.int64)
        mean = numbers.sum(axis=0) / len(flat)
        squares = (numbers * numbers).sum(axis=0) - len(flat) * mean * mean
        return cls(1, len(flat), flat.min(axis=0), flat.max(axis=0), mean, squares)

    @classmethod
    def of_counting(cls, count: int, first: int = 0, step: float = 1) -> ColumnStats:
        """Of `count` numbers from `first` on, each `step` more than the one before."""
        last = first + (count - 1) * step
        least, most = np.array([first], type(last)), np.array([last])
        mean = np.array([(first + last) / 2])
        squares = np.array([step * step * count * (count * count - 1) / 12])
        return cls(count, count, least, most, mean, squares)

    def joined(self, other: ColumnStats | None) -> ColumnStats:
        """Means and squares of two parts give those of the whole (Chan, Golub and LeVeque, 1979)."""
        if other is None:
            return self
        both = self.values + other.values
        with np.errstate(invalid="ignore", over="ignore"):
            away = other.mean - self.mean
            mean = self.mean + away * (other.values / both)
            between = away * away * (self.values * other.values / both)
            squares = self.squares + other.squares + between
        least, most = np.minimum(self.least, other.least), np.maximum(self.most, other.most)
        return ColumnStats(self.rows + other.rows, both, least, most, mean, squares)

    def listed(self) -> dict[str, list[Any]]:
        """As LeRobot writes them: one list for each name."""
        ends = [self.least, self.most]
        if self.least.dtype == np.uint64:  # not every reader has whole numbers of this size
            ends = [each.astype(np.float64) for each in ends]
        return {
            "min": ends[0].tolist(),
            "max": ends[1].tolist(),
            "mean": self.mean.tolist(),
            "std": np.sqrt(np.maximum(self.squares, 0) / self.values).tolist(),
            "count": [self.rows],
        }

    def listed_for_pictures(self) -> dict[str, list[Any]]:
        """From 0 to 1, one number for each colour, of shape (3, 1, 1)."""
        return {
            name: values if name == "count" else [[[each / 255.0]] for each in values]
            for name, values in self.listed().items()
        }


def sampled_rows(count: int) -> NDArray[np.int64]:
    """The frames that LeRobot looks at: all of a short episode, fewer of a long one, evenly spread."""
    wanted = max(min(_FEWEST_PICTURES, count), min(int(count**0.75), _MOST_PICTURES))
    return np.round(np.linspace(0, count - 1, wanted)).astype(np.int64)


def _smaller(shown: Picture) -> Picture:
    """Every n-th pixel of a large picture, as LeRobot takes them."""
    height, width = shown.shape[:2]
    if max(height, width) < _SMALL_PICTURE:
        return shown
    step = int(max(height, width) / _PICTURE_SIDE)
    return shown[::step, ::step]


def stat_columns(feature: str, stats: dict[str, list[Any]]) -> Iterator[tuple[str, list[Any]]]:
    """Names and values for the row of an episode."""
    for name, values in stats.items():
        yield f"stats/{feature}/{name}", values
