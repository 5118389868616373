"""One eval run: the decision and why, what the gate asked, every outcome, every pair."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from markupsafe import Markup
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.decision import Rollup
from rollbook.contracts.evals import EvalResult
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.portal.charts.pair_dots import PairDot, pair_dots, thinned_words
from rollbook.portal.decisions import RunLine, run_line
from rollbook.portal.evals.eval_export import report_of
from rollbook.portal.evals.eval_judgement import Judgement, judgement
from rollbook.portal.evals.eval_pairs import Pair, PairQuery, pair_query, pairs_of_run, success_flip
from rollbook.portal.evals.eval_progress import UNDER_WAY, Progress, progress_of
from rollbook.portal.evals.eval_runs import EVALS
from rollbook.portal.evals.eval_table import PairTable, pair_table
from rollbook.portal.page import Page, page_route, page_session, render
from rollbook.portal.prefix import local_url
from rollbook.report.evidence import RunEvidence
from rollbook.report.words import capital, count
from rollbook.server.accounts.sessions import Session
from rollbook.server.context import context_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import not_found
from rollbook.server.queries import EvalResultRow, EvalRunRow, Scope

Version: TypeAlias = tuple[str, str, int, int, int]
_MOST_METADATA = 64 << 10
_MOST_PAIRS_KEPT = 20_000


@dataclass(frozen=True, kw_only=True)
class EvalRunPage(Page):
    template: ClassVar[str] = "eval_run.html"
    section: ClassVar[str] = "evals"
    modules: ClassVar[tuple[str, ...]] = ("eval.js",)
    line: RunLine
    by: str | None
    """Who made the run."""
    path: str
    facts: list[tuple[str, str]]
    """How the pairs were measured."""
    evidence: str
    progress: Progress | None
    """Of a run that is under way."""
    judged: Judgement | None
    """Of a run that has a summary."""
    table: PairTable
    dots: Markup
    dots_note: str | None
    failures: list[tuple[str, str]]
    """Of a run that is under way: baseline and error of the pairs that failed."""
    metadata: str


@dataclass(frozen=True)
class _Head:
    org_id: str
    run: EvalRunRow
    critical: int
    """Critical scenarios among the baselines when the run was decided."""
    by: str | None

    @property
    def version(self) -> Version:
        """Everything that is derived from the run changes only with this."""
        return self.org_id, self.run.id, self.run.revision, self.run.updated_at_us, self.critical


@dataclass(frozen=True)
class _Body:
    """What is derived from all results of a run."""

    pairs: list[Pair]
    facts: list[tuple[str, str]]
    judged: Judgement | None

    @classmethod
    def of(cls, head: _Head, rows: list[EvalResultRow]) -> _Body:
        run, report, pairs = head.run, report_of(head.run, rows), pairs_of_run(rows)
        judged = None
        if run.status not in UNDER_WAY and isinstance(report.rollup, Rollup):
            path = f"{EVALS}/{run.id}"
            judged = judgement(report, report.rollup, pairs, head.critical, path)
        return cls(pairs, _facts(run, report.results, rows), judged)


class _RecentRuns:
    """The runs that were looked at last: who sorts and turns pages does not wait for all results each time."""

    def __init__(self) -> None:
        self._bodies: OrderedDict[Version, _Body] = OrderedDict()

    def get(self, head: _Head) -> _Body | None:
        found = self._bodies.get(head.version)
        if found is not None:
            self._bodies.move_to_end(head.version)
        return found

    def keep(self, head: _Head, body: _Body) -> None:
        self._bodies[head.version] = body
        while sum(len(each.pairs) for each in self._bodies.values()) > _MOST_PAIRS_KEPT:
            self._bodies.popitem(last=False)


_recent = _RecentRuns()


async def eval_run(request: Request) -> Response:
    session = await page_session(request)
    context, run_id = context_of(request), request.path_params["eval_run_id"]
    head = await context.read(session.caller, lambda scope: _load(scope, run_id))
    body = _recent.get(head)
    if body is None:
        rows = await context.read(session.caller, lambda scope: scope.all_eval_results(run_id))
        body = await asyncio.to_thread(lambda: _Body.of(head, rows))
        if head.run.status not in UNDER_WAY:
            _recent.keep(head, body)
    known, now_us, params = body, context.clock(), request.query_params

    def url(path: str) -> str:
        return local_url(request, path)

    page = await asyncio.to_thread(lambda: _page(session, head, known, params, url, now_us))
    return render(request, page)


def _load(scope: Scope, run_id: str) -> _Head:
    run = scope.eval_run(run_id)
    if run is None:
        raise not_found("eval run")
    decided_at_us = run.completed_at_us or run.updated_at_us
    critical = scope.critical_baselines(run_id, unchanged_since_us=decided_at_us)
    return _Head(scope.org_id, run, len(critical), _maker(scope, run.created_by))


def _maker(scope: Scope, created_by: str | None) -> str | None:
    kind, _, name = (created_by or "").partition(":")
    if kind == "key":
        key = scope.key(name)
        return f"key {(key.label if key else None) or name}"
    if kind == "user":
        member = scope.member(name)
        return (member.name or member.email) if member else "a former member"
    return None


def _page(
    session: Session,
    head: _Head,
    body: _Body,
    params: QueryParams,
    url: Callable[[str], str],
    now_us: int,
) -> EvalRunPage:
    run, pairs = head.run, body.pairs
    line, path = run_line(run), f"{EVALS}/{run.id}"
    query = pair_query(params, pairs)
    is_under_way = run.status in UNDER_WAY
    dots = [] if is_under_way else _dots(pairs, query, path, url)
    label = OUTCOMES[query.metric].label
    return EvalRunPage(
        session=session,
        title=line.name,
        line=line,
        by=head.by,
        path=path,
        facts=body.facts,
        evidence=_evidence(line, body.judged),
        progress=progress_of(run, now_us) if is_under_way else None,
        judged=body.judged,
        table=pair_table(pairs, query, path),
        dots=pair_dots(
            dots,
            f"{capital(label)} of each pair, worst change first",
            lambda value: OUTCOMES[query.metric].value_text(value),
            is_rate=query.metric == "success",
        ),
        dots_note=thinned_words(len(dots)),
        failures=[(each.baseline_id, each.error_line or "") for each in pairs if each.error_line],
        metadata=_metadata(run),
    )


def _evidence(line: RunLine, judged: Judgement | None) -> str:
    if line.decision.deciding is not None:
        return line.decision.deciding.summary.evidence
    return judged.behaviour.evidence if judged and judged.behaviour else "not_measured"


def _facts(
    run: EvalRunRow, results: Sequence[EvalResult], rows: Sequence[EvalResultRow]
) -> list[tuple[str, str]]:
    evidence = RunEvidence.of(results)
    facts = [(capital(name), value) for name, value in evidence.facts]
    if several := sum(each.attempts > 1 for each in rows):
        facts.append(("Attempts", f"{count(several, 'pair')} had more than one result"))
    if run.retried:
        said = f"{count(run.retried, 'pair')} had an earlier result that says something else"
        facts.append(("Retried", said))
    if run.altered:
        facts.append(("Altered", f"{count(run.altered, 'baseline')} deleted since"))
    return facts


def _dots(
    pairs: Sequence[Pair], query: PairQuery, path: str, url: Callable[[str], str]
) -> list[PairDot]:
    kind, found = OUTCOMES[query.metric], []
    for each in pairs:
        before, after = each.values[query.metric]
        gain = each.gain(query.metric)
        if before is None or after is None or gain is None:
            continue
        flipped = success_flip(each)
        said = f", success {flipped}" if flipped else ""
        named = f"{each.label}: " if each.label else ""
        found.append(
            PairDot(
                baseline=before,
                candidate=after,
                gain=gain,
                href=url(f"{path}/pairs/{each.baseline_id}"),
                words=f"{named}{kind.value_text(before)} → {kind.value_text(after)}{said}. {each.baseline_id}",
                flip=flipped,
            )
        )
    return found


def _metadata(run: EvalRunRow) -> str:
    if not run.metadata:
        return ""
    text = json.dumps(run.metadata, indent=2, ensure_ascii=False)
    return (
        text
        if len(text) <= _MOST_METADATA
        else f"{text[:_MOST_METADATA]}\n… export.json has all of it"
    )


routes: tuple[LeanRoute, ...] = (page_route("GET", f"{EVALS}/{{eval_run_id}}", eval_run),)
