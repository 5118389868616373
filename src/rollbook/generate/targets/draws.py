"""Draws: selects eligible boxes in order, and records the probability of each selection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class TargetDraw(NamedTuple):
    """One selected box and the probability of its selection."""

    row: int
    probability: float
    log_probability: float
    entropy: float | None
    """Entropy of the distribution in nats; None if the box was not drawn alone."""


def greedy_draws(ranked: Sequence[int], k: int) -> list[TargetDraw]:
    """The first k rows, with probability 1."""
    return [TargetDraw(row, 1.0, 0.0, 0.0) for row in ranked[:k]]


def softmax_draws(
    ranked: Sequence[int],
    score: NDArray[np.float64],
    k: int,
    temperature: float,
    rng: np.random.Generator,
) -> list[TargetDraw]:
    """k draws without replacement, each from the softmax over the remaining rows, with one number of `rng` each."""
    left = list(ranked)
    draws: list[TargetDraw] = []
    while left and len(draws) < k:
        values = score[left]
        with np.errstate(over="ignore", under="ignore"):
            logits = (values - values.max()) / temperature
            weights = np.exp(logits)
        reached = np.cumsum(weights)
        total = float(reached[-1])
        probabilities, log_probabilities = weights / total, logits - math.log(total)
        known = probabilities > 0
        entropy = -float(np.sum(probabilities[known] * log_probabilities[known]))
        # kept below the total despite rounding, so that a row of weight 0 is never drawn
        drawn = min(rng.random() * total, math.nextafter(total, 0))
        at = int(np.searchsorted(reached, drawn, side="right"))
        chances = float(probabilities[at]), float(log_probabilities[at])
        draws.append(TargetDraw(left.pop(at), *chances, entropy))
    return draws
