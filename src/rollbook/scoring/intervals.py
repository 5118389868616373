"""Intervals: the range in which a measured rate or difference lies.

Rates have the score intervals of Wilson (one policy) and Tango (difference of two paired policies), which keep their
coverage with few episodes and without any pair that differs. Means have Student's t, from 50 pairs on together with a
bootstrap, which is too narrow for fewer. Under 8 pairs there is no interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri, stdtrit

from rollbook.contracts.decision import Interval
from rollbook.scoring.bootstrap import bca_interval

FEWEST_FOR_A_MEAN = 8
FEWEST_FOR_BOOTSTRAP = 50
_HALVINGS = 45


def tango_statistic(wins: int, losses: int, n: int, delta: float) -> float:
    """Number of standard errors between the measured difference of two paired rates and `delta`.

    The standard error is the maximum-likelihood one under the hypothesis that the difference is `delta`, so it is not
    zero when no pair differs.
    """
    linear = (2 * n - wins + losses) * delta - wins - losses
    product = 8 * n * losses * delta * (1 - delta)
    loss_rate = (math.sqrt(max(0.0, linear * linear + product)) - linear) / (4 * n)
    variance = n * (2 * loss_rate + delta * (1 - delta))
    distance = wins - losses - n * delta
    if variance <= 0:
        return math.copysign(math.inf, distance) if distance else 0.0
    return distance / math.sqrt(variance)


def tango_interval(wins: int, losses: int, n: int, level: float = 0.95) -> Interval:
    """Interval of the difference of two paired rates. `wins` and `losses` are the pairs that differ, `n` all pairs."""
    bar = float(ndtri((1 + level) / 2))
    middle = (wins - losses) / n
    return (
        _crossing(wins, losses, n, bar, -1.0, middle),
        _crossing(wins, losses, n, -bar, middle, 1.0),
    )


def _crossing(wins: int, losses: int, n: int, bar: float, low: float, high: float) -> float:
    """The delta at which the statistic equals the bar, by bisection: the statistic falls as delta rises."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if tango_statistic(wins, losses, n, middle) > bar:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def wilson_interval(hits: int, n: int, level: float = 0.95) -> Interval:
    """Interval of the rate of one policy."""
    z = float(ndtri((1 + level) / 2))
    share = hits / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if hits == 0 else max(0.0, centre - half)
    high = 1.0 if hits == n else min(1.0, centre + half)
    return low, high


def rate_upper_bound(hits: int, n: int) -> float:
    """Upper bound of a rate, with 95 % confidence. No event in n episodes still allows a rate of 3/n."""
    if hits == 0:
        return min(1.0, 3 / n)
    return 1.0 if hits >= n else float(betaincinv(hits + 1, n - hits, 0.95))


def student_interval(mean: float, deviation: float, n: int, level: float = 0.95) -> Interval:
    """Interval of a mean. `deviation` is the sample deviation (n - 1)."""
    half = float(stdtrit(n - 1, (1 + level) / 2)) * deviation / math.sqrt(n)
    return mean - half, mean + half


@dataclass(frozen=True, slots=True)
class MeanInterval:
    interval: Interval | None
    method: str
    """`student_t`, `student_t+bca`, or why there is none: `too_few`, `no_variation`."""


def mean_interval(differences: NDArray[np.float64], level: float = 0.95) -> MeanInterval:
    """Interval of the mean, by the method for this number of pairs."""
    n = len(differences)
    if n < FEWEST_FOR_A_MEAN:
        return MeanInterval(None, "too_few")
    if not varies(differences):
        return MeanInterval(None, "no_variation")
    scale = power_of_two(differences)
    values = differences / scale
    low, high = student_interval(float(values.mean()), float(values.std(ddof=1)), n, level)
    method = "student_t"
    resampled = bca_interval(values, level) if n >= FEWEST_FOR_BOOTSTRAP else None
    if resampled is not None:
        low, high = min(low, resampled[0]), max(high, resampled[1])
        method = "student_t+bca"
    return MeanInterval((low * scale, high * scale), method)


def varies(differences: NDArray[np.float64]) -> bool:
    """Whether the values differ by more than rounding errors. An interval of width zero would claim certainty."""
    spread = float(np.ptp(differences))
    return spread > 1e-12 * float(np.abs(differences).max(initial=0.0))


def deviation(differences: NDArray[np.float64]) -> float:
    """Sample deviation (n - 1); zero where nothing varies."""
    if len(differences) < 2 or not varies(differences):
        return 0.0
    scale = power_of_two(differences)
    return float((differences / scale).std(ddof=1)) * scale


def power_of_two(values: NDArray[np.float64]) -> float:
    """A power of two near the largest value. Dividing by it is exact and keeps squares of extreme values finite."""
    return math.ldexp(1.0, max(-1021, math.frexp(float(np.abs(values).max()))[1]))
