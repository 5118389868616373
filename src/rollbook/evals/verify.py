"""Verification: scenarios that a candidate has to pass before it ships.

An episode is promoted to a scenario; a critical one closes the gate until the candidate has passed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollbook.contracts.evals import EvalResult, Severity, VerifyStatus
from rollbook.contracts.typed_metadata import plain_metadata
from rollbook.errors import APIError, ConfigurationError, ValidationError
from rollbook.evals.arguments import checked_text, client_of
from rollbook.evals.runs import complete_run, create_run, run_against

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
    """Makes an episode a scenario. Again changes nothing, and says so: `promoted` is false then."""
    body = {
        "baseline_episode_id": checked_text("baseline_episode_id", baseline_episode_id),
        "severity": severity,
        "name": name,
        "description": description,
    }
    return client_of(client).call(
        "promote an episode",
        "POST",
        "/api/verify/promote",
        body=_given(body),
        safe_to_resend=True,
    )


def check_gate(*, candidate_policy_version: str, client: Client | None = None) -> dict[str, Any]:
    """Whether the candidate has passed every critical scenario, and which stand in its way."""
    body = {
        "candidate_policy_version": checked_text(
            "candidate_policy_version", candidate_policy_version
        )
    }
    try:
        return client_of(client).call(
            "check the gate", "POST", "/api/verify/check", body=body, safe_to_resend=True
        )
    except ValidationError as error:  # a closed gate is 422, with the same answer
        if _is_gate(error):
            return dict(error.response_body)  # type: ignore[call-overload, no-any-return]
        raise


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
    """What a candidate did in one scenario. Without a status the server reads it from the metrics."""
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
    return client_of(client).call(
        "record a verification result",
        "POST",
        "/api/verify/result",
        body=_given(body),
        safe_to_resend=eval_run_id is not None,  # of one run a scenario has one result
    )


def run_check(
    *,
    candidate_policy_version: str,
    policy_callable: Any = None,
    dry_run: bool = False,
    client: Client | None = None,
    **options: Any,
) -> tuple[int, dict[str, Any]]:
    """Replays the critical scenarios that the candidate has not passed, and checks the gate again.

    Gives an exit code, 0 when the gate is open, and what the gate said. A dry run sends nothing: it says what would
    have come of it. `options` are those of run_against.
    """
    speaking = client_of(client)
    gate = check_gate(candidate_policy_version=candidate_policy_version, client=speaking)
    if gate.get("passed") is True:
        return 0, gate
    if policy_callable is None:
        what = "pass policy_callable= to replay what stands in its way"
        message = f"the gate is closed to {candidate_policy_version}; {what}"
        raise ConfigurationError(message=message)
    standing = {each["baseline_episode_id"]: each for each in _in_the_way(gate)}
    run = create_run(
        candidate_policy_version=candidate_policy_version,
        baseline_episode_ids=list(standing),
        name=f"verify {candidate_policy_version}",
        metadata={"verification_check": True},
        client=speaking,
        dry_run=dry_run,
    )
    results = run_against(run, policy_callable=policy_callable, **options)
    if dry_run:
        passed = all(_status(each) == "pass" for each in results)
        return (0 if passed else 1), {**gate, "dry_run": _told(results)}
    for result in results:
        record_result(
            scenario_id=standing[result.baseline_episode_id]["scenario_id"],
            candidate_policy_version=candidate_policy_version,
            status=_status(result),
            candidate_episode_id=result.candidate_episode_id,
            eval_run_id=run.id,
            metrics=result.metrics,
            error=result.error,
            client=speaking,
        )
    complete_run(run)
    gate = check_gate(candidate_policy_version=candidate_policy_version, client=speaking)
    return (0 if gate.get("passed") is True else 1), gate


def _in_the_way(gate: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        each
        for each in gate.get("scenarios") or ()
        if each.get("severity") == "critical" and each.get("latest_status") != "pass"
    ]


def _status(result: EvalResult) -> VerifyStatus:
    """Only an outcome that is known to be a success passes."""
    if result.status != "complete":
        return "error"
    return "pass" if result.metrics.get("success_candidate") is True else "fail"


def _told(results: list[EvalResult]) -> list[dict[str, Any]]:
    return [
        {
            "baseline_episode_id": each.baseline_episode_id,
            "status": _status(each),
            "error": each.error,
        }
        for each in results
    ]


def _given(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if value is not None}


def _is_gate(error: APIError) -> bool:
    return isinstance(error.response_body, dict) and "passed" in error.response_body
