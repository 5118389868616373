"""The ship gate over HTTP: does a candidate pass every critical scenario? Routes to promote episodes, record results
and check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.evals import MOST_BASELINES, VerifyStatus
from rollbook.contracts.wire.scenarios import (
    CheckGate,
    GateAnswer,
    Promote,
    Promoted,
    RecordVerification,
    StandingAnswer,
    VerificationRecorded,
)
from rollbook.server.accounts.callers import caller_of
from rollbook.server.context import Caller, context_of
from rollbook.server.evals.metric_values import checked_metrics, kept_error
from rollbook.server.http.openapi import LeanRoute, route
from rollbook.server.http.requests import json_body
from rollbook.server.http.responses import Problem, answer_from_row, json_response, not_found
from rollbook.server.queries import ScenarioRow, Scope, Standing, verdict

_promote = msgspec.json.Decoder(Promote)
_check = msgspec.json.Decoder(CheckGate)
_record = msgspec.json.Decoder(RecordVerification)


async def promote_episode(request: Request) -> Response:
    """An episode that is a scenario stays as it is; an inactive scenario becomes active again."""
    context = context_of(request)
    caller = await caller_of(request, "evaluate")
    body = await json_body(request, _promote, context.settings.body_limit_bytes)
    scenario, promoted = await context.write(caller, lambda scope: promote(scope, caller, body))
    answer = answer_from_row(Promoted, scenario, scenario_id=scenario.id, promoted=promoted)
    is_new = promoted and scenario.created_at_us == scenario.updated_at_us
    return json_response(answer, 201 if is_new else 200)


def promote(scope: Scope, caller: Caller, body: Promote) -> tuple[ScenarioRow, bool]:
    """The scenario, and whether it is new or active again."""
    values = {
        "severity": body.severity,
        "name": body.name,
        "description": body.description,
        "created_by": caller.name,
    }
    found = scope.promote_episode(body.baseline_episode_id, values)
    if found is None:
        raise not_found("episode")
    scenario, promoted = found
    if promoted:
        if scope.active_scenarios() > MOST_BASELINES:
            text = f"there are {MOST_BASELINES} active scenarios; put some aside first"
            raise Problem(409, "too_many_scenarios", text)
        detail = {"severity": scenario.severity, "episode_id": scenario.baseline_episode_id}
        scope.audit("scenario.promoted", actor=caller.name, subject=scenario.id, detail=detail)
    return found


async def check_gate(request: Request) -> Response:
    context = context_of(request)
    caller = await caller_of(request, "read")
    body = await json_body(request, _check, context.settings.body_limit_bytes)
    version = body.candidate_policy_version
    standings = await context.read(caller, lambda scope: scope.standings(version))
    answer = gate_answer(version, standings)
    return json_response(answer, 200 if answer.passed else 422)


def gate_answer(version: str, standings: Sequence[Standing]) -> GateAnswer:
    """Only a `pass` that was measured passes: a scenario that failed, crashed or was not replayed blocks the
    candidate."""
    critical = [each for each in standings if each.scenario.severity == "critical"]
    counts = Counter(_counted_as(each) for each in critical)
    blockers = [_blocker(each) for each in critical if each.status != "pass"]
    error = (
        f"{len(blockers)} of {len(critical)} critical scenarios hold this candidate back; "
        "replay those that are pending, and fix or put aside those that fail"
    )
    return GateAnswer(
        passed=not blockers,
        candidate_policy_version=version,
        critical_total=len(critical),
        critical_passed=counts["passed"],
        critical_failed=counts["failed"],
        critical_pending=counts["pending"],
        scenarios=[_standing(each) for each in standings],
        blockers=blockers,
        error=error if blockers else None,
        code="gate_blocked" if blockers else None,
    )


def _standing(standing: Standing) -> StandingAnswer:
    scenario = standing.scenario
    return answer_from_row(
        StandingAnswer,
        standing,
        scenario_id=scenario.id,
        baseline_episode_id=scenario.baseline_episode_id,
        name=scenario.name,
        severity=scenario.severity,
        latest_status=standing.status,
    )


def _counted_as(standing: Standing) -> str:
    if standing.status is None:
        return "pending"
    return "passed" if standing.status == "pass" else "failed"


def _blocker(standing: Standing) -> str:
    scenario = standing.scenario
    name = scenario.name or f"episode {scenario.baseline_episode_id}"
    return f"{name}: {why_it_blocks(standing)} (scenario {scenario.id})"


def why_it_blocks(standing: Standing) -> str:
    """Of a critical scenario without a pass that counts."""
    pending = (
        "has only a pass that was not measured in a verified environment, which does not count"
        if standing.unmeasured_pass
        else "was not replayed with this candidate yet"
    )
    said = {
        None: pending,
        "fail": "fails with this candidate",
        "error": "could not be replayed with this candidate",
    }
    return said.get(standing.status, "does not pass")


async def record_verification(request: Request) -> Response:
    context = context_of(request)
    caller = await caller_of(request, "evaluate")
    body = await json_body(request, _record, context.settings.body_limit_bytes)
    metrics = checked_metrics(body.metrics)
    status = body.status or verdict(body.error is not None, metrics)
    values = {
        "status": status,
        "metrics": metrics,
        "error": kept_error(body.error),
        "candidate_episode_id": body.candidate_episode_id,
        "eval_run_id": body.eval_run_id,
    }

    def record(scope: Scope) -> tuple[str, bool]:
        _check_references(scope, body)
        made = scope.record_verification(body.scenario_id, body.candidate_policy_version, values)
        if made is None:
            raise not_found("scenario")
        return made

    made, measured = await context.write(caller, record)
    answer = VerificationRecorded(made, body.scenario_id, cast(VerifyStatus, status), measured)
    return json_response(answer)


def _check_references(scope: Scope, body: RecordVerification) -> None:
    if body.candidate_episode_id is not None and scope.unknown_episodes(
        [body.candidate_episode_id]
    ):
        raise not_found("candidate episode")
    if body.eval_run_id is None:
        return
    run = scope.eval_run(body.eval_run_id)
    if run is None:
        raise not_found("eval run")
    if run.candidate_policy_version != body.candidate_policy_version:
        text = "eval_run_id: that run is of another candidate; leave it out, or name the candidate of the run"
        raise Problem(400, "invalid_value", text, where="$.eval_run_id")


_SAME = {"application/json": {"schema": {"$ref": "#/components/schemas/Promoted"}}}
_BLOCKED = {"application/json": {"schema": {"$ref": "#/components/schemas/GateAnswer"}}}

routes: tuple[LeanRoute, ...] = (
    route(
        "POST",
        "/api/verify/promote",
        promote_episode,
        summary="Makes an episode a scenario that candidates have to pass. A second call changes nothing.",
        takes=Promote,
        gives=Promoted,
        status=201,
        answers={200: {"description": "The episode already was a scenario.", "content": _SAME}},
        errors=(403, 404, 409),
        tag="verify",
    ),
    route(
        "POST",
        "/api/verify/check",
        check_gate,
        summary="Checks whether a candidate passes every active critical scenario.",
        takes=CheckGate,
        gives=GateAnswer,
        answers={
            422: {
                "description": "It does not pass; `blockers` gives the reasons.",
                "content": _BLOCKED,
            }
        },
        tag="verify",
    ),
    route(
        "POST",
        "/api/verify/result",
        record_verification,
        summary="Records the result of a candidate in a scenario; a critical one needs a measured pass.",
        takes=RecordVerification,
        gives=VerificationRecorded,
        errors=(403, 404),
        tag="verify",
    ),
)
