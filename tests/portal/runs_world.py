"""Eval runs of every kind, made through the API as a runner makes them: what pages of runs are looked at with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollbook.contracts.evals import INFRASTRUCTURE
from tests.server.campaigns import Campaigner

EVIL = "\"'><svg onload=alert(1)><script>alert(2)</script>"
TASKS = ("mug → bin", "cube stack", "bottle → rack", "cable in clip", "lid on jar", "cloth fold")
ENVIRONMENT = "tabletop-bins@2.3.1"


@dataclass(frozen=True)
class Plan:
    """How the pairs of a run come out: rates of success, mean rewards, collisions and times of both policies."""

    success: tuple[float, float] = (0.68, 0.83)
    """Where the baseline succeeds, the candidate mostly does too."""
    reward_gain: float = 0.7
    collisions: tuple[float, float] = (0.1, 0.1)
    evidence: str = "closed_loop"
    crashes: int = 0
    seed: int = 1


@dataclass
class RunsWorld:
    """The ids of the runs, by kind."""

    team: Campaigner
    ids: dict[str, str] = field(default_factory=dict)

    def path(self, kind: str) -> str:
        return f"/portal/evals/{self.ids[kind]}"


def runs_world(team: Campaigner, *, pairs: int = 60) -> RunsWorld:
    world = RunsWorld(team)
    gate = {"cluster": "none", "reward_range": [0, 12], "n_min": 25}
    ship = baselines(team, 2 * pairs)
    world.ids["ship"] = finished(
        team,
        ship,
        Plan(),
        name="Nightly, bins and racks",
        candidate="pick-act-v4",
        gate=gate,
        metadata={"branch": "main", "commit": "4f0c21d", "runner": {"workers": 4}},
    )
    world.ids["underpowered"] = finished(
        team,
        baselines(team, 30),
        Plan(success=(0.7, 0.78), reward_gain=0.25, seed=2),
        name="Smoke, before the fair",
        candidate="pick-act-v4-rc1",
        gate=gate,
    )
    world.ids["regression"] = finished(
        team,
        baselines(team, 2 * pairs),
        Plan(collisions=(0.08, 0.35), seed=3),
        name="Faster gripper",
        candidate="pick-act-v4-fast",
        gate=gate,
    )
    world.ids["not measured"] = finished(
        team,
        baselines(team, 30),
        Plan(evidence="open_loop", seed=4),
        name="Int8 on the arm computer",
        candidate="pick-act-v3-int8",
        gate=gate,
    )
    world.ids["crashes"] = finished(
        team,
        baselines(team, 30),
        Plan(crashes=4, seed=5),
        name="With crashes",
        candidate="pick-act-v5",
        gate=gate,
    )
    # a second run on the baselines of the first one: the ledger counts it
    world.ids["again"] = finished(
        team, ship[:pairs], Plan(seed=6), candidate="pick-act-v4b", gate=gate
    )
    world.ids["store"] = finished(
        team,
        baselines(team, 40, success=None),
        Plan(evidence="counterfactual", seed=7),
        name="Next view, flats",
        candidate="nbv-unknown-2",
        baseline="nbv-random-1",
        gate={
            "cluster": "none",
            "reward_range": [0, 12],
            "rules": [{"metric": "reward_total", "role": "primary", "required": True}],
        },
    )
    world.ids["hostile"] = finished(
        team,
        baselines(team, 30, task=EVIL),
        Plan(crashes=2, seed=8),
        name=EVIL,
        candidate=f"v{EVIL}",
        baseline=EVIL,
        gate=gate,
        metadata={EVIL: {EVIL: EVIL}},
        error=EVIL,
    )
    world.ids["cancelled"] = team.run(baselines(team, 3), "pick-act-v9", name="Stopped early")
    team.post(f"/api/eval-runs/{world.ids['cancelled']}/cancel")
    world.ids["running"] = running(team, baselines(team, 20), done=8)
    return world


def baselines(
    team: Campaigner, count: int, *, task: str | None = None, success: bool | None = True
) -> list[str]:
    """Recorded episodes, each with a task. Whether they succeeded is said by the results."""
    return team.episodes(
        *(
            {"task": task or TASKS[number % len(TASKS)], "number": number}
            | ({} if success is None else {"success": bool(number % 3)})
            for number in range(count)
        )
    )


def finished(
    team: Campaigner,
    ids: Sequence[str],
    plan: Plan,
    *,
    candidate: str,
    baseline: str = "pick-act-v3",
    error: str = "ValueError: the policy returned 6 joints, expected 7\n  at step 12",
    **more: Any,
) -> str:
    run_id = team.run(ids, candidate, baseline_policy_version=baseline, **more)
    send(team, run_id, results(ids, plan, error))
    team.finalize(run_id)
    return run_id


def running(team: Campaigner, ids: Sequence[str], done: int) -> str:
    run_id = team.run(
        ids, "cable-diff-v2", baseline_policy_version="cable-diff-v1", name="Cable task, wide seeds"
    )
    send(team, run_id, results(ids, Plan(crashes=1, seed=9))[:done])
    return run_id


def send(team: Campaigner, run_id: str, rows: Sequence[dict[str, Any]]) -> None:
    for first in range(0, len(rows), 500):
        body = {"results": list(rows[first : first + 500])}
        answer = team.post(f"/api/ingest/eval-run/{run_id}/results", body)
        assert not [each for each in answer["results"] if each.get("error")], answer


def results(ids: Sequence[str], plan: Plan, error: str = "ValueError: no") -> list[dict[str, Any]]:
    rng = np.random.default_rng(plan.seed)
    rows = [_result(each, plan, rng) for each in ids]
    for place in range(plan.crashes):
        row = rows[3 + 5 * place]
        said = f"{INFRASTRUCTURE}the baseline could not be read" if place == 3 else error
        rows[3 + 5 * place] = {
            "baseline_episode_id": row["baseline_episode_id"],
            "status": "failed",
            "metrics": {"success_baseline": True},
            "error": said,
        }
    return rows


def _result(baseline: str, plan: Plan, rng: np.random.Generator) -> dict[str, Any]:
    before = bool(rng.random() < plan.success[0])
    # of the pairs that the baseline won, few are lost; so the pairs say more than two independent arms would
    lost = 0.08
    won = (plan.success[1] - plan.success[0] * (1 - lost)) / (1 - plan.success[0])
    after = bool(rng.random() < ((1 - lost) if before else won))
    reward = float(np.clip(rng.normal(7.0 if before else 5.0, 1.0), 0, 12))
    gained = rng.normal(plan.reward_gain, 0.9) - (2.5 if before and not after else 0)
    metrics: dict[str, Any] = {
        "success_baseline": before,
        "success_candidate": after,
        "reward_total_baseline": reward,
        "reward_total_candidate": float(np.clip(reward + gained, 0, 12)),
        "collision_count_baseline": int(rng.random() < plan.collisions[0]),
        "collision_count_candidate": int(rng.random() < plan.collisions[1]),
        "time_to_goal_s_baseline": float(rng.normal(10, 1)) if before else None,
        "time_to_goal_s_candidate": float(rng.normal(9.4, 1)) if after else None,
        "action_l2_distance": float(rng.gamma(4, 0.02)),
        "ood_action_share": float(rng.random() * 0.04),
        "step_count": 120,
        "actions": {"scaled_distance": {"mean": float(rng.gamma(4, 0.1))}, "ood_share": 0.01},
        "repro": {
            "verified": True,
            "env_changed": [],
            "env_match": True,
            "deterministic": True,
            "env_version": {"baseline": ENVIRONMENT, "candidate": ENVIRONMENT},
            "isolation": "process",
        },
        "evidence": {
            **dict.fromkeys(
                ("success", "reward_total", "collision_count", "time_to_goal_s"), plan.evidence
            ),
            "actions": "open_loop",
        },
    }
    if plan.evidence != "closed_loop":
        for name in ("success", "collision_count", "time_to_goal_s"):
            metrics[f"{name}_candidate"] = None
            metrics["evidence"][name] = "not_measured"
    if plan.evidence == "open_loop":
        metrics["reward_total_candidate"] = None
        del metrics["repro"]
    return {"baseline_episode_id": baseline, "status": "complete", "metrics": metrics}
