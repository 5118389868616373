"""What ships by a gate that is not weaker than a locked one would also ship by the locked one."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest

from rollbook.contracts.decision import Decision
from rollbook.contracts.evals import EvalResult
from rollbook.contracts.gate import Gate, MetricRule, SliceGuard
from rollbook.contracts.gate_strength import weaker_fields
from rollbook.scoring import rollup

LOCKED = Gate(n_min=30, reward_range=(0.0, 10.0))
NOT_WEAKER: list[dict[str, Any]] = [
    {"n_min": 80},
    {"least_clusters": 14},
    {"evidence": ("closed_loop",)},
    {"reward_range": (-5.0, 15.0)},
    {"tails": "proven"},
    {"tails": "scenes"},
    {"ledger": "decide"},
    {
        "rules": (
            MetricRule(metric="success", role="primary", margin=0.02, required=True),
            MetricRule(metric="reward_total", role="primary"),
            MetricRule(metric="collision_count", role="guard", most_catastrophes=1, required=True),
            MetricRule(metric="time_to_goal_s", role="guard"),
        )
    },
]


def results(seed: int) -> list[EvalResult]:
    """Better by a chance amount, sometimes with more collisions, crashes and pairs without a result."""
    rng = np.random.default_rng(seed)
    pairs = int(rng.integers(30, 120))
    lift, bumps, lost = (
        rng.choice([0.0, 0.2, 0.5]),
        rng.choice([0.0, 0.15]),
        rng.choice([0.0, 0.03]),
    )
    found = []
    for number in range(pairs):
        old = bool(rng.random() < 0.5)
        new = bool(old or rng.random() < lift) if rng.random() < 0.9 else bool(rng.random() < 0.5)
        metrics = {
            "success_baseline": old,
            "success_candidate": new,
            "reward_total_baseline": 4.0 + float(rng.random()),
            "reward_total_candidate": 4.0 + float(rng.random()) + 2 * lift,
            "collision_count_baseline": 0,
            "collision_count_candidate": int(rng.random() < bumps),
            "time_to_goal_s_baseline": 3.0 + float(rng.random()) if old else None,
            "time_to_goal_s_candidate": 3.0 + float(rng.random()) if new else None,
            "evidence": dict.fromkeys(
                ("success", "reward_total", "collision_count", "time_to_goal_s"), "closed_loop"
            ),
            "repro": {"verified": True},
        }
        crashed = rng.random() < lost
        row = ("failed", {}, "it crashed") if crashed else ("complete", metrics, None)
        found.append(EvalResult(f"ep-{number:03}", None, *row))
    return found


def judged(seed: int, gate: Gate, earlier: int) -> Decision:
    rows = results(seed)
    labels = {
        each.baseline_episode_id: {"task": (str(place % 15),)}
        for place, each in enumerate(rows)
        if seed % 2
    }
    return rollup(rows, gate, labels=labels, earlier_runs=earlier).decision


@cache
def by_locked_gate(seed: int) -> Decision:
    return judged(seed, LOCKED, seed % 3)


@pytest.mark.parametrize("changes", NOT_WEAKER, ids=lambda each: ",".join(each))
def test_what_ships_by_a_stricter_gate_ships_by_the_locked_one(changes: dict[str, Any]) -> None:
    stricter = msgspec.structs.replace(LOCKED, **changes)
    assert weaker_fields(stricter, LOCKED) == []
    for seed in range(8):
        if judged(seed, stricter, seed % 3).recommend == "ship":
            locked = by_locked_gate(seed)
            assert locked.recommend == "ship", (seed, locked.sentence)


def test_the_locked_gate_ships_some_of_these_runs_and_holds_others() -> None:
    decided = {by_locked_gate(seed).recommend for seed in range(8)}
    assert decided == {"ship", "hold"}


def with_collisions(count: int = 6) -> list[EvalResult]:
    """Success is far better, and collisions are worse: with a p-value of .016 for six of them, and .031 for five."""
    return [
        EvalResult(
            f"ep-{number:03}",
            None,
            "complete",
            {
                "success_baseline": False,
                "success_candidate": True,
                "collision_count_baseline": 0,
                "collision_count_candidate": int(number < count),
                "evidence": {"success": "closed_loop", "collision_count": "closed_loop"},
                "repro": {"verified": True},
            },
        )
        for number in range(60)
    ]


def test_a_guard_holds_at_the_level_of_the_gate_however_often_the_baselines_were_used() -> None:
    rows, gate = with_collisions(), Gate(ledger="decide")
    for earlier in (0, 5):
        decision = rollup(rows, gate, earlier_runs=earlier).decision
        assert "regression:collision_count" in decision.reasons, earlier
        assert "success" in decision.better


def test_a_guard_holds_at_the_level_of_the_gate_however_many_looks_are_declared() -> None:
    """Otherwise an author declares four looks to pass a guard."""
    decision = rollup(with_collisions(5), Gate(looks=4)).decision
    assert "success" in decision.better
    assert decision.reasons == ("regression:collision_count",)


def test_a_loss_ends_a_run_with_looks_only_where_it_is_shown_at_the_level_of_a_look() -> None:
    waiting = [EvalResult(f"ep-{number:03}", None, "pending", {}) for number in range(60, 480)]
    for count, stops in ((5, None), (6, "hold")):
        decision = rollup([*with_collisions(count), *waiting], Gate(looks=4)).decision
        assert decision.look is not None
        assert (decision.look.number, decision.reasons) == (1, ("regression:collision_count",))
        assert decision.early_stop == stops, "a p-value of .031 may be chance at one of four looks"


@pytest.mark.parametrize(
    "changes", [{"looks": 4}, {"ledger": "decide"}], ids=lambda each: next(iter(each))
)
def test_a_guarded_slice_holds_at_the_level_of_the_gate(changes: dict[str, Any]) -> None:
    """Robot a loses 8 pairs and wins one, with a p-value of .039 for one of two robots; robot b wins all of its own."""
    kinds = [(True, False)] * 8 + [(False, True)] + [(True, True)] * 3 + [(False, True)] * 60
    rows = [
        EvalResult(
            f"ep-{number:03}",
            None,
            "complete",
            {
                "success_baseline": before,
                "success_candidate": after,
                "evidence": {"success": "closed_loop"},
                "repro": {"verified": True},
            },
        )
        for number, (before, after) in enumerate(kinds)
    ]
    labels = {
        each.baseline_episode_id: {"robot": ("a" if number < 12 else "b",)}
        for number, each in enumerate(rows)
    }
    gate = Gate(guard_slices=(SliceGuard(by="robot"),), **changes)
    decision = rollup(rows, gate, labels=labels, earlier_runs=5).decision
    assert "success" in decision.better
    assert decision.reasons == ("slice:robot=a",)
