"""Outcome statistics: everything that a decision needs about one outcome of a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rollbook.contracts.gate import Gate, MetricRule
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.scoring.intervals import (
    FEWEST_FOR_A_MEAN,
    deviation,
    student_interval,
    tango_interval,
)
from rollbook.scoring.outcome_pairs import OutcomePairs
from rollbook.scoring.paired_tests import PValues, mcnemar_exact, sign_flip

_PLACES = {name: place for place, name in enumerate(OUTCOMES)}


@dataclass(frozen=True)
class OutcomeStatistics:
    pairs: OutcomePairs
    gain: float | None
    """Mean gain; above zero is better."""
    deviation: float
    wins: int
    losses: int
    lower: float | None
    """One-sided lower bound of the gain, at the gate's level. None where there are too few pairs."""
    catastrophic_rows: frozenset[int] | None
    """Rows with a catastrophe. None where the outcome has no limit for catastrophes."""
    seed: int

    @property
    def n(self) -> int:
        return len(self.pairs)

    @cached_property
    def p(self) -> PValues | None:
        """Computed on first use, because an outcome that decides nothing may not need it."""
        if not self.n:
            return None
        if self.pairs.metric == "success":
            return mcnemar_exact(self.wins, self.losses)
        return sign_flip(self.pairs.gains, [self.seed % 2**64, _PLACES[self.pairs.metric]])


def outcome_statistics(pairs: OutcomePairs, gate: Gate) -> OutcomeStatistics:
    gains = pairs.gains
    n = len(gains)
    wins, losses = int(np.count_nonzero(gains > 0)), int(np.count_nonzero(gains < 0))
    mean = float(gains.mean()) if n else None
    spread = deviation(gains)
    lower: float | None = None
    if n and pairs.metric == "success":
        lower = tango_interval(wins, losses, n, 1 - 2 * gate.alpha)[0]
        if pairs.repeats:
            lower = _at_most_bound_of_mean(lower, pairs, gate)
    elif mean is not None and n >= FEWEST_FOR_A_MEAN:
        lower = student_interval(mean, spread, n, 1 - 2 * gate.alpha)[0]
    return OutcomeStatistics(
        pairs=pairs,
        gain=mean,
        deviation=spread,
        wins=wins,
        losses=losses,
        lower=lower,
        catastrophic_rows=_catastrophic_rows(pairs, gate.rule(pairs.metric)),
        seed=gate.seed,
    )


def _at_most_bound_of_mean(lower: float, pairs: OutcomePairs, gate: Gate) -> float | None:
    """The margin on success has to hold for the mean as well as for the signs: many situations won by a little do not
    make up for a few that were lost completely."""
    n = len(pairs)
    if n < FEWEST_FOR_A_MEAN:
        return None
    mean, spread = float(pairs.mean_gains.mean()), deviation(pairs.mean_gains)
    return min(lower, student_interval(mean, spread, n, 1 - 2 * gate.alpha)[0])


def _catastrophic_rows(pairs: OutcomePairs, rule: MetricRule) -> frozenset[int] | None:
    """Rows in which the candidate lost more than is accepted in a single episode."""
    limit = OUTCOMES[pairs.metric].catastrophe if rule.catastrophe is None else rule.catastrophe
    if limit is None:
        return None
    return frozenset(pairs.rows[pairs.row_gains < -(limit + 1e-9)].tolist())
