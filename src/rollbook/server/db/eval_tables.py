"""Eval runs, scenarios and webhooks: their tables, and their rows as they leave the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from msgspec import UNSET, UnsetType

from rollbook.contracts.evals import RunStatus
from rollbook.contracts.policy import PolicyRevision
from rollbook.server.db.columns import (
    Json,
    count,
    flag,
    metadata,
    org,
    org_of_parent,
    text,
    time_column,
    within_tenant,
)

eval_runs = sa.Table(
    "eval_runs",
    metadata,
    org(),
    text("id", required=True),
    text("name"),
    text("candidate_policy_version", required=True),
    text("baseline_policy_version"),
    text("candidate_policy_revision_id"),
    text("baseline_policy_revision_id"),
    text("runner_kind", required=True),
    text("status", required=True),
    sa.Column("episode_count", sa.Integer, nullable=False),
    sa.Column("episodes_completed", sa.Integer, nullable=False),
    sa.Column("episodes_failed", sa.Integer, nullable=False),
    sa.Column("gate", Json, nullable=False),
    text("gate_digest", required=True),
    text("gate_name"),
    sa.Column("metadata", Json, nullable=False),
    sa.Column("summary", Json),
    text("recommend"),
    text("decision"),
    count("retried"),
    count("altered"),
    sa.Column("revision", sa.BigInteger, nullable=False),
    text("idempotency_key"),
    text("request_digest"),
    text("created_by"),
    time_column("created_at_us"),
    time_column("updated_at_us"),
    time_column("completed_at_us", required=False),
    sa.PrimaryKeyConstraint("org_id", "id"),
    sa.UniqueConstraint("org_id", "idempotency_key"),
    sa.Index(None, "org_id", "created_at_us", "id"),
    sa.Index(None, "org_id", "candidate_policy_version", "created_at_us", "id"),
    sa.Index(None, "org_id", "baseline_policy_version", "created_at_us", "id"),
    sa.Index(None, "org_id", "status", "created_at_us", "id"),
    sa.Index(None, "org_id", "completed_at_us", "id"),
)
"""`revision` changes with every result, so that a summary is never stored beside results it does not cover."""

eval_results = sa.Table(
    "eval_results",
    metadata,
    org_of_parent(),
    text("eval_run_id", required=True),
    sa.Column("position", sa.Integer, nullable=False),
    text("id", required=True),
    text("baseline_episode_id", required=True),
    text("candidate_episode_id"),
    text("status", required=True),
    sa.Column("metrics", Json, nullable=False),
    text("error"),
    count("attempts"),
    flag("retried"),
    sa.Column("labels", Json),
    time_column("updated_at_us"),
    sa.PrimaryKeyConstraint("org_id", "eval_run_id", "position"),
    sa.UniqueConstraint("org_id", "eval_run_id", "baseline_episode_id"),
    sa.Index(None, "org_id", "baseline_episode_id"),
    sa.Index(None, "org_id", "candidate_episode_id"),
    within_tenant("eval_runs", "eval_run_id"),
    within_tenant("episodes", "baseline_episode_id"),
)
"""One row for every baseline from the creation of the run. The candidate's episode is not a foreign key, because
clearing it would clear the tenant too: `Scope.delete_episode` clears it.

`labels` are those of the baseline at the creation of the run, when nobody knows a result: whoever records baselines
cannot choose the clusters afterwards. Rows of older releases have none."""
_has_result = eval_results.c.status != "pending"
sa.Index(
    "ix_eval_results_done",
    eval_results.c.org_id,
    eval_results.c.eval_run_id,
    eval_results.c.status,
    sqlite_where=_has_result,
    postgresql_where=_has_result,
)
"""Only for counting. Without its condition PostgreSQL would, before it has statistics, use it to find one baseline in a
run, and read the whole run."""

eval_attempts = sa.Table(
    "eval_attempts",
    metadata,
    org_of_parent(),
    text("eval_run_id", required=True),
    text("baseline_episode_id", required=True),
    sa.Column("number", sa.Integer, nullable=False),
    text("status", required=True),
    sa.Column("metrics", Json, nullable=False),
    text("error"),
    time_column("recorded_at_us"),
    sa.PrimaryKeyConstraint("org_id", "eval_run_id", "baseline_episode_id", "number"),
    sa.Index(None, "org_id", "baseline_episode_id"),
    within_tenant("eval_runs", "eval_run_id"),
    within_tenant("episodes", "baseline_episode_id"),
)
"""Results that a later result for the same baseline replaced."""

eval_evidence = sa.Table(
    "eval_evidence",
    metadata,
    org_of_parent(),
    text("eval_run_id", required=True),
    sa.Column("record", Json, nullable=False),
    time_column("created_at_us"),
    sa.PrimaryKeyConstraint("org_id", "eval_run_id"),
    within_tenant("eval_runs", "eval_run_id"),
)
"""What a summary was computed from, with a digest for every result: written together with the summary. Apart from the
run, because it is large and only an export or a lineage walk reads it."""

verification_scenarios = sa.Table(
    "verification_scenarios",
    metadata,
    org_of_parent(),
    text("id", required=True),
    text("baseline_episode_id", required=True),
    text("name"),
    text("description"),
    text("severity", required=True),
    sa.Column("active", sa.Boolean, nullable=False),
    text("created_by"),
    time_column("created_at_us"),
    time_column("updated_at_us"),
    sa.PrimaryKeyConstraint("org_id", "id"),
    sa.UniqueConstraint("org_id", "baseline_episode_id"),
    within_tenant("episodes", "baseline_episode_id"),
)

verification_results = sa.Table(
    "verification_results",
    metadata,
    org_of_parent(),
    text("id", required=True),
    text("scenario_id", required=True),
    text("candidate_policy_version", required=True),
    text("status", required=True),
    sa.Column("metrics", Json, nullable=False),
    text("error"),
    text("candidate_episode_id"),
    text("eval_run_id"),
    sa.Column("mirrored", sa.Boolean, nullable=False),
    flag("measured"),
    time_column("created_at_us"),
    sa.PrimaryKeyConstraint("org_id", "id"),
    sa.UniqueConstraint("org_id", "scenario_id", "eval_run_id"),
    sa.Index(None, "org_id", "candidate_policy_version", "scenario_id", "created_at_us", "id"),
    sa.Index(None, "org_id", "candidate_episode_id"),
    sa.Index(None, "org_id", "eval_run_id"),
    within_tenant("verification_scenarios", "scenario_id"),
)
"""`mirrored`: copied from an eval run when the run was finalized. A result that somebody recorded has priority.
`measured`: the result of the eval run shows the pass. Only such a pass counts for a critical scenario."""

webhooks = sa.Table(
    "webhooks",
    metadata,
    org(),
    text("id", required=True),
    text("url", required=True),
    sa.Column("events", Json, nullable=False),
    text("description"),
    text("salt", required=True),
    text("secret_hash", required=True),
    text("created_by"),
    time_column("created_at_us"),
    time_column("paused_at_us", required=False),
    sa.PrimaryKeyConstraint("org_id", "id"),
)
"""The secret is not stored: it is derived from the server's secret and the salt."""

webhook_deliveries = sa.Table(
    "webhook_deliveries",
    metadata,
    org_of_parent(),
    text("id", required=True),
    text("webhook_id", required=True),
    text("event", required=True),
    text("body", required=True),
    text("status", required=True),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("tries", Json, nullable=False),
    time_column("created_at_us"),
    time_column("next_attempt_at_us"),
    time_column("finished_at_us", required=False),
    sa.PrimaryKeyConstraint("org_id", "id"),
    sa.Index(None, "org_id", "webhook_id", "created_at_us", "id"),
    sa.Index(None, "org_id", "status", "next_attempt_at_us"),
    within_tenant("webhooks", "webhook_id"),
)
"""A queue and its log. A process that takes a delivery moves its next attempt behind a lease: if the process dies, the
delivery is due again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRunHead:
    """The columns of a list."""

    id: str
    name: str | None
    candidate_policy_version: str
    baseline_policy_version: str | None
    candidate_policy_revision: PolicyRevision | UnsetType = UNSET
    baseline_policy_revision: PolicyRevision | UnsetType = UNSET
    runner_kind: str
    status: RunStatus
    episode_count: int
    """The number of baselines at creation. A deleted baseline takes its result with it and still counts here."""
    episodes_completed: int
    episodes_failed: int
    recommend: str | None
    decision: str | None
    retried: int
    """Pairs whose result replaced one that says something about the candidate."""
    altered: int
    """Baselines that were deleted after the run was created."""
    gate_digest: str
    gate_name: str | None
    """The locked gate of the organisation that the gate of the run is, or is stricter than."""
    created_by: str | None
    created_at_us: int
    updated_at_us: int
    completed_at_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRunDecided(EvalRunHead):
    """The columns of a list that says what was decided, and why."""

    summary: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRunRow(EvalRunDecided):
    gate: dict[str, Any]
    metadata: dict[str, Any]
    revision: int
    request_digest: str | None
    replayed: bool = False
    """This run is the answer to a repeated create."""


@dataclass(frozen=True, slots=True)
class EvalResultRow:
    position: int
    id: str
    baseline_episode_id: str
    candidate_episode_id: str | None
    status: str
    metrics: dict[str, Any]
    error: str | None
    attempts: int
    """Different results so far, with this one."""
    retried: bool
    """An earlier attempt says something else about the candidate than this one."""
    labels: dict[str, list[str]] | None
    updated_at_us: int


@dataclass(frozen=True, slots=True)
class EvalAttemptRow:
    baseline_episode_id: str
    number: int
    status: str
    metrics: dict[str, Any]
    error: str | None
    recorded_at_us: int


@dataclass(frozen=True, slots=True)
class EpisodeUse:
    """An eval run in which an episode is the baseline, or the replay of the candidate."""

    eval_run_id: str
    run_name: str | None
    baseline_episode_id: str
    is_replay: bool
    created_at_us: int


@dataclass(frozen=True, slots=True)
class ScenarioRow:
    id: str
    baseline_episode_id: str
    name: str | None
    description: str | None
    severity: str
    active: bool
    created_by: str | None
    created_at_us: int
    updated_at_us: int


@dataclass(frozen=True, slots=True)
class VerificationRow:
    """A result of one candidate in one scenario."""

    id: str
    scenario_id: str
    candidate_policy_version: str
    status: str
    error: str | None
    candidate_episode_id: str | None
    eval_run_id: str | None
    mirrored: bool
    measured: bool
    created_at_us: int


@dataclass(frozen=True, slots=True)
class Standing:
    """A scenario, and the newest result of one candidate that counts; None where there is no such result."""

    scenario: ScenarioRow
    status: str | None
    unmeasured_pass: bool
    """There is only a pass that was not measured, which does not count for a critical scenario."""
    error: str | None
    candidate_episode_id: str | None
    eval_run_id: str | None
    decided_at_us: int | None


@dataclass(frozen=True, slots=True)
class WebhookRow:
    id: str
    url: str
    events: list[str]
    description: str | None
    salt: str
    secret_hash: str
    created_by: str | None
    created_at_us: int
    paused_at_us: int | None
    """While it is paused it gets no new events."""


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    id: str
    webhook_id: str
    event: str
    body: str
    status: str
    attempts: int
    tries: list[dict[str, Any]]
    """The attempts: time, status code or error, and duration of each."""
    created_at_us: int
    next_attempt_at_us: int
    finished_at_us: int | None
