"""Trends: one metric over many eval runs, as a line that can be drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.evals import SUMMARY_KEYS
from rollbook.contracts.wire.trends import Trend, TrendPoint
from rollbook.server.accounts.callers import caller_of
from rollbook.server.context import context_of
from rollbook.server.http.listing import listing_of
from rollbook.server.http.openapi import LeanRoute, query, route
from rollbook.server.http.responses import Problem, json_response, wire_time
from rollbook.server.queries import EvalRunRow

MOST_POINTS = 1000
_DEFAULT_POINTS = 100
METRICS = tuple(SUMMARY_KEYS.values())
_FILTERS = ("metric", "baseline_policy_version", "candidate_prefix")


async def read_trend(request: Request) -> Response:
    caller = await caller_of(request)
    asked = listing_of(
        request.query_params,
        known=_FILTERS,
        limit=_DEFAULT_POINTS,
        most=MOST_POINTS,
        with_cursor=False,
    )
    metric = asked.filters.get("metric", METRICS[0])
    if metric not in METRICS:
        text = f"metric: expected one of {', '.join(METRICS)}"
        raise Problem(400, "invalid_value", text, where="metric")
    runs = await context_of(request).read(
        caller,
        lambda scope: scope.completed_runs(
            baseline_policy_version=asked.filters.get("baseline_policy_version"),
            candidate_prefix=asked.filters.get("candidate_prefix", ""),
            limit=asked.limit,
        ),
    )
    return json_response(Trend(metric, [_point(run, metric) for run in runs]))


def _point(run: EvalRunRow, metric: str) -> TrendPoint:
    measured: Mapping[str, Any] = (run.summary or {}).get(metric) or {}
    assert run.completed_at_us is not None, "only completed runs were asked for"
    return TrendPoint(
        eval_run_id=run.id,
        name=run.name,
        candidate_policy_version=run.candidate_policy_version,
        baseline_policy_version=run.baseline_policy_version,
        completed_at=wire_time(run.completed_at_us),
        baseline=measured.get("baseline"),
        candidate=measured.get("candidate"),
        delta=measured.get("delta"),
        paired_delta=measured.get("paired_delta"),
        ci95=measured.get("ci95"),
        n_pairs=measured.get("n_pairs"),
        evidence=measured.get("evidence"),
        decision=run.decision,
    )


routes: tuple[LeanRoute, ...] = (
    route(
        "GET",
        "/api/trends",
        read_trend,
        summary="One metric over the completed eval runs, the oldest first.",
        gives=Trend,
        errors=(400,),
        parameters=(
            query("metric", {"enum": list(METRICS)}, f"{METRICS[0]} if not given."),
            query("baseline_policy_version", {"type": "string"}, "Exactly this one."),
            query("candidate_prefix", {"type": "string"}, "How the candidate's version begins."),
            query(
                "limit",
                {"type": "integer", "minimum": 1, "maximum": MOST_POINTS},
                "The last so many runs.",
            ),
        ),
        tag="eval runs",
    ),
)
