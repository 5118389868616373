"""Several eval runs beside each other: ranked together where they can be, every outcome, and the pairs that differ."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.comparison import Comparison
from rollbook.contracts.decision import Rollup, read_summary
from rollbook.contracts.evals import EVIDENCE
from rollbook.contracts.outcomes import OUTCOMES, Outcome, OutcomeKind
from rollbook.errors import ConfigurationError
from rollbook.portal.decisions import RunLine, outcome_bar, run_line
from rollbook.portal.evals.eval_pairs import Pair, pairs_of_run
from rollbook.portal.page import Page, page_route, page_session, render
from rollbook.report.run_report import outcome_summaries
from rollbook.report.words import capital, count, shown
from rollbook.server.context import context_of
from rollbook.server.evals.runs import as_results
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem, not_found
from rollbook.server.queries import EvalResultRow, EvalRunRow, Scope

LEAST, MOST = 2, 6
MOST_FLIPPED = 50


@dataclass(frozen=True, slots=True)
class OutcomeCell:
    """One outcome of one run. Without a bar it was not measured."""

    change: str
    bar: Markup
    pairs: int
    evidence: str
    effect: str


@dataclass(frozen=True, slots=True)
class FlippedPair:
    baseline_id: str
    label: str
    before: str
    after: Sequence[str]
    """For each run: yes, no or unknown."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What can be said about the runs together."""

    comparison: Comparison | None
    refusal: str | None
    """Why they are not ranked together."""
    shared: int
    left_out: int
    outcomes: Sequence[tuple[str, Sequence[OutcomeCell | None]]]
    flipped: Sequence[FlippedPair]
    flipped_count: int


@dataclass(frozen=True, kw_only=True)
class ComparePage(Page):
    template: ClassVar[str] = "compare.html"
    section: ClassVar[str] = "evals"
    title: str = "Compare runs"
    lines: Sequence[RunLine]
    sentence: str
    compared: Compared | None
    """None while fewer than two runs are chosen."""
    metric: OutcomeKind | None
    metrics: Sequence[OutcomeKind]
    command: str


async def compare(request: Request) -> Response:
    session = await page_session(request)
    ids = list(dict.fromkeys(each for each in request.query_params.getlist("run") if each))
    if len(ids) > MOST:
        text = (
            f"run: expected at most {MOST} runs, not {len(ids)}; rollbook replay compare takes more"
        )
        raise Problem(400, "invalid_value", text, where="run")
    metric = _metric(request.query_params.get("metric"))

    def read(scope: Scope) -> list[tuple[EvalRunRow, list[EvalResultRow]]]:
        found = [scope.eval_run(each) for each in ids]
        runs = [each for each in found if each is not None]
        if len(runs) < len(ids):
            raise not_found("eval run")
        return [(each, scope.all_eval_results(each.id)) for each in runs]

    loaded = await context_of(request).read(session.caller, read)
    lines = [run_line(run) for run, _ in loaded]
    compared = None
    if len(loaded) >= LEAST:
        compared = await asyncio.to_thread(_compared, loaded, lines, metric)
    comparison = compared.comparison if compared else None
    page = ComparePage(
        session=session,
        title=f"Compare {count(len(lines), 'run')}" if lines else "Compare runs",
        lines=lines,
        sentence=_sentence(comparison, lines) if comparison else "",
        compared=compared,
        metric=OUTCOMES[comparison.metric] if comparison else None,
        metrics=tuple(OUTCOMES.values()),
        command=f"rollbook replay compare {' '.join(ids)}",
    )
    return render(request, page)


def _metric(text: str | None) -> Outcome | None:
    if not text:
        return None
    for name in OUTCOMES:
        if name == text:
            return name
    expected = f"one of {', '.join(OUTCOMES)}"
    raise Problem(400, "invalid_value", f"metric: expected {expected}", where="metric")


def _compared(
    loaded: Sequence[tuple[EvalRunRow, Sequence[EvalResultRow]]],
    lines: Sequence[RunLine],
    metric: Outcome | None,
) -> Compared:
    comparison, refusal = None, None
    try:
        comparison = _ranked(loaded, metric)
    except ConfigurationError as error:
        refusal = str(error)
        for line in lines:
            refusal = refusal.replace(line.run.id, line.name)
        for kind in EVIDENCE:
            refusal = refusal.replace(f"{kind} in ", f"{kind.replace('_', ' ')} in ")
    used = [{row.baseline_episode_id for row in rows} for _, rows in loaded]
    shared = set.intersection(*used)
    pairs = [
        {each.baseline_id: each for each in pairs_of_run(rows)} if rows else {}
        for _, rows in loaded
    ]
    order = [row.baseline_episode_id for row in loaded[0][1] if row.baseline_episode_id in shared]
    flipped = [each for each in order if _differs(each, pairs)]
    return Compared(
        comparison=comparison,
        refusal=refusal,
        shared=len(shared),
        left_out=len(set.union(*used)) - len(shared),
        outcomes=_outcomes(loaded),
        flipped=[_flipped(each, pairs) for each in flipped[:MOST_FLIPPED]],
        flipped_count=len(flipped),
    )


def _ranked(
    loaded: Sequence[tuple[EvalRunRow, Sequence[EvalResultRow]]], metric: Outcome | None
) -> Comparison:
    from rollbook.scoring.run_comparison import (  # loads scipy, which most processes never need
        ComparedRun,
        comparison_of,
        decided,
    )

    runs = []
    for run, rows in loaded:
        if run.status != "completed":
            message = f"{run.id} is {run.status}; only completed runs are ranked together"
            raise ConfigurationError(message=message)
        labels = {
            each.baseline_episode_id: {name: tuple(values) for name, values in each.labels.items()}
            for each in rows
            if each.labels is not None
        }
        summary = decided(run.id, run.summary)
        runs.append(
            ComparedRun(run.id, run.candidate_policy_version, as_results(rows), summary, labels)
        )
    return comparison_of(runs, metric)


def _sentence(comparison: Comparison, lines: Sequence[RunLine]) -> str:
    """Who is shown to be better than its baseline, and who can be told apart."""
    label = OUTCOMES[comparison.metric].label
    better = [each.candidate for each in comparison.candidates if each.better]
    if not better:
        first = f"No candidate was shown to be better on {label} after the correction for {len(lines)} of them."
    else:
        names = (
            " and ".join(better) if len(better) < 3 else f"{len(better)} of {len(lines)} candidates"
        )
        word = "were" if len(better) > 1 else "was"
        first = f"{names} {word} shown to be better on {label} after the correction for {len(lines)} candidates."
    best, *others = comparison.candidates
    alike = [each.candidate for each in others if set(each.letters) & set(best.letters)]
    if not alike:
        return f"{first} {best.candidate} is told apart from all others."
    names = ", ".join(alike)
    return f"{first} {best.candidate} has the best mean, and is not told apart from {names}."


# ---------------------------------------------------------------------------------------- outcomes


def _outcomes(
    loaded: Sequence[tuple[EvalRunRow, Sequence[EvalResultRow]]],
) -> list[tuple[str, list[OutcomeCell | None]]]:
    """Outcomes that at least one run has measured."""
    rollups = [read_summary(run.summary) for run, _ in loaded]
    rows = []
    for name, kind in OUTCOMES.items():
        cells = [_cell(name, each) for each in rollups]
        if any(each is not None for each in cells):
            rows.append((capital(kind.label), cells))
    return rows


def _cell(metric: Outcome, rollup: object) -> OutcomeCell | None:
    if not isinstance(rollup, Rollup):
        return None
    summary = outcome_summaries(rollup)[metric]
    if summary.paired_delta is None:
        return None
    found = shown(metric, summary, rollup.decision)
    return OutcomeCell(
        change=OUTCOMES[metric].change_text(summary.paired_delta),
        bar=outcome_bar(metric, summary, found),
        pairs=summary.n_pairs,
        evidence=summary.evidence,
        effect="" if found == "not" else found,
    )


# ------------------------------------------------------------------------------------------- pairs


def _success(pair: Pair | None) -> bool | None:
    if pair is None:
        return None
    if pair.status == "failed":
        return False
    value = pair.values["success"][1]
    return None if value is None else bool(value)


def _differs(baseline_id: str, pairs: Sequence[dict[str, Pair]]) -> bool:
    found = {_success(each.get(baseline_id)) for each in pairs}
    return True in found and False in found


def _flipped(baseline_id: str, pairs: Sequence[dict[str, Pair]]) -> FlippedPair:
    words = {True: "yes", False: "no", None: "unknown"}
    first = pairs[0][baseline_id]
    before = first.values["success"][0]
    return FlippedPair(
        baseline_id,
        first.label,
        words[None if before is None else bool(before)],
        [words[_success(each.get(baseline_id))] for each in pairs],
    )


routes: tuple[LeanRoute, ...] = (page_route("GET", "/portal/compare", compare),)
