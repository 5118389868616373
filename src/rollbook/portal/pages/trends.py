"""Trends: one outcome over the versions of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.decision import OutcomeSummary, SuccessSummary, read_summary
from rollbook.contracts.outcomes import OUTCOMES, Outcome, OutcomeKind
from rollbook.portal.charts.trend import VersionValue, trend
from rollbook.portal.page import Page, page_route, page_session, render
from rollbook.server.context import context_of
from rollbook.server.http.listing import listing_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem
from rollbook.server.queries import EvalRunRow

MOST_RUNS = 100
MOST_VERSIONS = 24
_FILTERS = ("metric", "baseline_policy_version", "candidate_prefix")


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """What one run says about one outcome."""

    run: EvalRunRow
    outcome: OutcomeSummary
    arm: VersionValue | None
    """The rate of the candidate, with its Wilson interval. Only success has one."""
    change: VersionValue | None
    """Against its own baselines. None where no interval holds."""


@dataclass(frozen=True, kw_only=True)
class TrendsPage(Page):
    template: ClassVar[str] = "trends.html"
    section: ClassVar[str] = "evals"
    title: str = "Trends"
    metric: Outcome
    kinds: Sequence[OutcomeKind]
    baseline: str
    prefix: str
    runs: Sequence[MeasuredRun]
    """The newest first."""
    not_measured: int
    chart: Markup
    versions: int
    compares_baselines: bool
    """Runs of the chart have different baselines, or it is not known that they have the same."""


def measured_run(run: EvalRunRow, metric: Outcome) -> MeasuredRun | None:
    """None where the run has not measured the outcome."""
    summary = read_summary(run.summary)
    found = summary.outcomes.get(OUTCOMES[metric].summary_key) if summary else None
    if not isinstance(found, OutcomeSummary) or not found.n_pairs:
        return None
    label, arm, change = run.candidate_policy_version, None, None
    if isinstance(found, SuccessSummary) and found.wilson.candidate and found.candidate is not None:
        arm = VersionValue(label, found.candidate, *found.wilson.candidate)
    if found.paired_delta is not None and found.interval is not None:
        change = VersionValue(label, found.paired_delta, *found.interval)
    return MeasuredRun(run, found, arm, change)


def values_by_version(measured: Sequence[MeasuredRun]) -> list[VersionValue]:
    """The newest run of each version, oldest first: the rate of the candidate where the outcome is success, and else
    the change against its baselines."""
    newest: dict[str, VersionValue] = {}
    for each in measured:
        value = each.arm if isinstance(each.outcome, SuccessSummary) else each.change
        if value is not None:
            newest.pop(value.label, None)
            newest[value.label] = value
    return list(newest.values())[-MOST_VERSIONS:]


def version_chart(values: Sequence[VersionValue], metric: Outcome) -> Markup:
    kind = OUTCOMES[metric]
    if metric == "success":
        return trend(values, _whole_percent, "Success by version", within=(0.0, 1.0))
    name = f"Change of {kind.label} by version"
    return trend(values, kind.change_text, name, shows_zero=True)


def _whole_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


async def trends(request: Request) -> Response:
    session = await page_session(request)
    asked = listing_of(
        request.query_params, known=_FILTERS, limit=MOST_RUNS, most=MOST_RUNS, with_cursor=False
    ).filters
    metric = next((name for name in OUTCOMES if name == asked.get("metric", "success")), None)
    if metric is None:
        text = f"metric: expected one of {', '.join(OUTCOMES)}"
        raise Problem(400, "invalid_value", text)
    baseline = asked.get("baseline_policy_version", "")
    prefix = asked.get("candidate_prefix", "")
    runs = await context_of(request).read(
        session.caller,
        lambda scope: scope.completed_runs(
            baseline_policy_version=baseline or None, candidate_prefix=prefix, limit=MOST_RUNS
        ),
    )
    found = [measured_run(run, metric) for run in runs]
    measured = [each for each in found if each is not None]
    values = values_by_version(measured)
    page = TrendsPage(
        session=session,
        metric=metric,
        kinds=tuple(OUTCOMES.values()),
        baseline=baseline,
        prefix=prefix,
        runs=measured[::-1],
        not_measured=len(runs) - len(measured),
        chart=version_chart(values, metric),
        versions=len(values),
        compares_baselines=not baseline,
    )
    return render(request, page)


routes: tuple[LeanRoute, ...] = (page_route("GET", "/portal/trends", trends),)
