"""What went wrong in an episode: the card on its page, and looking again."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from rollbook.errors import BlobError
from rollbook.portal.page import page_route, redirect, signed_in_form
from rollbook.portal.pages.timeline import Mark, recorded_outcome
from rollbook.scoring.failures.analyse import ANALYZER_VERSION
from rollbook.scoring.failures.rules import RULES, Rule
from rollbook.server.accounts.roles import may
from rollbook.server.context import Caller, context_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import not_found
from rollbook.server.queries import EpisodeRow
from rollbook.server.recordings.analysis import Analysis, analysis_of, analysis_within

_LONGEST_WAIT_S = 0.5
"""A page does not wait longer for the first look at a long recording."""


@dataclass(frozen=True, slots=True)
class FindingsCard:
    episode_id: str
    failed: bool
    analysis: Analysis | None
    instead: str
    """Why there is no analysis."""
    may_run: bool
    newest: str = ANALYZER_VERSION
    rules: tuple[Rule, ...] = RULES

    def marks(self) -> list[Mark]:
        """The places of the findings on the timeline."""
        found = self.analysis.findings if self.analysis is not None else []
        return [
            Mark(each.at_s, each.until_s, each.channel)
            for each in found
            if each.at_s is not None and each.channel is not None
        ]


async def findings_card(request: Request, caller: Caller, episode: EpisodeRow) -> FindingsCard:
    failed = episode.status == "failed" or recorded_outcome(episode).success is False
    analysis: Analysis | None = None
    instead = "The episode is still being recorded."
    if episode.status != "recording":
        instead = "The recording is long and is being looked at. Reload the page in a moment."
        try:
            analysis = await analysis_within(context_of(request), caller, episode, _LONGEST_WAIT_S)
        except BlobError as error:
            instead = f"The recording cannot be read now: {error}."
    return FindingsCard(episode.id, failed, analysis, instead, may(caller, "organise"))


async def run_again(request: Request) -> Response:
    session, _ = await signed_in_form(request, "organise")
    context, caller = context_of(request), session.caller
    episode_id: str = request.path_params["episode_id"]
    episode = await context.read(caller, lambda scope: scope.episode(episode_id))
    if episode is None:
        raise not_found("episode")
    await analysis_of(context, caller, episode, again=True)
    return redirect(request, f"/portal/episodes/{episode_id}#findings")


routes: tuple[LeanRoute, ...] = (
    page_route("POST", "/portal/episodes/{episode_id}/analysis", run_again),
)
