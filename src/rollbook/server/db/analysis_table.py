"""Analyses of episodes: what the detectors found, kept so that a page need not look again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from rollbook.server.db.columns import (
    Json,
    metadata,
    org_of_parent,
    text,
    time_column,
    within_tenant,
)

episode_analyses = sa.Table(
    "episode_analyses",
    metadata,
    org_of_parent(),
    text("episode_id", required=True),
    text("analyzer_version", required=True),
    text("basis", required=True),
    sa.Column("findings", Json, nullable=False),
    sa.Column("left_out", Json, nullable=False),
    time_column("made_at_us"),
    sa.PrimaryKeyConstraint("org_id", "episode_id"),
    within_tenant("episodes", "episode_id"),
)
"""`basis` is a digest of everything that was looked at. It can always be made again."""


@dataclass(frozen=True, slots=True)
class AnalysisRow:
    analyzer_version: str
    basis: str
    findings: list[dict[str, Any]]
    left_out: list[str]
    made_at_us: int


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """A result of an eval run whose replay is a certain episode."""

    eval_run_id: str
    run_name: str | None
    metrics: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """A scenario that a certain episode is the replay of and did not pass."""

    scenario_id: str
    name: str | None
    severity: str
    error: str | None
