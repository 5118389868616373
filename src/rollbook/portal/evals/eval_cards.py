"""DiffCards: one outcome of a run on one card, with its interval and how it is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from markupsafe import Markup

from rollbook.contracts.decision import OutcomeSummary, Rollup, SuccessSummary
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.portal.charts.interval_bar import interval_bar
from rollbook.portal.decisions import outcome_bar
from rollbook.portal.formats import MISSING, number, p_value, points, signed
from rollbook.report.run_report import outcome_summaries
from rollbook.report.words import (
    capital,
    cluster_words,
    count,
    interval_words,
    level_words,
    missing_words,
    percent,
    shown,
)

CardState: TypeAlias = Literal["better", "worse", "not", "few", "none"]
FEW_PAIRS = 8
_SAID: dict[CardState, str] = {
    "better": "shown better",
    "worse": "shown worse",
    "not": "no difference shown",
    "few": "too few pairs to say",
    "none": "not measured",
}


@dataclass(frozen=True)
class DiffCard:
    title: str
    role: str
    state: CardState
    said: str
    change: str
    unit: str
    is_up: bool
    """Whether the value grew, which may be worse."""
    baseline: str
    candidate: str
    bar: Markup
    pairs: str
    numbers: str
    """Pairs won and lost, or the p-value that counts."""
    evidence: str
    details: list[tuple[str, str]]


def diff_cards(rollup: Rollup) -> list[DiffCard]:
    """Of the outcomes that the gate names, and of all others that were measured."""
    return [
        _card(metric, summary, rollup)
        for metric, summary in outcome_summaries(rollup).items()
        if summary.n_pairs or summary.role != "info"
    ]


def _card(metric: Outcome, summary: OutcomeSummary, rollup: Rollup) -> DiffCard:
    kind, delta = OUTCOMES[metric], summary.paired_delta
    found = shown(metric, summary, rollup.decision)
    state: CardState = found
    if not summary.n_pairs or delta is None:
        state = "none"
    elif found == "not" and summary.n_pairs < FEW_PAIRS:
        state = "few"
    return DiffCard(
        title=capital(kind.label),
        role=summary.role,
        state=state,
        said=_SAID[state],
        change=MISSING if delta is None else _change(metric, delta, summary),
        unit=_unit(metric) if delta is not None else "",
        is_up=(delta or 0.0) > 0,
        baseline=_value(metric, summary.baseline, summary),
        candidate=_value(metric, summary.candidate, summary),
        bar=_bar(metric, summary, state, rollup.decision.gate.rule(metric).margin),
        pairs=count(summary.n_pairs, "pair")
        + (", both succeed" if metric == "time_to_goal_s" and summary.n_pairs else ""),
        numbers=_numbers(summary, state),
        evidence=summary.evidence,
        details=[*_details(metric, summary)],
    )


def _digits(summary: OutcomeSummary) -> int:
    """The same for both sides and their difference: two, or three where both are below one."""
    largest = max(abs(summary.baseline or 0.0), abs(summary.candidate or 0.0))
    return 0 if largest >= 1000 else 2 if largest >= 1 else 3


def _change(metric: Outcome, delta: float, summary: OutcomeSummary) -> str:
    return points(delta) if metric == "success" else signed(delta, _digits(summary))


def _value(metric: Outcome, value: float | None, summary: OutcomeSummary) -> str:
    if value is None:
        return MISSING
    kind = OUTCOMES[metric]
    return (
        kind.value_text(value) if kind.type is bool else number(value, _digits(summary)) + kind.unit
    )


def _unit(metric: Outcome) -> str:
    return "per episode" if metric == "collision_count" else OUTCOMES[metric].unit.strip()


def _bar(
    metric: Outcome, summary: OutcomeSummary, state: CardState, margin: float | None
) -> Markup:
    if state in ("few", "none"):
        few = f"{count(summary.n_pairs, 'pair')}: too few"
        return interval_bar(None, None, missing=few if state == "few" else "not measured")
    found = "not" if state not in ("better", "worse") else state
    return outcome_bar(metric, summary, found, margin)


def _numbers(summary: OutcomeSummary, state: CardState) -> str:
    if state == "none":
        return ""
    if isinstance(summary, SuccessSummary):
        return f"{summary.wins:,} won · {summary.losses:,} lost"
    if summary.role == "guard" or state == "worse":
        return f"p(worse) {_equals(summary.p_worse)}"
    return f"p {_equals(summary.p_value)}"


def _equals(value: float | None) -> str:
    text = p_value(value)
    return text if text.startswith("≤") else f"= {text}"


def _details(metric: Outcome, summary: OutcomeSummary) -> Iterator[tuple[str, str]]:
    kind = OUTCOMES[metric]
    if summary.interval is not None:
        yield capital(level_words(summary)), interval_words(metric, summary) or ""
    yield "Pairs", cluster_words(summary.n_pairs, summary.clusters)
    if summary.p_value is not None:
        yield "p(better)", p_value(summary.p_value)
    if summary.p_worse is not None:
        yield "p(worse)", p_value(summary.p_worse)
    if missing := missing_words(summary.missing):
        yield "Missing", missing
    if summary.crashes:
        yield "Crashed", count(summary.crashes, "pair")
    if summary.worst_loss is not None and metric != "success":
        how = "declared" if summary.worst_loss_declared else "not declared: the range that was seen"
        yield "Worst loss of a pair", f"{kind.amount_text(round(summary.worst_loss, 6))} ({how})"
    if summary.catastrophes is not None:
        upper = percent(summary.catastrophes.rate_upper95)
        yield "Catastrophes", f"{summary.catastrophes.count:,}, at most {upper} of all episodes"
    if isinstance(summary, SuccessSummary) and summary.bayes is not None:
        yield (
            "Belief that it is better",
            f"{percent(round(summary.bayes.p_better, 4))}, decides nothing",
        )
    if summary.method:
        yield "Method", summary.method
    if summary.note:
        yield "Note", summary.note
