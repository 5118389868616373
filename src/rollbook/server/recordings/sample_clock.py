"""SampleClock: the time of every row of an array, in seconds from the start of the episode.

The start is the first time of the sensors, which is also when the video starts; without sensors, that of the actions.
An array without a clock follows the frame rate of the episode, or else is spread over its duration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.scoring.failures.sample_steps import count_gaps, usual_step

ClockKind: TypeAlias = Literal["recorded", "rate", "spread", "rows"]
"""`rows`: nothing is known about time, so a row counts as a second."""
_APART_S = 86_400.0
"""Clocks whose starts are farther apart do not count from the same moment."""


@dataclass(frozen=True, slots=True)
class SampleClock:
    seconds: NDArray[np.float64]
    """Never falls."""
    kind: ClockKind
    note: str | None = None
    """Why it is not the recorded clock, where there is one."""

    @property
    def rate(self) -> float | None:
        step = usual_step(self.seconds)
        return None if step is None or self.kind == "rows" else round(1 / step, 3)

    @property
    def gaps(self) -> int:
        return count_gaps(self.seconds) if self.kind == "recorded" else 0


def start_of(sensors: Iterable[NDArray[np.int64]], actions: Iterable[NDArray[np.int64]]) -> int:
    """Nanoseconds; 0 without any clock."""
    for clocks in (sensors, actions):
        firsts = [int(clock.min()) for clock in clocks if len(clock)]
        if firsts:
            return min(firsts)
    return 0


def recorded_clock(times: NDArray[np.int64], start_ns: int) -> SampleClock:
    first = int(times.min())
    if abs(first - start_ns) > _APART_S * 1e9:
        note = "its clock does not count from the same moment as the others; it is drawn from 0 s"
        start_ns = first
    else:
        note = None
    # the difference of two 64-bit integers can be too large for a third
    seconds = (times.astype(np.float64) - float(start_ns)) / 1e9
    if abs(int(times.max())) < 1 << 62 and abs(start_ns) < 1 << 62:
        seconds = (times - start_ns) / 1e9
    if np.any(seconds[1:] < seconds[:-1]):
        row = int(np.flatnonzero(seconds[1:] < seconds[:-1])[0]) + 1
        note = f"its clock goes back at row {row}; its rows are drawn evenly spaced"
        even = np.linspace(float(seconds.min()), float(seconds.max()), len(seconds))
        return SampleClock(even, "spread", note)
    return SampleClock(seconds, "recorded", note)


def assumed_clock(rows: int, fps: float | None, duration_s: float | None) -> SampleClock:
    if fps:
        return SampleClock(np.arange(rows) / fps, "rate")
    if duration_s:
        return SampleClock(np.linspace(0, duration_s, rows), "spread")
    return SampleClock(np.arange(rows, dtype=np.float64), "rows")


def clock_words(kinds: Iterable[ClockKind]) -> str:
    """One word for a whole recording."""
    seen = set(kinds)
    return seen.pop() if len(seen) == 1 else "mixed" if seen else "none"
