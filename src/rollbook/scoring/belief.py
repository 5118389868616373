"""Belief: the same success counts as a Bayesian would put them. To be shown beside the tests, never to decide on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import betaincc, betaincinv

_SLICES = 128


class Belief(NamedTuple):
    better: float
    """That the candidate's success rate is higher."""
    not_worse: float
    """That it is not lower by the margin or more."""


def success_belief(wins: int, losses: int, n: int, margin: float) -> Belief:
    """Under a Dirichlet(1/2, 1/2, 1/2, 1/2) prior on the four kinds of pairs.

    The share of pairs that differ and the share of wins among them are then independent Beta variables; the first
    is cut into slices of equal probability, the second is integrated exactly in each. Nothing is drawn.
    """
    better = float(betaincc(wins + 0.5, losses + 0.5, 0.5))
    slices = (np.arange(_SLICES) + 0.5) / _SLICES
    differ = betaincinv(wins + losses + 1, n - wins - losses + 1, slices)
    least = np.clip((1 - margin / np.maximum(differ, 1e-300)) / 2, 0.0, 1.0)
    not_worse = float(betaincc(wins + 0.5, losses + 0.5, least).mean())
    return Belief(better, not_worse)
