"""RowClock: the time of each row of an episode. Most layouts store none, and times are made up from a rate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.steps.step_clock import StepClock

_AT_ONCE = 1 << 14


@dataclass(frozen=True, slots=True)
class RowClock:
    fps: float
    stored: NDArray[np.int64] | None = None
    """Times of the steps that are in the file."""

    def pieces(self, rows: int) -> Iterator[NDArray[np.int64]]:
        """Times of the rows of one stream. Rows that are not steps have the times of the rate."""
        if self.stored is not None and rows == len(self.stored):
            yield self.stored
            return
        steps = StepClock(self.fps)
        for first in range(0, rows, _AT_ONCE):
            yield steps.times(first, min(_AT_ONCE, rows - first))

    def duration_s(self, steps: int) -> float:
        if self.stored is None or not len(self.stored):
            return steps / self.fps
        return float(self.stored[-1] - self.stored[0]) / 1e9 + 1 / self.fps
