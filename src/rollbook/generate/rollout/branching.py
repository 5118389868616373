"""BranchSchedule and beam: how many actions a node keeps, and which chains remain after a step."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.generate.config_checks import invalid_setting


class BranchSchedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Number of branches: drawn per node if `stochastic_branch_factors` are given, else per step, else constant."""

    branch_factor: int = 1
    """Actions kept at every node."""
    branch_factor_schedule: tuple[int, ...] | None = None
    """Actions kept at each step; the last entry repeats."""
    stochastic_branch_factors: tuple[int, ...] | None = None
    """Counts of which one is drawn per node."""
    stochastic_branch_probabilities: tuple[float, ...] | None = None
    """A weight for each count; None for equal weights."""

    def __post_init__(self) -> None:
        schedule, factors = self.branch_factor_schedule, self.stochastic_branch_factors
        _check_counts("branch_factor", (self.branch_factor,))
        if schedule is not None:
            _check_counts("branch_factor_schedule", schedule)
        if factors is not None:
            _check_counts("stochastic_branch_factors", factors)
        if schedule is not None and factors is not None:
            expected = "left out where stochastic_branch_factors are given: one of them decides"
            raise invalid_setting("recipe.branch_factor_schedule", schedule, expected)
        if self.stochastic_branch_probabilities is not None:
            _check_weights(self.stochastic_branch_probabilities, factors)

    def count(self, step: int, rng: np.random.Generator) -> int:
        """Number of actions to keep at a node of this step. Only drawn counts use `rng`, one number per node."""
        if self.stochastic_branch_factors is not None:
            factors = self.stochastic_branch_factors
            weights = self.stochastic_branch_probabilities or (1.0,) * len(factors)
            total = sum(weights)
            shares = [weight / total for weight in weights]
            return int(factors[rng.choice(len(factors), p=shares)])
        if self.branch_factor_schedule is not None:
            return self.branch_factor_schedule[min(step, len(self.branch_factor_schedule) - 1)]
        return self.branch_factor


def beam(
    cumulative_scores: ArrayLike,
    width: int | None,
    rng: np.random.Generator,
    tie_break: ArrayLike | None = None,
) -> NDArray[np.intp]:
    """Indices of the `width` best chains, in their given order; None keeps all.

    Among equal scores the greater tie break wins, then chance: the given order would prefer the children of one node.
    A chain with a known score always wins over one without.
    """
    if width is not None and width < 1:
        raise invalid_setting("recipe.beam_width", width, "at least 1")
    scores = np.asarray(cumulative_scores, np.float64)
    if width is None or len(scores) <= width:
        return np.arange(len(scores))
    unknown = np.isnan(scores)
    second = np.zeros(len(scores)) if tie_break is None else np.asarray(tie_break, np.float64)
    lot = rng.permutation(len(scores))
    best_first = np.lexsort((lot, -second, np.where(unknown, 0, -scores), unknown))
    return np.sort(best_first[:width])


def _check_counts(field: str, counts: tuple[int, ...]) -> None:
    if not counts or min(counts) < 1:
        raise invalid_setting(f"recipe.{field}", counts, "counts of at least 1")


def _check_weights(weights: tuple[float, ...], factors: tuple[int, ...] | None) -> None:
    field = "stochastic_branch_probabilities"
    if factors is None:
        raise invalid_setting(
            f"recipe.{field}", weights, "left out without stochastic_branch_factors"
        )
    if len(weights) != len(factors):
        raise invalid_setting(
            f"recipe.{field}", weights, f"one for each of the {len(factors)} factors"
        )
    # a finite sum above 0 implies that no weight is NaN or infinite
    if min(weights) < 0 or not 0 < sum(weights) < math.inf:
        raise invalid_setting(f"recipe.{field}", weights, "weights from 0 up, not all 0")
