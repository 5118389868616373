"""Outcome statistics: everything a decision needs to know about one outcome of a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rollbook.contracts.evals import OUTCOMES
from rollbook.contracts.gate import Gate, MetricRule
from rollbook.scoring.intervals import (
    FEWEST_FOR_A_MEAN,
    deviation,
    student_interval,
    tango_interval,
)
from rollbook.scoring.outcome_pairs import OutcomePairs
from rollbook.scoring.paired_tests import PValues, mcnemar_exact, sign_flip

_COUNTED_FROM = {"success": 0.0, "collision_count": 0.0}
"""A success that became a failure and a collision more are catastrophes unless the gate says otherwise."""


@dataclass(frozen=True)
class OutcomeStatistics:
    pairs: OutcomePairs
    gain: float | None
    """The mean; above zero is better."""
    deviation: float
    wins: int
    losses: int
    lower: float | None
    """What the gain is at least, one-sided, at the gate's level. None where there are too few pairs to say."""
    catastrophic_rows: frozenset[int] | None
    """None where nothing is counted as a catastrophe."""
    seed: int

    @property
    def n(self) -> int:
        return len(self.pairs)

    @cached_property
    def p(self) -> PValues | None:
        """Worked out when it is first asked for: an outcome that decides nothing may never be."""
        if not self.n:
            return None
        if self.pairs.metric == "success":
            return mcnemar_exact(self.wins, self.losses)
        return sign_flip(self.pairs.gains, [self.seed % 2**64, OUTCOMES.index(self.pairs.metric)])


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
            lower = _not_above_the_mean(lower, pairs, gate)
    elif mean is not None and n >= FEWEST_FOR_A_MEAN:
        lower = student_interval(mean, spread, n, 1 - 2 * gate.alpha)[0]
    return OutcomeStatistics(
        pairs=pairs,
        gain=mean,
        deviation=spread,
        wins=wins,
        losses=losses,
        lower=lower,
        catastrophic_rows=catastrophic_rows(pairs, gate.rule(pairs.metric)),
        seed=gate.seed,
    )


def _not_above_the_mean(lower: float, pairs: OutcomePairs, gate: Gate) -> float | None:
    """Many situations won by a little do not make up for a few that were lost for good: a margin on success holds for
    the mean as well as for the count."""
    n = len(pairs)
    if n < FEWEST_FOR_A_MEAN:
        return None
    mean, spread = float(pairs.mean_gains.mean()), deviation(pairs.mean_gains)
    return min(lower, student_interval(mean, spread, n, 1 - 2 * gate.alpha)[0])


def catastrophic_rows(pairs: OutcomePairs, rule: MetricRule) -> frozenset[int] | None:
    """The rows in which the candidate lost more than is borne in a single episode."""
    bar = rule.catastrophe
    if bar is None:
        bar = _COUNTED_FROM.get(pairs.metric)
    if bar is None:
        return None
    return frozenset(pairs.rows[pairs.row_gains < -(bar + 1e-9)].tolist())
