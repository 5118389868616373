"""Step-down max-t: several candidates on the same pairs, tested together by joint sign flips.

The best of many candidates looks good by chance. Each candidate has the statistic t = sum of gains / root of the sum of
squared gains, over cluster sums. A flip changes the sign of a whole cluster for all candidates at once, so it keeps
how much they are alike. The p-value of the best is the share of flips whose largest t reaches its t. It is then left
out, the next best is compared with the largest t of the others, and so on; p-values never fall on the way.

Westfall & Young 1993, Romano & Wolf 2005. The level is exact for equal policies, whatever the candidates share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollbook.scoring.bounds.flip_bound import MOST_FOR_ALL_SETS, RANDOM_SETS
from rollbook.scoring.intervals import power_of_two

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_ROUNDING = 1e-12
_MOST_SIGNS = 1 << 22
"""Signs that are in memory at a time."""


@dataclass(frozen=True)
class StepDown:
    """One number for each hypothesis, in the given order."""

    t: Floats
    p_values: Floats
    """Corrected for the number of hypotheses."""
    levels: Floats
    """The level at which each hypothesis alone was tested in its step: what its tail has to pass, too."""
    joint_levels: Floats
    """The same in the first step, with all hypotheses. Bounds at these levels hold together."""


def candidates_better(sums: Floats, alpha: float, seed: int | list[int] = 0) -> StepDown:
    """Which candidates are better than the baseline. `sums` has a row for each cluster, a column for each candidate."""
    flipped = JointFlips.of(sums, seed)
    return step_down(flipped.t, flipped.flips, alpha)


def candidates_differ(sums: Floats, alpha: float, seed: int | list[int] = 0) -> Flags:
    """Which candidates are told apart: a symmetric table. All pairs of candidates are tested together, on both
    sides."""
    count = sums.shape[1]
    told_apart = np.zeros((count, count), bool)
    first, second = np.triu_indices(count, 1)
    if len(first):
        flipped = JointFlips.of(sums, seed).differences(first, second)
        found = step_down(np.abs(flipped.t), np.abs(flipped.flips), alpha)
        told_apart[first, second] = found.p_values <= alpha + _ROUNDING
    return told_apart | told_apart.T


@dataclass(frozen=True)
class JointFlips:
    totals: Floats
    """Sum of the gains of each candidate."""
    flipped: Floats
    """The same after each flip: a row for each flip but the one that changes nothing."""
    products: Floats
    """Products of the cluster sums of each two candidates, added up."""

    @classmethod
    def of(cls, sums: Floats, seed: int | list[int]) -> JointFlips:
        scaled = sums / power_of_two(sums) if np.abs(sums).any() else sums
        return cls(scaled.sum(axis=0), _flipped_sums(scaled, seed), scaled.T @ scaled)

    def differences(self, first: NDArray[np.intp], second: NDArray[np.intp]) -> Contrasts:
        squares = np.diagonal(self.products)
        size = squares[first] + squares[second] - 2 * self.products[first, second]
        size[size <= _ROUNDING * (squares[first] + squares[second])] = 0.0  # equal candidates
        return Contrasts(
            _share(self.totals[first] - self.totals[second], size),
            _share(self.flipped[:, first] - self.flipped[:, second], size),
        )

    @property
    def t(self) -> Floats:
        return _share(self.totals, np.diagonal(self.products))

    @property
    def flips(self) -> Floats:
        return _share(self.flipped, np.diagonal(self.products))


@dataclass(frozen=True)
class Contrasts:
    t: Floats
    flips: Floats


def _share(sums: Floats, squares: Floats) -> Floats:
    """t of a candidate without any difference is 0."""
    roots = np.sqrt(squares)
    return np.divide(sums, roots, out=np.zeros_like(sums), where=roots > 0)


def step_down(t: Floats, flips: Floats, alpha: float) -> StepDown:
    order = np.argsort(-t, kind="stable")
    # column j: the largest t of a flip among the hypotheses that are left in step j
    largest = np.maximum.accumulate(flips[:, order[::-1]], axis=1)[:, ::-1]
    flip_count = len(flips) + 1  # with the one that changes nothing
    reached = (largest >= t[order] - _ROUNDING).sum(axis=0) + 1
    p_values, levels = np.empty(len(t)), np.empty(len(t))
    p_values[order] = np.maximum.accumulate(reached / flip_count)
    place = math.floor(alpha * flip_count + 1e-9)
    critical = np.sort(largest, axis=0)[-place] if place else np.full(len(t), np.inf)
    own = flips[:, order]
    levels[order] = ((own > critical + _ROUNDING).sum(axis=0) + 1) / flip_count
    joint = ((flips > critical[0] + _ROUNDING).sum(axis=0) + 1) / flip_count if len(t) else levels
    return StepDown(t, p_values, np.minimum(levels, alpha), np.minimum(joint, alpha))


def _flipped_sums(sums: Floats, seed: int | list[int]) -> Floats:
    clusters = len(sums)
    if clusters <= MOST_FOR_ALL_SETS:
        sets = np.arange(1, 1 << clusters)
        chosen = (sets[:, None] >> np.arange(clusters)) & 1
        return np.asarray((1.0 - 2.0 * chosen) @ sums)
    rng = np.random.default_rng(seed)
    at_once = max(1, _MOST_SIGNS // clusters)
    flipped = np.empty((RANDOM_SETS, sums.shape[1]))
    for start in range(0, RANDOM_SETS, at_once):
        count = min(at_once, RANDOM_SETS - start)
        bits = np.unpackbits(rng.integers(0, 256, (count, -(-clusters // 8)), np.uint8), axis=1)
        flipped[start : start + count] = (1.0 - 2.0 * bits[:, :clusters]) @ sums
    return flipped
