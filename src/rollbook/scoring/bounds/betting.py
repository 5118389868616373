"""Bounds by bets: proven for every world in which a pair cannot lose more than the worst loss L.

A gambler bets on each pair that its gain is above delta, without having seen it. If the mean gain is not above delta
the game is not in the gambler's favour, so the capital ever reaches 1/alpha in at most alpha of all runs. A bet is at
most a share of 1/(L + delta): a pair that loses L costs nearly everything, and never more.

Pairs are bet on in the order in which they are given, which has to be fixed before they run: the order of their
baseline ids. With `sizes`, gains are sums over clusters of so many pairs, and every bet is on a whole cluster.

The bound for a fixed number of pairs is by Waudby-Smith & Ramdas (2024). Bets that a run may watch while it goes on
aim at growth instead, because nobody knows how many pairs there will be.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rollbook.scoring.intervals import power_of_two

Floats = NDArray[np.float64]

LARGEST_SHARE_WATCHED = 0.8
"""Of 1/L, the largest bet in a run that is watched."""
_LARGEST_SHARE = 0.95
"""The same for a known number of pairs."""
_LEAST_SHARE = 1e-9
"""A worst loss of zero would allow a bet without end; it counts as this share of the largest gain."""
_HALVINGS = 60
_WATCHED_DELTAS = 401


def betting_bound(
    gains: Floats, worst_loss: float, alpha: float, sizes: Floats | None = None
) -> float:
    """The largest delta that is rejected at level alpha; -worst_loss where nothing else is."""
    bets = _FixedBets(gains, worst_loss, alpha, sizes)
    low, high = -bets.worst, bets.best
    for _ in range(_HALVINGS):  # the capital falls as delta rises
        middle = (low + high) / 2
        if bets.log_capital(middle) >= -math.log(alpha):
            low = middle
        else:
            high = middle
    return low * bets.scale


def betting_chance(
    gains: Floats,
    worst_loss: float,
    alpha: float,
    delta: float = 0.0,
    sizes: Floats | None = None,
) -> float:
    """The p-value of "the mean gain is above delta". The bets are chosen for a test at level alpha."""
    bets = _FixedBets(gains, worst_loss, alpha, sizes)
    if delta / bets.scale <= -bets.worst:
        return 0.0
    return min(1.0, math.exp(-bets.log_capital(delta / bets.scale)))


def watched_capital(gains: Floats, worst_loss: float, sizes: Floats | None = None) -> Floats:
    """Logarithm of the capital after each pair, betting that the mean gain is above 0. A run may be stopped at any
    time by this number. No bet depends on a later pair."""
    scaled, _, worst, _ = _scaled(gains, worst_loss, sizes)
    mean, variance = _earlier(scaled, worst)
    bets = np.clip(mean / (variance + mean * mean), 0.0, LARGEST_SHARE_WATCHED / worst)
    return np.asarray(np.cumsum(np.log1p(bets * scaled)))


class _FixedBets:
    """Bets for a known number of pairs. They depend on delta only through their largest share, so that the capital
    falls as delta rises."""

    def __init__(
        self, gains: Floats, worst_loss: float, alpha: float, sizes: Floats | None
    ) -> None:
        self.gains, self._sizes, self.worst, self.scale = _scaled(gains, worst_loss, sizes)
        self.best = float((self.gains / self._sizes).max(initial=-self.worst))
        _, variance = _earlier(self.gains, self.worst)
        self._bets = np.sqrt(2 * math.log(1 / alpha) / (max(1, len(gains)) * variance))

    def log_capital(self, delta: float) -> float:
        """The largest one that was ever reached."""
        room = max(self.worst + delta, np.finfo(np.float64).tiny)
        bets = np.minimum(self._bets, _LARGEST_SHARE / room)
        growth = np.cumsum(np.log1p(bets * (self.gains - delta * self._sizes)))
        return float(growth.max(initial=0.0))


def _scaled(
    gains: Floats, worst_loss: float, sizes: Floats | None
) -> tuple[Floats, Floats, float, float]:
    """Gains, sizes and worst loss, so that the largest cluster has the size 1 and no number is too large; and the scale
    of the gains."""
    counted = np.ones(len(gains)) if sizes is None else np.asarray(sizes, np.float64)
    means = gains / counted
    least = max(_LEAST_SHARE * float(np.abs(means).max(initial=0.0)), np.finfo(np.float64).tiny)
    worst = max(worst_loss, -float(means.min(initial=0.0)), least)
    scale = power_of_two(np.append(means, worst))
    largest = float(counted.max(initial=1.0))
    return gains / (scale * largest), counted / largest, worst / scale, scale


def _earlier(gains: Floats, worst: float) -> tuple[Floats, Floats]:
    """Mean and variance of the pairs before each one. One pair without a gain and with a quarter of the worst loss as
    its deviation is counted in, so that the first bets are small."""
    count = np.arange(1, len(gains) + 1)
    mean = np.cumsum(gains) / (count + 1)
    variance = (worst * worst / 16 + np.cumsum((gains - mean) ** 2)) / (count + 1)
    before = np.concatenate([[0.0], mean]), np.concatenate([[worst * worst / 16], variance])
    return before[0][:-1], before[1][:-1]


def watched_bounds(
    gains: Floats, worst_loss: float, alpha: float, sizes: Floats | None = None
) -> tuple[Floats, Floats]:
    """Lower and upper bound of the mean gain after each pair, which hold for all pairs at once: each of them is ever
    wrong in at most alpha of all runs. No gain is above the worst loss either."""
    lower = _watched_lower(gains, worst_loss, alpha, sizes)
    upper = -_watched_lower(-gains, worst_loss, alpha, sizes)
    return lower, upper


def _watched_lower(gains: Floats, worst_loss: float, alpha: float, sizes: Floats | None) -> Floats:
    """On a grid of deltas, of which those are rejected that a gambler has grown rich against."""
    scaled, counted, worst, scale = _scaled(gains, worst_loss, sizes)
    _, variance = _earlier(scaled, worst)
    number = np.arange(1, len(scaled) + 1)
    bets = np.sqrt(2 * math.log(1 / alpha) / (variance * number * np.log1p(number)))
    rejected = np.zeros(len(scaled), np.intp)
    deltas = np.linspace(-worst, worst, _WATCHED_DELTAS)
    for delta in deltas[:-1]:  # the capital falls as delta rises
        share = np.minimum(bets, _LARGEST_SHARE / max(worst + delta, np.finfo(np.float64).tiny))
        capital = np.cumsum(np.log1p(share * (scaled - delta * counted)))
        rich = np.maximum.accumulate(capital) >= -math.log(alpha)
        if not rich.any():
            break
        rejected += rich
    return np.asarray(deltas[np.maximum(rejected - 1, 0)] * scale)
