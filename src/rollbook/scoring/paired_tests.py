"""Paired tests: the probability that two equal policies would give a difference as large as the measured one.

Success is tested by the exact McNemar test. Means are tested by flipping signs (`bounds.flip_bound`). Both need pairs,
but no normal distribution. Wilcoxon's test is left out on purpose: it prefers a policy that is usually a little better
and sometimes crashes.

E-values are for sequential runs, which are looked at after every episode. A p-value that is computed again and again
calls equal policies different far too often. An e-value does not: it is the capital of a fair bet against "not
better", so it ever reaches 1/alpha by chance in at most alpha of all runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betaincc, betaincinv, betaln, gammaln

from rollbook.contracts.decision import SuccessBelief

_BELIEF_SLICES = 128

Name = TypeVar("Name", bound=str)


class PValues(NamedTuple):
    """One-sided p-values in both directions."""

    better: float
    worse: float


def mcnemar_exact(wins: int, losses: int) -> PValues:
    """Only pairs that differ carry information. For equal policies each of them is a toss of a coin."""
    return PValues(_p_of_wins(wins, losses), _p_of_wins(losses, wins))


def mcnemar_mid_p(wins: int, losses: int) -> float:
    """One-sided p-value of "better", less conservative than the exact one. It is shown and decides nothing."""
    n = wins + losses
    chance = gammaln(n + 1) - gammaln(wins + 1) - gammaln(losses + 1) - n * np.log(2)
    return float(_p_of_wins(wins, losses) - 0.5 * np.exp(chance))


def _p_of_wins(wins: int, losses: int) -> float:
    return 1.0 if wins == 0 else float(betainc(wins, losses + 1, 0.5))


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """P-values adjusted for testing several outcomes, in the order given."""
    left = len(p_values)
    highest = 0.0
    adjusted = {}
    for name in sorted(p_values, key=lambda name: (p_values[name], name)):
        highest = max(highest, min(1.0, left * p_values[name]))
        adjusted[name] = highest
        left -= 1
    return {name: adjusted[name] for name in p_values}


def probability_of_improvement(gains: NDArray[np.float64]) -> float:
    """Probability that a random pair is a gain. A pair without a difference counts half."""
    return float(np.mean(gains > 0) + 0.5 * np.mean(gains == 0))


def interquartile_mean(values: NDArray[np.float64]) -> float:
    """Mean of the middle half, which one extreme episode does not move."""
    cut = len(values) // 4
    return float(np.sort(values)[cut : len(values) - cut].mean())


# ----------------------------------------------------------------------------------------- e-values


def log_e_value(wins: ArrayLike, losses: ArrayLike) -> NDArray[np.float64]:
    """Logarithm of the e-value against "the candidate wins at most half of the pairs that differ".

    The bet is spread evenly over all win rates above one half, which has a closed form. Swap the arguments for the bet
    that the candidate is worse.
    """
    won = np.asarray(wins, np.float64)
    lost = np.asarray(losses, np.float64)
    with np.errstate(divide="ignore"):
        above = np.log(betaincc(won + 1, lost + 1, 0.5))
    return np.asarray(above + betaln(won + 1, lost + 1) + (won + lost + 1) * math.log(2))


# ----------------------------------------------------------------------------------------- Bayesian


def success_belief(wins: int, losses: int, n: int, margin: float) -> SuccessBelief:
    """Bayesian probabilities under a Dirichlet(1/2, 1/2, 1/2, 1/2) prior on the four kinds of pairs.

    The share of pairs that differ and the share of wins among them are then independent Beta variables. The first is
    cut into slices of equal probability, the second is integrated exactly in each. No random numbers are drawn.
    """
    slices = (np.arange(_BELIEF_SLICES) + 0.5) / _BELIEF_SLICES
    differ = betaincinv(wins + losses + 1, n - wins - losses + 1, slices)
    least = np.clip((1 - margin / np.maximum(differ, 1e-300)) / 2, 0.0, 1.0)
    return SuccessBelief(
        p_better=float(betaincc(wins + 0.5, losses + 0.5, 0.5)),
        p_not_worse=float(betaincc(wins + 0.5, losses + 0.5, least).mean()),
    )
