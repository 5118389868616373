"""The list of eval runs: what was decided, and which outcome decided."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.decision import RECOMMENDATIONS
from rollbook.contracts.evals import RUN_STATUSES
from rollbook.portal.decisions import RunLine, run_line
from rollbook.portal.page import Page, page_route, page_session, render
from rollbook.server.context import context_of
from rollbook.server.http.listing import listing_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem
from rollbook.server.queries import EvalRunFilter

EVALS = "/portal/evals"
_FILTERS = ("candidate", "baseline", "decision", "status", "since", "before")
_ON_A_PAGE = 40
_MOST_ON_A_PAGE = 60


@dataclass(frozen=True, kw_only=True)
class EvalRunsPage(Page):
    template: ClassVar[str] = "eval_runs.html"
    section: ClassVar[str] = "evals"
    title: str = "Eval runs"
    lines: list[RunLine]
    asked: dict[str, str]
    """The filters as they stand in the form."""
    is_filtered: bool
    decisions: tuple[str, ...] = RECOMMENDATIONS
    statuses: tuple[str, ...] = RUN_STATUSES
    first_page: str | None
    next_page: str | None


async def eval_runs(request: Request) -> Response:
    session = await page_session(request)
    asked = listing_of(request.query_params, known=_FILTERS, limit=_ON_A_PAGE, most=_MOST_ON_A_PAGE)
    given = {name: text.strip() for name, text in asked.filters.items() if text.strip()}
    wanted = EvalRunFilter(
        candidate_policy_version=given.get("candidate"),
        baseline_policy_version=given.get("baseline"),
        decision=given.get("decision"),
        status=given.get("status"),
        since_us=_day(given, "since"),
        before_us=_day(given, "before"),
    )
    found, following = await context_of(request).read(
        session.caller, lambda scope: scope.decided_runs(wanted, asked.cursor, asked.limit)
    )
    page = EvalRunsPage(
        session=session,
        lines=[run_line(each) for each in found],
        asked={name: given.get(name, "") for name in _FILTERS},
        is_filtered=bool(given),
        first_page=_address(given) if asked.cursor else None,
        next_page=_address({**given, "cursor": following}) if following else None,
    )
    return render(request, page)


def _address(query: dict[str, str]) -> str:
    return f"{EVALS}?{urlencode(query)}" if query else EVALS


def _day(given: dict[str, str], name: str) -> int | None:
    """The beginning of a day, in UTC."""
    text = given.get(name)
    if text is None:
        return None
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError as error:
        expected = f"{name}: expected a day such as 2026-11-16"
        raise Problem(400, "invalid_value", expected, where=name) from error
    return int(day.timestamp()) * 1_000_000


routes: tuple[LeanRoute, ...] = (page_route("GET", EVALS, eval_runs),)
