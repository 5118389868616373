"""The calls that make an episode: create, get new upload URLs, abort an upload, finalize. All can be repeated."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from rollbook.client.connection import Connection
from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.wire.episodes import EpisodeCreated, EpisodeFinalized
from rollbook.contracts.wire.uploads import UploadAborted, UploadUrl, UrlsMinted

_log = logging.getLogger("rollbook.client")


def urls_by_kind(urls: Iterable[UploadUrl]) -> dict[ArtifactKind, UploadUrl]:
    return {each.kind: each for each in urls}


async def create_episode(
    connection: Connection, body: Mapping[str, Any], idempotency_key: str
) -> EpisodeCreated:
    """The same key gives the same episode, so the call can be repeated when its answer is lost."""
    created = await connection.call(
        "create an episode",
        "POST",
        "/api/ingest/episode",
        answer=EpisodeCreated,
        body=body,
        headers={"Idempotency-Key": idempotency_key},
        safe_to_resend=True,
    )
    if "policy_revision" in body and not created.policy_revision_kept:
        warn_of_lost_revisions(connection.base_url)
    return created


@cache
def warn_of_lost_revisions(base_url: str) -> None:
    """Once for each server: it ignored a policy revision that was sent."""
    _log.warning(
        "%s runs an earlier release, which does not keep policy revisions: only policy_version is recorded; "
        "upgrade the server",
        base_url,
    )


async def new_upload_urls(
    connection: Connection, episode_id: str, kinds: Sequence[ArtifactKind]
) -> dict[ArtifactKind, UploadUrl]:
    minted = await connection.call(
        f"get new URLs for {', '.join(kinds)}",
        "POST",
        f"/api/ingest/episode/{episode_id}/upload-urls",
        answer=UrlsMinted,
        body={"request_uploads": list(kinds)},
        safe_to_resend=True,
    )
    return urls_by_kind(minted.upload_urls)


async def abort_upload(connection: Connection, episode_id: str, upload_id: str) -> None:
    """Has the server remove the parts of an upload that nobody will resume."""
    path = f"/api/ingest/episode/{episode_id}/upload/{upload_id}"
    await connection.call("abort an upload", "DELETE", path, answer=UploadAborted)


async def finalize_episode(
    connection: Connection, episode_id: str, body: Mapping[str, Any], *, patient: bool = False
) -> str:
    """Returns the status that the episode has now. `patient`: try for minutes, because nothing else has the episode."""
    finalized = await connection.call(
        "finalize an episode",
        "POST",
        f"/api/ingest/episode/{episode_id}/finalize",
        answer=EpisodeFinalized,
        body=body,
        slow="artifacts" in body,
        safe_to_resend=True,
        patient=patient,
    )
    return finalized.status
