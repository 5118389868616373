"""Outcome statistics: everything that a decision needs about one outcome of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.decision import Interval
from rollbook.contracts.gate import Gate, MetricRule
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.scoring.bounds.gain_bounds import GainBounds
from rollbook.scoring.bounds.pair_clusters import least_clusters_for
from rollbook.scoring.outcome_pairs import OutcomePairs
from rollbook.scoring.watched_bets import WatchedBets, WatchedGains, watched_metric

LEAST_PAIRS_WITHOUT_RANGE = 150
"""Pairs that it takes to trust the range that was seen, where nobody declared one."""
_PLACES = {name: place for place, name in enumerate(OUTCOMES)}


@dataclass(frozen=True)
class OutcomeStatistics:
    pairs: OutcomePairs
    judged: GainBounds
    """Of all pairs that count, missing ones included where they count as lost."""
    is_declared: bool
    """Whether the worst loss of a pair is known, and not only the range that was seen."""
    outside_range: float | None
    """A reward outside the range that the gate declares, if there is one."""
    catastrophic_rows: frozenset[int] | None
    """Rows with a catastrophe. None where the outcome has no limit for catastrophes."""
    bets: WatchedBets | None = None
    """Set for the outcome that a sequential run bets on."""
    watched: WatchedGains | None = None
    """Set for the other outcomes of a run that may ship after any pair: their margins are bet on."""

    @property
    def n(self) -> int:
        """Pairs that have an outcome."""
        return len(self.pairs)

    @property
    def worst_loss(self) -> float:
        return self.judged.worst_loss

    @cached_property
    def measured(self) -> GainBounds:
        """Of the pairs that have an outcome: a loss is claimed by these alone."""
        if not self.pairs.lost:
            return self.judged
        known, whole = self.pairs.has_outcome, self.judged
        return replace(
            whole,
            gains=whole.gains[known],
            labels=None if whole.labels is None else whole.labels[known],
            signs=None if whole.signs is None else whole.signs[known],
        )

    @cached_property
    def gain(self) -> float | None:
        """Mean gain of the pairs that have an outcome; above zero is better."""
        return float(self.pairs.gains.mean()) if self.n else None

    @property
    def wins(self) -> int:
        return int(np.count_nonzero(self.pairs.gains > 0))

    @property
    def losses(self) -> int:
        return int(np.count_nonzero(self.pairs.gains < 0))

    @property
    def has_known_range(self) -> bool:
        """Whether the worst loss is declared, or enough pairs were seen to trust their range."""
        return self.is_declared or self.n >= LEAST_PAIRS_WITHOUT_RANGE

    def p_not_worse(self, margin: float) -> float:
        """The p-value of "the loss is smaller than the margin", with missing pairs as lost where they count so."""
        if self.watched is not None:
            return self.watched.p_not_worse(margin)
        return self.judged.p_not_worse(margin)

    def p_not_worse_measured(self, margin: float) -> float:
        """The same of the pairs that have an outcome."""
        if self.watched is not None:
            return self.watched.p_not_worse_measured(margin)
        return self.measured.p_not_worse(margin)

    def least_clusters(self, margin: float, level: float) -> int:
        """Clusters that it takes to rule out a loss of the margin."""
        return least_clusters_for(margin / self.worst_loss if self.worst_loss else 1.0, level)


def outcome_statistics(
    pairs: OutcomePairs,
    gate: Gate,
    level: float | None = None,
    unfinished: NDArray[np.intp] | None = None,
) -> OutcomeStatistics:
    """`level` is the level of the decision, where it is not that of the gate. `unfinished` are the clusters of pairs
    that are still to come."""
    is_success = pairs.metric == "success"
    declared = gate.reward_range if pairs.metric == "reward_total" else None
    low, high = declared or pairs.seen
    worst = 1.0 if is_success else high - low
    worst = max(worst, -float(pairs.judged.min(initial=0.0)))
    bets = watched = None
    is_bet_on = gate.design == "sequential" and watched_metric(gate) == pairs.metric
    if is_bet_on:
        bets = WatchedBets.of(
            pairs.judged,
            pairs.has_outcome,
            worst,
            is_exact=is_success and pairs.clusters is None and not pairs.repeats,
            clusters=pairs.clusters,
            unfinished=unfinished,
        )
    elif gate.design == "sequential" and gate.mode == "superiority":
        watched = WatchedGains.of(
            pairs.judged, pairs.has_outcome, worst, pairs.clusters, unfinished
        )
    return OutcomeStatistics(
        pairs=pairs,
        judged=GainBounds(
            gains=pairs.judged,
            worst_loss=worst,
            is_success=is_success,
            labels=pairs.clusters,
            signs=np.sign(pairs.judged) if is_success and pairs.repeats else None,
            tails=gate.tails,
            level=gate.look_level if level is None else level,
            seed=[gate.seed % 2**64, _PLACES[pairs.metric]],
        ),
        is_declared=is_success or declared is not None,
        outside_range=None if declared is None else _outside(declared, pairs.seen),
        catastrophic_rows=_catastrophic_rows(pairs, gate.rule(pairs.metric)),
        bets=bets,
        watched=watched,
    )


def _outside(declared: Interval, seen: Interval) -> float | None:
    slack = 1e-9 * max(abs(declared[0]), abs(declared[1]))
    if seen[0] < declared[0] - slack:
        return seen[0]
    return seen[1] if seen[1] > declared[1] + slack else None


def _catastrophic_rows(pairs: OutcomePairs, rule: MetricRule) -> frozenset[int] | None:
    """Rows in which the candidate lost more than is accepted in a single episode."""
    limit = OUTCOMES[pairs.metric].catastrophe if rule.catastrophe is None else rule.catastrophe
    if limit is None:
        return None
    return frozenset(pairs.rows[pairs.row_gains < -(limit + 1e-9)].tolist())
