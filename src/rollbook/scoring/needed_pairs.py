"""Needed pairs: how large a run has to be until the candidate can ship, when only pairs are missing.

A run that was judged gets no more pairs: asking again with some more until it ships would ship equal policies too
often. So the answer is the size of a new run on fresh pairs. While pairs of this run have no result yet, it is those.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rollbook.contracts.gate import Gate, MetricRule
from rollbook.scoring.bounds.gain_bounds import is_below
from rollbook.scoring.decision import RunFacts, Statistics, Verdict, usable
from rollbook.scoring.intervals import deviation
from rollbook.scoring.outcome_statistics import LEAST_PAIRS_WITHOUT_RANGE, OutcomeStatistics
from rollbook.scoring.power import (
    MOST_PAIRS,
    clusters_for,
    pairs_for_capital,
    pairs_for_e_value,
    pairs_for_non_inferiority,
    pairs_for_superiority,
)

_MORE_PAIRS_HELP = {
    *("missing_data", "insufficient_n", "insufficient_clusters", "undeclared_range"),
    *("could_be_worse", "not_better"),
}


_LATE = 1.5
"""Four of five bets reach their goal within this many times the mean number of pairs."""


class NeededPairs(NamedTuple):
    pairs: int | None
    """0 when it ships; None when more pairs would not help."""
    clusters: int | None = None
    """New clusters that the pairs have to be in."""
    cluster_by: str | None = None
    is_new_run: bool = True
    """False: the pairs of this run that have no result yet."""


def needed_pairs(
    statistics: Statistics, gate: Gate, facts: RunFacts, verdict: Verdict, level: float
) -> NeededPairs:
    """If further pairs turn out like the pairs so far."""
    if verdict.recommend == "ship":
        return NeededPairs(0)
    if not {reason.split(":")[0] for reason in verdict.reasons} <= _MORE_PAIRS_HELP:
        return NeededPairs(None)
    if facts.waiting:
        return NeededPairs(facts.waiting, is_new_run=False)
    deciding = [rule for rule in gate.rules if rule.role != "info" and statistics[rule.metric].n]
    answers: list[int | None] = [gate.n_min]
    for rule in deciding:
        if rule.margin is not None and rule.metric not in verdict.better:
            answers += _to_rule_out(statistics[rule.metric], rule, level)
    if gate.mode == "superiority" and not verdict.better:
        claim = _to_claim(statistics, gate, level)
        if claim is not None or not _is_too_early(verdict):
            answers.append(claim)
    known = [answer for answer in answers if answer is not None]
    if len(known) < len(answers) or max(known) > MOST_PAIRS:
        return NeededPairs(None)
    pairs = max(known)
    clusters = _clusters(statistics, deciding, verdict, pairs, gate, level)
    if clusters is not None:
        pairs = max(pairs, clusters.pairs)
    if clusters is None:
        return NeededPairs(pairs)
    return NeededPairs(pairs, clusters.number, clusters.by)


class _Clusters(NamedTuple):
    number: int
    pairs: int
    by: str | None


def _clusters(
    statistics: Statistics,
    deciding: list[MetricRule],
    verdict: Verdict,
    pairs: int,
    gate: Gate,
    level: float,
) -> _Clusters | None:
    """New clusters for so many pairs, of the size that they have now."""
    clustered = [rule for rule in deciding if statistics[rule.metric].judged.has_clusters]
    if not clustered:
        return None
    found = [statistics[rule.metric].judged.clusters for rule in clustered]
    size = max(each.pairs / len(each) for each in found)
    least = [gate.least_clusters, math.ceil(pairs / size)]
    for rule in clustered:
        if rule.margin is not None and rule.metric not in verdict.better:
            least.append(statistics[rule.metric].least_clusters(rule.margin, level))
    by = statistics[clustered[0].metric].pairs.cluster_by
    return _Clusters(max(least), math.ceil(max(least) * size), by)


def _is_too_early(verdict: Verdict) -> bool:
    """Whether there are too few pairs to say that a gain is out of reach. It may be there as long as a large loss may
    be: pairs that rule out the one tell about the other."""
    return any(reason.startswith(("insufficient", "could_be_worse")) for reason in verdict.reasons)


def _to_rule_out(
    outcome: OutcomeStatistics, rule: MetricRule, level: float
) -> Iterator[int | None]:
    """Until a loss as large as the margin is ruled out."""
    assert rule.margin is not None
    if not is_below(outcome.p_not_worse(rule.margin), level):
        expected = _Expected.of(outcome)
        if outcome.watched is None:
            yield expected.pairs_to_rule_out(rule.margin, level)
        else:
            yield expected.pairs_to_bet_on_margin(rule.margin, level)
    if not outcome.is_declared:
        yield LEAST_PAIRS_WITHOUT_RANGE


def _to_claim(statistics: Statistics, gate: Gate, level: float) -> int | None:
    """Until the first primary is shown to be better."""
    primaries = [statistics[rule.metric] for rule in gate.rules if rule.role == "primary"]
    tested = [each for each in primaries if each.n and usable(each, gate)]
    tries = 1 if gate.design == "sequential" else len(tested)  # it bets on one outcome
    answers = [_to_claim_one(each, gate, level / tries) for each in tested]
    return min((each for each in answers if each is not None), default=None)


def _to_claim_one(outcome: OutcomeStatistics, gate: Gate, level: float) -> int | None:
    expected = _Expected.of(outcome)
    if gate.design == "sequential":
        return None if outcome.bets is None else expected.pairs_to_bet(level)
    pairs = expected.pairs_to_show(level)
    if pairs is None or outcome.is_declared:
        return pairs
    return max(pairs, LEAST_PAIRS_WITHOUT_RANGE)


class _Expected(NamedTuple):
    """What further pairs are expected to be like."""

    win: float
    loss: float
    mean: float
    deviation: float
    worst_loss: float
    size: float
    """Pairs of a cluster."""
    correlation: float
    is_exact: bool
    """Success in pairs that count alone."""

    @classmethod
    def of(cls, outcome: OutcomeStatistics) -> _Expected:
        """Like the pairs that were judged, missing ones included."""
        bounds = outcome.judged
        gains, clusters = bounds.gains, bounds.clusters
        return cls(
            win=float(np.mean(gains > 0)),
            loss=float(np.mean(gains < 0)),
            mean=float(gains.mean()),
            deviation=deviation(gains),
            worst_loss=bounds.worst_loss,
            size=len(gains) / len(clusters),
            correlation=max(0.0, clusters.correlation or 0.0) if bounds.has_clusters else 0.0,
            is_exact=bounds.is_exact,
        )

    def pairs_to_show(self, level: float) -> int | None:
        if self.is_exact:
            return pairs_for_superiority(self.win, self.loss, level)
        return self._pairs(self.mean, level)

    def pairs_to_bet(self, level: float) -> int | None:
        if self.is_exact:
            return _late(pairs_for_e_value(self.win, self.loss, level))
        return self._pairs_for_capital(self.mean, self.worst_loss, level)

    def pairs_to_bet_on_margin(self, margin: float, level: float) -> int | None:
        """The same until a loss as large as the margin is ruled out. Pairs that lost much are taken to be equal."""
        mean = self.mean if self.mean > -margin / 2 else 0.0
        return self._pairs_for_capital(mean + margin, self.worst_loss - margin, level)

    def _pairs_for_capital(self, effect: float, worst_loss: float, level: float) -> int | None:
        alike = (1 + (self.size - 1) * self.correlation) / self.size
        spread = self.deviation * math.sqrt(alike)
        clusters = _late(pairs_for_capital(effect, spread, worst_loss, level))
        return None if clusters is None else math.ceil(clusters * self.size)

    def pairs_to_rule_out(self, margin: float, level: float) -> int | None:
        """Where the pairs so far lost much, and not enough to call it worse, the policies are taken to be equal."""
        is_near = self.mean > -margin / 2
        if self.is_exact:
            differ = (self.win + self.loss) / 2
            win, loss = (self.win, self.loss) if is_near else (differ, differ)
            return pairs_for_non_inferiority(win, loss, margin, level)
        return self._pairs(self.mean if is_near else 0.0, level, margin)

    def _pairs(self, effect: float, level: float, margin: float | None = None) -> int | None:
        clusters = clusters_for(
            effect,
            self.deviation,
            self.worst_loss,
            level,
            size=self.size,
            correlation=self.correlation,
            rule_out=margin,
        )
        return None if clusters is None else math.ceil(clusters * self.size)


def _late(pairs: int | None) -> int | None:
    return None if pairs is None else math.ceil(_LATE * pairs)
