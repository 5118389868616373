"""Findings over HTTP, so that a program can read what went wrong."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.wire.findings import EpisodeFindings
from rollbook.server.accounts.callers import caller_of
from rollbook.server.context import context_of
from rollbook.server.http.openapi import LeanRoute, route
from rollbook.server.http.responses import json_response, not_found, wire_time
from rollbook.server.recordings.analysis import analysis_of


async def read_findings(request: Request) -> Response:
    episode_id: str = request.path_params["episode_id"]
    context = context_of(request)
    caller = await caller_of(request, "read_own")
    episode = await context.read(caller, lambda scope: scope.episode(episode_id))
    if episode is None:
        raise not_found("episode")
    found = await analysis_of(context, caller, episode)
    return json_response(
        EpisodeFindings(
            episode_id,
            found.version,
            found.is_current,
            wire_time(found.made_at_us),
            found.findings,
            found.left_out,
        )
    )


routes: tuple[LeanRoute, ...] = (
    route(
        "GET",
        "/api/episodes/{episode_id}/findings",
        read_findings,
        summary="Lists what went wrong in an episode, with evidence, confidence and the moment to look at.",
        gives=EpisodeFindings,
        errors=(404,),
    ),
)
