"""Episodes over HTTP: create, finalize, read, find, tag, archive and delete.

Creating and finalizing an episode without artifacts, the most frequent requests, are one transaction each.
"""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.episode import ArtifactKind, check_typed_metadata
from rollbook.contracts.wire.batches import FinalizeEpisodes, ManyFinalized, OneFinalized
from rollbook.contracts.wire.episodes import (
    ChangeTags,
    CreateEpisode,
    EpisodeAnswer,
    EpisodeCreated,
    EpisodeDeleted,
    EpisodeFinalized,
    EpisodeList,
    FinalizeEpisode,
)
from rollbook.digest import digest_of
from rollbook.server.accounts.callers import caller_of
from rollbook.server.context import Caller, ServerContext, base_url_of, context_of
from rollbook.server.db.columns import new_id
from rollbook.server.episodes.changes import Change, archive, change_tags_of, delete, restore
from rollbook.server.episodes.finalize import finalized, finalized_many
from rollbook.server.episodes.messages import (
    created_answer,
    episode_answer,
    finalized_answer,
    new_episode_columns,
)
from rollbook.server.episodes.quotas import checked_quota
from rollbook.server.episodes.search import PARAMETERS, search_of
from rollbook.server.episodes.uploads import signed_urls, slot
from rollbook.server.http.openapi import LeanRoute, header, route
from rollbook.server.http.requests import decoded, json_body, json_text
from rollbook.server.http.responses import json_response, not_found, problem_of, wire_time
from rollbook.server.queries import EpisodeRow, Scope

_create = msgspec.json.Decoder(CreateEpisode)
_finalize = msgspec.json.Decoder(FinalizeEpisode)
_finalize_many = msgspec.json.Decoder(FinalizeEpisodes)
_change_tags = msgspec.json.Decoder(ChangeTags)


# ------------------------------------------------------------------------------------------ create


async def create_episode(request: Request) -> Response:
    context = context_of(request)
    caller = await caller_of(request, "record")
    text = await json_text(request, context.settings.body_limit_bytes)
    body = decoded(text, _create)
    kinds = list(dict.fromkeys(body.request_uploads or ()))
    base_url = base_url_of(request) if kinds else ""
    if body.metadata:
        check_typed_metadata(body.metadata)
    episode_id = new_id()
    values = {**new_episode_columns(body), "id": episode_id, "created_by": caller.name}
    slots = [slot(caller.org_id, episode_id, kind) for kind in kinds]
    key = request.headers.get("idempotency-key")
    idempotency = None if key is None else (key, digest_of("rollbook.create-episode", text))

    def create(scope: Scope) -> tuple[EpisodeRow, int]:
        episode = scope.create_episode(values, slots, idempotency)
        return episode, checked_quota(scope, context.settings)

    episode, most = await context.write(caller, create)
    if not episode.replayed:
        context.metrics.episode("created")
    urls = await signed_urls(context, base_url, episode.artifacts, _open(episode, kinds), most)
    created = created_answer(episode, urls)
    return json_response(created, 201, {"Idempotency-Replayed": "true"} if episode.replayed else {})


def _open(episode: EpisodeRow, kinds: list[ArtifactKind]) -> list[ArtifactKind]:
    """A create that is repeated late may find finished artifacts; those get no upload URL."""
    if episode.finalized_at_us is None:
        return kinds
    done = {each.kind for each in episode.artifacts if each.status == "stored"}
    return [kind for kind in kinds if kind not in done]


# ---------------------------------------------------------------------------------------- finalize


async def finalize_episode(request: Request) -> Response:
    context = context_of(request)
    caller = await caller_of(request, "record")
    body = await json_body(request, _finalize, context.settings.body_limit_bytes)
    episode = await finalized(context, caller, (request.path_params["episode_id"], body))
    return json_response(finalized_answer(episode))


async def finalize_episodes(request: Request) -> Response:
    """Each episode on its own: one that fails does not stop the others, and its answer says why."""
    context = context_of(request)
    caller = await caller_of(request, "record")
    body = await json_body(request, _finalize_many, context.settings.body_limit_bytes)
    wanted = [(each.episode_id, each) for each in body.episodes]
    done = await finalized_many(context, caller, wanted)
    answers = [
        _one_finalized(context, episode_id, each)
        for (episode_id, _), each in zip(wanted, done, strict=True)
    ]
    return json_response(ManyFinalized(answers))


def _one_finalized(
    context: ServerContext, episode_id: str, done: EpisodeRow | Exception
) -> OneFinalized:
    if isinstance(done, EpisodeRow):
        return OneFinalized(episode_id, done.status, wire_time(done.updated_at_us))
    problem = problem_of(done)
    if problem.status == 500:
        context.log.error("finalize_failed", episode_id=episode_id, error=repr(done))
    return OneFinalized(
        episode_id, error=problem.error, code=problem.code, status_code=problem.status
    )


# ------------------------------------------------------------------------------------ read and find


async def read_episode(request: Request) -> Response:
    episode_id: str = request.path_params["episode_id"]
    caller = await caller_of(request, "read_own")
    episode = await context_of(request).read(caller, lambda scope: scope.episode(episode_id))
    if episode is None:
        raise not_found("episode")
    return json_response(episode_answer(episode))


async def list_episodes(request: Request) -> Response:
    caller = await caller_of(request, "read")
    search = search_of(request.query_params)
    page = await context_of(request).read(
        caller, lambda scope: scope.episodes(search.filters, search.cursor, search.limit)
    )
    return json_response(
        EpisodeList([episode_answer(each) for each in page.episodes], page.next_cursor)
    )


# ------------------------------------------------------------------------------------------ change


async def _changed(request: Request, change: Change) -> Response:
    caller = await caller_of(request, "organise")
    return await _change(request, caller, change)


async def _change(request: Request, caller: Caller, change: Change) -> Response:
    episode_id: str = request.path_params["episode_id"]
    episode = await context_of(request).write(
        caller, lambda scope: change(scope, caller, episode_id)
    )
    if episode is None:
        raise not_found("episode")
    return json_response(episode_answer(episode))


async def archive_episode(request: Request) -> Response:
    return await _changed(request, archive)


async def restore_episode(request: Request) -> Response:
    return await _changed(request, restore)


async def change_tags(request: Request) -> Response:
    caller = await caller_of(request, "organise")
    body = await json_body(request, _change_tags, context_of(request).settings.body_limit_bytes)
    return await _change(request, caller, partial(change_tags_of, add=body.add, remove=body.remove))


async def delete_episode(request: Request) -> Response:
    """When this answers, the rows are deleted. The blobs are deleted too, or noted and deleted later."""
    episode_id: str = request.path_params["episode_id"]
    caller = await caller_of(request, "delete_own")
    if not await delete(context_of(request), caller, episode_id):
        raise not_found("episode")
    return json_response(EpisodeDeleted(episode_id))


_INGEST, _EPISODE = "/api/ingest/episode", "/api/episodes/{episode_id}"

routes: tuple[LeanRoute, ...] = (
    route(
        "POST",
        _INGEST,
        create_episode,
        summary="Creates an episode, and signs an upload URL for every requested artifact.",
        takes=CreateEpisode,
        gives=EpisodeCreated,
        status=201,
        errors=(403, 409),
        parameters=(
            header(
                "Idempotency-Key",
                {"type": "string", "maxLength": 255},
                "The same key with the same body returns the first episode; with another body it is a 409.",
            ),
        ),
    ),
    route(
        "POST",
        f"{_INGEST}/{{episode_id}}/finalize",
        finalize_episode,
        summary="Checks the artifacts and ends the recording. A second call does not change the status.",
        takes=FinalizeEpisode,
        gives=EpisodeFinalized,
        errors=(403, 404, 409),
    ),
    route(
        "POST",
        "/api/ingest/episodes/finalize",
        finalize_episodes,
        summary="Finalizes many episodes independently; results are in the order of the request.",
        takes=FinalizeEpisodes,
        gives=ManyFinalized,
        errors=(403,),
    ),
    route(
        "GET",
        "/api/episodes",
        list_episodes,
        summary="Lists the episodes that match every filter, newest first.",
        gives=EpisodeList,
        errors=(400,),
        parameters=PARAMETERS,
    ),
    route(
        "GET",
        _EPISODE,
        read_episode,
        summary="Reads one episode.",
        gives=EpisodeAnswer,
        errors=(404,),
    ),
    route(
        "DELETE",
        _EPISODE,
        delete_episode,
        summary="Deletes an episode and its artifacts. This cannot be undone.",
        gives=EpisodeDeleted,
        errors=(403, 404, 409),
    ),
    route(
        "POST",
        f"{_EPISODE}/archive",
        archive_episode,
        summary="Hides an episode from lists and refuses changes; nothing is deleted.",
        gives=EpisodeAnswer,
        errors=(403, 404),
    ),
    route(
        "POST",
        f"{_EPISODE}/restore",
        restore_episode,
        summary="Restores an archived episode.",
        gives=EpisodeAnswer,
        errors=(403, 404),
    ),
    route(
        "POST",
        f"{_EPISODE}/tags",
        change_tags,
        summary="Adds and removes tags.",
        takes=ChangeTags,
        gives=EpisodeAnswer,
        errors=(403, 404, 409),
    ),
)
