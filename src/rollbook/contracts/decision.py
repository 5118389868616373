"""Rollup: the summary of an eval run, with the decision to ship or to hold the candidate.

`scoring.rollup` makes it. `to_wire` gives the JSON that the server stores and sends, and `Rollup.from_wire` reads it
back. Other servers of the protocol send a `PlainSummary`: means, without statistics and without a decision.
docs/explain/statistics.md explains every number. Fields are declared in the order in which the JSON has them.
"""

from __future__ import annotations

from typing import Any, Literal, Self, TypeAlias, get_args

import msgspec
from msgspec import Struct

from rollbook.contracts.gate import Gate, Role
from rollbook.contracts.outcomes import OUTCOMES, Outcome, OutcomeKind
from rollbook.errors import MalformedJson
from rollbook.notebook import card, table

Recommendation: TypeAlias = Literal["ship", "hold"]
RECOMMENDATIONS: tuple[Recommendation, ...] = get_args(Recommendation)
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


class ClusterSummary(Struct, frozen=True, kw_only=True):
    by: str
    """The label that pairs of a cluster share."""
    count: int
    effective_pairs: float
    """How many independent pairs would say as much."""
    correlation: float | None
    """Of pairs inside a cluster."""


class OutcomeSummary(MetricMeans, frozen=True, kw_only=True):
    """One outcome: the plain means, then the statistics of the paired differences."""

    n_pairs: int
    """Pairs that have an outcome. Pairs of one situation count once."""
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
    """Mean difference over the pairs that have an outcome, crashes included."""
    interval: Interval | None = None
    """The two one-sided bounds that were tested. The side on which the candidate is worse counts missing outcomes as
    lost. None in a sequential run, because the bounds hold for one look."""
    interval_level: float | None = None
    """How often an interval like this contains the true difference: 0.9 for an alpha of .05."""
    p_value: float | None
    """One-sided p-value of "the candidate is better"."""
    p_worse: float | None
    method: str | None
    """Names of the bounds."""
    clusters: ClusterSummary | None = None
    """Set where pairs were tested in clusters."""
    missing: dict[str, int] = {}
    """Pairs without an outcome, by cause: `pending`, `deleted`, `candidate`, `baseline`, `infrastructure`, `crash`."""
    worst_loss: float | None = None
    """The largest loss of a pair that was allowed for. Larger ones were not ruled out."""
    worst_loss_declared: bool = False
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


class CounterfactualRelation(Struct, frozen=True, kw_only=True):
    """What the same candidate's choices in the recorded states of the same chains say, beside its closed loop."""

    n_pairs: int
    """Pairs that have both figures. All means are over these."""
    counterfactual_delta: float
    """Reward of the candidate's choices in the recorded states, minus that of the recorded ones."""
    closed_loop_delta: float
    """Return of the candidate minus that of the baseline."""
    excess: float
    """Counterfactual minus closed loop: by how much the counterfactual figure is too good."""
    excess_interval: tuple[float, float] | None
    """95 %, over clusters; None for a single cluster, or where nothing varies."""
    rank_correlation: float | None
    """Spearman's, of the two differences over pairs."""


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

    metric: Outcome = "success"
    """The outcome that is bet on: the first primary whose worst loss is known."""
    e_better: float
    e_worse: float
    threshold: float


class DecisionFinding(Struct, frozen=True):
    """One reason to hold."""

    reason: str
    """Code for programs, such as `regression:success`."""
    text: str
    """The same for people."""


class Look(Struct, frozen=True, kw_only=True):
    """One look of a run that is judged several times."""

    number: int
    of: int
    pairs: int
    """Pairs that this look judges: the first ones by id."""
    level: float


class LedgerEntry(Struct, frozen=True, kw_only=True):
    """How often the baselines of this run were used before."""

    number: int
    """This is the number-th run on these baselines."""
    level: float
    """The corrected level: alpha / (number (number + 1))."""
    would: Recommendation
    """The decision at the corrected level."""
    decides: bool


class SliceSummary(Struct, frozen=True, kw_only=True):
    """The pairs that share one label."""

    by: str
    value: str
    metric: Outcome
    pairs: int
    delta: float
    interval: Interval | None
    """At the level of the gate, corrected for the number of slices of the same label."""
    p_worse: float
    """Corrected for the number of slices of the same label (Holm)."""
    vetoes: bool = False
    slices: int = 0
    """Slices that the label has. Only the worst are listed."""

    @property
    def words(self) -> str:
        """Such as "task pick: success −25 points in 12 pairs"."""
        kind = OUTCOMES[self.metric]
        counted = f"{self.pairs} pair{'' if self.pairs == 1 else 's'}"
        return f"{self.by} {self.value}: {kind.label} {kind.change_text(self.delta)} in {counted}"


class Decision(Struct, frozen=True, kw_only=True):
    recommend: Recommendation
    reasons: tuple[str, ...]
    """Reasons to hold, each code once. Empty when the candidate ships."""
    findings: tuple[DecisionFinding, ...]
    sentence: str
    """The decision in one line for people."""
    needed_n: int | None
    """While pairs of the run have no result: how many. Then the estimated size of a new run on fresh pairs that can
    ship. 0 when it ships; None when more pairs would not change the decision."""
    better: tuple[Outcome, ...]
    """Primary outcomes that were shown to be better."""
    left_out: tuple[Outcome, ...]
    """Outcomes that the gate names, does not require, and that no pair has."""
    early_stop: Recommendation | None
    """Set when a run may end before all pairs have a result."""
    gate: Gate
    gate_digest: str
    gate_name: str | None = None
    """The name of the organisation's gate that judged, where it is one."""
    needed_clusters: int | None = None
    """How many new clusters the pairs of the new run have to be in."""
    next_step: str | None = None
    """For a hold: the cheapest way to an answer."""
    look: Look | None = None
    ledger: LedgerEntry | None = None


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
    """Everything that is known about an eval run. Only `regret`, `counterfactual_relation` and `sequential` can be
    absent from the JSON."""

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
    counterfactual_relation: CounterfactualRelation | None = None
    """Set when candidates were rolled out from the chains of a rollout store."""
    counts: PairCounts
    sequential: SequentialBets | None = None
    """Set when the gate has the design `sequential`."""
    slices: tuple[SliceSummary, ...] = ()
    decision: Decision

    def _repr_html_(self) -> str:
        """In a notebook: the decision in one sentence, and every outcome that was measured."""
        rows = [
            _outcome_row(kind, getattr(self, kind.summary_key))
            for kind in OUTCOMES.values()
            if getattr(self, kind.summary_key).n_pairs
        ]
        heads = ("outcome", "baseline", "candidate", "difference", "interval", "pairs", "evidence")
        decision = self.decision
        facts = [
            ("pairs", f"{self.counts.complete:,} of {self.counts.total:,} complete"),
            ("failed", self.counts.failed or None),
            ("next", decision.next_step),
            ("gate", decision.gate_digest),
        ]
        return card(decision.sentence, facts, table(heads, rows))


def _outcome_row(kind: OutcomeKind, summary: OutcomeSummary) -> tuple[object, ...]:
    delta = summary.paired_delta
    return (
        kind.label,
        *(
            None if value is None else kind.value_text(value)
            for value in (summary.baseline, summary.candidate)
        ),
        None if delta is None else kind.change_text(delta),
        None if summary.interval is None else kind.range_text(*summary.interval),
        summary.n_pairs,
        summary.evidence.replace("_", " "),
    )


def read_summary(summary: object) -> PlainSummary | None:
    """A Rollup where the JSON is one, else a PlainSummary; None where it is neither."""
    for kind in (Rollup, PlainSummary):
        try:
            return kind.from_wire(summary)
        except MalformedJson:
            continue
    return None
