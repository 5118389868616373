"""Many episodes or artifacts in one request."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from rollbook.contracts.episode import ArtifactKind, EpisodeStatus
from rollbook.contracts.wire.episodes import (
    CreateEpisode,
    EpisodeAnswer,
    EpisodeCreated,
    FinalizeEpisode,
)
from rollbook.contracts.wire.limits import MOST_IN_A_BATCH


class CreateEpisodes(Struct, frozen=True):
    episodes: Annotated[list[CreateEpisode], Meta(min_length=1, max_length=MOST_IN_A_BATCH)]


class EpisodesCreated(Struct, frozen=True):
    episodes: list[EpisodeCreated]
    """In the order of the request."""


class FinalizeOneOfMany(FinalizeEpisode, frozen=True, kw_only=True):
    episode_id: str


class FinalizeEpisodes(Struct, frozen=True):
    episodes: Annotated[list[FinalizeOneOfMany], Meta(max_length=MOST_IN_A_BATCH)]


class OneFinalized(Struct, frozen=True, omit_defaults=True):
    """With an `error` the episode is not finalized; `status_code` is the status that a single call would have."""

    episode_id: str
    status: EpisodeStatus | None = None
    updated_at: str | None = None
    error: str | None = None
    code: str | None = None
    status_code: int | None = None


class ManyFinalized(Struct, frozen=True):
    results: list[OneFinalized]


class LookUpEpisodes(Struct, frozen=True):
    ids: Annotated[list[str], Meta(max_length=MOST_IN_A_BATCH)]
    urls: bool = True
    """False when the caller does not need download URLs; the answer then comes sooner."""


class EpisodeFound(EpisodeAnswer, frozen=True, kw_only=True):
    download_urls: dict[ArtifactKind, str]
    """One for each stored artifact; valid for an hour, without a redirect."""


class EpisodesFound(Struct, frozen=True):
    episodes: list[EpisodeFound]
    """In the order of the ids."""
    missing: list[str]


class WantedArtifact(Struct, frozen=True):
    episode_id: str
    kind: ArtifactKind


class ReadArtifacts(Struct, frozen=True):
    artifacts: Annotated[list[WantedArtifact], Meta(max_length=MOST_IN_A_BATCH)]


class ArtifactRead(Struct, frozen=True):
    """Has `data` or a `url`; an artifact that is not stored has neither."""

    episode_id: str
    kind: ArtifactKind
    data: bytes | None = None
    url: str | None = None


class ArtifactsRead(Struct, frozen=True):
    artifacts: list[ArtifactRead]
    """In the order of the request."""
