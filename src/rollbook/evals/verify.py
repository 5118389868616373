"""Verification: scenarios that a candidate has to pass before it ships.

An episode is promoted to a scenario. A critical scenario keeps the gate closed until the candidate passes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from rollbook.contracts.evals import EvalResult, Severity, VerifyStatus
from rollbook.contracts.gate import Gate, gate_from
from rollbook.contracts.typed_metadata import plain_metadata
from rollbook.contracts.wire.scenarios import GateAnswer, Promoted, VerificationRecorded
from rollbook.errors import ConfigurationError, ValidationError
from rollbook.evals.runs import checked_text, complete_run, create_run, run_against
from rollbook.evals.server_calls import as_dict, ask, client_of
from rollbook.scoring.scenario_pass import shows_success

if TYPE_CHECKING:
    from rollbook.client import Client

_NOT_SHOWN = (
    "the success was not measured in the recorded environment, so it does not count; give an environment "
    "(--environment), or a gate that accepts one that cannot be verified"
)

__all__ = ["check_gate", "promote", "record_result", "run_check"]


def promote(
    *,
    baseline_episode_id: str,
    name: str | None = None,
    description: str | None = None,
    severity: Severity = "warning",
    client: Client | None = None,
) -> dict[str, Any]:
    """Makes an episode a scenario. A second call changes nothing; `promoted` is then false in the answer."""
    body = {
        "baseline_episode_id": checked_text("baseline_episode_id", baseline_episode_id),
        "severity": severity,
        "name": name,
        "description": description,
    }
    promoted = ask(
        client_of(client),
        Promoted,
        "promote an episode",
        "POST",
        "/api/verify/promote",
        body=_without_nulls(body),
        safe_to_resend=True,
    )
    return as_dict(promoted)


def check_gate(*, candidate_policy_version: str, client: Client | None = None) -> dict[str, Any]:
    """Whether the candidate has passed every critical scenario, and which ones it has not."""
    return as_dict(_gate(candidate_policy_version, client))


def _gate(candidate_policy_version: str, client: Client | None) -> GateAnswer:
    version = checked_text("candidate_policy_version", candidate_policy_version)
    try:
        return ask(
            client_of(client),
            GateAnswer,
            "check the gate",
            "POST",
            "/api/verify/check",
            body={"candidate_policy_version": version},
            safe_to_resend=True,
        )
    except ValidationError as error:  # a closed gate is 422, with the same answer
        try:
            return msgspec.convert(error.response_body, GateAnswer)
        except msgspec.ValidationError:
            raise error from None


def record_result(
    *,
    scenario_id: str,
    candidate_policy_version: str,
    status: VerifyStatus | None = None,
    candidate_episode_id: str | None = None,
    eval_run_id: str | None = None,
    metrics: Mapping[str, Any] | None = None,
    error: str | None = None,
    client: Client | None = None,
) -> dict[str, Any]:
    """Records the result of a candidate in one scenario. Without `status` the server derives it from the metrics.

    For a critical scenario only a pass counts that the result of the eval run shows; `measured` in the answer says so.
    """
    body = {
        "scenario_id": checked_text("scenario_id", scenario_id),
        "candidate_policy_version": checked_text(
            "candidate_policy_version", candidate_policy_version
        ),
        "metrics": plain_metadata(metrics or {}),
        "status": status,
        "candidate_episode_id": candidate_episode_id,
        "eval_run_id": eval_run_id,
        "error": error,
    }
    recorded = ask(
        client_of(client),
        VerificationRecorded,
        "record a verification result",
        "POST",
        "/api/verify/result",
        body=_without_nulls(body),
        safe_to_resend=eval_run_id is not None,  # a scenario has one result for each run
    )
    return as_dict(recorded)


def run_check(
    *,
    candidate_policy_version: str,
    policy_callable: Any = None,
    dry_run: bool = False,
    client: Client | None = None,
    gate: Gate | Mapping[str, Any] | str | None = None,
    **options: Any,
) -> tuple[int, dict[str, Any]]:
    """Replays the critical scenarios that the candidate has not passed, and checks them again.

    Returns an exit code, 0 when every critical scenario is passed, and the answer of the server. Only a measured
    success passes: give an `environment`. A success that the policy states about itself does not. `gate` is the gate of
    the run; it can accept an environment that cannot be verified. A dry run sends nothing and reports what each
    scenario would have given. `options` are the keywords of run_against.
    """
    speaking = client_of(client)
    standing = _gate(candidate_policy_version, speaking)
    if standing.passed:
        return 0, as_dict(standing)
    if policy_callable is None:
        what = "pass policy_callable= to replay the scenarios that it has not passed"
        message = f"the gate is closed to {candidate_policy_version}; {what}"
        raise ConfigurationError(message=message)
    scenario_ids = {
        each.baseline_episode_id: each.scenario_id
        for each in standing.scenarios
        if each.severity == "critical" and each.latest_status != "pass"
    }
    run = create_run(
        candidate_policy_version=candidate_policy_version,
        baseline_episode_ids=list(scenario_ids),
        name=f"verify {candidate_policy_version}",
        metadata={"verification_check": True},
        client=speaking,
        gate=gate,
        dry_run=dry_run,
    )
    rules = gate_from(run.gate) if run.gate is not None else Gate()
    results = run_against(run, policy_callable=policy_callable, **options)
    if dry_run:
        passed = all(_status(each, rules) == "pass" for each in results)
        return (0 if passed else 1), {
            **as_dict(standing),
            "dry_run": [_dry_result(each, rules) for each in results],
        }
    for result in results:
        record_result(
            scenario_id=scenario_ids[result.baseline_episode_id],
            candidate_policy_version=candidate_policy_version,
            status=_status(result, rules),
            candidate_episode_id=result.candidate_episode_id,
            eval_run_id=run.id,
            metrics=result.metrics,
            error=_reason(result, rules),
            client=speaking,
        )
    complete_run(run)
    standing = _gate(candidate_policy_version, speaking)
    return (0 if standing.passed else 1), as_dict(standing)


def _status(result: EvalResult, gate: Gate) -> VerifyStatus:
    """Only a success that was measured passes."""
    if result.status != "complete":
        return "error"
    return "pass" if shows_success(result, gate) else "fail"


def _reason(result: EvalResult, gate: Gate) -> str | None:
    """Why it does not pass. A success that does not count has a reason too."""
    if result.error is None and result.metrics.get("success_candidate") is True:
        return None if shows_success(result, gate) else _NOT_SHOWN
    return result.error


def _dry_result(result: EvalResult, gate: Gate) -> dict[str, Any]:
    return {
        "baseline_episode_id": result.baseline_episode_id,
        "status": _status(result, gate),
        "error": _reason(result, gate),
    }


def _without_nulls(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if value is not None}
