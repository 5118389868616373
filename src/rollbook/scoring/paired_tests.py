"""Paired tests: how often chance alone would give what was measured, if the two policies were the same.

Success is tested by the exact McNemar test, means by flipping signs. Both only ask for pairs, not for a bell curve.
Wilcoxon's test is not here on purpose: it calls a policy better that is usually a little better and sometimes crashes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, gammaln

MOST_FOR_EXACT = 13
"""Differences whose signs are flipped in every way there is."""
RANDOM_FLIPS = 9_999
_ROUNDING = 1e-12
_BITS = 8
_EVERY_BYTE: NDArray[np.float64] = (
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float64) * 2 - 1
)


class PValues(NamedTuple):
    """One-sided, both ways."""

    better: float
    worse: float


def mcnemar_exact(wins: int, losses: int) -> PValues:
    """Only pairs that differ say anything; if the policies were equal, each would be a toss of a coin."""
    return PValues(_at_least(wins, losses), _at_least(losses, wins))


def mcnemar_mid_p(wins: int, losses: int) -> float:
    """One-sided "better", less careful than the exact one: to be shown, never to decide on."""
    n = wins + losses
    chance = gammaln(n + 1) - gammaln(wins + 1) - gammaln(losses + 1) - n * np.log(2)
    return float(_at_least(wins, losses) - 0.5 * np.exp(chance))


def _at_least(wins: int, losses: int) -> float:
    return 1.0 if wins == 0 else float(betainc(wins, losses + 1, 0.5))


def sign_flip(gains: NDArray[np.float64], seed: int | list[int] = 0) -> PValues:
    """Of the mean gain: equal policies could as well have swapped places in every pair.

    Exact for few differences, else 9 999 flips from the seed. Pairs without a difference have no sign to flip.
    """
    gains = gains[gains != 0]
    if not len(gains):
        return PValues(1.0, 1.0)
    gains = gains / np.abs(gains).max()
    observed = float(gains.sum())
    room = _ROUNDING * float(np.abs(gains).sum())
    if len(gains) <= MOST_FOR_EXACT:
        sums, own = _all_flips(gains), 0
    else:
        sums, own = _random_flips(gains, seed), 1
    count = len(sums) + own
    better = (int(np.count_nonzero(sums >= observed - room)) + own) / count
    worse = (int(np.count_nonzero(sums <= observed + room)) + own) / count
    return PValues(better, worse)


def _all_flips(gains: NDArray[np.float64]) -> NDArray[np.float64]:
    sums = np.zeros(1)
    for gain in gains:
        sums = np.concatenate([sums + gain, sums - gain])
    return sums


def _random_flips(gains: NDArray[np.float64], seed: int | list[int]) -> NDArray[np.float64]:
    """A random byte flips eight differences at once: their 256 sums are looked up, not added up."""
    groups = -(-len(gains) // _BITS)
    padded = np.zeros(groups * _BITS)
    padded[: len(gains)] = gains
    table = padded.reshape(groups, _BITS) @ _EVERY_BYTE.T
    words = -(-groups * RANDOM_FLIPS // 8)
    random = np.random.default_rng(seed).integers(0, 2**64, words, np.uint64).view(np.uint8)
    flips = random[: groups * RANDOM_FLIPS].reshape(groups, RANDOM_FLIPS)
    sums, looked_up = np.zeros(RANDOM_FLIPS), np.empty(RANDOM_FLIPS)
    for row, chosen in zip(table, flips, strict=True):
        # clip: without it each place would be checked, and a byte cannot be out of 256
        sums += row.take(chosen, out=looked_up, mode="clip")
    return sums


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted for having asked more than once; in the order of the names given."""
    left = len(p_values)
    highest = 0.0
    adjusted = {}
    for name in sorted(p_values, key=lambda name: (p_values[name], name)):
        highest = max(highest, min(1.0, left * p_values[name]))
        adjusted[name] = highest
        left -= 1
    return {name: adjusted[name] for name in p_values}


def probability_of_improvement(gains: NDArray[np.float64]) -> float:
    """That a pair, picked blindly, is a gain; no difference counts half."""
    return float(np.mean(gains > 0) + 0.5 * np.mean(gains == 0))


def interquartile_mean(values: NDArray[np.float64]) -> float:
    """The mean of the middle half: one wild episode does not move it."""
    cut = len(values) // 4
    return float(np.sort(values)[cut : len(values) - cut].mean())
