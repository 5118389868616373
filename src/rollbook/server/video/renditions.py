"""Renditions: copies, playable in browsers, of videos that browsers cannot play. The recorded video stays unchanged.

They are made after the finalize, which never waits for them: one at a time per machine, each in its own process.
Pending work is in the database, so a restarted server continues it.
"""

from __future__ import annotations

import asyncio
import fcntl
import secrets
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from rollbook.errors import BlobNotFound, BlobStoreUnavailable, BlobTooLarge, RollbookError
from rollbook.server.blobs.interface import sha256_of_file
from rollbook.server.context import ServerContext
from rollbook.server.db.engine import NOBODY
from rollbook.server.logs import frames_of
from rollbook.server.queries import ArtifactRow, organisation_ids
from rollbook.server.settings import Settings
from rollbook.server.video.inspect_video import VideoFacts, VideoLimits
from rollbook.server.video.process import transcode_apart

RENDITION_TYPE = "video/mp4"
_MOST_TRIES = 3
_LONGEST_S = 3600.0
"""Seconds that one rendition may take."""
_ANOTHER_AT_IT_S = 10.0
_CHUNK = 1 << 20


def is_wanted(settings: Settings, facts: VideoFacts) -> bool:
    """The state for a video that was just inspected. A video that is too long is not transcoded."""
    if facts.playable or not facts.decodable or not settings.transcode_videos:
        return False
    return (facts.duration_s or 0) <= settings.transcode_limit_s


def rendition_key(object_key: str) -> str:
    """Beside the video, so that it is deleted with the episode."""
    return f"{object_key.rpartition('.')[0]}.{secrets.token_hex(8)}.playable.mp4"


async def keep_making(context: ServerContext) -> None:
    """Runs until it is cancelled. It handles an announced organisation at once, and all organisations from time to
    time."""
    settings = context.settings
    if not settings.transcode_videos or not settings.reap_every_s or find_spec("av") is None:
        return
    orgs = await _all_organisations(context)
    while True:
        try:
            with _machine_lock(settings.data_dir) as alone:
                if alone:
                    await make_pending(context, orgs)
                    orgs = []
        except Exception as error:  # noqa: BLE001 - one bad turn must not be the last
            context.log.error("renditions_failed", error=repr(error), frames=frames_of(error))
            orgs = []
        if orgs:
            await asyncio.sleep(_ANOTHER_AT_IT_S)
        else:
            orgs = await _next_wanted(context, settings.reap_every_s)


async def _next_wanted(context: ServerContext, every_s: float) -> list[str]:
    waiting = context.renditions_wanted
    try:
        async with asyncio.timeout(every_s):
            orgs = {await waiting.get()}
    except TimeoutError:
        return await _all_organisations(context)
    while not waiting.empty():
        orgs.add(waiting.get_nowait())
    return sorted(orgs)


async def _all_organisations(context: ServerContext) -> list[str]:
    try:
        return await context.db.read(NOBODY, organisation_ids)
    except RollbookError as error:
        context.log.warning("renditions_put_off", error=str(error))
        return []


@contextmanager
def _machine_lock(data_dir: Path) -> Iterator[bool]:
    """One process per machine; the lock ends with the process, so nothing is left to clean up."""
    with open(data_dir / "renditions.lock", "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


async def make_pending(context: ServerContext, org_ids: list[str]) -> int:
    """All that wait, organisations in turn, so that a hundred videos of one do not delay another's first. Returns how
    many were made."""
    shutil.rmtree(_work_folder(context), ignore_errors=True)
    made, orgs = 0, list(org_ids)
    while orgs:
        for org_id in list(orgs):
            artifact = await context.write_for(
                org_id, lambda scope: scope.begin_rendition(_MOST_TRIES)
            )
            if artifact is None:
                orgs.remove(org_id)
            elif await _make(context, org_id, artifact):
                made += 1
            else:
                orgs.remove(org_id)
    return made


async def _make(context: ServerContext, org_id: str, artifact: ArtifactRow) -> bool:
    """False when the blob store is unavailable: the other videos of this organisation have to wait too."""
    try:
        why = await _make_copy(context, artifact)
    except (BlobNotFound, BlobTooLarge) as error:
        why = str(error)
    except BlobStoreUnavailable as error:
        context.log.warning("rendition_put_off", episode_id=artifact.episode_id, error=str(error))
        await context.write_for(org_id, lambda scope: scope.renew_rendition(artifact))
        return False
    except asyncio.CancelledError:
        # a server that is stopped in the middle has not used up a try
        await context.write_for(org_id, lambda scope: scope.renew_rendition(artifact))
        raise
    status = "ready" if why is None else "failed"
    detail = artifact.detail if why is None else f"{artifact.detail}; {why}"
    needed = await context.write_for(
        org_id, lambda scope: scope.end_rendition(artifact, status, detail)
    )
    if not needed and why is None:
        await context.blobs.delete(artifact.rendition_key or "")
    context.log.info(f"rendition_{status}", episode_id=artifact.episode_id, why=why)
    return True


async def _make_copy(context: ServerContext, artifact: ArtifactRow) -> str | None:
    """Why there is no rendition; None when it was made."""
    settings, workshop = context.settings, _work_folder(context)
    workshop.mkdir(mode=0o700, exist_ok=True)
    out = workshop / f"{secrets.token_hex(8)}.mp4"
    limits = VideoLimits(most_duration_s=settings.transcode_limit_s)
    try:
        async with context.blobs.as_file(artifact.object_key) as path:
            if await asyncio.to_thread(sha256_of_file, path) != artifact.sha256:
                return "other bytes were put in its place"
            facts = await transcode_apart(
                path,
                out,
                limits=limits,
                most_bytes=settings.transcode_limit_bytes,
                limit_s=_LONGEST_S,
            )
        if not facts.playable:
            return facts.detail or "it cannot be transcoded"
        key = artifact.rendition_key or ""
        await context.blobs.put(key, _chunks(out), content_type=RENDITION_TYPE)
        return None
    finally:
        out.unlink(missing_ok=True)


def _work_folder(context: ServerContext) -> Path:
    return context.settings.data_dir / "renditions"


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with open(path, "rb") as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk
