"""Pair clusters: the gains of pairs summed over clusters, and how many independent pairs they are worth."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollbook.scoring.intervals import power_of_two

Floats = NDArray[np.float64]

_MOST_CLUSTERS = 1e9
"""More than anybody has: a margin that is tiny beside the worst loss takes this many."""


@dataclass(frozen=True)
class PairClusters:
    sums: Floats
    """Sum of the gains of each cluster, in the order in which clusters first occur."""
    sizes: Floats
    squares: float
    """Sum of all squared gains, in units of the scale."""
    scale: float = 1.0
    """Squares of gains that are divided by it are not too large."""

    @classmethod
    def of(cls, gains: Floats, labels: Sequence[Hashable] | None = None) -> PairClusters:
        """Without labels every pair is a cluster of its own."""
        scale = power_of_two(gains) if gains.any() else 1.0
        squares = float(np.square(gains / scale).sum())
        if labels is None:
            return cls(gains, np.ones(len(gains)), squares, scale)
        numbers: dict[Hashable, int] = {}
        place = np.array([numbers.setdefault(each, len(numbers)) for each in labels], np.intp)
        sizes = np.bincount(place, minlength=len(numbers)).astype(np.float64)
        sums: Floats = np.bincount(place, gains, len(numbers)).astype(np.float64)
        return cls(sums, sizes, squares, scale)

    def __len__(self) -> int:
        return len(self.sums)

    @property
    def pairs(self) -> int:
        return int(self.sizes.sum())

    @property
    def equal_clusters(self) -> float:
        """Clusters of one size that would carry as much information as these (Kish): n²/sum of m²."""
        return self.pairs**2 / float(self.sizes @ self.sizes) if len(self) else 0.0

    @property
    def effective_pairs(self) -> float:
        """How many independent pairs have the standard error that these have. It is printed and decides nothing: a rule
        that uses clusters only where it finds them ships too often."""
        n, count = self.pairs, len(self)
        if count < 2 or n == count:
            return float(count)
        sums = self.sums / self.scale
        mean = float(sums.sum()) / n
        spread = (self.squares - n * mean * mean) / (n - 1)
        residuals = sums - self.sizes * mean
        variance = count / (count - 1) * float(residuals @ residuals) / n**2
        if spread <= 0:
            return float(count)
        return n / max(1.0, variance * n / spread)

    @property
    def correlation(self) -> float | None:
        """Correlation of pairs inside a cluster. None where every cluster is one pair."""
        typical = float(self.sizes @ self.sizes) / self.pairs if len(self) else 1.0
        if typical <= 1:
            return None
        return min(1.0, (self.pairs / self.effective_pairs - 1) / (typical - 1))


def least_clusters_for(margin: float, alpha: float) -> int:
    """Clusters of one size that it takes to rule out a loss of the margin: 14, 29 and 59 for 20, 10 and 5 points."""
    if not 0 < margin < 1:
        return 1
    clusters = math.log(alpha) / math.log1p(-margin)  # infinite for the smallest margins
    return math.ceil(min(clusters, _MOST_CLUSTERS) - 1e-9)
