"""Decisions: what a list says about an eval run, in one line: the decision, why, and the outcome that decided."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from markupsafe import Markup

from rollbook.contracts.decision import Decision, Interval, OutcomeSummary, Rollup, read_summary
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.portal.charts.interval_bar import interval_bar
from rollbook.report.run_report import leading_outcome, outcome_summaries
from rollbook.report.words import (
    Shown,
    count,
    has_shown_loss,
    level_words,
    shown,
    without_verdict,
)
from rollbook.server.queries import EvalRunDecided

Kind: TypeAlias = Literal["ship", "hold", "regress", "run", "failed", "cancelled"]
"""`regress` is a hold with a loss that was shown. `failed` and `cancelled` runs ended without a decision."""

_BELOW_ZERO = 0.75
"""Room left of zero in a bar of a list, as a share of the room right of it."""
UNREADABLE = "The summary of this run has a form that this release cannot read."


@dataclass(frozen=True)
class DecidingOutcome:
    """The outcome that the decision is about."""

    metric: Outcome
    summary: OutcomeSummary
    shown: Shown
    margin: float | None
    """Largest loss that the gate allows."""

    @property
    def label(self) -> str:
        return OUTCOMES[self.metric].label

    @property
    def change(self) -> str:
        """Such as "+14.2": the unit stands at the label."""
        kind = OUTCOMES[self.metric]
        return kind.change_text(self.summary.paired_delta or 0.0).removesuffix(kind.unit)

    @property
    def unit(self) -> str:
        return OUTCOMES[self.metric].unit.strip()

    @cached_property
    def bar(self) -> Markup:
        """For a row of a table, without labels. Zero is at the same place in every row."""
        known = [self.summary.paired_delta or 0.0, *(self.summary.interval or ())]
        reach = 1.05 * max(max(known), -min(known) / _BELOW_ZERO) or 1.0
        within = (-_BELOW_ZERO * reach, reach)
        return outcome_bar(self.metric, self.summary, self.shown, within=within, labels=False)


@dataclass(frozen=True)
class RunDecision:
    kind: Kind
    sentence: str
    """The whole sentence, without "Ship" or "Hold"."""
    reason: str
    """A few words for a list."""
    deciding: DecidingOutcome | None
    """None where nothing was measured, or nothing is decided."""


@dataclass(frozen=True)
class RunLine:
    """One run in a list."""

    run: EvalRunDecided
    decision: RunDecision

    @property
    def name(self) -> str:
        """A run without a name is called after its candidate."""
        return self.run.name or f"{self.run.candidate_policy_version}, replayed"

    @property
    def done(self) -> int:
        return self.run.episodes_completed + self.run.episodes_failed

    @property
    def pairs(self) -> str:
        """Such as "84 of 200", or "120" where no pair is missing."""
        total = self.run.episode_count
        return f"{total:,}" if self.done == total else f"{self.done:,} of {total:,}"


def run_line(run: EvalRunDecided) -> RunLine:
    return RunLine(run, run_decision(run))


def run_decision(run: EvalRunDecided) -> RunDecision:
    if run.status in ("pending", "running"):
        return _under_way(run)
    if run.status == "cancelled" or run.status == "failed":
        text = f"The run {'was cancelled' if run.status == 'cancelled' else 'failed'}; there is no decision."
        return RunDecision(run.status, text, "no decision", None)
    rollup = read_summary(run.summary)
    if not isinstance(rollup, Rollup):
        return RunDecision("hold", UNREADABLE, "the summary cannot be read", None)
    decision = rollup.decision
    return RunDecision(
        kind=kind_of(decision),
        sentence=without_verdict(decision.sentence),
        reason=_reason(decision),
        deciding=_deciding(rollup),
    )


def kind_of(decision: Decision) -> Kind:
    if decision.recommend == "ship":
        return "ship"
    return "regress" if has_shown_loss(decision) else "hold"


def outcome_bar(
    metric: Outcome,
    summary: OutcomeSummary,
    found: Shown,
    margin: float | None = None,
    *,
    within: Interval | None = None,
    labels: bool = True,
) -> Markup:
    """The difference in one outcome. `margin` is the loss that the gate allows."""
    kind = OUTCOMES[metric]
    sign = -1 if kind.higher_is_better else 1
    return interval_bar(
        summary.paired_delta,
        summary.interval,
        shown=found,
        margin=None if margin is None else sign * margin,
        within=within,
        write=lambda value: kind.change_text(value).removesuffix(kind.unit),
        level=level_words(summary).removesuffix(" interval"),
        labels=labels,
        missing=f"{count(summary.n_pairs, 'pair')}: no interval",
    )


def _under_way(run: EvalRunDecided) -> RunDecision:
    done = run.episodes_completed + run.episodes_failed
    crashed = f", {run.episodes_failed:,} failed" if run.episodes_failed else ""
    text = f"{done:,} of {count(run.episode_count, 'pair')} measured{crashed}."
    return RunDecision(
        "run", text, "no decision before the end" if done else "waits for results", None
    )


def _reason(decision: Decision) -> str:
    if decision.recommend == "ship":
        if decision.gate.mode == "non_inferiority":
            return "not worse than the gate allows"
        return f"better on {' and '.join(OUTCOMES[each].label for each in decision.better)}"
    first = decision.findings[0].text if decision.findings else "no reason was given"
    others = len(decision.findings) - 1
    return f"{first}, and {count(others, 'more reason')}" if others > 0 else first


def _deciding(rollup: Rollup) -> DecidingOutcome | None:
    decision = rollup.decision
    lost = [
        metric for metric in OUTCOMES if any(f"regression:{metric}" == r for r in decision.reasons)
    ]
    metric = (*lost, *decision.better, leading_outcome(rollup))[0]
    if metric is None:
        return None
    summary = outcome_summaries(rollup)[metric]
    if summary.paired_delta is None:
        return None
    found = shown(metric, summary, decision)
    return DecidingOutcome(metric, summary, found, decision.gate.rule(metric).margin)
