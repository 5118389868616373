"""Retention policies, legal holds, and what an organisation stores."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from rollbook.contracts.episode import EpisodeSource


class CreateRetentionPolicy(Struct, frozen=True, kw_only=True):
    """Deletes episodes that match all of it."""

    older_than_days: Annotated[int, Meta(ge=1, le=36_500)]
    """Days since the episode was created."""
    source: EpisodeSource | None = None
    """None: every source."""
    tags: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=200)]], Meta(max_length=50)
    ] = []
    """An episode must have all of them."""


class RetentionPolicyAnswer(Struct, frozen=True):
    id: str
    older_than_days: int
    source: EpisodeSource | None
    tags: list[str]
    created_by: str | None
    created_at: str


class RetentionPolicyList(Struct, frozen=True):
    policies: list[RetentionPolicyAnswer]


class RetentionPolicyDeleted(Struct, frozen=True):
    id: str
    deleted: Literal[True] = True


class DueEpisodeAnswer(Struct, frozen=True):
    id: str
    name: str | None
    bytes: int
    created_at: str


class RetentionPreview(Struct, frozen=True):
    """What a policy would delete now. Nothing is deleted."""

    episode_count: int
    bytes: int
    protected_count: int
    """Episodes that match, and stay: scenarios, episodes of open eval runs, legal holds."""
    episodes: list[DueEpisodeAnswer]
    """The oldest of them, at most 1,000."""


class HoldEpisode(Struct, frozen=True, kw_only=True):
    reason: Annotated[str, Meta(min_length=1, max_length=1000)]


class HoldAnswer(Struct, frozen=True):
    episode_id: str
    reason: str
    created_by: str | None
    created_at: str


class HoldList(Struct, frozen=True):
    holds: list[HoldAnswer]


class HoldLifted(Struct, frozen=True):
    episode_id: str
    lifted: Literal[True] = True


class UsageAnswer(Struct, frozen=True):
    episodes: int
    bytes: int
    quota_episodes: int | None
    """The limit that applies: the organisation's own, or the server's. None: no limit."""
    quota_bytes: int | None
