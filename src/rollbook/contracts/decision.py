"""Rollup: the summary of an eval run, with the decision to ship or to hold the candidate.

`scoring.rollup` makes it. `to_wire` gives the JSON that the server stores and sends, and `Rollup.from_wire` reads it
back. Other servers of the protocol send a `PlainSummary`: means, without statistics and without a decision.
docs/statistics.md explains every number. Fields are declared in the order in which the JSON has them.
"""

from __future__ import annotations

from typing import Any, Literal, Self, TypeAlias

import msgspec
from msgspec import Struct

from rollbook.contracts.gate import Gate, Role
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.errors import MalformedJson

Recommendation: TypeAlias = Literal["ship", "hold"]
Interval: TypeAlias = tuple[float, float]


# ------------------------------------------------------------------------------------- one metric


class MetricMeans(Struct, frozen=True, kw_only=True):
    """Plain means over the complete pairs. Crashed candidates are not in them."""

    baseline: float | None = None
    candidate: float | None = None
    delta: float | None = None
    delta_is_better: bool | None = None
    """None where no pair has both sides, and for metrics that are neither better nor worse."""


class ArmMeans(Struct, frozen=True, kw_only=True):
    """One number for each policy."""

    baseline: float | None = None
    candidate: float | None = None


class ArmIntervals(Struct, frozen=True, kw_only=True):
    """One interval for each policy."""

    baseline: Interval | None = None
    candidate: Interval | None = None


class Catastrophes(Struct, frozen=True, kw_only=True):
    count: int
    """Episodes in which the candidate lost more than the gate accepts in a single episode."""
    rate_upper95: float
    """Upper bound of their rate, with 95 % confidence."""


class OutcomeSummary(MetricMeans, frozen=True, kw_only=True):
    """One outcome: the plain means, then the statistics of the paired differences."""

    n_pairs: int
    """Pairs that count. Pairs of one situation count once."""
    n_total: int
    """Pairs that should count."""
    n_repeats: int
    """Pairs that were merged with another pair of the same situation."""
    crashes: int
    unusable: int
    """Values that were sent and are not a valid outcome."""
    evidence: str
    """How the candidate's outcome is known; `mixed` where pairs differ in that."""
    role: Role
    paired_delta: float | None
    """Mean difference over the pairs that count, crashes included."""
    ci95: Interval | None
    """95 % interval of `paired_delta`."""
    p_value: float | None
    """One-sided p-value of "the candidate is better"."""
    p_worse: float | None
    method: str | None
    """Names of the test and of the interval."""
    iqm: ArmMeans
    probability_of_improvement: float | None
    catastrophes: Catastrophes | None
    note: str | None


class SuccessBelief(Struct, frozen=True, kw_only=True):
    """Bayesian probabilities about the success rate. They are shown and decide nothing."""

    p_better: float
    p_not_worse: float
    """Probability that the rate is not lower by the margin or more."""


class SuccessSummary(OutcomeSummary, frozen=True, kw_only=True):
    """Success is a yes or a no, so it has more statistics than the other outcomes."""

    wins: int
    losses: int
    mid_p: float | None
    wilson: ArmIntervals
    bayes: SuccessBelief | None


# -------------------------------------------------------------------------------------- the actions


class ActionDistance(Struct, frozen=True, kw_only=True):
    """Distance between the actions of both policies, over episodes."""

    mean: float | None
    p95: float | None


class ActionChange(ActionDistance, frozen=True, kw_only=True):
    """The same in units of each action channel's spread. A change is neither better nor worse."""

    ood_share: float | None
    """Share of steps outside the range of the recorded actions."""
    n_pairs: int
    evidence: str | None


class RegretSummary(Struct, frozen=True, kw_only=True):
    """Means over episodes whose rollout store knows the reward of every choice."""

    best_total: float | None
    random_total: float | None
    chosen_total: float | None
    regret: float | None
    regret_share: float | None
    n_pairs: int
    invalid_choices: float
    """Sum over all episodes."""


# ------------------------------------------------------------------------------------- the decision


class PairCounts(Struct, frozen=True, kw_only=True):
    total: int
    complete: int
    failed: int
    pending: int
    """Pairs without a result."""
    repeated: int
    """Results for a baseline that already had one. They are not counted."""


class SequentialBets(Struct, frozen=True, kw_only=True):
    """E-values of a sequential run. The run may stop when one of them reaches the threshold."""

    e_better: float
    e_worse: float
    threshold: float


class DecisionFinding(Struct, frozen=True):
    """One reason to hold."""

    reason: str
    """Code for programs, such as `regression:success`."""
    text: str
    """The same for people."""


class Decision(Struct, frozen=True, kw_only=True):
    recommend: Recommendation
    reasons: tuple[str, ...]
    """Reasons to hold, each code once. Empty when the candidate ships."""
    findings: tuple[DecisionFinding, ...]
    sentence: str
    """The decision in one line for people."""
    needed_n: int | None
    """Estimated number of further pairs until the candidate can ship. 0 when it ships; None when more pairs would not
    change the decision."""
    better: tuple[Outcome, ...]
    """Primary outcomes that were shown to be better."""
    left_out: tuple[Outcome, ...]
    """Outcomes that the gate names, does not require, and that no pair has."""
    early_stop: Recommendation | None
    """Set when a sequential run may end before all pairs have a result."""
    gate: Gate
    gate_digest: str


# -------------------------------------------------------------------------------------- the summary


class PlainSummary(Struct, frozen=True, kw_only=True):
    """The part that every client and server of the protocol knows: means, and a vote by majority."""

    success_rate: MetricMeans | None = None
    reward_mean: MetricMeans | None = None
    collision_rate: MetricMeans | None = None
    time_to_goal_s: MetricMeans | None = None
    ood_action_share: MetricMeans | None = None
    better_count: int | None = None
    """Outcomes whose mean moved in the right direction."""
    metric_total: int | None = None
    """Outcomes that have a delta."""
    recommend: str | None = None
    """The vote. It ignores uncertainty; `Rollup.decision` is the recommendation to follow."""

    @property
    def outcomes(self) -> dict[str, MetricMeans]:
        """By summary key, in the order of the outcome table; only those that are there."""
        found = {kind.summary_key: getattr(self, kind.summary_key) for kind in OUTCOMES.values()}
        return {key: means for key, means in found.items() if means is not None}

    @classmethod
    def from_wire(cls, summary: object) -> Self:
        """Read decoded JSON. Keys of a later version are ignored; a missing or invalid one raises MalformedJson."""
        try:
            return msgspec.convert(summary, cls)
        except msgspec.ValidationError as error:
            detail, _, where = str(error).partition(" - at ")
            raise MalformedJson(
                source="summary of an eval run",
                record_id=None,
                where=where.strip("`") or "$",
                detail=detail,
            ) from error

    def to_wire(self) -> dict[str, Any]:
        """As JSON values: what the server stores and sends."""
        wire: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return wire


class Rollup(PlainSummary, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that is known about an eval run. Only `regret` and `sequential` can be absent from the JSON."""

    success_rate: SuccessSummary
    reward_mean: OutcomeSummary
    collision_rate: OutcomeSummary
    time_to_goal_s: OutcomeSummary
    ood_action_share: MetricMeans
    better_count: int
    metric_total: int
    recommend: Recommendation
    action_l2_distance: ActionDistance
    action_change: ActionChange
    regret: RegretSummary | None = None
    """Set when a rollout store measured it."""
    counts: PairCounts
    sequential: SequentialBets | None = None
    """Set when the gate has the design `sequential`."""
    decision: Decision


def read_summary(summary: object) -> PlainSummary | None:
    """A Rollup where the JSON is one, else a PlainSummary; None where it is neither."""
    for kind in (Rollup, PlainSummary):
        try:
            return kind.from_wire(summary)
        except MalformedJson:
            continue
    return None
