"""The list of episodes: search, filters, order and pages, all in the address."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.episode import EPISODE_SOURCES, EPISODE_STATUSES
from rollbook.errors import InvalidValue
from rollbook.portal.page import Page, page_route, page_session, redirect, render
from rollbook.portal.pages.episode_query import PATH, EpisodeQuery, tidied
from rollbook.server.accounts.roles import may
from rollbook.server.accounts.sessions import Session
from rollbook.server.context import context_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem, problem_of
from rollbook.server.queries import ORDERS, EpisodeOrder, EpisodePage, Offered, Scope
from rollbook.server.queries.browse import MOST_COUNTED

ON_A_PAGE = 50
_DAYS = (("Since yesterday", 1), ("Last 7 days", 7), ("Last 30 days", 30))


@dataclass(frozen=True, slots=True)
class Notice:
    """What became of the episodes that were chosen."""

    text: str
    failed: tuple[tuple[str, str], ...] = ()
    """The id of an episode, and why nothing was done to it."""
    undo: str | None = None
    """The action that undoes this one."""
    ids: tuple[str, ...] = ()
    """The episodes that the undoing is for."""


@dataclass(frozen=True, kw_only=True)
class EpisodesPage(Page):
    template: ClassVar[str] = "episodes.html"
    section: ClassVar[str] = "episodes"
    modules: ClassVar[tuple[str, ...]] = ("episodes.js",)
    title: str = "Episodes"
    session: Session
    query: EpisodeQuery
    page: EpisodePage
    stored: int
    offered: Offered
    since: list[tuple[str, str]]
    """Time spans in words, each with the address of the list since then."""
    may_change: bool
    notice: Notice | None = None
    statuses: tuple[str, ...] = EPISODE_STATUSES
    sources: tuple[str, ...] = EPISODE_SOURCES
    orders: tuple[EpisodeOrder, ...] = ORDERS
    most_counted: int = MOST_COUNTED


async def episodes(request: Request) -> Response:
    session = await page_session(request)
    given = request.query_params.multi_items()
    clean = tidied(given)
    if clean != given:
        return redirect(request, f"{PATH}?{urlencode(clean)}" if clean else PATH)
    try:
        return await render_list(request, session, EpisodeQuery.of(request.query_params))
    except (Problem, InvalidValue) as error:
        problem = problem_of(error)
        return await render_list(
            request, session, EpisodeQuery(), problem=problem.error, status=problem.status
        )


async def render_list(
    request: Request,
    session: Session,
    query: EpisodeQuery,
    *,
    notice: Notice | None = None,
    problem: str | None = None,
    status: int = 200,
) -> Response:
    context = context_of(request)

    def read(scope: Scope) -> tuple[EpisodePage, Offered, int]:
        page = scope.browse_episodes(
            query.filters, query.order, after=query.after, before=query.before, limit=ON_A_PAGE
        )
        return page, scope.offered_values(), scope.quota_usage().episodes

    page, offered, stored = await context.read(session.caller, read)
    today = datetime.fromtimestamp(context.clock() / 1e6, UTC).date()
    since = [
        (text, query.since((today - timedelta(days=days)).isoformat())) for text, days in _DAYS
    ]
    shown = EpisodesPage(
        session=session,
        query=query,
        page=page,
        stored=stored,
        offered=offered,
        since=since,
        may_change=may(session.caller, "organise"),
        notice=notice,
        problem=problem,
    )
    return render(request, shown, status)


routes: tuple[LeanRoute, ...] = (page_route("GET", PATH, episodes),)
