"""Result sets whose summaries are promised byte for byte: one for each way in which a run can come out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollbook.evals import EvalResult, gate_from
from tests.promises.inner import Access, RunningServer, rollup_bytes

Pair = tuple[Any, Any]
NOTHING: Pair = (None, None)
_OUTCOMES = ("success", "reward_total", "collision_count", "time_to_goal_s")


@dataclass(frozen=True)
class Row:
    metrics: dict[str, Any]
    status: str = "complete"
    error: str | None = None


@dataclass(frozen=True)
class Case:
    rows: Sequence[Row]
    gate: dict[str, Any] | None = None
    pending: int = 0
    """Baselines that have no result yet."""
    critical: tuple[int, ...] = ()
    """Places of rows whose baseline is a critical scenario."""
    over_http: bool = True
    facts: dict[str, Any] = field(default_factory=dict)


def row(
    success: Pair = NOTHING,
    reward: Pair = NOTHING,
    collisions: Pair = NOTHING,
    seconds: Pair = NOTHING,
    evidence: str | None = "closed_loop",
    **more: Any,
) -> Row:
    metrics: dict[str, Any] = {}
    for name, pair in zip(_OUTCOMES, (success, reward, collisions, seconds), strict=True):
        metrics[f"{name}_baseline"], metrics[f"{name}_candidate"] = pair
    if evidence is not None:
        metrics["evidence"] = {
            name: "not_measured" if metrics[f"{name}_candidate"] is None else evidence
            for name in _OUTCOMES
        }
    metrics["repro"] = {"verified": True}
    return Row({**metrics, **more})


def crash(**metrics: Any) -> Row:
    return Row(metrics, "failed", "ValueError: no")


def outcomes(wins: int, losses: int, both: int, neither: int = 0, **more: Any) -> list[Row]:
    pairs = (
        *((False, True),) * wins,
        *((True, False),) * losses,
        *((True, True),) * both,
        *((False, False),) * neither,
    )
    return [row(success=pair, **more) for pair in pairs]


def rewards(gains: Iterable[float], **more: Any) -> list[Row]:
    return [row(reward=(1.0, 1.0 + gain), **more) for gain in gains]


def _everything() -> list[Row]:
    return [
        row(
            success=(place % 3 != 0, place % 5 != 0),
            reward=(place / 4, place / 4 + (place % 7) / 8),
            collisions=(place % 2, int(place % 6 == 0)),
            seconds=(8.0 + place % 4, 7.5 + place % 3),
            action_l2_distance=place / 16,
            ood_action_share=0.25,
            step_count=10 + place,
            actions={"scaled_distance": {"mean": place / 32}, "ood_share": 0.125},
        )
        for place in range(30)
    ]


def _same_situations() -> list[Row]:
    found = outcomes(9, 1, 20)
    for place, each in enumerate(found):
        each.metrics["repro"] = {"verified": True, "situation": f"start {place // 3}"}
    return found


def _regret() -> list[Row]:
    counted = {"best_total": 3.0, "random_total": 1.0, "chosen_total": 2.5}
    return [
        row(
            reward=(2.0, 2.5),
            evidence="counterfactual",
            counterfactual={
                **counted,
                "regret": 0.5,
                "regret_share": 0.25,
                "invalid_choices": place % 2,
            },
        )
        for place in range(8)
    ]


REWARD_GATE = {"rules": [{"metric": "reward_total", "role": "primary", "required": True}]}
CUSTOM_GATE = {
    "mode": "non_inferiority",
    "alpha": 0.1,
    "n_min": 10,
    "min_used_share": 0.5,
    "evidence": ["closed_loop", "asserted"],
    "seed": 7,
    "rules": [
        {"metric": "success", "role": "primary", "margin": 0.2, "required": True},
        {"metric": "collision_count", "role": "guard", "most_catastrophes": 3},
        {"metric": "time_to_goal_s", "role": "info", "catastrophe": 2.0},
    ],
}
CASES: dict[str, Case] = {
    "ship": Case(outcomes(14, 1, 25)),
    "hold": Case(outcomes(3, 4, 30)),
    "worse": Case(outcomes(1, 14, 25)),
    "not measured": Case([row(evidence=None) for _ in range(3)]),
    "open loop": Case(outcomes(5, 1, 24, evidence="open_loop")),
    "ties": Case(outcomes(0, 0, 20, 10)),
    "failures": Case([*outcomes(12, 0, 20), *(crash() for _ in range(4))], pending=2),
    "critical scenario": Case(outcomes(14, 1, 25), critical=(3, 14)),
    "sequential": Case(outcomes(12, 1, 10), {"design": "sequential"}, pending=20),
    "empty": Case((), pending=3),
    "baseline copies": Case(
        [row(success=(True, True), reward=(1.5, 1.5), evidence=None) for _ in range(4)]
    ),
    "many metrics": Case(_everything()),
    "rewards": Case(rewards(place % 5 / 4 - 0.25 for place in range(40)), REWARD_GATE),
    "rewards that all differ by the same": Case(rewards([0.5] * 26), REWARD_GATE),
    "custom gate": Case(
        [*outcomes(3, 2, 10, evidence="asserted"), row(success=(True, None), seconds=(4, 8))],
        CUSTOM_GATE,
    ),
    "the same situation often": Case(_same_situations()),
    "regret": Case(_regret(), {**REWARD_GATE, "n_min": 5}),
    "no numbers": Case(
        [
            row(success=(True, None), reward=(math.nan, 1.0)),
            row(success=(None, True), reward=(1.0, math.inf)),
            row(success=(True, True), reward=(None, None), collisions=(True, "two")),
        ],
        over_http=False,
    ),
    "deleted baselines": Case(
        outcomes(10, 0, 10),
        {"design": "sequential"},
        over_http=False,
        facts={"total": 30, "deleted": 4},
    ),
}


def by_function(case: Case) -> str:
    results = [
        EvalResult(f"ep-{place:04}", None, each.status, each.metrics, each.error)  # type: ignore[arg-type]
        for place, each in enumerate(case.rows)
    ]
    facts: dict[str, Any] = {"total": len(case.rows) + case.pending, **case.facts}
    if case.critical:
        facts["critical"] = {f"ep-{place:04}": f"<scenario {place}>" for place in case.critical}
    gate = None if case.gate is None else gate_from(case.gate)
    return rollup_bytes(results, gate, **facts).decode()


def over_http(server: RunningServer, access: Access, case: Case) -> str:
    """A run is made, its results are sent, and the summary is taken from the answer as it stands there."""
    client = server.client(access, verify=False)

    def post(path: str, body: Any) -> Any:
        answer = client.post(path, json=body)
        assert answer.is_success, answer.text
        return answer

    count = len(case.rows) + case.pending
    made = post("/api/ingest/episodes", {"episodes": [{}] * count}).json()["episodes"]
    ids = [each["episode_id"] for each in made]
    scenarios: dict[str, str] = {}
    for place in case.critical:
        body = {"baseline_episode_id": ids[place], "severity": "critical"}
        promoted = post("/api/verify/promote", body).json()
        scenarios[promoted["scenario_id"]] = f"<scenario {place}>"
    run: dict[str, Any] = {"candidate_policy_version": "v2", "baseline_episode_ids": ids}
    if case.gate is not None:
        run["gate"] = case.gate
    run_id = post("/api/ingest/eval-run", run).json()["eval_run_id"]
    results = [
        {
            "baseline_episode_id": ids[place],
            "status": each.status,
            "metrics": each.metrics,
            "error": each.error,
        }
        for place, each in enumerate(case.rows)
    ]
    if results:
        post(f"/api/ingest/eval-run/{run_id}/results", {"results": results})
    text: str = post(f"/api/ingest/eval-run/{run_id}/finalize", {}).text
    for scenario, name in scenarios.items():
        text = text.replace(scenario, name)
    return text.partition('"summary":')[2].removesuffix("}")


def rollup_text() -> str:
    return "\n\n".join(f"# {name}\n{by_function(case)}" for name, case in CASES.items()) + "\n"
