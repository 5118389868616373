"""Many episodes in one request: created in one transaction, or read with download URLs or with the bytes of small
artifacts."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.episode import FILE_NAMES, ArtifactKind, check_typed_metadata
from rollbook.contracts.wire.batches import (
    ArtifactRead,
    ArtifactsRead,
    CreateEpisodes,
    EpisodeFound,
    EpisodesCreated,
    EpisodesFound,
    LookUpEpisodes,
    ReadArtifacts,
    WantedArtifact,
)
from rollbook.contracts.wire.episodes import CreateEpisode
from rollbook.errors import InvalidValue
from rollbook.server.accounts.callers import caller_of
from rollbook.server.blobs.file_blobs import LocalBlobs
from rollbook.server.blobs.files import disk_errors
from rollbook.server.blobs.interface import BlobStore
from rollbook.server.context import Caller, ServerContext, base_url_of, context_of
from rollbook.server.db.columns import new_id
from rollbook.server.episodes.artifacts import check_artifacts, is_as_checked, write_checks
from rollbook.server.episodes.messages import (
    created_answer,
    found_answer,
    new_episode_columns,
)
from rollbook.server.episodes.quotas import checked_quota
from rollbook.server.episodes.uploads import signed_urls, slot
from rollbook.server.http.openapi import LeanRoute, route
from rollbook.server.http.requests import json_body
from rollbook.server.http.responses import json_response
from rollbook.server.queries import ArtifactRow, EpisodeRow, Scope

_AT_ONCE = 32
"""Episodes whose artifacts are checked at once; the others wait."""

SMALL_BYTES = 1 << 20
"""An artifact up to this size is sent with the answer, if it is on local disk."""
_MOST_BYTES = 16 << 20
"""Bytes of all artifacts in one answer; the others get a URL."""

_create = msgspec.json.Decoder(CreateEpisodes)
_look_up = msgspec.json.Decoder(LookUpEpisodes)
_read = msgspec.json.Decoder(ReadArtifacts)


# ------------------------------------------------------------------------------------------ create


async def create_episodes(request: Request) -> Response:
    """All or nothing; when an episode is invalid, the answer names it."""
    context = context_of(request)
    caller = await caller_of(request, "record")
    body = await json_body(request, _create, context.settings.body_limit_bytes)
    asked = [list(dict.fromkeys(each.request_uploads or ())) for each in body.episodes]
    base_url = base_url_of(request) if any(asked) else ""
    wanted = []
    for number, (each, kinds) in enumerate(zip(body.episodes, asked, strict=True)):
        _check_typed(number, each)
        episode_id = new_id()
        values = {**new_episode_columns(each), "id": episode_id, "created_by": caller.name}
        wanted.append((values, [slot(caller.org_id, episode_id, kind) for kind in kinds]))

    def create(scope: Scope) -> tuple[list[EpisodeRow], int]:
        made = scope.create_episodes(wanted)
        return made, checked_quota(scope, context.settings)

    made, most = await context.write(caller, create)
    answers = []
    for episode, kinds in zip(made, asked, strict=True):
        context.metrics.episode("created")
        urls = await signed_urls(context, base_url, episode.artifacts, kinds, most)
        answers.append(created_answer(episode, urls))
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
    caller = await caller_of(request, "read_own")
    body = await json_body(request, _look_up, context.settings.body_limit_bytes)
    ids = list(dict.fromkeys(body.ids))
    found = await context.read(caller, lambda scope: scope.episodes_of(ids))
    known = {each.id for each in found}
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(episode: EpisodeRow) -> EpisodeFound:
        if not body.urls:
            return found_answer(episode, {})
        async with gate:
            urls = await _download_urls(context, caller, base_url, episode, episode.artifacts)
            return found_answer(episode, urls)

    answers = await asyncio.gather(*map(one, found))
    return json_response(EpisodesFound(answers, [each for each in ids if each not in known]))


async def _download_urls(
    context: ServerContext,
    caller: Caller,
    base_url: str,
    episode: EpisodeRow,
    artifacts: Iterable[ArtifactRow],
) -> dict[ArtifactKind, str]:
    stored = [each for each in artifacts if each.status == "stored"]
    if stored and _can_still_be_replaced(context, episode):
        fit = await asyncio.gather(*(_is_fit(context, caller, each) for each in stored))
        stored = [each for each, is_fit in zip(stored, fit, strict=True) if is_fit]
    return {
        each.kind: await context.blobs.presign_get(
            each.object_key,
            ttl_s=context.settings.download_ttl_s,
            base_url=base_url,
            content_type=each.content_type,
            filename=None if each.kind == "video" else FILE_NAMES[each.kind],
        )
        for each in stored
    }


# ---------------------------------------------------------------------------------- read artifacts


async def read_artifacts(request: Request) -> Response:
    """For many small files one request each costs more than their bytes. Each file is compared with its SHA-256."""
    context = context_of(request)
    base_url = base_url_of(request)
    caller = await caller_of(request, "read_own")
    body = await json_body(request, _read, context.settings.body_limit_bytes)
    ids = list(dict.fromkeys(each.episode_id for each in body.artifacts))
    found = await context.read(caller, lambda scope: scope.episode_heads(ids))
    episodes = {each.id: each for each in found}
    wanted = [
        (each, _stored_artifact(episodes.get(each.episode_id), each)) for each in body.artifacts
    ]
    data = await _small_ones(context.blobs, [row for _, row in wanted if row is not None])
    answers = []
    for each, row in wanted:
        content = url = None
        if row is not None:
            content = data.get(row.object_key)
            if content is None:
                episode = episodes[each.episode_id]
                urls = await _download_urls(context, caller, base_url, episode, [row])
                url = urls.get(each.kind)
        answers.append(ArtifactRead(each.episode_id, each.kind, content, url))
    return json_response(ArtifactsRead(answers))


def _stored_artifact(episode: EpisodeRow | None, wanted: WantedArtifact) -> ArtifactRow | None:
    for each in () if episode is None else episode.artifacts:
        if each.kind == wanted.kind and each.status == "stored":
            return each
    return None


async def _small_ones(blobs: BlobStore, artifacts: Iterable[ArtifactRow]) -> dict[str, bytes]:
    """By object key. Empty for S3, where bytes do not pass through the server."""
    if not isinstance(blobs, LocalBlobs):
        return {}
    chosen: dict[str, str] = {}
    left = _MOST_BYTES
    for each in artifacts:
        if (
            each.size is not None
            and each.sha256 is not None
            and each.size <= min(SMALL_BYTES, left)
        ):
            chosen[each.object_key] = each.sha256
            left -= each.size

    def read() -> dict[str, bytes]:
        contents = {key: _contents(blobs, key) for key in chosen}
        return {
            key: data
            for key, data in contents.items()
            if data is not None and hashlib.sha256(data).hexdigest() == chosen[key]
        }

    return await asyncio.to_thread(read)


def _contents(blobs: LocalBlobs, key: str) -> bytes | None:
    """None when the blob is missing or was replaced by a larger one; a request for its URL then explains why."""
    try:
        with disk_errors(), blobs.objects.open(key.split("/")) as file:
            data = file.read(SMALL_BYTES + 1)
    except FileNotFoundError:
        return None
    return data


def _can_still_be_replaced(context: ServerContext, episode: EpisodeRow) -> bool:
    """True while an upload URL that was signed before the finalize may still be valid. Later nobody can replace the
    bytes, and the blob store need not be asked about each artifact of a thousand episodes."""
    if episode.finalized_at_us is None:
        return True
    ttl_us = context.settings.upload_ttl_s * 1_000_000
    return context.clock() <= episode.finalized_at_us + ttl_us


async def _is_fit(context: ServerContext, caller: Caller, artifact: ArtifactRow) -> bool:
    """The bytes are the checked ones, or the same bytes uploaded again. Other bytes are refused from now on."""
    info = await context.blobs.head(artifact.object_key)
    if info is None:
        context.log.error("artifact_lost", episode_id=artifact.episode_id, kind=artifact.kind)
        return False
    if is_as_checked(artifact, info):
        return True
    [check] = await check_artifacts(context, [artifact], {})
    await context.write_for(
        caller.org_id, lambda scope: write_checks(scope, artifact.episode_id, [check])
    )
    return check.disagrees is None


routes: tuple[LeanRoute, ...] = (
    route(
        "POST",
        "/api/ingest/episodes",
        create_episodes,
        summary="Creates many episodes, all or none, and signs their upload URLs.",
        takes=CreateEpisodes,
        gives=EpisodesCreated,
        status=201,
        errors=(403, 409),
    ),
    route(
        "POST",
        "/api/episodes/lookup",
        look_up_episodes,
        summary="Reads many episodes by id, with direct URLs of their artifacts.",
        takes=LookUpEpisodes,
        gives=EpisodesFound,
    ),
    route(
        "POST",
        "/api/episodes/artifacts",
        read_artifacts,
        summary="Reads many artifacts: small ones as base64, others by a URL.",
        takes=ReadArtifacts,
        gives=ArtifactsRead,
    ),
)
