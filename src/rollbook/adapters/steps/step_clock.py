"""StepClock: the times of steps in a recording that has a rate, or none at all.

The times are those of rollbook.adapters.gymnasium: step `i` begins at `i / fps`, and its reward is known at its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rollbook.client.video import checked_rate

ASSUMED_KEY = "timestamps_assumed"
"""Key in the metadata of an episode whose times were made up from a rate."""
_MOST_KEPT = 1 << 16
"""Times that are kept for the next column."""


@dataclass(frozen=True, slots=True)
class StepClock:
    fps: float

    def __post_init__(self) -> None:
        checked_rate(self.fps)

    def times(self, first: int, count: int) -> NDArray[np.int64]:
        """Nanoseconds. They are not to be changed: the columns of an episode share them."""
        if count > _MOST_KEPT:
            return _times(self.fps, first, count)
        return _kept_times(self.fps, first, count)


def _times(fps: float, first: int, count: int) -> NDArray[np.int64]:
    """Each time is computed from its index, so that rounding errors do not add up."""
    ticks = np.arange(first, first + count, dtype=np.float64)
    return np.rint(ticks * 1e9 / fps).astype(np.int64)


@lru_cache(maxsize=4)
def _kept_times(fps: float, first: int, count: int) -> NDArray[np.int64]:
    times = _times(fps, first, count)
    times.flags.writeable = False
    return times
