"""The three calls that make an episode: create, ask for new upload URLs, finalize. All may be repeated safely."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollbook.client.connection import Connection
from rollbook.client.uploads import UploadUrl, upload_urls
from rollbook.contracts.episode import ArtifactKind
from rollbook.errors import ServerError


@dataclass(frozen=True, slots=True)
class Created:
    episode_id: str
    status: str
    storage: str
    upload_urls: dict[ArtifactKind, UploadUrl]


def new_idempotency_key() -> str:
    return uuid.uuid4().hex


async def create_episode(
    connection: Connection, body: Mapping[str, Any], idempotency_key: str
) -> Created:
    """The same key gives the same episode, so that a lost answer can be asked for again."""
    answer = await connection.call(
        "create an episode",
        "POST",
        "/api/ingest/episode",
        body=body,
        headers={"Idempotency-Key": idempotency_key},
        safe_to_resend=True,
    )
    episode_id = answer.get("episode_id")
    if not isinstance(episode_id, str) or not episode_id:
        message = "cannot create an episode: the answer names none; is the base URL right?"
        raise ServerError(status_code=201, message=message, response_body=answer)
    status = str(answer.get("status", "recording"))
    storage = str(answer.get("storage", "unconfigured"))
    return Created(episode_id, status, storage, upload_urls(answer))


async def new_upload_urls(
    connection: Connection, episode_id: str, kinds: Sequence[ArtifactKind]
) -> dict[ArtifactKind, UploadUrl]:
    answer = await connection.call(
        f"get new URLs for {', '.join(kinds)}",
        "POST",
        f"/api/ingest/episode/{episode_id}/upload-urls",
        body={"request_uploads": list(kinds)},
        safe_to_resend=True,
    )
    return upload_urls(answer)


async def finalize_episode(connection: Connection, episode_id: str, body: Mapping[str, Any]) -> str:
    """The status it has now."""
    answer = await connection.call(
        "finalize an episode",
        "POST",
        f"/api/ingest/episode/{episode_id}/finalize",
        body=body,
        slow="artifacts" in body,
        safe_to_resend=True,
    )
    return str(answer.get("status", body["status"]))
