"""Several episodes on one clock. Each keeps its own length, and says when it has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response

from rollbook.portal.page import Page, page_route, page_session, render
from rollbook.portal.pages.timeline import (
    Outcome,
    Pictures,
    Source,
    TimelineData,
    failure_marks,
    pictures_of,
    recorded_outcome,
    timeline_data,
    title_of,
)
from rollbook.server.context import context_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem, not_found
from rollbook.server.queries import EpisodeRow, Scope

LEAST, MOST = 2, 4


@dataclass(frozen=True, slots=True)
class Beside:
    episode: EpisodeRow
    title: str
    letter: str
    """What its lines are called: titles are often the same."""
    pictures: Pictures
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class SideBySidePage(Page):
    template: ClassVar[str] = "side_by_side.html"
    section: ClassVar[str] = "episodes"
    modules: ClassVar[tuple[str, ...]] = ("episode.js",)
    title: str = "Side by side"
    episodes: list[Beside]
    timeline: TimelineData


async def side_by_side(request: Request) -> Response:
    session = await page_session(request)
    ids = list(dict.fromkeys(request.query_params.getlist("episode")))
    if not LEAST <= len(ids) <= MOST:
        text = f"choose {LEAST} to {MOST} different episodes in the list, not {len(ids)}"
        raise Problem(400, "invalid_value", text, where="episode")

    def find(scope: Scope) -> list[EpisodeRow | None]:
        return [scope.episode(each) for each in ids]

    found = await context_of(request).read(session.caller, find)
    episodes = [_beside(each, number) for number, each in enumerate(found) if each is not None]
    if len(episodes) < len(ids):
        raise not_found("episode")
    lengths = [each.episode.duration_s or 0.0 for each in episodes]
    page = SideBySidePage(
        session=session,
        episodes=episodes,
        timeline=timeline_data(
            request,
            [
                Source(f"/portal/episodes/{each.episode.id}/tracks", each.letter)
                for each in episodes
            ],
            marks=[mark for each in episodes for mark in failure_marks(each.episode)],
            duration_s=max(lengths),
            fps=next((each.episode.fps for each in episodes if each.episode.fps), None),
        ),
    )
    return render(request, page)


def _beside(episode: EpisodeRow, number: int) -> Beside:
    return Beside(
        episode,
        title_of(episode),
        "ABCD"[number],
        pictures_of(episode),
        recorded_outcome(episode),
    )


routes: tuple[LeanRoute, ...] = (page_route("GET", "/portal/side-by-side", side_by_side),)
