"""What policy revisions were trained on: the table, and its rows as they leave the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa

from rollbook.contracts.policy import PolicyRevision
from rollbook.server.db.columns import (
    Json,
    metadata,
    org_of_parent,
    text,
    time_column,
    within_tenant,
)

SourceKind: TypeAlias = Literal["batch", "store", "episodes"]

training_sources = sa.Table(
    "training_sources",
    metadata,
    org_of_parent(),
    text("policy_revision_id", required=True),
    text("kind", required=True),
    text("source_id", required=True),
    sa.Column("detail", Json, nullable=False),
    sa.Column("record", Json),
    time_column("created_at_us"),
    sa.PrimaryKeyConstraint("org_id", "policy_revision_id", "kind", "source_id"),
    sa.Index(None, "org_id", "kind", "source_id"),
    within_tenant("policy_revisions", "policy_revision_id"),
)
"""`source_id` is the id of a batch, or a digest of the rows or episodes. `detail` is what a page shows. `record` is the
whole batch, which can be large: only a check of its digests reads it."""


@dataclass(frozen=True, slots=True)
class TrainingSourceRow:
    kind: SourceKind
    source_id: str
    detail: dict[str, Any]
    created_at_us: int


@dataclass(frozen=True, slots=True)
class RevisionRow:
    id: str
    policy_family: str
    revision_id: str
    revision: PolicyRevision
    created_at_us: int


@dataclass(frozen=True, slots=True)
class RecordedEpisodes:
    """The episodes of one policy."""

    count: int
    first_us: int | None
    last_us: int | None
