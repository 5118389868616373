"""Many episodes in one request: created in one transaction, or read with URLs that lead straight to their bytes."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.episode import FILE_NAMES, ArtifactKind, check_typed_metadata
from rollbook.errors import InvalidValue
from rollbook.server.artifacts import is_as_checked, look_at, write_findings
from rollbook.server.context import Caller, ServerContext, base_url_of, caller_of, context_of
from rollbook.server.openapi import LeanRoute, route
from rollbook.server.queries import ArtifactRow, EpisodeRow, Scope
from rollbook.server.quotas import checked_quota
from rollbook.server.requests import json_body
from rollbook.server.responses import json_response
from rollbook.server.tables import new_id
from rollbook.server.uploads import signed_urls, slot
from rollbook.server.wire import (
    MOST_IN_A_BATCH,
    CreateEpisode,
    EpisodeAnswer,
    EpisodeCreated,
    episode_answer,
    kind_of,
    status_of,
)


class CreateEpisodes(Struct):
    episodes: Annotated[list[CreateEpisode], Meta(min_length=1, max_length=MOST_IN_A_BATCH)]


class EpisodesCreated(Struct):
    episodes: list[EpisodeCreated]
    """In the order they were sent."""


class LookUpEpisodes(Struct):
    ids: Annotated[list[str], Meta(max_length=MOST_IN_A_BATCH)]


class EpisodeFound(EpisodeAnswer):
    download_urls: dict[ArtifactKind, str]
    """Of every artifact that is here; good for an hour, and without a redirect."""


class EpisodesFound(Struct):
    episodes: list[EpisodeFound]
    """In the order of the ids."""
    missing: list[str]


_AT_ONCE = 32
"""Of the episodes whose artifacts are looked at; the others wait."""

_create = msgspec.json.Decoder(CreateEpisodes)
_look_up = msgspec.json.Decoder(LookUpEpisodes)


# ------------------------------------------------------------------------------------------ create


async def create_episodes(request: Request) -> Response:
    """All or nothing; where one is wrong, the answer says which."""
    context = context_of(request)
    caller = await caller_of(request)
    body = await json_body(request, _create, context.settings.body_limit_bytes)
    asked = [list(dict.fromkeys(each.request_uploads or ())) for each in body.episodes]
    base_url = base_url_of(request) if any(asked) else ""
    wanted = []
    for number, (each, kinds) in enumerate(zip(body.episodes, asked, strict=True)):
        _check_typed(number, each)
        episode_id = new_id()
        values = {**each.values(), "id": episode_id, "created_by": caller.name}
        wanted.append((values, [slot(caller.org_id, episode_id, kind) for kind in kinds]))

    def create(scope: Scope) -> tuple[list[EpisodeRow], int]:
        made = scope.create_episodes(wanted)
        return made, checked_quota(scope, context.settings)

    made, most = await context.write(caller, create)
    answers = []
    for episode, kinds in zip(made, asked, strict=True):
        context.metrics.episode("created")
        urls = await signed_urls(context, base_url, episode.artifacts, kinds, most)
        answers.append(EpisodeCreated(episode.id, status_of(episode), "r2", urls))
    return json_response(EpisodesCreated(answers), 201)


def _check_typed(number: int, episode: CreateEpisode) -> None:
    try:
        check_typed_metadata(episode.metadata or {})
    except InvalidValue as error:
        error.record = f"episodes[{number}] {error.record}"
        raise


# ----------------------------------------------------------------------------------------- look up


async def look_up_episodes(request: Request) -> Response:
    context = context_of(request)
    base_url = base_url_of(request)
    caller = await caller_of(request)
    body = await json_body(request, _look_up, context.settings.body_limit_bytes)
    ids = list(dict.fromkeys(body.ids))
    found = await context.read(caller, lambda scope: scope.episodes_of(ids))
    known = {each.id for each in found}
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(episode: EpisodeRow) -> EpisodeFound:
        async with gate:
            return _found(episode, await _download_urls(context, caller, base_url, episode))

    answers = await asyncio.gather(*map(one, found))
    return json_response(EpisodesFound(answers, [each for each in ids if each not in known]))


def _found(episode: EpisodeRow, urls: dict[ArtifactKind, str]) -> EpisodeFound:
    known = msgspec.structs.asdict(episode_answer(episode))
    return EpisodeFound(**known, download_urls=urls)


async def _download_urls(
    context: ServerContext, caller: Caller, base_url: str, episode: EpisodeRow
) -> dict[ArtifactKind, str]:
    stored = [each for each in episode.artifacts if each.status == "stored"]
    if stored and _can_still_be_replaced(context, episode):
        fit = await asyncio.gather(*(_is_fit(context, caller, each) for each in stored))
        stored = [each for each, is_fit in zip(stored, fit, strict=True) if is_fit]
    return {
        kind_of(each): await context.blobs.presign_get(
            each.object_key,
            ttl_s=context.settings.download_ttl_s,
            base_url=base_url,
            content_type=each.content_type,
            filename=None if each.kind == "video" else FILE_NAMES[kind_of(each)],
        )
        for each in stored
    }


def _can_still_be_replaced(context: ServerContext, episode: EpisodeRow) -> bool:
    """While an upload URL may be good that was signed before the episode was finalized. Later, nobody has one, and the
    blob store need not be asked about every artifact of a thousand episodes."""
    if episode.finalized_at_us is None:
        return True
    ttl_us = context.settings.upload_ttl_s * 1_000_000
    return context.clock() <= episode.finalized_at_us + ttl_us


async def _is_fit(context: ServerContext, caller: Caller, artifact: ArtifactRow) -> bool:
    """Its bytes are those that were checked, or the same ones again. Others are refused from now on."""
    info = await context.blobs.head(artifact.object_key)
    if info is None:
        context.log.error("artifact_lost", episode_id=artifact.episode_id, kind=artifact.kind)
        return False
    if is_as_checked(artifact, info):
        return True
    [finding] = await look_at(context, [artifact], {})
    await context.write_for(
        caller.org_id, lambda scope: write_findings(scope, artifact.episode_id, [finding])
    )
    return finding.disagrees is None


routes: tuple[LeanRoute, ...] = (
    route(
        "POST",
        "/api/ingest/episodes",
        create_episodes,
        summary="Creates many episodes, all or none, and signs their upload URLs.",
        takes=CreateEpisodes,
        gives=EpisodesCreated,
        status=201,
        errors=(403,),
    ),
    route(
        "POST",
        "/api/episodes/lookup",
        look_up_episodes,
        summary="Many episodes by id, with URLs of their artifacts that need no redirect.",
        takes=LookUpEpisodes,
        gives=EpisodesFound,
    ),
)
