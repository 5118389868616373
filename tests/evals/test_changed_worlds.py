"""Attacks on the decision by way of the world: the policy is the same, and its environment is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest

from rollbook.contracts.decision import Decision
from rollbook.contracts.evals import EvalResult
from rollbook.contracts.gate import Gate
from rollbook.evals.baselines import Baseline
from rollbook.evals.open_loop import replay_one
from rollbook.evals.options import ReplayOptions
from rollbook.evals.policies.policy import as_policy
from rollbook.evals.worlds.closed_loop import closed_loop_metrics, run_closed_loop
from rollbook.scoring import rollup
from tests.evals.recorded_runs import SlidingEnv, away, push_away, push_towards, recorded

AnyEnv = gymnasium.Env[Any, Any]
PAIRS = 26
REWARD = msgspec.structs.replace(Gate.for_reward(), reward_range=(0.0, 600.0))


def cart_pole(**options: Any) -> AnyEnv:
    return gymnasium.make("CartPole-v1", **options)


def balance(observation: Any) -> int:
    return int(observation[2] + observation[3] > 0)


def balanced(obs: dict[str, Any]) -> dict[str, Any]:
    return {"action/value": balance(obs["observation/value"])}


def decided(
    make: Callable[[], AnyEnv], baselines: Iterable[Baseline], policy: Any, gate: Gate
) -> Decision:
    results = []
    for each in baselines:
        run = run_closed_loop(make, each, as_policy(policy))
        results.append(EvalResult(each.id, None, "complete", closed_loop_metrics(run, each)))
    return rollup(results, gate).decision


def test_a_better_candidate_ships_in_the_recorded_world() -> None:
    """Otherwise the tests below would show nothing."""
    baselines = [recorded(SlidingEnv(), away, seed) for seed in range(PAIRS)]
    decision = decided(SlidingEnv, baselines, push_towards, Gate())
    assert (decision.recommend, decision.reasons) == ("ship", ())


def test_the_same_policy_does_not_ship_by_a_longer_episode() -> None:
    baselines = [recorded(cart_pole(max_episode_steps=50), balance, seed) for seed in range(PAIRS)]
    decision = decided(cart_pole, baselines, balanced, REWARD)
    assert decision.recommend == "hold"
    assert set(decision.reasons) == {"env_changed:max_steps", "env_changed:ended_at_step"}


class Lenient(SlidingEnv):
    """Today it takes a tenth of the recorded reward away, and says nothing about it."""

    share = 1.0

    def step(self, action: Any) -> Any:
        seen, reward, *rest = super().step(action)
        return (seen, reward * self.share, *rest)


def test_the_same_policy_does_not_ship_by_another_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither with recorded actions, nor without them, where nobody knows."""
    baselines = [recorded(Lenient(), away, seed) for seed in range(PAIRS)]
    silent = [replace(each, actions=None) for each in baselines]
    monkeypatch.setattr(Lenient, "share", 0.1)
    gate = msgspec.structs.replace(Gate.for_reward(), reward_range=(-500.0, 0.0))
    decision = decided(Lenient, baselines, push_away, gate)
    assert (decision.recommend, decision.reasons) == ("hold", ("env_changed:rewards",))
    decision = decided(Lenient, silent, push_away, gate)
    assert (decision.recommend, decision.reasons) == ("hold", ("unverified_environment",))
    accepting = msgspec.structs.replace(gate, accept_unverified_environment=True)
    assert decided(Lenient, silent, push_away, accepting).recommend == "ship", "as the gate asks"


def test_an_environment_whose_seed_does_nothing_does_not_ship() -> None:
    class Still(SlidingEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return super().reset(seed=3)

    class Careless(SlidingEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self._x, self._left = float(self._unseeded.uniform(1, 4)), 20
            return self._observed(), {}

    for make, reason in ((Still, "insufficient_n"), (Careless, "env_changed:seed_ignored")):
        baselines = [recorded(make(), away, seed) for seed in range(PAIRS)]
        decision = decided(make, baselines, push_towards, Gate())
        assert decision.recommend == "hold"
        assert reason in decision.reasons


def test_one_seed_recorded_often_does_not_ship() -> None:
    rng = np.random.default_rng(0)

    def hesitating(observation: Any) -> Any:
        return {"push": rng.uniform(0, 1, 1).astype(np.float32)}

    baselines = [
        replace(recorded(SlidingEnv(), hesitating, seed=5), id=f"e{number}")
        for number in range(PAIRS)
    ]
    decision = decided(SlidingEnv, baselines, push_towards, Gate())
    assert decision.recommend == "hold"
    assert f"{PAIRS} pairs of 1 situation" in decision.sentence


def test_recordings_with_one_start_are_one_cluster_where_they_are_not_run_again() -> None:
    """Thirty traces that begin alike, with the outcome that the candidate asserts."""
    rng = np.random.default_rng(0)

    def asserting(obs: dict[str, Any]) -> dict[str, Any]:
        return {**push_towards(obs), "_outcome": {"success": True}}

    def hesitating(observation: Any) -> Any:
        return {"push": rng.uniform(0, 1, 1).astype(np.float32)}

    options = ReplayOptions(policy_callable=asserting)
    results = []
    for number in range(PAIRS):
        baseline = replace(recorded(SlidingEnv(), hesitating, seed=5), id=f"e{number}")
        metrics = replay_one(baseline, as_policy(asserting), options).metrics
        results.append(EvalResult(baseline.id, None, "complete", metrics))
    decision = rollup(results, Gate(evidence=("asserted",))).decision
    assert decision.recommend == "hold"
    assert "insufficient_clusters" in decision.reasons
