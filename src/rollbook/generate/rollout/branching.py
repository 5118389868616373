"""How many actions a node keeps, and how many chains survive a step."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.generate.config_checks import invalid_setting


class BranchSchedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Branch counts drawn at every node if there are any to draw from, else one per step, else always the same."""

    branch_factor: int = 1
    """Actions kept at every node."""
    branch_factor_schedule: tuple[int, ...] | None = None
    """Actions kept at each step; the last entry goes on."""
    stochastic_branch_factors: tuple[int, ...] | None = None
    """Counts to draw from, once per node."""
    stochastic_branch_probabilities: tuple[float, ...] | None = None
    """A weight for each of them; None for equal ones."""

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
        """Actions to keep at a node of this step. Only drawn counts use the generator, one number per node."""
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
    """The chains to keep, in the order they came: the `width` best; None keeps all.

    Of equal ones the greater tie break stays, then the lot decides: the first come are children of one node. A chain
    whose score is not known never pushes out one whose score is.
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
    # a sum that is finite and above 0 also speaks for its terms: none of them is NaN or infinite
    if min(weights) < 0 or not 0 < sum(weights) < math.inf:
        raise invalid_setting(f"recipe.{field}", weights, "weights from 0 up, not all 0")
