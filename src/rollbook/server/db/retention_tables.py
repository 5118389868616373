"""Retention policies and legal holds: their tables, and their rows as they leave the database."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from rollbook.contracts.episode import EpisodeSource
from rollbook.server.db.columns import (
    Json,
    metadata,
    org,
    org_of_parent,
    text,
    time_column,
    within_tenant,
)

retention_policies = sa.Table(
    "retention_policies",
    metadata,
    org(),
    text("id", required=True),
    sa.Column("older_than_days", sa.BigInteger, nullable=False),
    text("source"),
    sa.Column("tags", Json, nullable=False),
    text("created_by"),
    time_column("created_at_us"),
    sa.PrimaryKeyConstraint("org_id", "id"),
)

legal_holds = sa.Table(
    "legal_holds",
    metadata,
    org_of_parent(),
    text("episode_id", required=True),
    text("reason", required=True),
    text("created_by"),
    time_column("created_at_us"),
    sa.PrimaryKeyConstraint("org_id", "episode_id"),
    within_tenant("episodes", "episode_id"),
)
"""An episode that is named here cannot be deleted, by nobody."""


@dataclass(frozen=True, slots=True)
class RetentionRow:
    id: str
    older_than_days: int
    source: EpisodeSource | None
    """None: every source."""
    tags: list[str]
    """An episode must have all of them."""
    created_by: str | None
    created_at_us: int


@dataclass(frozen=True, slots=True)
class HoldRow:
    episode_id: str
    reason: str
    created_by: str | None
    created_at_us: int


@dataclass(frozen=True, slots=True)
class DueEpisode:
    """An episode that a policy deletes, and the bytes of its artifacts."""

    id: str
    name: str | None
    created_at_us: int
    bytes: int
