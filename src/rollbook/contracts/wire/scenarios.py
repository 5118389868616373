"""Scenarios that a candidate has to pass before it ships: promote, change, list, check the gate, record a result."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from rollbook.contracts.evals import Severity, VerifyStatus
from rollbook.contracts.wire.eval_runs import Id, NotBlank
from rollbook.contracts.wire.limits import LONGEST_SCENARIO_NAME, LONGEST_TEXT

Description: TypeAlias = Annotated[str, Meta(max_length=LONGEST_TEXT)]
ScenarioName: TypeAlias = Annotated[str, Meta(max_length=LONGEST_SCENARIO_NAME)]


class Promote(Struct, frozen=True, kw_only=True):
    baseline_episode_id: Id
    severity: Severity = "warning"
    name: ScenarioName | None = None
    description: Description | None = None


class ChangeScenario(Struct, frozen=True, kw_only=True):
    """Fields that are left out or null do not change."""

    name: ScenarioName | None = None
    description: Description | None = None
    severity: Severity | None = None
    active: bool | None = None


class ScenarioAnswer(Struct, frozen=True, kw_only=True):
    scenario_id: str
    baseline_episode_id: str
    name: str | None
    description: str | None
    severity: Severity
    active: bool
    created_by: str | None
    created_at: str
    updated_at: str


class Promoted(ScenarioAnswer, frozen=True, kw_only=True):
    promoted: bool
    """False: the episode was a scenario already, and nothing was changed."""


class ScenarioList(Struct, frozen=True):
    scenarios: list[ScenarioAnswer]
    next_cursor: str | None


class ScenarioDeleted(Struct, frozen=True):
    scenario_id: str
    deleted: Literal[True] = True


class CheckGate(Struct, frozen=True):
    candidate_policy_version: NotBlank


class StandingAnswer(Struct, frozen=True, kw_only=True):
    scenario_id: str
    baseline_episode_id: str
    name: str | None
    severity: Severity
    latest_status: VerifyStatus | None
    """Null: this candidate has no result that counts for the scenario yet."""
    error: str | None
    candidate_episode_id: str | None
    eval_run_id: str | None
    decided_at: str | None
    unmeasured_pass: bool = False
    """The only result is a pass that was not measured. It does not count for a critical scenario."""


class GateAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The same under 200 and under 422, which has an `error` and its `code` as well."""

    passed: bool
    candidate_policy_version: str
    critical_total: int
    critical_passed: int
    critical_failed: int
    critical_pending: int
    scenarios: list[StandingAnswer]
    blockers: list[str]
    error: str | None = None
    code: str | None = None


class RecordVerification(Struct, frozen=True, kw_only=True):
    scenario_id: Id
    candidate_policy_version: NotBlank
    metrics: dict[str, Any] = {}
    status: VerifyStatus | None = None
    """None: the server derives it from `error` and from `success_candidate` in the metrics."""
    candidate_episode_id: str | None = None
    eval_run_id: str | None = None
    error: str | None = None


class VerificationRecorded(Struct, frozen=True):
    verification_result_id: str
    scenario_id: str
    status: VerifyStatus
    measured: bool = False
    """Whether the result of the eval run shows the pass: success in a verified environment, or known by a rollout
    store, and not retried. Only such a pass counts for a critical scenario."""
