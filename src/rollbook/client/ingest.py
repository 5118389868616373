"""The three calls that make an episode: create, get new upload URLs, finalize. All can be repeated safely."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rollbook.client.connection import Connection
from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.wire.episodes import EpisodeCreated, EpisodeFinalized
from rollbook.contracts.wire.uploads import UploadUrl, UrlsMinted


def urls_by_kind(urls: Iterable[UploadUrl]) -> dict[ArtifactKind, UploadUrl]:
    return {each.kind: each for each in urls}


async def create_episode(
    connection: Connection, body: Mapping[str, Any], idempotency_key: str
) -> EpisodeCreated:
    """The same key gives the same episode, so the call can be repeated when its answer is lost."""
    return await connection.call(
        "create an episode",
        "POST",
        "/api/ingest/episode",
        answer=EpisodeCreated,
        body=body,
        headers={"Idempotency-Key": idempotency_key},
        safe_to_resend=True,
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


async def finalize_episode(connection: Connection, episode_id: str, body: Mapping[str, Any]) -> str:
    """Returns the status that the episode has now."""
    finalized = await connection.call(
        "finalize an episode",
        "POST",
        f"/api/ingest/episode/{episode_id}/finalize",
        answer=EpisodeFinalized,
        body=body,
        slow="artifacts" in body,
        safe_to_resend=True,
    )
    return finalized.status
