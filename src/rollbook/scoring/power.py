"""Power: the number of pairs that it takes to show a difference of a given size.

"Hold" mostly means "not enough episodes yet", and the next question is how many. Every answer is the smallest number of
pairs that passes with 80 % probability if the true difference is the one measured so far; None where no number does.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, gammaln, ndtri, xlogy

from rollbook.scoring.paired_tests import log_e_value

POWER = 0.8
MOST_PAIRS = 100_000
"""A difference that needs more pairs counts as impossible to show."""
_MOST_ENUMERATED = 2_000
"""Up to this many pairs all outcomes are enumerated; beyond, the normal approximation is close enough."""
_STEPS_FROM_NORMAL = 5
_REACH = 6.0
"""Sums run over this many standard deviations to either side of the expected count."""


def superiority_power(n: int, win: float, loss: float, alpha: float = 0.05) -> float:
    """Power of the exact McNemar test, when a pair is won or lost with these probabilities."""
    differ = win + loss
    if differ <= 0:
        return 0.0
    counts = _likely(n, differ)
    enough = _more_than(_most_without_claim(counts, alpha), counts, win / differ)
    return float(np.exp(_log_binomial(counts, n, differ)) @ enough)


def _most_without_claim(differ: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """The largest number of wins, among the pairs that differ, that the test does not call better."""
    normal = differ / 2 + float(ndtri(1 - alpha)) / 2 * np.sqrt(differ)
    wins = np.maximum(np.floor(normal) - 2, 0.0)
    for _ in range(_STEPS_FROM_NORMAL):
        wins += _more_than(wins, differ, 0.5) > alpha
    return np.asarray(wins)


def non_inferiority_power(
    n: int, win: float, loss: float, margin: float, alpha: float = 0.05
) -> float:
    """Power of Tango's score test that success is not lower by the margin or more."""
    wins, losses = np.meshgrid(_likely(n, win), _likely(n, loss), indexing="ij")
    possible = wins + losses <= n
    wins, losses = wins[possible], losses[possible]
    ties = n - wins - losses
    log_chance = gammaln(n + 1) - gammaln(wins + 1) - gammaln(losses + 1) - gammaln(ties + 1)
    log_chance += xlogy(wins, win) + xlogy(losses, loss) + xlogy(ties, max(0.0, 1 - win - loss))
    passes = _tango_statistics(wins, losses, n, -margin) > ndtri(1 - alpha)
    return float(np.exp(log_chance)[passes].sum())


def pairs_for_superiority(win: float, loss: float, alpha: float = 0.05) -> int | None:
    if win <= loss:
        return None
    found = _smallest(
        lambda n: superiority_power(n, win, loss, alpha) >= POWER,
        most=_MOST_ENUMERATED,
        steps_back=8,
    )
    if found is not None:
        return found
    delta, differ = win - loss, win + loss
    reach = float(ndtri(1 - alpha)) * math.sqrt(differ)
    reach += float(ndtri(POWER)) * math.sqrt(differ - delta * delta)
    return _bounded((reach / delta) * (reach / delta))


def pairs_for_non_inferiority(
    win: float, loss: float, margin: float, alpha: float = 0.05
) -> int | None:
    delta = win - loss
    if delta <= -margin or margin <= 0:
        return None
    found = _smallest(
        lambda n: non_inferiority_power(n, win, loss, margin, alpha) >= POWER,
        most=_MOST_ENUMERATED,
    )
    if found is not None:
        return found
    reach = float(ndtri(1 - alpha) + ndtri(POWER))
    root = reach / (delta + margin)
    return _bounded((win + loss - delta * delta) * root * root)


def pairs_for_mean(effect: float, deviation: float, alpha: float = 0.05) -> int | None:
    """Pairs to show that a mean is above 0, when it is `effect`."""
    if not effect > 0:
        return None
    bar = float(ndtri(1 - alpha))
    # The last term corrects for the unknown deviation.
    root = (bar + float(ndtri(POWER))) * (deviation / effect)
    return _bounded(root * root + bar * bar / 2)


def pairs_for_e_value(win: float, loss: float, alpha: float = 0.05) -> int | None:
    """Pairs until the e-value reaches 1/alpha, if the rates stay the same."""
    if win <= loss:
        return None
    return _smallest(lambda n: float(log_e_value(n * win, n * loss)) >= -math.log(alpha))


def _smallest(
    enough: Callable[[int], bool], *, most: int = MOST_PAIRS, steps_back: int = 0
) -> int | None:
    """By doubling, then bisection. The power of exact tests is not monotonic, so the last few numbers are tried too."""
    high = 1
    while not enough(high):
        if high >= most:
            return None
        high = min(most, high * 2)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    for n in range(max(1, high - steps_back), high):
        if enough(n):
            return n
    return high


def _bounded(pairs: float) -> int | None:
    return math.ceil(pairs) if pairs <= MOST_PAIRS else None


def _likely(n: int, share: float) -> NDArray[np.float64]:
    """The counts out of n that are likely enough to be summed over."""
    reach = _REACH * math.sqrt(n * share * (1 - share)) + _REACH if 0 < share < 1 else 0.0
    low = max(0, math.floor(n * share - reach))
    high = min(n, math.ceil(n * share + reach))
    return np.arange(low, high + 1, dtype=np.float64)


def _more_than(
    wins: NDArray[np.float64], tries: NDArray[np.float64], share: float
) -> NDArray[np.float64]:
    """Probability of more than `wins` wins."""
    chance = betainc(wins + 1, np.maximum(tries - wins, 1.0), share)
    return np.where(wins < tries, chance, 0.0)


def _log_binomial(counts: NDArray[np.float64], n: int, share: float) -> NDArray[np.float64]:
    ways = gammaln(n + 1) - gammaln(counts + 1) - gammaln(n - counts + 1)
    return np.asarray(ways + xlogy(counts, share) + xlogy(n - counts, max(0.0, 1 - share)))


def _tango_statistics(
    wins: NDArray[np.float64], losses: NDArray[np.float64], n: int, delta: float
) -> NDArray[np.float64]:
    """`tango_statistic` for many tables at once. delta is below zero here, so the variance is above zero."""
    linear = (2 * n - wins + losses) * delta - wins - losses
    product = 8 * n * losses * delta * (1 - delta)
    loss_rate = (np.sqrt(np.maximum(0.0, linear * linear + product)) - linear) / (4 * n)
    variance = n * (2 * loss_rate + delta * (1 - delta))
    return np.asarray((wins - losses - n * delta) / np.sqrt(np.maximum(variance, 1e-300)))
