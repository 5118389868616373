"""Exports of an eval run: its pairs as CSV, everything as JSON, and the report as a page for paper."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.outcomes import OUTCOMES
from rollbook.portal.evals.eval_pairs import Pair, pairs_of_run
from rollbook.portal.page import page_route, page_session
from rollbook.report.page import report_page
from rollbook.report.run_report import RunReport
from rollbook.report.style import STYLE
from rollbook.server.context import base_url_of, context_of
from rollbook.server.evals.runs import as_results
from rollbook.server.http.docs_page import own_style_policy
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem, json_bytes, not_found
from rollbook.server.queries import EvalResultRow, EvalRunRow, Scope

_RUN = "/portal/evals/{eval_run_id}"
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "|")
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


async def _loaded(request: Request) -> tuple[EvalRunRow, list[EvalResultRow]]:
    session = await page_session(request)
    run_id: str = request.path_params["eval_run_id"]

    def load(scope: Scope) -> tuple[EvalRunRow, list[EvalResultRow]]:
        run = scope.eval_run(run_id)
        if run is None:
            raise not_found("eval run")
        return run, scope.all_eval_results(run_id)

    return await context_of(request).read(session.caller, load)


def report_of(run: EvalRunRow, rows: Sequence[EvalResultRow], url: str | None = None) -> RunReport:
    return RunReport(
        candidate=run.candidate_policy_version,
        baseline=run.baseline_policy_version,
        total=run.episode_count,
        summary=run.summary or {},
        results=as_results(rows),
        run_id=run.id,
        url=url,
        labels={each.baseline_episode_id: each.labels for each in rows if each.labels},
        several_attempts=sum(each.attempts > 1 for each in rows),
        retried=run.retried,
        altered=run.altered,
    )


# ---------------------------------------------------------------------------------------------- files


async def eval_csv(request: Request) -> Response:
    run, rows = await _loaded(request)
    content = await asyncio.to_thread(lambda: pairs_csv(pairs_of_run(rows)))
    return _file(content, "text/csv", f"eval-run-{run.id}.csv")


async def eval_json(request: Request) -> Response:
    run, rows = await _loaded(request)
    url = f"{base_url_of(request)}/portal/evals/{run.id}"

    def write() -> bytes:
        about = {
            "name": run.name,
            "status": run.status,
            "metadata": run.metadata,
            "gate": run.gate,
            "gate_digest": run.gate_digest,
        }
        return json_bytes({**report_of(run, rows, url).as_dict(), **about})

    return _file(await asyncio.to_thread(write), "application/json", f"eval-run-{run.id}.json")


def _file(content: bytes, media_type: str, name: str) -> Response:
    headers = {**_HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, 200, headers, media_type)


def pairs_csv(pairs: Sequence[Pair]) -> bytes:
    written = io.StringIO(newline="")
    writer = csv.writer(written)
    sides = [f"{name}_{side}" for name in OUTCOMES for side in ("baseline", "candidate")]
    writer.writerow(
        [
            *("number", "baseline_episode_id", "candidate_episode_id", "label", "status"),
            *sides,
            *("action_l2_distance", "attempts", "retried", "error"),
        ]
    )
    writer.writerows(_cells(each) for each in pairs)
    return written.getvalue().encode()


def _cells(pair: Pair) -> Iterator[Any]:
    yield pair.number
    yield from map(_text, (pair.baseline_id, pair.candidate_id, pair.label, pair.status))
    for name, kind in OUTCOMES.items():
        for value in pair.values[name]:
            yield "" if value is None else f"{value:.17g}" if kind.type is float else int(value)
    yield "" if pair.action_distance is None else f"{pair.action_distance:.17g}"
    yield pair.attempts
    yield str(pair.retried).lower()
    yield _text(pair.error)


def _text(text: str | None) -> str:
    """A spreadsheet must not take a text for a formula."""
    if text is None:
        return ""
    return f"'{text}" if text.startswith(_FORMULA) else text


# --------------------------------------------------------------------------------------------- report


async def eval_report(request: Request) -> Response:
    run, rows = await _loaded(request)
    if run.summary is None:
        text = "this run has no summary yet; its report can be read when the run is completed"
        raise Problem(409, "no_summary", text)
    url = f"{base_url_of(request)}/portal/evals/{run.id}"
    page = await asyncio.to_thread(lambda: report_page(report_of(run, rows, url)))
    policy = f"{own_style_policy(STYLE)}; sandbox allow-top-navigation-by-user-activation"
    headers = {**_HEADERS, "Content-Security-Policy": policy, "X-Frame-Options": "DENY"}
    return Response(page, 200, headers, "text/html")


_HANDLERS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("export.csv", eval_csv),
    ("export.json", eval_json),
    ("report", eval_report),
)

routes: tuple[LeanRoute, ...] = tuple(
    page_route("GET", f"{_RUN}/{name}", handler) for name, handler in _HANDLERS
)
