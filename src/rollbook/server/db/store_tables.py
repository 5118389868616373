"""Rollout stores that an organisation registered: their table, and its rows. The stores themselves lie elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from rollbook.server.db.columns import Json, metadata, org, text, time_column

stores = sa.Table(
    "stores",
    metadata,
    org(),
    text("id", required=True),
    text("name", required=True),
    text("place", required=True),
    text("added_by"),
    time_column("added_at_us"),
    text("manifest_sha256"),
    text("content_sha256"),
    sa.Column("counts", Json),
    time_column("unreadable_at_us", required=False),
    text("problem"),
    sa.Column("verification", Json),
    sa.PrimaryKeyConstraint("org_id", "id"),
    sa.UniqueConstraint("org_id", "place"),
    sa.Index(None, "org_id", "content_sha256"),
)


@dataclass(frozen=True, slots=True)
class StoreRow:
    id: str
    name: str
    place: str
    """A path, or `s3://bucket/prefix`."""
    added_by: str | None
    added_at_us: int
    manifest_sha256: str | None
    """As it was last read, like the next two."""
    content_sha256: str | None
    counts: dict[str, Any] | None
    """`rollouts`, `steps`, `candidates`, `bytes`, `schema_version`, `profile`, `created_at`."""
    unreadable_at_us: int | None
    """Since when it cannot be read; None while it can."""
    problem: str | None
    verification: dict[str, Any] | None
    """The last check of every byte: see `server/stores/verification.py`."""
