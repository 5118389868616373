"""Runs and scenarios for tests of pages: an organisation whose candidates were measured in an environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.rl.batch import TrainerBatch
from tests.factories import artifact
from tests.server.campaigns import Campaigner

HOSTILE = "\"'><svg onload=alert(1)>&amp;<script>alert(2)</script>"
"""For every field that somebody can fill. A page may show it, and must never run it."""

MEASURED: dict[str, Any] = {
    "evidence": {"success": "closed_loop", "reward_total": "closed_loop"},
    "repro": {"verified": True, "deterministic": True, "env_match": True, "env_changed": []},
}


def metrics_of(before: bool, after: bool, **more: Any) -> dict[str, Any]:
    return {
        **MEASURED,
        "success_baseline": before,
        "success_candidate": after,
        "reward_total_baseline": 8.0 if before else 3.5,
        "reward_total_candidate": 8.5 if after else 3.0,
        "step_count": 240,
        **more,
    }


def completed_run(
    team: Campaigner,
    baselines: Sequence[str],
    candidate: str,
    outcomes: Sequence[tuple[bool, bool]],
    **more: Any,
) -> str:
    """`outcomes`: success of the baseline and of the candidate in each pair."""
    run_id = team.run(baselines, candidate, **more)
    for baseline, (before, after) in zip(baselines, outcomes, strict=True):
        team.result(run_id, baseline, metrics=metrics_of(before, after))
    team.finalize(run_id)
    return run_id


def scenario(team: Campaigner, episode_id: str, severity: str = "critical", **more: Any) -> str:
    body = {"baseline_episode_id": episode_id, "severity": severity, **more}
    made: str = team.post("/api/verify/promote", body)["scenario_id"]
    return made


def trainer_batch(
    batch_id: str, target: PolicyRevision, source: PolicyRevision, rollouts: int = 4
) -> TrainerBatch:
    return TrainerBatch.assemble(
        batch_id=batch_id,
        target_revision=target,
        rollouts=[
            artifact(f"{batch_id}-{each}", source_policy_revision=source)
            for each in range(rollouts)
        ],
        assembled_at_ms=target.produced_at_ms,
    )
