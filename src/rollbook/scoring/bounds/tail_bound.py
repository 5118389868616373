"""The tail bound K: a lower bound of a mean gain that allows for the worst loss, whether or not it was seen.

One more pair is added to the data: one that lost the worst loss L. Every pair has a random exponential weight, and the
bound is the alpha-quantile of the weighted mean (Gaffke 2005). A policy that is a little better in every pair seen and
loses L in one of many is therefore not called better before there are enough pairs to say so.

For success (gains of -1, 0 and 1, L = 1) the bound is above zero exactly when McNemar's exact test says so. That the
bound keeps its level is proven for gains that have two values, and conjectured for all others; no counterexample is
known. `bounds.betting` has a weaker bound that is proven.

Over clusters the worst loss counts as one whole cluster of the usual size.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from rollbook.scoring.bounds.exponential_sums import chance_not_above_zero
from rollbook.scoring.intervals import power_of_two

Floats = NDArray[np.float64]

_MOST_STEPS = 60
_CLOSE = 1e-10
"""Relative to the worst loss."""


def tail_chance(
    gains: Floats, worst_loss: float, delta: float = 0.0, sizes: Floats | None = None
) -> float:
    """The p-value of "the mean gain is above delta". With `sizes`, `gains` are sums over clusters of so many pairs."""
    weights, counts = _weights(gains, sizes)
    return _Weighted(weights, counts, worst_loss).chance(delta)


def tail_bound(
    gains: Floats, worst_loss: float, alpha: float, sizes: Floats | None = None
) -> float:
    """The largest delta that is rejected at level alpha; -worst_loss where nothing else is. The other side is
    `-tail_bound(-gains, …)`."""
    scale = power_of_two(np.append(np.abs(gains), worst_loss))
    weights, counts = _weights(gains / scale, sizes)
    return _Weighted(weights, counts, worst_loss / scale).bound(alpha) * scale


def _weights(gains: Floats, sizes: Floats | None) -> tuple[NDArray[np.float64], Floats]:
    """Sum and size of each cluster, and how often it occurs. Equal ones are counted: success has three kinds."""
    if sizes is None:
        values, counts = np.unique(gains, return_counts=True)
        return np.stack([values, np.ones(len(values))]), counts.astype(np.float64)
    kinds, counts = np.unique(np.stack([gains, sizes]), axis=1, return_counts=True)
    return kinds, counts.astype(np.float64)


class _Weighted:
    def __init__(self, kinds: Floats, counts: Floats, worst_loss: float) -> None:
        self._sums, self._sizes = kinds
        self._counts = np.append(counts, 1.0)
        pairs = float((counts * self._sizes).sum())
        self._extra = float((counts * self._sizes**2).sum()) / pairs if pairs else 1.0
        """Size of the cluster that is added: the one in which a random pair is, on average."""
        self._mean = float((counts * self._sums).sum()) / pairs if pairs else -worst_loss
        self._worst = max(worst_loss, -float((self._sums / self._sizes).min(initial=0.0)))

    def chance(self, delta: float) -> float:
        weights = np.append(self._sums - delta * self._sizes, -self._extra * (self._worst + delta))
        return chance_not_above_zero(weights, self._counts)

    def bound(self, alpha: float) -> float:
        """By false position of the normal quantile of the chance, which is nearly a straight line. An end of the
        bracket that stays twice counts half (Illinois), so that both ends move."""
        low, high = -self._worst, self._mean
        if high <= low or self.chance(high) <= alpha:
            return high
        goal = float(ndtri(alpha))
        left, right = -math.inf, self._distance(high, goal)
        at = self._normal_bound(goal)
        close = _CLOSE * self._worst
        side = 0
        for _ in range(_MOST_STEPS):
            at = min(max(at, low + close / 2), high - close / 2)
            value = self._distance(at, goal)
            if value <= 0:
                low, left = at, value
                right /= 2 if side < 0 else 1
                side = -1
            else:
                high, right = at, value
                left /= 2 if side > 0 else 1
                side = 1
            if high - low <= close:
                break
            at = (low + high) / 2
            if math.isfinite(left) and math.isfinite(right):
                at = low - left * (high - low) / (right - left)
        return low

    def _distance(self, delta: float, goal: float) -> float:
        return float(ndtri(self.chance(delta))) - goal

    def _normal_bound(self, goal: float) -> float:
        """Near to the bound where there are many pairs."""
        pairs = float((self._counts[:-1] * self._sizes).sum())
        rest = self._sums - self._mean * self._sizes
        lost = self._extra * (self._worst + self._mean)
        squares = float((self._counts[:-1] * rest * rest).sum()) + lost * lost
        return self._mean + (goal * math.sqrt(squares) - lost) / pairs
