"""Gain bounds: the composed rule for one outcome. What is tested and what is printed are the same numbers.

    T        sign flips over clusters: typical gains
    K        the tail bound over pairs: losses that were rarely or never seen
    K_s      the tail bound over clusters: whole clusters that are rarely lost

A gain is shown when min(T, K) is above zero. A loss of the margin is ruled out when min(T, K) is above minus the
margin, with clusters min(T, K_s). For success in pairs that count alone K is McNemar's exact test, and T is not needed.

Where several pairs of one situation were merged, success has a sign per situation, which K tests, and a mean. Both have
to pass: many situations won by a little do not make up for a few that were lost completely.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.gate import Tails
from rollbook.scoring.bounds.betting import betting_bound, betting_chance
from rollbook.scoring.bounds.flip_bound import FlipBound
from rollbook.scoring.bounds.pair_clusters import PairClusters
from rollbook.scoring.bounds.tail_bound import tail_bound, tail_chance

Floats = NDArray[np.float64]

_DOUBT = 1e-9


@dataclass(frozen=True)
class GainBounds:
    gains: Floats
    """In the order of the baselines' ids."""
    worst_loss: float
    is_success: bool = False
    labels: NDArray[np.intp] | None = None
    """Cluster of each pair. None: every pair counts alone."""
    signs: Floats | None = None
    """Signs of the gains, where success of merged pairs has to pass by them too."""
    tails: Tails = "gaffke"
    level: float = 0.05
    """Bets are chosen for a test at this level. The other bounds do not depend on it."""
    seed: int | list[int] = 0

    @cached_property
    def clusters(self) -> PairClusters:
        return PairClusters.of(self.gains, None if self.labels is None else self.labels.tolist())

    @cached_property
    def _lowers(self) -> dict[float, float]:
        return {}

    @property
    def has_clusters(self) -> bool:
        """Whether two pairs share a cluster."""
        return len(self.clusters) < len(self.gains)

    @cached_property
    def p_better(self) -> float:
        """The p-value of "the mean gain is above zero"."""
        return self._p(0.0, over_clusters=self.tails == "scenes")

    def p_not_worse(self, margin: float) -> float:
        """The p-value of "the loss is smaller than the margin"."""
        return self._p(-margin, over_clusters=True)

    @cached_property
    def p_worse(self) -> float:
        """The p-value of "the mean gain is below zero". The worst loss has no part in it: what was seen is enough."""
        return self.p_worse_than(0.0)

    def p_worse_than(self, margin: float) -> float:
        """The p-value of "the loss is larger than the margin"."""
        if self._flips is None:
            return tail_chance(-self.gains, self.worst_loss, margin)
        return self._flips.p_worse(-margin)

    def lower(self, level: float) -> float:
        """Above zero when `p_better` is below the level."""
        if level not in self._lowers:
            bound = self._lower(level, over_clusters=self.tails == "scenes")
            self._lowers[level] = _agreeing(bound, self.p_better, level)
        return self._lowers[level]

    def lower_for_margin(self, level: float) -> float:
        """Above minus the margin when `p_not_worse` is below the level."""
        return self._lower(level, over_clusters=True)

    def upper(self, level: float) -> float:
        """Below zero when `p_worse` is below the level."""
        flips = self._flips
        loss = -flips.upper(level) if flips else tail_bound(-self.gains, self.worst_loss, level)
        return -_agreeing(loss, self.p_worse, level)

    def typical_lower(self, level: float) -> float:
        """Without the worst loss: for numbers that claim no gain, such as those of slices."""
        flips = self._flips
        return flips.lower(level) if flips else tail_bound(self.gains, self.worst_loss, level)

    @property
    def is_exact(self) -> bool:
        """Whether the tail bound is an exact test, so that nothing else is needed."""
        return self.is_success and self.signs is None and not self.has_clusters

    @cached_property
    def _flips(self) -> FlipBound | None:
        if self.is_exact:
            return None
        return FlipBound(self.clusters.sums, self.clusters.sizes, self.seed)

    def _p(self, delta: float, *, over_clusters: bool) -> float:
        found = [self._flips.p_better(delta)] if self._flips else []
        for gains, sizes in self._tails(over_clusters):
            # McNemar's exact test, which K is at zero for success, is proven too, and stronger than bets
            if self.tails == "proven" and not (self.is_exact and delta == 0):
                found.append(betting_chance(gains, self.worst_loss, self.level, delta, sizes))
            else:
                found.append(tail_chance(gains, self.worst_loss, delta, sizes))
        return max(found)

    def _lower(self, level: float, *, over_clusters: bool) -> float:
        found = [self._flips.lower(level)] if self._flips else []
        bound = betting_bound if self.tails == "proven" else tail_bound
        for gains, sizes in self._tails(over_clusters):
            found.append(bound(gains, self.worst_loss, level, sizes))
        return min(found)

    def _tails(self, over_clusters: bool) -> Iterator[tuple[Floats, Floats | None]]:
        """Gains whose tails are bounded. A bet on pairs of one cluster after each other would not be a fair one."""
        if self.has_clusters and (over_clusters or self.tails == "proven"):
            yield self.clusters.sums, self.clusters.sizes
        else:
            yield self.gains, None
        if self.signs is not None:
            yield self.signs, None


def is_below(p_value: float, level: float) -> bool:
    """Whether a p-value passes at this level. One that is as good as equal does not."""
    return p_value < level - _DOUBT


def _agreeing(bound: float, p_value: float, level: float) -> float:
    """Rounding must not put a bound and its p-value on different sides."""
    return max(bound, 0.0) if is_below(p_value, level) else min(bound, 0.0)
