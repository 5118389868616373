"""The steps of a clock: the usual one, and those that took much longer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GAP_STEPS = 3.0
"""A step that takes more than this many usual steps is a gap."""


def usual_step(seconds: NDArray[np.float64]) -> float | None:
    """The median step; None for fewer than two samples, and where time stands still."""
    if len(seconds) < 2:
        return None
    step = float(np.median(np.diff(seconds)))
    return step if step > 0 else None


def gap_rows(seconds: NDArray[np.float64], steps: float = GAP_STEPS) -> NDArray[np.intp]:
    """The rows before each gap."""
    usual = usual_step(seconds)
    if usual is None:
        return np.zeros(0, np.intp)
    return np.flatnonzero(np.diff(seconds) > steps * usual)


def count_gaps(seconds: NDArray[np.float64]) -> int:
    return len(gap_rows(seconds))
