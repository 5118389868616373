"""Needed pairs: how many further pairs it takes to ship, when only pairs are missing."""

from __future__ import annotations

import math

from rollbook.contracts.gate import Gate, MetricRule
from rollbook.scoring.decision import RunFacts, Statistics, Verdict, usable
from rollbook.scoring.outcome_statistics import OutcomeStatistics
from rollbook.scoring.power import (
    MOST_PAIRS,
    pairs_for_e_value,
    pairs_for_mean,
    pairs_for_non_inferiority,
    pairs_for_superiority,
)

_MORE_PAIRS_HELP = {"missing_data", "insufficient_n", "not_better"}


def needed_pairs(
    statistics: Statistics, gate: Gate, facts: RunFacts, verdict: Verdict
) -> int | None:
    """Further pairs, if they turn out like the pairs so far. 0 when it ships; None when more pairs would not help."""
    if verdict.recommend == "ship":
        return 0
    if not set(verdict.reasons) <= _MORE_PAIRS_HELP:
        return None
    deciding = [rule for rule in gate.rules if rule.role != "info" and statistics[rule.metric].n]
    answers: list[int | None] = []
    for rule in deciding:
        outcome = statistics[rule.metric]
        if rule.metric != "time_to_goal_s":
            answers.append(gate.n_min - outcome.n)
        answers.append(_pairs_to_fill(outcome, gate, facts))
        answers.append(_pairs_to_rule_out(outcome, rule, gate))
    if gate.mode == "superiority" and not verdict.better:
        answers.append(_pairs_to_claim(statistics, gate))
    known = [answer for answer in answers if answer is not None]
    most = max([1, *known])  # it holds, so at least one pair is needed
    return most if len(known) == len(answers) and most <= MOST_PAIRS else None


def _pairs_to_fill(outcome: OutcomeStatistics, gate: Gate, facts: RunFacts) -> int | None:
    """Until enough pairs are measured: first those that have no result yet, then new ones."""
    pairs, share = outcome.pairs, gate.min_used_share
    if pairs.used_share >= share:
        return 0
    used = pairs.total - pairs.missing
    more = math.ceil(share * pairs.total - used - 1e-9)
    pending = min(facts.pending, pairs.missing)
    if more <= pending:
        return more
    if share >= 1:
        return None
    return math.ceil((share * (pairs.total - pending) - used) / (1 - share) - 1e-9)


def _pairs_to_rule_out(outcome: OutcomeStatistics, rule: MetricRule, gate: Gate) -> int | None:
    """Until a loss as large as the margin is ruled out."""
    if rule.margin is None or (outcome.lower is not None and outcome.lower > -rule.margin):
        return 0
    n = outcome.n
    if rule.metric == "success":
        win, loss = outcome.wins / n, outcome.losses / n
        pairs = pairs_for_non_inferiority(win, loss, rule.margin, gate.alpha)
    else:
        effect = (outcome.gain or 0.0) + rule.margin
        pairs = pairs_for_mean(effect, outcome.deviation, gate.alpha)
    return None if pairs is None else max(1, pairs - n)


def _pairs_to_claim(statistics: Statistics, gate: Gate) -> int | None:
    """Until the first primary is shown to be better."""
    primaries = [statistics[rule.metric] for rule in gate.rules if rule.role == "primary"]
    tested = [each for each in primaries if each.n and usable(each, gate)]
    answers = []
    for each in tested:
        pairs = _pairs_to_claim_one(each, gate, gate.alpha / len(tested))
        if pairs is not None:
            answers.append(max(1, pairs - each.n, gate.n_min - each.n))
    return min(answers, default=None)


def _pairs_to_claim_one(outcome: OutcomeStatistics, gate: Gate, alpha: float) -> int | None:
    n = outcome.n
    if outcome.pairs.metric == "success":
        win, loss = outcome.wins / n, outcome.losses / n
        if gate.design == "sequential":
            return pairs_for_e_value(win, loss, gate.alpha)
        return pairs_for_superiority(win, loss, alpha)
    if gate.design == "sequential":
        return None
    return pairs_for_mean(outcome.gain or 0.0, outcome.deviation, alpha)
