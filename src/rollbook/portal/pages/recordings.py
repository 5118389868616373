"""The data of an episode page: tracks as columns, and frames of image arrays."""

from __future__ import annotations

import math

from starlette.requests import Request
from starlette.responses import Response

from rollbook.portal.page import page_headers, page_route, page_session
from rollbook.server.context import Caller, context_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem, not_found
from rollbook.server.queries import EpisodeRow
from rollbook.server.recordings.frames import frame_png
from rollbook.server.recordings.recording_file import read_recording
from rollbook.server.recordings.tracks import MOST_COLUMNS, TracksQuery, tracks_of

_LATEST_S = 1e9
_MOST_NAMED = 256
_FRAME_KEPT_S = 300


async def read_tracks(request: Request) -> Response:
    caller = (await page_session(request)).caller
    asked = tracks_query(request)
    episode = await _episode(request, caller)
    body = await read_recording(
        context_of(request),
        caller,
        episode,
        lambda files, missing: tracks_of(files, missing, episode, asked),
    )
    return tracks_response(request, body)


def tracks_response(request: Request, body: bytes) -> Response:
    headers = page_headers(context_of(request).settings)
    return Response(body, 200, headers, "application/octet-stream")


def tracks_query(request: Request) -> TracksQuery:
    """`from`, `to`, `columns` and `ch` of the address."""
    given = request.query_params
    begin, end = (_seconds(given.get(name), name) for name in ("from", "to"))
    if begin is not None and end is not None and begin >= end:
        raise _invalid("to", "expected a time after from")
    columns = given.get("columns", "0")
    if not (columns.isascii() and columns.isdecimal() and int(columns[:9]) <= MOST_COLUMNS):
        raise _invalid("columns", f"expected a whole number from 0 to {MOST_COLUMNS}")
    names = tuple(dict.fromkeys(given.getlist("ch")))
    if len(names) > _MOST_NAMED:
        raise _invalid("ch", f"expected at most {_MOST_NAMED} channels")
    return TracksQuery(begin, end, int(columns[:9]), names)


def _seconds(text: str | None, name: str) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not -_LATEST_S <= value <= _LATEST_S:
        raise _invalid(name, "expected seconds from the start of the episode")
    return value


def _invalid(name: str, expected: str) -> Problem:
    return Problem(400, "invalid_value", f"{name}: {expected}", where=name)


async def read_frame(request: Request) -> Response:
    caller = (await page_session(request)).caller
    name, number = request.path_params["array"], request.path_params["index"]
    index = int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else -1
    episode = await _episode(request, caller)
    png = await read_recording(
        context_of(request),
        caller,
        episode,
        lambda files, missing: frame_png(files, missing, episode, name, index),
    )
    headers = page_headers(context_of(request).settings)
    headers["Cache-Control"] = f"private, max-age={_FRAME_KEPT_S}"
    return Response(png, 200, headers, "image/png")


async def _episode(request: Request, caller: Caller) -> EpisodeRow:
    episode_id: str = request.path_params["episode_id"]
    episode = await context_of(request).read(caller, lambda scope: scope.episode(episode_id))
    if episode is None:
        raise not_found("episode")
    return episode


_EPISODE = "/portal/episodes/{episode_id}"

routes: tuple[LeanRoute, ...] = (
    page_route("GET", f"{_EPISODE}/tracks", read_tracks),
    page_route("GET", f"{_EPISODE}/frames/{{array:path}}/{{index}}", read_frame),
)
