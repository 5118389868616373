"""Eval runs, results and scenarios: answers from rows."""

from __future__ import annotations

from typing import Any, cast

from rollbook.contracts.evals import (
    ResultStatus,
    RunStatus,
    Severity,
    VerifyStatus,
)
from rollbook.contracts.wire.eval_runs import EvalResultAnswer, EvalRunAnswer, EvalRunListed
from rollbook.contracts.wire.scenarios import Promoted, ScenarioAnswer, StandingAnswer
from rollbook.server.http.responses import wire_time
from rollbook.server.queries import (
    EvalResultRow,
    EvalRunHead,
    EvalRunRow,
    ScenarioRow,
    Standing,
)


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
