"""Artifacts: the bytes of an episode are checked once they are all uploaded, and only checked bytes are served.

The check covers size and SHA-256, which must agree with the sender's claims, and the content: whether browsers play a
video, and which arrays an NPZ file has. Content that cannot be read is stored and marked. The holder of an upload URL
can replace the bytes until the URL expires. The server notices this at the next download and refuses the bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.episode import ARTIFACT_KINDS, FILE_NAMES, ArtifactKind
from rollbook.contracts.npz import ArrayFacts, NpzContent
from rollbook.contracts.wire.episodes import Claim
from rollbook.errors import BlobError, BlobNotFound, BlobStoreUnavailable
from rollbook.server.accounts.callers import caller_of
from rollbook.server.blobs.inspect_blob import Answer, Question, inspect_blobs
from rollbook.server.blobs.interface import BlobInfo, sha256_of_file
from rollbook.server.context import Caller, ServerContext, base_url_of, context_of
from rollbook.server.http.openapi import LeanRoute, query, route
from rollbook.server.http.responses import Problem, not_found
from rollbook.server.queries import ArtifactRow, DoomedObject, EpisodeRow, Scope
from rollbook.server.video.inspect_video import VideoFacts
from rollbook.server.video.process import probe_apart
from rollbook.server.video.renditions import is_wanted, rendition_key

Claims: TypeAlias = "Mapping[ArtifactKind, Claim]"

_AT_ONCE = 32
"""Episodes whose videos are inspected at once; the others wait."""
_MOST_TRIES = 3
_MOST_ARRAYS = 256
"""Arrays of one artifact that are listed."""


@dataclass(frozen=True, slots=True)
class ArtifactCheck:
    """The result of checking one artifact, for its row."""

    kind: str
    changes: dict[str, Any]
    """Columns to write; empty when nothing changed."""
    disagrees: str | None = None
    """Why the artifact is not what was announced."""


async def check_artifacts(
    context: ServerContext, artifacts: Sequence[ArtifactRow], claims: Claims
) -> list[ArtifactCheck]:
    """One check for every artifact, and one for every claim about an artifact that does not exist."""
    [found] = await check_artifacts_of_many(context, [(artifacts, claims)])
    if isinstance(found, Exception):
        raise found
    return found


async def check_artifacts_of_many(
    context: ServerContext, wanted: Sequence[tuple[Sequence[ArtifactRow], Claims]]
) -> list[list[ArtifactCheck] | Exception]:
    """For each episode its checks, or the error that prevented them; an error concerns only its episode."""
    questions = [_question(context, each) for artifacts, _ in wanted for each in artifacts]
    answers = iter(await inspect_blobs(context.blobs, questions))
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(
        artifacts: Sequence[ArtifactRow], claims: Claims, looks: Sequence[Answer]
    ) -> list[ArtifactCheck] | Exception:
        async with gate:
            try:
                return await _findings(context, artifacts, claims, looks)
            except Exception as error:  # noqa: BLE001 - it belongs to this episode
                return error

    cases = [
        (artifacts, claims, [next(answers) for _ in artifacts]) for artifacts, claims in wanted
    ]
    return await asyncio.gather(*(one(*case) for case in cases))


def _question(context: ServerContext, artifact: ArtifactRow) -> Question:
    """A video also needs an inspection of its content, so it is hashed there."""
    limit = context.settings.artifact_limit_bytes

    def is_hashed(info: BlobInfo) -> bool:
        if artifact.kind == "video" or info.size > limit:
            return False
        return artifact.status != "stored" or not is_as_checked(artifact, info)

    named = None if artifact.kind == "video" else FILE_NAMES[artifact.kind]
    return Question(artifact.object_key, is_hashed, named)


async def _findings(
    context: ServerContext,
    artifacts: Sequence[ArtifactRow],
    claims: Claims,
    looks: Sequence[Answer],
) -> list[ArtifactCheck]:
    unknown = set(claims) - {each.kind for each in artifacts}
    missing = [
        ArtifactCheck(kind, {}, "nothing was ever asked to be uploaded there")
        for kind in sorted(unknown)
    ]
    there = [
        await _check_one(context, each, claims.get(each.kind), look)
        for each, look in zip(artifacts, looks, strict=True)
    ]
    return [*missing, *there]


async def _check_one(
    context: ServerContext, artifact: ArtifactRow, claim: Claim | None, look: Answer
) -> ArtifactCheck:
    if isinstance(look, Exception):
        raise look
    claimed = claim or Claim()
    if look is None:
        return _check_of_missing(artifact, claimed)
    if artifact.status == "stored" and is_as_checked(artifact, look.info):
        return ArtifactCheck(
            artifact.kind, {}, _disagreement(artifact.size, artifact.sha256, claimed)
        )
    limit = context.settings.artifact_limit_bytes
    if look.info.size > limit:
        return _refused(artifact, f"it has {look.info.size} bytes, and {limit} are allowed")
    if look.sha256 is None:
        seen, facts = await _examined_video(context, artifact, look.info)
    else:
        seen, facts = _stored_columns(look.info, look.sha256), None
        seen |= _array_columns(look.content)
    # bytes that differ from the checked ones are accepted only when they are announced
    known = artifact.sha256 if artifact.status == "stored" else artifact.claimed_sha256
    expected = Claim(sha256=claimed.sha256 or known, size=claimed.size)
    disagrees = _disagreement(seen["size"], seen["sha256"], expected)
    if disagrees is not None:
        return _refused(artifact, disagrees, expected.sha256)
    is_known = artifact.status == "stored" and artifact.sha256 == seen["sha256"]
    renewed = {} if is_known and artifact.rendition_key else _rendition_of(context, artifact, facts)
    return ArtifactCheck(artifact.kind, {**seen, **renewed, "status": "stored"})


def _rendition_of(
    context: ServerContext, artifact: ArtifactRow, facts: VideoFacts | None
) -> dict[str, Any]:
    """A new name: an old copy of other bytes may still be waiting to be deleted."""
    wanted = facts is not None and is_wanted(context.settings, facts)
    key = rendition_key(artifact.object_key) if wanted else None
    return {
        "rendition": "pending" if wanted else None,
        "rendition_key": key,
        "rendition_tries": None,
    }


def _check_of_missing(artifact: ArtifactRow, claimed: Claim) -> ArtifactCheck:
    if artifact.status == "stored":
        return ArtifactCheck(
            artifact.kind, {}, "its bytes were stored and are gone; restore a backup"
        )
    wanted = claimed.sha256 is not None or claimed.size is not None
    return ArtifactCheck(artifact.kind, {}, "nothing was uploaded" if wanted else None)


def _refused(artifact: ArtifactRow, why: str, claimed_sha256: str | None = None) -> ArtifactCheck:
    """An announced digest stays announced until another one is given."""
    changes = {"status": "refused", "detail": why, "claimed_sha256": claimed_sha256}
    return ArtifactCheck(artifact.kind, changes, why)


def _disagreement(size: int | None, sha256: str | None, claim: Claim) -> str | None:
    if claim.size is not None and claim.size != size:
        return f"{size} bytes are stored, expected {claim.size}"
    if claim.sha256 is not None and claim.sha256 != sha256:
        return f"the SHA-256 of what is stored is {sha256}, expected {claim.sha256}"
    return None


def is_as_checked(artifact: ArtifactRow, info: BlobInfo) -> bool:
    """Some stores round times to seconds, so two uploads of the same size can look alike."""
    checked = (artifact.size, artifact.uploaded_at_us, artifact.etag)
    return checked == (info.size, info.modified_at_us, info.etag)


def _stored_columns(
    info: BlobInfo, sha256: str, playable: bool | None = None, detail: str | None = None
) -> dict[str, Any]:
    """The stored facts, as columns."""
    return {
        "size": info.size,
        "sha256": sha256,
        "playable": playable,
        "readable": None,
        "detail": detail,
        "arrays": None,
        "uploaded_at_us": info.modified_at_us,
        "etag": info.etag,
    }


def _array_columns(content: NpzContent | None) -> dict[str, Any]:
    if content is None:
        return {}
    if content.problem is not None:
        return {"readable": False, "detail": content.problem}
    count = len(content.arrays)
    cut = f"it has {count} arrays; the first {_MOST_ARRAYS} are listed"
    listed = [_listed(key, facts) for key, facts in islice(content.arrays.items(), _MOST_ARRAYS)]
    return {"readable": True, "detail": cut if count > _MOST_ARRAYS else None, "arrays": listed}


def _listed(key: str, facts: ArrayFacts) -> dict[str, Any]:
    """The type is the one that a reader gets, in the byte order of its machine."""
    dtype = str(facts.dtype.newbyteorder("="))
    rows = facts.shape[0] if facts.shape else None
    return {"key": key, "dtype": dtype, "shape": list(facts.shape), "rows": rows}


async def _examined_video(
    context: ServerContext, artifact: ArtifactRow, info: BlobInfo
) -> tuple[dict[str, Any], VideoFacts | None]:
    """Starts again when somebody replaces the blob meanwhile."""
    for _ in range(_MOST_TRIES):
        sha256, playable, detail, facts = await _bytes_and_content(context, artifact)
        now = await context.blobs.head(artifact.object_key)
        if now is None:
            raise BlobNotFound(key=artifact.object_key)
        if now == info:
            return _stored_columns(info, sha256, playable, detail), facts
        info = now
    raise BlobStoreUnavailable(
        detail=f"the {artifact.kind} is replaced again and again; finish the upload first"
    )


async def _bytes_and_content(
    context: ServerContext, artifact: ArtifactRow
) -> tuple[str, bool, str | None, VideoFacts | None]:
    async with context.blobs.as_file(artifact.object_key) as path:
        sha256 = await asyncio.to_thread(sha256_of_file, path)
        if find_spec("av") is None:
            detail = "not looked into: this server has no PyAV; pip install 'rollbook[video]'"
            return sha256, False, detail, None
        async with context.video_turns:
            facts = await probe_apart(path)
    return sha256, facts.playable, facts.detail, facts


def mismatch(wrong: Sequence[ArtifactCheck]) -> Problem:
    said = "; ".join(f"{each.kind}: {each.disagrees}" for each in wrong)
    text = f"{said}. Nothing was finalized; upload again and finalize again"
    listed = [{"kind": each.kind, "detail": each.disagrees} for each in wrong]
    return Problem(409, "artifact_mismatch", text, artifacts=listed)


def announce_renditions(
    context: ServerContext, org_id: str, checks: Sequence[ArtifactCheck]
) -> None:
    """Called after the checks were written. Work that is not announced here is found at the next turn."""
    if any(each.changes.get("rendition") == "pending" for each in checks):
        context.renditions_wanted.put_nowait(org_id)


def write_checks(scope: Scope, episode_id: str, checks: Sequence[ArtifactCheck]) -> None:
    for each in checks:
        if each.changes:
            scope.set_artifact(episode_id, each.kind, **each.changes)


async def remove_blobs(
    context: ServerContext, org_id: str, doomed: list[DoomedObject], *, most_failures: int = 1
) -> list[DoomedObject]:
    """The objects that are deleted now. Objects that the blob store does not delete stay noted, behind all others, so
    that one which can never be deleted delays none. After `most_failures` the rest is left to upkeep."""
    gone: list[DoomedObject] = []
    kept: list[DoomedObject] = []
    for each in doomed:
        try:
            if each.store_id:
                await context.blobs.abort_multipart(each.object_key, each.store_id)
            else:
                await context.blobs.delete(each.object_key)
            gone.append(each)
        except (BlobError, OSError) as error:
            context.log.warning("blob_not_removed", org_id=org_id, error=str(error))
            kept.append(each)
            if len(kept) == most_failures:
                break
    if gone or kept:

        def note(scope: Scope) -> None:
            scope.forget_objects(gone)
            scope.put_off_objects(kept)

        await context.write_for(org_id, note)
    return gone


# ------------------------------------------------------------------------------------ reading one


async def download_artifact(request: Request) -> Response:
    context = context_of(request)
    base_url = base_url_of(request)
    caller = await caller_of(request, "read_own")
    episode_id, kind = request.path_params["episode_id"], request.path_params["kind"]
    asked = request.query_params.get("rendition")
    if asked not in (None, "playable"):
        text = "rendition: expected playable, or nothing for the bytes as they were recorded"
        raise Problem(400, "invalid_value", text, where="rendition")
    artifact = await _stored_artifact(context, caller, episode_id, kind)
    object_key = artifact.object_key
    if asked is not None:
        object_key = await playable_key(context, caller, artifact)
    url = await context.blobs.presign_get(
        object_key,
        ttl_s=context.settings.download_ttl_s,
        base_url=base_url,
        content_type=artifact.content_type,
        filename=None if kind == "video" else FILE_NAMES[kind],
    )
    return Response(status_code=302, headers={"Location": url, "Cache-Control": "no-store"})


async def _stored_artifact(
    context: ServerContext, caller: Caller, episode_id: str, kind: str
) -> ArtifactRow:
    def find(scope: Scope) -> EpisodeRow | None:
        return scope.episode(episode_id)

    episode = await context.read(caller, find)
    if episode is None or kind not in ARTIFACT_KINDS:
        raise not_found("artifact")
    artifact = next((each for each in episode.artifacts if each.kind == kind), None)
    if artifact is None or artifact.status == "requested":
        raise not_found("artifact")
    await served_blob(context, caller, artifact)
    return artifact


async def served_blob(context: ServerContext, caller: Caller, artifact: ArtifactRow) -> BlobInfo:
    """The stored bytes of an artifact that was uploaded. Raises Problem unless they are the checked ones."""
    if artifact.status == "refused":
        raise _not_served(artifact.detail)
    info = await context.blobs.head(artifact.object_key)
    if info is None:
        context.log.error("artifact_lost", episode_id=artifact.episode_id, kind=artifact.kind)
        raise _not_served("its bytes are gone from the blob store")
    if not is_as_checked(artifact, info):
        await _check_again(context, caller.org_id, artifact)
    return info


async def playable_key(context: ServerContext, caller: Caller, artifact: ArtifactRow) -> str:
    """A URL that a browser can play: the video itself, or its copy."""
    if artifact.playable:
        return artifact.object_key
    key, is_ready = artifact.rendition_key, artifact.rendition == "ready"
    if key is not None and is_ready:
        if await context.blobs.head(key) is not None:
            return key
        # a copy can be made again, so a backup may leave it out
        await context.write_for(caller.org_id, lambda scope: scope.renew_rendition(artifact))
        context.renditions_wanted.put_nowait(caller.org_id)
    if is_ready or artifact.rendition == "pending":
        text = "a copy that browsers play is being made; try again in a minute"
        raise Problem(404, "rendition_pending", text)
    why = artifact.detail if artifact.kind == "video" else "only a video can have one"
    raise Problem(404, "no_rendition", f"there is no copy that browsers play: {why}")


async def _check_again(context: ServerContext, org_id: str, artifact: ArtifactRow) -> None:
    """The blob was written after its check. The same bytes again are accepted; other bytes are refused from now on."""
    [check] = await check_artifacts(context, [artifact], {})
    await context.write_for(org_id, lambda scope: write_checks(scope, artifact.episode_id, [check]))
    if check.disagrees is not None:
        context.log.warning("artifact_replaced", episode_id=artifact.episode_id, kind=artifact.kind)
        raise _not_served(f"other bytes were put in its place: {check.disagrees}")


def _not_served(why: str | None) -> Problem:
    text = f"this artifact is not what it should be: {why}. Upload it again and finalize again"
    return Problem(409, "artifact_refused", text)


_REDIRECT = {
    "description": "`Location` is valid for an hour.",
    "headers": {"Location": {"schema": {"type": "string"}}},
}

routes: tuple[LeanRoute, ...] = (
    route(
        "GET",
        "/api/episodes/{episode_id}/artifact/{kind}",
        download_artifact,
        summary="Redirects to a signed URL of the artifact, which supports Range.",
        parameters=(
            query(
                "rendition",
                {"type": "string", "enum": ["playable"]},
                "`playable`: a video that browsers can play: the video itself or a copy.",
            ),
        ),
        gives=None,
        status=302,
        answers={302: _REDIRECT},
        errors=(400, 404, 409),
        tag="artifacts",
    ),
)
