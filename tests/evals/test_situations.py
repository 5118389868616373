"""Situations: baselines that start from the same state are one pair, whatever their seeds and actions are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
from gymnasium import spaces

from rollbook.contracts.evals import EvalResult
from rollbook.evals.baselines import Baseline
from rollbook.evals.open_loop import replay_one
from rollbook.evals.options import ReplayOptions
from rollbook.evals.policies.policy import as_policy
from rollbook.evals.worlds.closed_loop import closed_loop_metrics, run_closed_loop
from rollbook.scoring import rollup
from tests.evals.recorded_runs import SlidingEnv, away, push_towards, recorded, towards

AnyEnv = gymnasium.Env[Any, Any]


def frozen_lake() -> AnyEnv:
    return gymnasium.make("FrozenLake-v1")


def situations(make: Any, baselines: list[Baseline], policy: Any) -> list[str]:
    runs = [run_closed_loop(make, each, as_policy(policy)) for each in baselines]
    return [run.repro["situation"] for run in runs]


class Careless(SlidingEnv):
    """Its reset ignores the seed: every episode starts anywhere."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._x, self._left = float(self._unseeded.uniform(1, 4)), 20
        return self._observed(), {}


class Still(SlidingEnv):
    """Its seed does nothing: every episode starts from the same place."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=3)


def test_one_seed_recorded_often_is_one_pair() -> None:
    """In an environment that is not registered, by a policy with noise of its own."""
    rng = np.random.default_rng(0)

    def noisy(observation: Any) -> Any:
        return {"push": rng.uniform(0, 1, 1).astype(np.float32)}

    results = []
    for number in range(6):
        baseline = replace(recorded(SlidingEnv(), noisy, seed=5), id=f"e{number}")
        run = run_closed_loop(SlidingEnv, baseline, as_policy(push_towards))
        assert run.repro["verified"] is True
        metrics = closed_loop_metrics(run, baseline)
        results.append(EvalResult(baseline.id, None, "complete", metrics))
    assert len({each.metrics["repro"]["situation"] for each in results}) == 1
    assert rollup(results).to_wire()["success_rate"]["n_pairs"] == 1


def test_an_environment_whose_seed_does_nothing_has_one_situation() -> None:
    baselines = [recorded(Still(), away, seed) for seed in range(4)]
    assert len(set(situations(Still, baselines, push_towards))) == 1
    baselines = [recorded(SlidingEnv(), away, seed) for seed in range(4)]
    assert len(set(situations(SlidingEnv, baselines, push_towards))) == 4


@pytest.mark.parametrize("with_actions", [True, False])
def test_an_environment_that_ignores_its_seed_is_found(with_actions: bool) -> None:
    baseline = recorded(Careless(), away, seed=1)
    if not with_actions:
        baseline = replace(baseline, actions=None)
    run = run_closed_loop(Careless, baseline, as_policy(push_towards))
    assert "seed_ignored" in run.repro["env_changed"]
    assert run.repro["verified"] is False


def test_probes_tell_situations_with_the_same_first_observation_apart() -> None:
    """FrozenLake always starts on the same field, and slips as its seed says."""
    baselines = [recorded(frozen_lake(), lambda observation: 2, seed) for seed in range(8)]

    def right(obs: Any) -> Any:
        return {"action/value": 2}

    found = situations(frozen_lake, baselines, right)
    assert len(set(found)) == 8
    assert situations(frozen_lake, baselines[:2], lambda obs: {"action/value": 1}) == found[:2]
    slippery = gymnasium.make("FrozenLake-v1", is_slippery=False)
    dry = [recorded(slippery, lambda observation: 2, seed) for seed in range(3)]
    assert len(set(situations(lambda: slippery, dry, right))) == 1, "it has no chance at all"


def test_runs_that_cannot_be_repeated_are_told_apart_by_their_start_alone() -> None:
    def noisy() -> AnyEnv:
        return SlidingEnv(noise=0.3)

    baseline = recorded(noisy(), towards, seed=1)
    assert len(set(situations(noisy, [baseline, baseline], push_towards))) == 1


def test_an_environment_without_an_action_space_has_its_start() -> None:
    class Bare:
        def __init__(self) -> None:
            self._env = SlidingEnv()

        def reset(self, *, seed: int | None = None) -> Any:
            return self._env.reset(seed=seed)

        def step(self, action: Any) -> Any:
            return self._env.step({"push": action})

    def left(obs: Any) -> Any:
        return {"action/value": -np.ones(1)}

    baselines = [replace(recorded(SlidingEnv(), away, seed), actions=None) for seed in (1, 1, 2)]
    found = situations(Bare, baselines, left)
    assert found[0] == found[1] != found[2]


def test_an_action_space_that_cannot_be_drawn_from_is_no_change_of_the_world() -> None:
    class Odd(spaces.Dict):
        def sample(self, *options: Any, **more: Any) -> Any:
            raise NotImplementedError

    def odd() -> AnyEnv:
        env = SlidingEnv()
        env.action_space = Odd({"push": spaces.Box(-1, 1, (1,), np.float32)})
        return env

    baseline = recorded(odd(), away, seed=1)
    run = run_closed_loop(odd, baseline, as_policy(push_towards))
    assert run.repro["verified"] is True


def test_a_probe_leaves_the_action_space_of_the_environment_alone() -> None:
    made: list[SlidingEnv] = []

    def make() -> SlidingEnv:
        made.append(SlidingEnv())
        made[-1].action_space.seed(1)
        return made[-1]

    run_closed_loop(make, recorded(SlidingEnv(), away, 1), as_policy(push_towards))
    fresh = SlidingEnv()
    fresh.action_space.seed(1)
    drawn = [each.action_space.sample()["push"] for each in (fresh, *made)]
    assert len({float(each[0]) for each in drawn}) == 1


def test_recordings_that_are_not_run_again_are_known_by_what_was_recorded() -> None:
    """The same trace is one pair, the same first observation one cluster; clocks do not count."""
    first = recorded(SlidingEnv(), away, seed=1)
    sensors = {
        key: array + 7 if key.endswith("_t_ns") else array
        for key, array in (first.sensors or {}).items()
    }
    copied = replace(first, id="copied", sensors=sensors)
    other_actions = recorded(SlidingEnv(), towards, seed=1)
    other_start = recorded(SlidingEnv(), away, seed=2)
    options = ReplayOptions(policy_callable=push_towards)
    repro = [
        replay_one(each, as_policy(push_towards), options).metrics["repro"]
        for each in (first, copied, other_actions, other_start)
    ]
    names = [each["situation"] for each in repro]
    starts = [each["first_observation"] for each in repro]
    assert names[0] == names[1]
    assert len(set(names)) == 3
    assert starts[0] == starts[1] == starts[2] != starts[3]
    blind = replay_one(replace(first, sensors=None), as_policy(push_towards), options)
    assert blind.metrics["repro"]["situation"] is None


def test_without_a_seed_the_start_names_the_situation() -> None:
    baseline = recorded(Still(), away, seed=1)
    assert baseline.record is not None
    unseeded = replace(baseline, record=msgspec.structs.replace(baseline.record, seed=None))
    assert len(set(situations(Still, [baseline, unseeded], push_towards))) == 1
