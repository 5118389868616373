"""Verification: scenarios that a candidate has to pass before it ships.

An episode is promoted to a scenario. A critical scenario keeps the gate closed until the candidate passes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from rollbook.contracts.evals import EvalResult, Severity, VerifyStatus
from rollbook.contracts.typed_metadata import plain_metadata
from rollbook.contracts.wire.scenarios import GateAnswer, Promoted, VerificationRecorded
from rollbook.errors import ConfigurationError, ValidationError
from rollbook.evals.runs import checked_text, complete_run, create_run, run_against
from rollbook.evals.server_calls import as_dict, ask, client_of

if TYPE_CHECKING:
    from rollbook.client import Client

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
    """Records the result of a candidate in one scenario. Without `status` the server derives it from the metrics."""
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
    **options: Any,
) -> tuple[int, dict[str, Any]]:
    """Replays the critical scenarios that the candidate has not passed, and checks the gate again.

    Returns an exit code, 0 when the gate is open, and the answer of the gate. A dry run sends nothing and reports what
    each scenario would have given. `options` are the keywords of run_against.
    """
    speaking = client_of(client)
    gate = _gate(candidate_policy_version, speaking)
    if gate.passed:
        return 0, as_dict(gate)
    if policy_callable is None:
        what = "pass policy_callable= to replay the scenarios that it has not passed"
        message = f"the gate is closed to {candidate_policy_version}; {what}"
        raise ConfigurationError(message=message)
    scenario_ids = {
        each.baseline_episode_id: each.scenario_id
        for each in gate.scenarios
        if each.severity == "critical" and each.latest_status != "pass"
    }
    run = create_run(
        candidate_policy_version=candidate_policy_version,
        baseline_episode_ids=list(scenario_ids),
        name=f"verify {candidate_policy_version}",
        metadata={"verification_check": True},
        client=speaking,
        dry_run=dry_run,
    )
    results = run_against(run, policy_callable=policy_callable, **options)
    if dry_run:
        passed = all(_status(each) == "pass" for each in results)
        return (0 if passed else 1), {
            **as_dict(gate),
            "dry_run": [_dry_result(each) for each in results],
        }
    for result in results:
        record_result(
            scenario_id=scenario_ids[result.baseline_episode_id],
            candidate_policy_version=candidate_policy_version,
            status=_status(result),
            candidate_episode_id=result.candidate_episode_id,
            eval_run_id=run.id,
            metrics=result.metrics,
            error=result.error,
            client=speaking,
        )
    complete_run(run)
    gate = _gate(candidate_policy_version, speaking)
    return (0 if gate.passed else 1), as_dict(gate)


def _status(result: EvalResult) -> VerifyStatus:
    """Only a known success passes."""
    if result.status != "complete":
        return "error"
    return "pass" if result.metrics.get("success_candidate") is True else "fail"


def _dry_result(result: EvalResult) -> dict[str, Any]:
    return {
        "baseline_episode_id": result.baseline_episode_id,
        "status": _status(result),
        "error": result.error,
    }


def _without_nulls(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if value is not None}
