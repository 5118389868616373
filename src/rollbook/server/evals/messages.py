"""What crosses HTTP about eval runs, scenarios and the gate: the bodies we take and the answers we give.

A name that a body has and we do not know is passed over, so that a newer client can talk to an older server.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from msgspec import Meta, Struct

from rollbook.contracts.episode import LONGEST_NAME
from rollbook.contracts.evals import (
    ResultStatus,
    RunnerKind,
    RunStatus,
    Severity,
    VerifyStatus,
)
from rollbook.server.db.value_checks import LONGEST_INDEXED, LONGEST_TEXT
from rollbook.server.episodes.messages import MOST_IN_A_BATCH
from rollbook.server.http.responses import wire_time
from rollbook.server.queries import (
    EvalResultRow,
    EvalRunHead,
    EvalRunRow,
    ScenarioRow,
    Standing,
)
from rollbook.server.queries.verify import LONGEST_SCENARIO_NAME

NotBlank = Annotated[str, Meta(max_length=LONGEST_INDEXED, pattern=r"\S")]
Version = Annotated[str, Meta(max_length=LONGEST_INDEXED)]
Id = Annotated[str, Meta(min_length=1, max_length=LONGEST_INDEXED)]
Name = Annotated[str, Meta(max_length=LONGEST_NAME)]
Description = Annotated[str, Meta(max_length=LONGEST_TEXT)]
ScenarioName = Annotated[str, Meta(max_length=LONGEST_SCENARIO_NAME)]
FinalStatus = Literal["completed", "failed", "cancelled"]


# ------------------------------------------------------------------------------------ what we take


class CreateEvalRun(Struct, kw_only=True):
    candidate_policy_version: NotBlank
    baseline_episode_ids: Annotated[list[Id], Meta(min_length=1)]
    """Each counts once; at most 10,000 of them."""
    baseline_policy_version: Version | None = None
    name: Name | None = None
    metadata: dict[str, Any] | None = None
    gate: dict[str, Any] | None = None
    """`gate.v1`: what has to be shown before the candidate ships. It cannot be changed afterwards."""
    runner_kind: RunnerKind = "client"


class PutResult(Struct, kw_only=True):
    baseline_episode_id: str
    status: Literal["complete", "failed"]
    metrics: dict[str, Any]
    candidate_episode_id: str | None = None
    error: str | None = None
    """Of any length; the first 2,000 characters are kept."""


class PutResults(Struct):
    results: Annotated[list[PutResult], Meta(max_length=MOST_IN_A_BATCH)]


class FinalizeEvalRun(Struct, kw_only=True):
    status: FinalStatus = "completed"
    metadata: dict[str, Any] | None = None


class Promote(Struct, kw_only=True):
    baseline_episode_id: Id
    severity: Severity = "warning"
    name: ScenarioName | None = None
    description: Description | None = None


class CheckGate(Struct):
    candidate_policy_version: NotBlank


class RecordVerification(Struct, kw_only=True):
    scenario_id: Id
    candidate_policy_version: NotBlank
    metrics: dict[str, Any] = {}
    status: VerifyStatus | None = None
    """Left out, it follows from the error and from `success_candidate` in the metrics."""
    candidate_episode_id: str | None = None
    eval_run_id: str | None = None
    error: str | None = None


class ChangeScenario(Struct, kw_only=True):
    """What is left out, or null, stays."""

    name: ScenarioName | None = None
    description: Description | None = None
    severity: Severity | None = None
    active: bool | None = None


# ------------------------------------------------------------------------------------ what we give


class EvalRunCreated(Struct):
    eval_run_id: str
    status: RunStatus
    episode_count: int
    gate_digest: str


class ResultPut(Struct):
    eval_result_id: str
    run_status: RunStatus
    episodes_completed: int
    episodes_failed: int


class OneResultPut(Struct, omit_defaults=True):
    """With an `error` it was not taken, and `status_code` is what a call of its own would have been answered."""

    baseline_episode_id: str
    eval_result_id: str | None = None
    error: str | None = None
    code: str | None = None
    status_code: int | None = None


class ResultsPut(Struct):
    run_status: RunStatus
    episodes_completed: int
    episodes_failed: int
    results: list[OneResultPut]


class EvalRunFinalized(Struct):
    eval_run_id: str
    status: RunStatus
    summary: dict[str, Any]


class EvalRunListed(Struct, kw_only=True):
    id: str
    name: str | None
    candidate_policy_version: str
    baseline_policy_version: str | None
    runner_kind: RunnerKind
    status: RunStatus
    episode_count: int
    """As many baselines as it was made for; those that were deleted since have no result any more."""
    episodes_completed: int
    episodes_failed: int
    recommend: str | None
    """Of the summary: a majority of the averages."""
    decision: str | None
    """Of the summary: what the gate says."""
    gate_digest: str
    created_by: str | None
    created_at: str
    updated_at: str
    completed_at: str | None


class EvalRunAnswer(EvalRunListed, kw_only=True):
    gate: dict[str, Any]
    metadata: dict[str, Any]
    summary: dict[str, Any] | None


class EvalRunList(Struct):
    eval_runs: list[EvalRunListed]
    next_cursor: str | None


class EvalRunDeleted(Struct):
    id: str
    deleted: Literal[True] = True


class EvalResultAnswer(Struct):
    id: str
    baseline_episode_id: str
    candidate_episode_id: str | None
    status: ResultStatus
    metrics: dict[str, Any]
    error: str | None
    updated_at: str


class EvalResultList(Struct):
    results: list[EvalResultAnswer]
    next_cursor: str | None


class ScenarioAnswer(Struct, kw_only=True):
    scenario_id: str
    baseline_episode_id: str
    name: str | None
    description: str | None
    severity: Severity
    active: bool
    created_by: str | None
    created_at: str
    updated_at: str


class Promoted(ScenarioAnswer, kw_only=True):
    promoted: bool
    """False: it was a scenario already, and nothing was changed."""


class ScenarioList(Struct):
    scenarios: list[ScenarioAnswer]
    next_cursor: str | None


class ScenarioDeleted(Struct):
    scenario_id: str
    deleted: Literal[True] = True


class StandingAnswer(Struct, kw_only=True):
    scenario_id: str
    baseline_episode_id: str
    name: str | None
    severity: Severity
    latest_status: VerifyStatus | None
    """Null: this candidate was not replayed against it yet."""
    error: str | None
    candidate_episode_id: str | None
    eval_run_id: str | None
    decided_at: str | None


class GateAnswer(Struct, kw_only=True, omit_defaults=True):
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


class VerificationRecorded(Struct):
    verification_result_id: str
    scenario_id: str
    status: VerifyStatus


class TrendPoint(Struct, kw_only=True):
    eval_run_id: str
    name: str | None
    candidate_policy_version: str
    baseline_policy_version: str | None
    completed_at: str
    baseline: float | None
    candidate: float | None
    delta: float | None
    """Of the plain means, in which crashes are not."""
    paired_delta: float | None
    """With crashes counted as losses; `ci95` is about this one."""
    ci95: list[float] | None
    n_pairs: int | None
    evidence: str | None
    decision: str | None


class Trend(Struct):
    metric: str
    points: list[TrendPoint]
    """The oldest first."""


# --------------------------------------------------------------------------------- from row to answer


def listed_answer(row: EvalRunHead) -> EvalRunListed:
    return EvalRunListed(**_listed(row))


def run_answer(row: EvalRunRow) -> EvalRunAnswer:
    return EvalRunAnswer(**_listed(row), gate=row.gate, metadata=row.metadata, summary=row.summary)


def _listed(row: EvalRunHead) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "candidate_policy_version": row.candidate_policy_version,
        "baseline_policy_version": row.baseline_policy_version,
        "runner_kind": row.runner_kind,
        "status": row.status,
        "episode_count": row.episode_count,
        "episodes_completed": row.episodes_completed,
        "episodes_failed": row.episodes_failed,
        "recommend": row.recommend,
        "decision": row.decision,
        "gate_digest": row.gate_digest,
        "created_by": row.created_by,
        "created_at": wire_time(row.created_at_us),
        "updated_at": wire_time(row.updated_at_us),
        "completed_at": time_or_none(row.completed_at_us),
    }


def status_of_run(row: EvalRunHead) -> RunStatus:
    return cast(RunStatus, row.status)


def result_answer(row: EvalResultRow) -> EvalResultAnswer:
    return EvalResultAnswer(
        row.id,
        row.baseline_episode_id,
        row.candidate_episode_id,
        cast(ResultStatus, row.status),
        row.metrics,
        row.error,
        wire_time(row.updated_at_us),
    )


def scenario_answer(row: ScenarioRow) -> ScenarioAnswer:
    return ScenarioAnswer(**_scenario(row))


def promoted_answer(row: ScenarioRow, promoted: bool) -> Promoted:
    return Promoted(**_scenario(row), promoted=promoted)


def _scenario(row: ScenarioRow) -> dict[str, Any]:
    return {
        "scenario_id": row.id,
        "baseline_episode_id": row.baseline_episode_id,
        "name": row.name,
        "description": row.description,
        "severity": row.severity,
        "active": row.active,
        "created_by": row.created_by,
        "created_at": wire_time(row.created_at_us),
        "updated_at": wire_time(row.updated_at_us),
    }


def standing_answer(standing: Standing) -> StandingAnswer:
    scenario = standing.scenario
    return StandingAnswer(
        scenario_id=scenario.id,
        baseline_episode_id=scenario.baseline_episode_id,
        name=scenario.name,
        severity=cast(Severity, scenario.severity),
        latest_status=cast("VerifyStatus | None", standing.status),
        error=standing.error,
        candidate_episode_id=standing.candidate_episode_id,
        eval_run_id=standing.eval_run_id,
        decided_at=time_or_none(standing.decided_at_us),
    )


def time_or_none(at_us: int | None) -> str | None:
    return None if at_us is None else wire_time(at_us)
