"""Left-to-right binary32 sums per rollout, as v1 digests need them. `np.sum` adds in pairs and gives other bits."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_SHORT_ON_AVERAGE = 256
"""Below this mean length one sweep over all rollouts is faster than one call per rollout (benchmarks/digests.py)."""


def sequential_sums(values: NDArray[np.float32], offsets: NDArray[np.int64]) -> NDArray[np.float32]:
    """One sum per rollout. It starts at -0.0, so the sum of no values, or of -0.0 only, is -0.0."""
    rows = len(offsets) - 1
    with np.errstate(over="ignore", invalid="ignore"):
        if rows > 1 and len(values) < rows * _SHORT_ON_AVERAGE:
            return _sweep(values, offsets)
        return _one_by_one(values, offsets)


def _one_by_one(values: NDArray[np.float32], offsets: NDArray[np.int64]) -> NDArray[np.float32]:
    sums = np.full(len(offsets) - 1, -0.0, np.float32)
    bounds = offsets.tolist()
    for row, (start, end) in enumerate(pairwise(bounds)):
        if end > start:
            sums[row] = np.add.accumulate(values[start:end])[-1]
    return sums


def _sweep(values: NDArray[np.float32], offsets: NDArray[np.int64]) -> NDArray[np.float32]:
    """For k = 0, 1, …: add sample k of every rollout that is long enough. Rollouts are sorted, longest first."""
    lengths = np.diff(offsets)
    order = np.argsort(-lengths, kind="stable")
    starts = offsets[:-1][order]
    longest = int(lengths.max(initial=0))
    # alive[k]: how many rollouts are longer than k
    alive = len(lengths) - np.searchsorted(np.sort(lengths), np.arange(longest), side="right")
    sums = np.full(len(lengths), -0.0, np.float32)
    for step, count in enumerate(alive.tolist()):
        sums[:count] += values[starts[:count] + step]
    unsorted = np.empty_like(sums)
    unsorted[order] = sums
    return unsorted


def total_of_sums(sums: NDArray[np.float32]) -> np.float32:
    """The total of a batch: +0.0, then the sum of each rollout, in order."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.float32(np.add.accumulate(np.concatenate([np.zeros(1, np.float32), sums]))[-1])
