"""Rows of eval runs, scenarios and webhooks as they leave the database: frozen and free of SQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import UNSET, UnsetType

from rollbook.contracts.evals import RunStatus
from rollbook.contracts.policy import PolicyRevision


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
    gate_digest: str
    created_by: str | None
    created_at_us: int
    updated_at_us: int
    completed_at_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRunRow(EvalRunHead):
    gate: dict[str, Any]
    metadata: dict[str, Any]
    summary: dict[str, Any] | None
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
    updated_at_us: int


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
class Standing:
    """A scenario, and the newest result of one candidate; None where there is no result."""

    scenario: ScenarioRow
    status: str | None
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
