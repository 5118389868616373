"""Episodes and their artifacts: their tables, and their rows as they leave the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa
from msgspec import UNSET, UnsetType

from rollbook.contracts.episode import ArtifactKind, EpisodeSource, EpisodeStatus
from rollbook.contracts.policy import PolicyRevision
from rollbook.server.db.columns import (
    Json,
    WholeNumber,
    metadata,
    org,
    org_of_parent,
    text,
    time_column,
    within_tenant,
)

policy_revisions = sa.Table(
    "policy_revisions",
    metadata,
    org(),
    text("id", required=True),
    text("policy_family", required=True),
    text("revision_id", required=True),
    sa.Column("revision", Json, nullable=False),
    time_column("created_at_us"),
    time_column("updated_at_us"),
    sa.PrimaryKeyConstraint("org_id", "id"),
    sa.UniqueConstraint("org_id", "policy_family", "revision_id"),
)
"""`revision` is the whole PolicyRevision. Episodes and eval runs name its `id`. Rows are never deleted, except with
their organisation, so the columns that name one need no reference that a database checks: SQLite could add one only
by copying the largest table."""

episodes = sa.Table(
    "episodes",
    metadata,
    org(),
    text("id", required=True),
    text("name"),
    text("name_search"),
    text("source", required=True),
    text("robot"),
    text("policy_version"),
    text("policy_revision_id"),
    text("env_version"),
    text("git_sha"),
    sa.Column("seed", WholeNumber),
    sa.Column("fps", sa.Double),
    sa.Column("duration_s", sa.Double),
    sa.Column("bytes_total", sa.BigInteger),
    text("status", required=True),
    text("archived_from"),
    sa.Column("failure_time_s", sa.Double),
    sa.Column("metadata", Json, nullable=False),
    sa.Column("tags", Json, nullable=False),
    text("created_by"),
    time_column("created_at_us"),
    time_column("updated_at_us"),
    time_column("finalized_at_us", required=False),
    time_column("abandoned_at_us", required=False),
    time_column("archived_at_us", required=False),
    sa.PrimaryKeyConstraint("org_id", "id"),
    # a list goes newest first, so each index ends in the order of the list; the first one answers a search by name
    sa.Index(None, "org_id", "created_at_us", "id", "status", "name_search"),
    sa.Index(None, "org_id", "policy_version", "created_at_us", "id"),
    sa.Index(None, "org_id", "env_version", "created_at_us", "id"),
    sa.Index(None, "org_id", "git_sha", "created_at_us", "id"),
    sa.Index(None, "org_id", "seed", "created_at_us", "id"),
    sa.Index(None, "org_id", "robot", "created_at_us", "id"),
    sa.Index(None, "org_id", "source", "created_at_us", "id"),
    sa.Index(None, "org_id", "status", "created_at_us", "id"),
)

_has_revision = episodes.c.policy_revision_id.is_not(None)
sa.Index(
    "ix_episodes_policy_revision",
    episodes.c.org_id,
    episodes.c.policy_revision_id,
    episodes.c.created_at_us,
    sqlite_where=_has_revision,
    postgresql_where=_has_revision,
)

episode_terms = sa.Table(
    "episode_terms",
    metadata,
    org_of_parent(),
    text("term", required=True),
    time_column("created_at_us"),
    text("episode_id", required=True),
    sa.PrimaryKeyConstraint("org_id", "term", "created_at_us", "episode_id"),
    sqlite_with_rowid=False,
)
"""Tags and metadata values as `tag=…` and `metadata.a.b=…`, each with its episodes in the order of the list, so rare
and common values are found alike. Rebuilt from the episode, so there is no reference and no second index."""

artifacts = sa.Table(
    "artifacts",
    metadata,
    org_of_parent(),
    text("episode_id", required=True),
    text("kind", required=True),
    text("object_key", required=True),
    text("content_type", required=True),
    text("status", required=True),
    sa.Column("size", sa.BigInteger),
    text("sha256"),
    text("claimed_sha256"),
    sa.Column("playable", sa.Boolean),
    sa.Column("readable", sa.Boolean),
    text("detail"),
    sa.Column("arrays", Json),
    time_column("requested_at_us"),
    time_column("uploaded_at_us", required=False),
    text("etag"),
    text("rendition"),
    text("rendition_key"),
    sa.Column("rendition_tries", sa.BigInteger),
    sa.PrimaryKeyConstraint("org_id", "episode_id", "kind"),
    sa.UniqueConstraint("org_id", "object_key"),
    within_tenant("episodes", "episode_id"),
)
_has_rendition = artifacts.c.rendition_key.is_not(None)
_waits_for_rendition = artifacts.c.rendition == "pending"
sa.Index(
    "ix_artifacts_rendition_key",
    artifacts.c.org_id,
    artifacts.c.rendition_key,
    sqlite_where=_has_rendition,
    postgresql_where=_has_rendition,
)
sa.Index(
    "ix_artifacts_rendition_pending",
    artifacts.c.org_id,
    artifacts.c.requested_at_us,
    sqlite_where=_waits_for_rendition,
    postgresql_where=_waits_for_rendition,
)

uploads = sa.Table(
    "uploads",
    metadata,
    org_of_parent(),
    text("id", required=True),
    text("episode_id", required=True),
    text("kind", required=True),
    text("object_key", required=True),
    text("store_id"),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("part_size", sa.BigInteger, nullable=False),
    text("sha256"),
    time_column("created_at_us"),
    time_column("completed_at_us", required=False),
    sa.PrimaryKeyConstraint("org_id", "id"),
    sa.Index(None, "org_id", "episode_id"),
    within_tenant("episodes", "episode_id"),
)

upload_parts = sa.Table(
    "upload_parts",
    metadata,
    org_of_parent(),
    text("upload_id", required=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    text("etag", required=True),
    text("sha256"),
    sa.PrimaryKeyConstraint("org_id", "upload_id", "number"),
    within_tenant("uploads", "upload_id"),
)

doomed_objects = sa.Table(
    "doomed_objects",
    metadata,
    org(),
    text("object_key", required=True),
    text("store_id", required=True),
    time_column("doomed_at_us"),
    sa.PrimaryKeyConstraint("org_id", "object_key", "store_id"),
)
"""Blobs whose rows are already deleted. They stay here until the blob store has deleted them. `store_id` is empty for
an object, or names the multipart upload to abort."""

idempotency_keys = sa.Table(
    "idempotency_keys",
    metadata,
    org(),
    text("key", required=True),
    text("request_digest", required=True),
    text("episode_id", required=True),
    time_column("created_at_us"),
    sa.PrimaryKeyConstraint("org_id", "key"),
)

usage = sa.Table(
    "usage",
    metadata,
    sa.Column(
        "org_id", sa.Text, sa.ForeignKey("organisations.id", ondelete="CASCADE"), primary_key=True
    ),
    sa.Column("episodes", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
)
"""What a tenant stores, counted with every change: reading it costs one row."""


@dataclass(frozen=True, slots=True)
class ArtifactRow:
    episode_id: str
    kind: ArtifactKind
    object_key: str
    content_type: str
    status: str
    size: int | None
    sha256: str | None
    claimed_sha256: str | None
    playable: bool | None
    readable: bool | None
    """For sensors and actions: whether it is an NPZ file that `read_npz` reads. None for a video, and for files that
    were stored before the server inspected them."""
    detail: str | None
    requested_at_us: int
    uploaded_at_us: int | None
    etag: str | None
    """With size and time, tells checked bytes from bytes that replaced them."""
    rendition: str | None
    """For a video that browsers do not play: the state of its copy, `pending`, `ready` or `failed`."""
    rendition_key: str | None
    rendition_tries: int | None
    arrays: list[dict[str, Any]] | None = None
    """The arrays of a readable file, as they cross the wire. None in a list of episodes."""


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    org_id: str
    id: str
    name: str | None
    source: EpisodeSource
    robot: str | None
    policy_version: str | None
    policy_revision_id: str | None
    env_version: str | None
    git_sha: str | None
    seed: int | None
    fps: float | None
    duration_s: float | None
    bytes_total: int | None
    status: EpisodeStatus
    failure_time_s: float | None
    metadata: dict[str, Any]
    tags: list[str]
    created_by: str | None
    created_at_us: int
    updated_at_us: int
    finalized_at_us: int | None
    abandoned_at_us: int | None
    """When the server gave the recording up because nobody finalized it. Its owner still may."""
    archived_at_us: int | None
    archived_from: str | None
    """The status that a restored episode returns to."""
    artifacts: tuple[ArtifactRow, ...]
    replayed: bool = False
    """This episode is the answer to a repeated create."""
    policy_revision: PolicyRevision | UnsetType = UNSET
    """What `policy_revision_id` names, where the row was read to be shown."""
    metadata_truncated: Literal[True] | UnsetType = UNSET
    """The row was read without its metadata, because there is much of it or nobody needs it."""


@dataclass(frozen=True, slots=True)
class UploadRow:
    id: str
    episode_id: str
    kind: ArtifactKind
    object_key: str
    store_id: str | None
    size: int
    part_size: int
    sha256: str | None
    created_at_us: int
    completed_at_us: int | None


@dataclass(frozen=True, slots=True)
class PartRow:
    number: int
    size: int
    etag: str
    sha256: str | None


@dataclass(frozen=True, slots=True)
class DoomedObject:
    """A blob without an episode. With a `store_id`, the multipart upload of that name has to be aborted."""

    object_key: str
    store_id: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    episodes: int
    bytes: int
    quota_episodes: int | None
    """None: the limit of the server's settings."""
    quota_bytes: int | None
