"""Trends: one metric over many eval runs, as a series of points."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.decision import MetricMeans, OutcomeSummary, read_summary
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.contracts.wire.trends import Trend, TrendPoint
from rollbook.server.accounts.callers import caller_of
from rollbook.server.context import context_of
from rollbook.server.http.listing import listing_of
from rollbook.server.http.openapi import LeanRoute, query, route
from rollbook.server.http.responses import Problem, json_response, wire_time
from rollbook.server.queries import EvalRunRow

MOST_POINTS = 1000
_DEFAULT_POINTS = 100
METRICS = tuple(kind.summary_key for kind in OUTCOMES.values())
_FILTERS = ("metric", "baseline_policy_version", "candidate_prefix")


async def read_trend(request: Request) -> Response:
    caller = await caller_of(request, "read")
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
    summary = read_summary(run.summary)
    means = (summary.outcomes.get(metric) if summary else None) or MetricMeans()
    measured = means if isinstance(means, OutcomeSummary) else None
    assert run.completed_at_us is not None, "only completed runs were asked for"
    return TrendPoint(
        eval_run_id=run.id,
        name=run.name,
        candidate_policy_version=run.candidate_policy_version,
        baseline_policy_version=run.baseline_policy_version,
        completed_at=wire_time(run.completed_at_us),
        baseline=means.baseline,
        candidate=means.candidate,
        delta=means.delta,
        paired_delta=measured.paired_delta if measured else None,
        interval=list(measured.interval) if measured and measured.interval else None,
        interval_level=measured.interval_level if measured else None,
        n_pairs=measured.n_pairs if measured else None,
        evidence=measured.evidence if measured else None,
        decision=run.decision,
        altered=run.altered,
    )


routes: tuple[LeanRoute, ...] = (
    route(
        "GET",
        "/api/trends",
        read_trend,
        summary="Returns one metric over the completed eval runs, oldest first.",
        gives=Trend,
        errors=(400,),
        parameters=(
            query("metric", {"enum": list(METRICS)}, f"Default: {METRICS[0]}."),
            query(
                "baseline_policy_version", {"type": "string"}, "Only runs against this baseline."
            ),
            query(
                "candidate_prefix",
                {"type": "string"},
                "Only candidates whose version begins with this text.",
            ),
            query(
                "limit",
                {"type": "integer", "minimum": 1, "maximum": MOST_POINTS},
                "Maximum number of runs; the newest are returned.",
            ),
        ),
        tag="eval runs",
    ),
)
