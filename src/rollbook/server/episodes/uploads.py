"""Uploads: signed URLs for artifacts, new URLs for expired ones, and large files in parts.

An upload in parts can be interrupted and resumed at any time: the answer lists the parts that have arrived and where to
send the others. It becomes an artifact in one step, when it is completed and matches what was announced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.episode import CONTENT_TYPES, FILE_NAMES, ArtifactKind
from rollbook.contracts.wire.episodes import Claim
from rollbook.contracts.wire.limits import MOST_PARTS
from rollbook.contracts.wire.uploads import (
    CompletedPart,
    CompleteUpload,
    PartDone,
    PartUrl,
    RequestUrls,
    StartUpload,
    UploadAborted,
    UploadCompleted,
    UploadState,
    UploadUrl,
    UrlsMinted,
)
from rollbook.errors import EpisodeArchived, UploadNotFound
from rollbook.server.accounts.callers import caller_of
from rollbook.server.context import Caller, ServerContext, base_url_of, context_of
from rollbook.server.episodes.artifacts import (
    ArtifactCheck,
    announce_renditions,
    check_artifacts,
    remove_blobs,
    write_checks,
)
from rollbook.server.episodes.quotas import checked_quota
from rollbook.server.http.openapi import LeanRoute, route
from rollbook.server.http.requests import json_body
from rollbook.server.http.responses import Problem, json_response, not_found, wire_time
from rollbook.server.queries import ArtifactRow, EpisodeRow, Scope, UploadRow

_DEFAULT_PART = 16 << 20
_LEAST_PART = 5 << 20
"""The smallest part that S3 accepts, except for the last one."""
_URLS_AT_ONCE = 1000

_request_urls = msgspec.json.Decoder(RequestUrls)
_start_upload = msgspec.json.Decoder(StartUpload)
_complete_upload = msgspec.json.Decoder(CompleteUpload)


def slot(org_id: str, episode_id: str, kind: ArtifactKind) -> tuple[str, str, str]:
    """Kind, object key and content type. The key is derived from the ids, so a repeated upload replaces the first."""
    return kind, f"episodes/{org_id}/{episode_id}/{FILE_NAMES[kind]}", CONTENT_TYPES[kind]


async def signed_urls(
    context: ServerContext,
    base_url: str,
    artifacts: Sequence[ArtifactRow],
    kinds: Iterable[ArtifactKind],
    most: int,
) -> list[UploadUrl]:
    """URLs in the order of `kinds`."""
    ttl_s = context.settings.upload_ttl_s
    expires_at = wire_time(context.clock() + ttl_s * 1_000_000)
    by_kind = {each.kind: each for each in artifacts}
    urls = []
    for kind in kinds:
        url = await context.blobs.presign_put(
            by_kind[kind].object_key,
            content_type=by_kind[kind].content_type,
            ttl_s=ttl_s,
            base_url=base_url,
            most=most,
        )
        urls.append(UploadUrl(kind, url, expires_at))
    return urls


# ----------------------------------------------------------------------------------------- new URLs


async def mint_upload_urls(request: Request) -> Response:
    context = context_of(request)
    base_url = base_url_of(request)
    caller = await caller_of(request, "record")
    body = await json_body(request, _request_urls, context.settings.body_limit_bytes)
    episode_id: str = request.path_params["episode_id"]
    wanted = None if body.request_uploads is None else list(dict.fromkeys(body.request_uploads))

    def find(scope: Scope) -> tuple[list[ArtifactRow], int]:
        episode = _open_episode(scope, episode_id)
        kinds = wanted
        if kinds is None:
            kinds = [each.kind for each in episode.artifacts if each.status != "stored"]
        found = [_slot_to_fill(scope, episode, kind) for kind in kinds]
        return found, checked_quota(scope, context.settings)

    found, most = await context.write(caller, find)
    urls = await signed_urls(context, base_url, found, [each.kind for each in found], most)
    return json_response(UrlsMinted(episode_id, "r2", urls))


def _open_episode(scope: Scope, episode_id: str) -> EpisodeRow:
    episode = scope.episode(episode_id)
    if episode is None:
        raise not_found("episode")
    if episode.status == "archived":
        raise EpisodeArchived(episode_id=episode_id)
    return episode


def _slot_to_fill(scope: Scope, episode: EpisodeRow, kind: ArtifactKind) -> ArtifactRow:
    """The artifacts of a finalized episode do not change: a reader must find the same bytes again."""
    there = next((each for each in episode.artifacts if each.kind == kind), None)
    if there is None:
        there = scope.request_artifact(episode.id, *slot(scope.org_id, episode.id, kind))
    elif there.status == "stored":
        if episode.finalized_at_us is not None:
            text = f"the {kind} of this episode is stored and finalized; record a new episode for other bytes"
            raise Problem(409, "artifact_stored", text, kind=kind)
        there = _emptied(scope, episode.id, kind)
    if there is None:
        raise not_found("episode")
    return there


def _emptied(scope: Scope, episode_id: str, kind: str) -> ArtifactRow | None:
    """The artifact waits for new bytes; earlier bytes are not valid any more."""
    columns = (
        "size",
        "sha256",
        "claimed_sha256",
        "uploaded_at_us",
        "etag",
        "playable",
        "detail",
        "rendition",
        "rendition_key",
        "rendition_tries",
    )
    return scope.set_artifact(episode_id, kind, status="requested", **dict.fromkeys(columns))


# ----------------------------------------------------------------------------------------- in parts


async def start_upload(request: Request) -> Response:
    context = context_of(request)
    base_url = base_url_of(request)
    caller = await caller_of(request, "record")
    body = await json_body(request, _start_upload, context.settings.body_limit_bytes)
    episode_id: str = request.path_params["episode_id"]
    part_size = _part_size(context, body)

    def find(scope: Scope) -> ArtifactRow:
        artifact = _slot_to_fill(scope, _open_episode(scope, episode_id), body.kind)
        checked_quota(scope, context.settings, more_bytes=body.size)
        return artifact

    artifact = await context.write(caller, find)
    store_id = await context.blobs.start_multipart(
        artifact.object_key, content_type=artifact.content_type
    )

    def create(scope: Scope) -> UploadRow | None:
        return scope.create_upload(
            episode_id,
            body.kind,
            size=body.size,
            part_size=part_size,
            store_id=store_id,
            sha256=body.sha256,
        )

    upload = await context.write(caller, create)
    if upload is None:  # the episode was deleted meanwhile
        await context.blobs.abort_multipart(artifact.object_key, store_id)
        raise not_found("episode")
    return json_response(await _state(context, base_url, upload, done={}), 201)


def _part_size(context: ServerContext, body: StartUpload) -> int:
    limit = context.settings.artifact_limit_bytes
    if body.size > limit:
        text = f"an artifact may have {limit} bytes; record several episodes"
        raise Problem(413, "artifact_too_large", text, limit=limit)
    size = body.part_size or max(_DEFAULT_PART, -(-body.size // _URLS_AT_ONCE))
    if size < min(_LEAST_PART, body.size):
        text = (
            f"part_size has to be at least {_LEAST_PART} bytes; only the last part may be smaller"
        )
        raise Problem(400, "invalid_value", text, where="$.part_size")
    if -(-body.size // size) > MOST_PARTS:
        text = f"part_size {size} makes more than {MOST_PARTS} parts; choose a larger one"
        raise Problem(400, "invalid_value", text, where="$.part_size")
    return size


async def read_upload(request: Request) -> Response:
    context = context_of(request)
    base_url = base_url_of(request)
    caller = await caller_of(request, "record")
    upload = await _upload(context, caller, request)
    done = {} if upload.completed_at_us is not None else await _arrived(context, upload)
    return json_response(await _state(context, base_url, upload, done))


async def _upload(context: ServerContext, caller: Caller, request: Request) -> UploadRow:
    episode_id, upload_id = request.path_params["episode_id"], request.path_params["upload_id"]

    def find(scope: Scope) -> UploadRow | None:
        return scope.upload(upload_id)

    upload = await context.read(caller, find)
    if upload is None or upload.episode_id != episode_id:
        raise not_found("upload")
    return upload


async def _state(
    context: ServerContext, base_url: str, upload: UploadRow, done: dict[int, int]
) -> UploadState:
    ttl_s = context.settings.upload_ttl_s
    expected = _expected_parts(upload)
    missing = [number for number in expected if number not in done]
    urls = [
        PartUrl(number, await _part_url(context, base_url, upload, number, expected[number]))
        for number in missing[:_URLS_AT_ONCE]
        if upload.completed_at_us is None
    ]
    return UploadState(
        upload_id=upload.id,
        kind=upload.kind,
        size=upload.size,
        part_size=upload.part_size,
        part_count=len(expected),
        parts=urls,
        done=[PartDone(number, size) for number, size in done.items()],
        expires_at=wire_time(context.clock() + ttl_s * 1_000_000),
        completed=upload.completed_at_us is not None,
    )


async def _arrived(context: ServerContext, upload: UploadRow) -> dict[int, int]:
    """The size of each part that has arrived whole. The blob store knows: clients send the parts there directly.

    Raises UploadNotFound when the blob store has lost the upload.
    """
    expected = _expected_parts(upload)
    try:
        parts = await context.blobs.parts(upload.object_key, upload.store_id or "")
    except UploadNotFound:
        if not await _is_joined(context, upload):
            raise
        return expected
    # a part of another size was cut short
    return {part.number: part.size for part in parts if expected.get(part.number) == part.size}


async def _is_joined(context: ServerContext, upload: UploadRow) -> bool:
    """Whether an earlier request joined the parts and died before it noted that. Completing compares the digests."""
    info = await context.blobs.head(upload.object_key)
    return info is not None and info.size == upload.size


def _expected_parts(upload: UploadRow) -> dict[int, int]:
    """The size of each part."""
    whole, rest = divmod(upload.size, upload.part_size)
    sizes = [upload.part_size] * whole + ([rest] if rest else [])
    return dict(enumerate(sizes, start=1))


async def _part_url(
    context: ServerContext, base_url: str, upload: UploadRow, number: int, size: int
) -> str:
    return await context.blobs.presign_part(
        upload.object_key,
        upload.store_id or "",
        number,
        ttl_s=context.settings.upload_ttl_s,
        base_url=base_url,
        most=size,
    )


# ---------------------------------------------------------------------------------------- complete


async def complete_upload(request: Request) -> Response:
    """A repeated request gets the same answer, also when the server died in between."""
    context = context_of(request)
    caller = await caller_of(request, "record")
    body = await json_body(request, _complete_upload, context.settings.body_limit_bytes)
    upload = await _upload(context, caller, request)
    if upload.completed_at_us is None:
        await _join_parts(context, upload, body)
        check = await _inspected(context, caller, upload, body)
        await _note_completed(context, caller, upload, check)
    artifact = await context.read(
        caller, lambda scope: scope.artifact(upload.episode_id, upload.kind)
    )
    if artifact is None or artifact.sha256 is None or artifact.size is None:
        raise not_found("upload")
    done = UploadCompleted(upload.id, upload.kind, artifact.size, artifact.sha256)
    return json_response(done)


async def _join_parts(context: ServerContext, upload: UploadRow, body: CompleteUpload) -> None:
    blobs, store_id = context.blobs, upload.store_id or ""
    expected = _expected_parts(upload)
    _refuse_other_numbers(body.parts, expected)
    try:
        arrived = {part.number: part for part in await blobs.parts(upload.object_key, store_id)}
        missing = [
            number
            for number, size in expected.items()
            if number not in arrived or arrived[number].size != size
        ]
        if missing:
            text = f"{len(missing)} of {len(expected)} parts are missing; GET this upload says where to send them"
            raise Problem(409, "parts_missing", text, missing=missing[:_URLS_AT_ONCE])
        await blobs.complete_multipart(
            upload.object_key, store_id, [arrived[number] for number in expected]
        )
    except UploadNotFound:
        if not await _is_joined(context, upload):
            raise


def _refuse_other_numbers(parts: list[CompletedPart] | None, expected: dict[int, int]) -> None:
    if parts is None:
        return
    numbers = [part.number for part in parts]
    if sorted(numbers) != list(expected):
        text = f"this upload has parts 1 to {len(expected)}, each once; name all of them or none"
        raise Problem(400, "invalid_value", text, where="$.parts")


async def _inspected(
    context: ServerContext, caller: Caller, upload: UploadRow, body: CompleteUpload
) -> ArtifactCheck:
    """Removes bytes that differ from what was announced, so that nobody reads them as the artifact."""
    artifact = await context.read(
        caller, lambda scope: scope.artifact(upload.episode_id, upload.kind)
    )
    if artifact is None:
        raise not_found("upload")
    claim = Claim(sha256=body.sha256 or upload.sha256, size=upload.size)
    [check] = await check_artifacts(context, [artifact], {upload.kind: claim})
    damaged = await _damaged_parts(context, upload, body.parts or [])
    if check.disagrees is None and not damaged:
        return check
    await context.blobs.delete(upload.object_key)
    await context.write(caller, lambda scope: _forget_upload(scope, upload))
    why = check.disagrees or f"parts {', '.join(map(str, damaged[:20]))} are not what was sent"
    text = f"{why}. Nothing was kept; start a new upload"
    raise Problem(409, "artifact_mismatch", text, parts=damaged)


def _forget_upload(scope: Scope, upload: UploadRow) -> None:
    """The earlier blob was replaced when the parts were joined, so its row is reset too."""
    scope.abort_upload(upload.id)
    _emptied(scope, upload.episode_id, upload.kind)


async def _damaged_parts(
    context: ServerContext, upload: UploadRow, parts: list[CompletedPart]
) -> list[int]:
    """Parts whose announced SHA-256 differs."""
    announced = {part.number: part.sha256 for part in parts if part.sha256 is not None}
    damaged = []
    for number in sorted(announced):
        start = (number - 1) * upload.part_size
        digest = hashlib.sha256()
        end = min(start + upload.part_size, upload.size)
        async for chunk in await context.blobs.read(upload.object_key, start, end):
            digest.update(chunk)
        if digest.hexdigest() != announced[number]:
            damaged.append(number)
    return damaged


async def _note_completed(
    context: ServerContext, caller: Caller, upload: UploadRow, check: ArtifactCheck
) -> None:
    def note(scope: Scope) -> None:
        if scope.complete_upload(upload.id) is not None:
            write_checks(scope, upload.episode_id, [check])
            checked_quota(scope, context.settings)

    await context.write(caller, note)
    context.metrics.artifact(upload.kind, upload.size)
    announce_renditions(context, caller.org_id, [check])


async def abort_upload(request: Request) -> Response:
    context = context_of(request)
    caller = await caller_of(request, "record")
    upload = await _upload(context, caller, request)
    doomed = await context.write(caller, lambda scope: scope.abort_upload(upload.id))
    await remove_blobs(context, caller.org_id, doomed or [])
    return json_response(UploadAborted(upload.id))


_UPLOAD = "/api/ingest/episode/{episode_id}/upload"

routes: tuple[LeanRoute, ...] = (
    route(
        "POST",
        "/api/ingest/episode/{episode_id}/upload-urls",
        mint_upload_urls,
        summary="Returns new upload URLs, for expired ones or for further artifacts.",
        takes=RequestUrls,
        gives=UrlsMinted,
        errors=(403, 404, 409),
        tag="uploads",
    ),
    route(
        "POST",
        _UPLOAD,
        start_upload,
        summary="Starts an upload in parts, which can be interrupted and resumed at any time.",
        takes=StartUpload,
        gives=UploadState,
        status=201,
        errors=(403, 404, 409),
        tag="uploads",
    ),
    route(
        "GET",
        f"{_UPLOAD}/{{upload_id}}",
        read_upload,
        summary="Lists the parts that have arrived, and the URLs of the others.",
        gives=UploadState,
        errors=(400, 404),
        tag="uploads",
    ),
    route(
        "POST",
        f"{_UPLOAD}/{{upload_id}}/complete",
        complete_upload,
        summary="Joins all parts to one artifact, and checks that it is the announced one.",
        takes=CompleteUpload,
        gives=UploadCompleted,
        errors=(403, 404, 409),
        tag="uploads",
    ),
    route(
        "DELETE",
        f"{_UPLOAD}/{{upload_id}}",
        abort_upload,
        summary="Aborts an upload in parts and removes its parts.",
        gives=UploadAborted,
        errors=(403, 404),
        tag="uploads",
    ),
)
