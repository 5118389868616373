"""Eval runs and the gate of the public client: its three verbs and its checks, unchanged, against our server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.interop.conftest import Portal
from tests.interop.public_client import robotrace

STEPS = 6


@pytest.fixture
def baselines(robotrace_client: Any, tmp_path: Path) -> list[str]:
    """Three recorded episodes; of the last nobody knows how it ended."""
    sensors: dict[str, Any] = {"/joints/position": np.arange(STEPS * 2.0).reshape(STEPS, 2)}
    actions: dict[str, Any] = {"/cmd/value": np.linspace(0, 1, STEPS * 2).reshape(STEPS, 2)}
    np.savez(tmp_path / "sensors.npz", **sensors)
    with open(tmp_path / "actions.recorded", "wb") as out:
        np.savez(out, **actions)
    outcomes: list[dict[str, Any]] = [
        {"success": False, "reward_total": 1.0, "collision_count": 2},
        {"success": True, "reward_total": 3.0, "collision_count": 0},
        {},
    ]
    return [
        robotrace_client.log_episode(
            policy_version="v1",
            sensors=tmp_path / "sensors.npz",
            actions=tmp_path / "actions.recorded",
            metadata=each,
        ).id
        for each in outcomes
    ]


def succeeds(observation: Mapping[str, Any]) -> dict[str, Any]:
    outcome = {"success": True, "reward_total": 4.0, "collision_count": 1}
    return {"/cmd/value": np.zeros(2), "_outcome": outcome}


def fails(observation: Mapping[str, Any]) -> dict[str, Any]:
    return {"/cmd/value": np.zeros(2), "_outcome": {"success": False}}


def test_the_three_verbs(portal: Portal, robotrace_client: Any, baselines: list[str]) -> None:
    run = robotrace.evals.create_run(
        candidate_policy_version="v2",
        baseline_episode_ids=baselines,
        baseline_policy_version="v1",
        name="nightly",
        metadata={"branch": "main"},
        client=robotrace_client,
    )
    assert run.status == "pending"
    seen: list[str] = []
    results = robotrace.evals.run_against(
        run, policy_callable=succeeds, on_episode=lambda each: seen.append(each.status)
    )
    assert seen == ["complete"] * 3
    done = robotrace.evals.complete_run(run, metadata={"finished": True})
    assert run.status == done["status"] == "completed"
    rate = done["summary"]["success_rate"]
    assert (rate["baseline"], rate["candidate"], rate["delta_is_better"]) == (0.5, 1.0, True)
    assert done["summary"]["recommend"] == "ship"
    assert done["summary"]["decision"]["recommend"] == "hold", "three pairs prove nothing"

    stored = portal.http.get(f"/api/eval-runs/{run.id}").json()
    assert stored["metadata"] == {"branch": "main", "finished": True}
    assert (stored["episodes_completed"], stored["summary"]) == (3, done["summary"])
    rows = portal.http.get(f"/api/eval-runs/{run.id}/results").json()["results"]
    assert [each["baseline_episode_id"] for each in rows] == baselines
    for row, result in zip(rows, results, strict=True):
        assert row["candidate_episode_id"] == result.candidate_episode_id
        assert result.metrics.items() <= row["metrics"].items()
        replay = portal.episode(row["candidate_episode_id"])
        assert (replay["source"], replay["policy_version"]) == ("replay", "v2")
        assert replay["metadata"]["eval_run_id"] == run.id


def test_a_policy_that_raises_gives_failed_rows_with_a_short_error(
    portal: Portal,
    robotrace_client: Any,
    baselines: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def breaks(_observation: Mapping[str, Any]) -> dict[str, Any]:
        raise RuntimeError("x" * 50_000)

    run = robotrace.evals.create_run(
        candidate_policy_version="v3", baseline_episode_ids=baselines, client=robotrace_client
    )
    results = robotrace.evals.run_against(run, policy_callable=breaks)
    capsys.readouterr()  # its traceback is on standard error
    assert {each.status for each in results} == {"failed"}
    done = robotrace.evals.complete_run(run)
    assert (done["summary"]["metric_total"], done["summary"]["recommend"]) == (0, "hold")
    assert done["summary"]["counts"]["failed"] == 3
    rows = portal.http.get(f"/api/eval-runs/{run.id}/results").json()["results"]
    assert {len(each["error"]) for each in rows} == {2000}
    assert rows[0]["error"].startswith("RuntimeError: xxx")


def test_a_foreign_baseline_is_not_found(robotrace_client: Any, baselines: list[str]) -> None:
    with pytest.raises(robotrace.NotFoundError):
        robotrace.evals.create_run(
            candidate_policy_version="v2",
            baseline_episode_ids=[*baselines, "01890000-0000-7000-8000-000000000000"],
            client=robotrace_client,
        )


def test_a_closed_run_is_a_conflict(robotrace_client: Any, baselines: list[str]) -> None:
    run = robotrace.evals.create_run(
        candidate_policy_version="v2", baseline_episode_ids=baselines, client=robotrace_client
    )
    robotrace.evals.complete_run(run)
    with pytest.raises(robotrace.ConflictError):
        robotrace.evals.run_against(run, policy_callable=succeeds)


def test_the_gate_from_promotion_to_pass(
    portal: Portal, robotrace_client: Any, baselines: list[str]
) -> None:
    verify, client = robotrace.verify, robotrace_client
    promoted = verify.promote(
        baseline_episode_id=baselines[0], name="spill", severity="critical", client=client
    )
    again = verify.promote(baseline_episode_id=baselines[0], severity="critical", client=client)
    assert (promoted["promoted"], again["promoted"]) == (True, False)
    assert promoted["scenario_id"] == again["scenario_id"]

    gate = verify.check_gate(candidate_policy_version="v7", client=client)
    assert (gate["passed"], gate["critical_pending"]) == (False, 1)
    with pytest.raises(robotrace.ConfigurationError):
        verify.run_check(candidate_policy_version="v7", client=client)

    code, gate = verify.run_check(
        candidate_policy_version="v7", policy_callable=fails, client=client
    )
    assert (code, gate["critical_failed"]) == (1, 1)
    code, gate = verify.run_check(
        candidate_policy_version="v7", policy_callable=succeeds, client=client
    )
    # what a policy states about itself is recorded, and opens nothing
    assert (code, gate["passed"], gate["critical_passed"]) == (1, False, 0)
    runs = portal.http.get("/api/eval-runs", params={"candidate_policy_version": "v7"}).json()
    assert [each["status"] for each in runs["eval_runs"]] == ["completed", "completed"]

    recorded = verify.record_result(
        scenario_id=promoted["scenario_id"],
        candidate_policy_version="v7",
        metrics={"success_candidate": False},
        client=client,
    )
    assert recorded["status"] == "fail"
    assert not verify.check_gate(candidate_policy_version="v7", client=client)["passed"]
    by_admin = {"Authorization": f"Bearer {portal.new_key('admin')}"}
    scenario = f"/api/scenarios/{promoted['scenario_id']}"
    portal.http.delete(scenario, headers=by_admin).raise_for_status()
    assert verify.check_gate(candidate_policy_version="v7", client=client)["passed"]
