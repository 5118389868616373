"""Power: the number of pairs that it takes to show a difference of a given size.

"Hold" mostly means "not enough episodes yet", and the next question is how many. Every answer is the smallest number of
pairs that passes with 80 % probability if the true difference is the one measured so far; None where no number does.

Success without clusters is exact where the test is (better than 0), and a saddlepoint for a margin. Means, and success
in clusters, are integrated over normal sums (`pair_sums`). No random numbers are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, gammaincinv, gammaln, ndtr, ndtri, xlogy

from rollbook.scoring.bounds.betting import LARGEST_SHARE_WATCHED
from rollbook.scoring.pair_sums import PairSums
from rollbook.scoring.paired_tests import log_e_value

POWER = 0.8
MOST_PAIRS = 100_000
"""A difference that needs more pairs counts as impossible to show."""
_MOST_ENUMERATED = 2_000
"""Up to this many pairs all outcomes are enumerated; beyond, the normal approximation is close enough."""
_STEPS_FROM_NORMAL = 5
_REACH = 6.0
"""Sums run over this many standard deviations to either side of the expected count."""
_LEAST_LOG_CHANCE = -18.0
"""Outcomes that are less likely, 1e-8 each, are left out."""
_MIDDLES = (np.arange(200) + 0.5) / 200
_MIDDLES_OF_SPREAD = (np.arange(24) + 0.5) / 24


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
    """Power of the tail bound that success is not lower by the margin or more."""
    wins, losses = np.meshgrid(_likely(n, win), _likely(n, loss), indexing="ij")
    possible = wins + losses <= n
    wins, losses = wins[possible], losses[possible]
    ties = n - wins - losses
    log_chance = gammaln(n + 1) - gammaln(wins + 1) - gammaln(losses + 1) - gammaln(ties + 1)
    log_chance += xlogy(wins, win) + xlogy(losses, loss) + xlogy(ties, max(0.0, 1 - win - loss))
    likely = (log_chance > _LEAST_LOG_CHANCE) & (wins - losses + margin * n > 0)
    passes = _tail_chances(wins[likely], losses[likely], ties[likely], margin) <= alpha
    return float(np.exp(log_chance[likely])[passes].sum())


def mean_power(
    clusters: int,
    effect: float,
    deviation: float,
    worst_loss: float,
    alpha: float = 0.05,
    *,
    size: float = 1.0,
    correlation: float = 0.0,
    margin: float | None = None,
) -> float:
    """Power to show that a mean gain is above 0, when it is `effect`: the bound over clusters and the tail bound both
    have to be above 0. `correlation` is that of two pairs of a cluster. With a `margin`: to show that it is above
    -margin, where whole clusters may be lost."""
    delta = 0.0 if margin is None else -margin
    if clusters < 2 or worst_loss + delta <= 0:
        return 0.0
    sums = _likely_sums(clusters, effect, deviation, size, correlation)
    over_clusters = margin is not None and size > 1
    tails = sums.cluster_tails_above if over_clusters else sums.tails_above
    passes = sums.typical_above(delta, alpha) & tails(delta, worst_loss, alpha)
    return float(passes.mean())


def _likely_sums(
    clusters: int, effect: float, deviation: float, size: float, correlation: float
) -> PairSums:
    """Sums of normal gains at the middles of equally likely parts: the mean in rows, the spread of clusters in
    columns. The spread inside clusters varies little, so it has its mean."""
    pairs = clusters * size
    alike = 1 + (size - 1) * correlation
    variance = deviation * deviation
    mean = effect + deviation * math.sqrt(alike / pairs) * ndtri(_MIDDLES)[:, None]
    spread = 2 * gammaincinv((clusters - 1) / 2, _MIDDLES_OF_SPREAD)[None, :]
    total = pairs * mean
    cluster_squares = variance * size * alike * spread + total * total / clusters
    inside = variance * (1 - correlation) * (pairs - clusters)
    squares = inside + cluster_squares / size
    return PairSums(clusters, size, total + 0 * spread, cluster_squares, squares)


def pairs_for_superiority(
    win: float, loss: float, alpha: float = 0.05, power: float = POWER
) -> int | None:
    if win <= loss:
        return None
    found = smallest_count(
        lambda n: superiority_power(n, win, loss, alpha) >= power,
        most=_MOST_ENUMERATED,
        steps_back=8,
    )
    if found is not None:
        return found
    delta, differ = win - loss, win + loss
    reach = float(ndtri(1 - alpha)) * math.sqrt(differ)
    reach += float(ndtri(power)) * math.sqrt(differ - delta * delta)
    return _bounded((reach / delta) * (reach / delta))


def pairs_for_non_inferiority(
    win: float, loss: float, margin: float, alpha: float = 0.05, power: float = POWER
) -> int | None:
    delta = win - loss
    if delta <= -margin or margin <= 0:
        return None
    if margin >= 1:
        return 1  # nothing can lose more
    found = smallest_count(
        lambda n: non_inferiority_power(n, win, loss, margin, alpha) >= power,
        most=_MOST_ENUMERATED,
    )
    if found is not None:
        return found
    reach = float(ndtri(1 - alpha) + ndtri(power))
    root = reach / (delta + margin)
    return _bounded((win + loss - delta * delta) * root * root)


def pairs_for_mean(effect: float, deviation: float, alpha: float = 0.05) -> int | None:
    """Pairs to show that a mean is above 0, when it is `effect`, if no pair can lose much."""
    if not effect > 0:
        return None
    bar = float(ndtri(1 - alpha))
    # The last term corrects for the unknown deviation.
    root = (bar + float(ndtri(POWER))) * (deviation / effect)
    return _bounded(root * root + bar * bar / 2)


def pairs_for_tail_bound(
    effect: float,
    deviation: float,
    worst_loss: float,
    alpha: float = 0.05,
    power: float = POWER,
    *,
    margin: float | None = None,
) -> int | None:
    """Pairs to show that a mean gain is above 0, when it is `effect` and a pair can lose `worst_loss`. With a margin:
    to show that it is above -margin."""
    return clusters_for(effect, deviation, worst_loss, alpha, power, rule_out=margin)


def clusters_for(
    effect: float,
    deviation: float,
    worst_loss: float,
    alpha: float = 0.05,
    power: float = POWER,
    *,
    size: float = 1.0,
    correlation: float = 0.0,
    rule_out: float | None = None,
) -> int | None:
    """Clusters of `size` pairs to show that a mean gain is above 0. With `rule_out`: to show that it is above
    -rule_out. Success is a gain of -1, 0 or 1 with a worst loss of 1."""
    if not effect + (rule_out or 0.0) > 0:
        return None
    scale = max(worst_loss, deviation)
    if not 0 < scale < math.inf:
        return None

    bar = None if rule_out is None else rule_out / scale

    def enough(count: int) -> bool:
        reached = mean_power(
            count,
            effect / scale,
            deviation / scale,
            worst_loss / scale,
            alpha,
            size=size,
            correlation=correlation,
            margin=bar,
        )
        return reached >= power

    return smallest_count(enough, most=max(1, math.floor(MOST_PAIRS / size)))


def pairs_for_e_value(win: float, loss: float, alpha: float = 0.05) -> int | None:
    """Pairs until the e-value reaches 1/alpha, if the rates stay the same."""
    if win <= loss:
        return None
    return smallest_count(lambda n: float(log_e_value(n * win, n * loss)) >= -math.log(alpha))


def pairs_for_capital(
    effect: float, deviation: float, worst_loss: float, alpha: float = 0.05
) -> int | None:
    """Pairs until bets on a mean gain reach 1/alpha, if pairs stay the same. A sixth is added for the time in which the
    bets are still small."""
    if not (effect > 0 and worst_loss > 0):
        return None
    ratio = deviation / effect
    square = ratio * ratio + 1  # may be infinite, where a power would raise
    share = min(1 / square, LARGEST_SHARE_WATCHED * effect / worst_loss)
    growth = share - share * share * square / 2
    return _bounded(7 / 6 * -math.log(alpha) / growth) if growth > 0 else None


def smallest_count(
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


def _tail_chances(
    wins: NDArray[np.float64],
    losses: NDArray[np.float64],
    ties: NDArray[np.float64],
    margin: float,
) -> NDArray[np.float64]:
    """`tail_chance` of many tables of success at once, at delta = -margin, by Lugannani and Rice."""
    gained, kept, lost = 1 + margin, margin, 1 - margin
    losses = losses + 1
    expected = wins * gained + ties * kept - losses * lost
    # The slope of the cumulant is zero at the saddle: a quadratic equation, whose constant term is the expected sum.
    # Where that is above zero, the saddle is the negative solution.
    above = np.maximum(expected, 0.0)
    square = -gained * kept * lost * (wins + ties + losses)
    linear = wins * gained * (lost - kept) + losses * lost * (gained + kept)
    linear += ties * kept * (lost - gained)
    apart = np.sqrt(linear * linear - 4 * square * above)
    at = np.where(linear > 0, -2 * above / (linear + apart), (apart - linear) / (2 * square))
    counts = np.stack([wins, losses, ties])
    weights = np.array([gained, -lost, kept])[:, None]
    cumulant = -(counts * np.log1p(-at * weights)).sum(axis=0)
    curvature = (counts * (weights / (1 - at * weights)) ** 2).sum(axis=0)
    root, slope = -np.sqrt(np.maximum(-2 * cumulant, 1e-12)), at * np.sqrt(curvature)
    density = np.exp(-root * root / 2) / math.sqrt(2 * math.pi)
    chance = ndtr(root) + density * (1 / root - 1 / np.minimum(slope, -1e-12))
    return np.where(expected > 0, np.minimum(chance, 1.0), 1.0)
