"""Pair sums: whether gains would pass the rule, told from four sums, so that thousands of runs can be judged at once.

The rule itself sorts random sets of clusters (T) and integrates (K). For planning, T is replaced by Student's test over
clusters, and the weighted sum in K by a normal variable with the same variance. A planned power is then a few
points too low for 50 pairs and about right from 200 on; no decision is made here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, stdtrit

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PairSums:
    """Sums of one run per entry. Sums of further clusters can be added."""

    clusters: float
    size: float
    """Pairs of each cluster."""
    total: Floats
    """Sum of all gains."""
    cluster_squares: Floats
    """Sum over clusters of the squared sum of their gains."""
    squares: Floats
    """Sum of all squared gains."""

    def __add__(self, other: PairSums) -> PairSums:
        return PairSums(
            self.clusters + other.clusters,
            self.size,
            self.total + other.total,
            self.cluster_squares + other.cluster_squares,
            self.squares + other.squares,
        )

    @property
    def pairs(self) -> float:
        return self.clusters * self.size

    def typical_above(self, delta: float, alpha: float) -> NDArray[np.bool_]:
        """Whether the bound over clusters is above delta."""
        shifted = self.total - delta * self.pairs
        between = self.cluster_squares - self.total * self.total / self.clusters
        if self.clusters < 2:
            return np.zeros(np.shape(self.total), bool)
        error = np.sqrt(np.maximum(between, 0.0) * self.clusters / (self.clusters - 1))
        return np.asarray(shifted > float(stdtrit(self.clusters - 1, 1 - alpha)) * error)

    def tails_above(self, delta: float, worst_loss: float, alpha: float) -> NDArray[np.bool_]:
        """Whether the tail bound over pairs is above delta."""
        shifted = self.total - delta * self.pairs
        squares = self.squares - 2 * delta * self.total + delta * delta * self.pairs
        return np.asarray(_chance_below(shifted, squares, worst_loss + delta) <= alpha)

    def cluster_tails_above(
        self, delta: float, worst_loss: float, alpha: float
    ) -> NDArray[np.bool_]:
        """Whether the tail bound is above delta where whole clusters may be lost."""
        shifted = self.total - delta * self.pairs
        squares = self.cluster_squares + delta * self.size * (delta * self.pairs - 2 * self.total)
        floor = self.size * (worst_loss + delta)
        return np.asarray(_chance_below(shifted, squares, floor) <= alpha)


def _chance_below(total: Floats, squares: Floats, floor: float) -> Floats:
    """P(total + sqrt(squares) Z <= floor E) of a normal Z and an exponential E."""
    deviation = np.sqrt(np.maximum(squares, np.finfo(np.float64).tiny))
    steps = total / deviation
    rate = deviation / floor
    return np.asarray(ndtr(-steps) + np.exp(rate * (rate / 2 - steps) + log_ndtr(steps - rate)))
