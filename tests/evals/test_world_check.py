"""The same world: a replay finds out whether its environment is still the one of the recording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import ClipReward, RecordEpisodeStatistics, TimeLimit, TransformReward

from rollbook.contracts.environment_description import DESCRIPTION_KEY, STEP_LIMIT_KEY
from rollbook.evals.baselines import Baseline
from rollbook.evals.policies.policy import as_policy
from rollbook.evals.worlds.closed_loop import ClosedLoopRun, run_closed_loop
from tests.adapters.small_envs import SpaceEnv
from tests.evals.recorded_runs import SlidingEnv, away, push_towards, recorded, towards

AnyEnv = gymnasium.Env[Any, Any]


def cart_pole(**options: Any) -> AnyEnv:
    return gymnasium.make("CartPole-v1", **options)


def balance(observation: Any) -> int:
    return int(observation[2] + observation[3] > 0)


def always_left(observation: Any) -> int:
    return 0


def replayed(make: Callable[[], AnyEnv], baseline: Baseline, **options: Any) -> ClosedLoopRun:
    """The candidate of CartPole is the policy that was recorded; every other one pushes towards the goal."""

    def balanced(obs: dict[str, Any]) -> dict[str, Any]:
        return {"action/value": balance(obs["observation/value"])}

    of_cart = baseline.env_version == "CartPole-v1"
    policy = as_policy(balanced if of_cart else push_towards)
    return run_closed_loop(make, baseline, policy, **options)


def changed(make: Callable[[], AnyEnv], baseline: Baseline) -> set[str]:
    found = replayed(make, baseline).repro
    assert found["verified"] is (not found["env_changed"])
    return set(found["env_changed"])


@pytest.fixture(scope="module")
def balanced() -> Baseline:
    """CartPole with a limit of 50 steps, which the recorded policy reaches."""
    return recorded(cart_pole(max_episode_steps=50), balance, seed=7)


@pytest.fixture(scope="module")
def fallen() -> Baseline:
    """CartPole with a limit of 50 steps, which the recorded policy does not reach."""
    return recorded(cart_pole(max_episode_steps=50), always_left, seed=7)


def without(baseline: Baseline, *keys: str) -> Baseline:
    assert baseline.record is not None
    left = {key: value for key, value in baseline.metadata.items() if key not in keys}
    return replace(baseline, record=msgspec.structs.replace(baseline.record, metadata=left))


# ------------------------------------------------------------------------------ what has changed


def test_the_same_world_is_verified(balanced: Baseline, fallen: Baseline) -> None:
    for baseline in (balanced, fallen):
        assert changed(lambda: cart_pole(max_episode_steps=50), baseline) == set()
    noiseless = recorded(SlidingEnv(), towards, seed=1)
    assert changed(SlidingEnv, noiseless) == set(), "it is not registered, and has no spec"


def test_a_longer_episode_is_another_world(balanced: Baseline, fallen: Baseline) -> None:
    """Recorded with 50 steps and replayed with 500, the recorded policy itself gains 450."""
    run = replayed(cart_pole, balanced)
    assert (run.baseline_outcome["reward_total"], run.outcome["reward_total"]) == (50, 500)
    assert changed(cart_pole, balanced) == {"max_steps", "ended_at_step"}
    assert changed(cart_pole, fallen) == {"max_steps"}, "it fell before the limit"


def test_a_shorter_episode_is_another_world(balanced: Baseline) -> None:
    shorter = changed(lambda: cart_pole(max_episode_steps=20), balanced)
    assert shorter == {"max_steps", "ended_at_step"}


def test_a_changed_reward_is_found_step_by_step(fallen: Baseline) -> None:
    """The recorded outcome stays: it is not measured anew with the reward of today."""

    def generous() -> AnyEnv:
        return TransformReward(cart_pole(max_episode_steps=50), lambda reward: 10 * reward)  # type: ignore[operator]

    assert changed(generous, fallen) == {"wrappers", "rewards"}
    run = replayed(generous, fallen)
    assert run.baseline_outcome["reward_total"] == fallen.outcome["reward_total"]
    blind = replace(fallen, sensors=None)
    assert changed(generous, blind) == {"wrappers", "rewards"}, "by the recorded total"


def test_an_environment_that_changed_inside_is_found_by_what_it_does() -> None:
    class Wet(SlidingEnv):
        __name__ = "SlidingEnv"
        slip, pays, near, left = 1.0, 1.0, 0.3, 0

        def step(self, action: Any) -> Any:
            slipping = {"push": action["push"] * np.float32(self.slip)}
            seen, reward, terminated, truncated, info = super().step(slipping)
            over = truncated or self._left == self.left
            return (
                seen,
                reward * self.pays,
                terminated,
                over,
                info | {"success": self._x < self.near},
            )

    Wet.__name__ = "SlidingEnv"
    baseline = recorded(SlidingEnv(), away, seed=1)

    def made(**options: float) -> AnyEnv:
        env = Wet()
        vars(env).update(options)
        return env

    assert changed(lambda: made(slip=0.5), baseline) >= {"observations", "rewards"}
    assert changed(lambda: made(pays=2), baseline) == {"rewards"}
    assert changed(lambda: made(left=5), baseline) == {"ended_at_step"}
    assert changed(lambda: made(near=99), baseline) == {"success"}
    assert changed(made, baseline) == set()


def test_the_way_an_episode_ends_counts() -> None:
    """The same step, by another hand: a limit of 20 steps around an environment that ends there itself."""
    baseline = recorded(SlidingEnv(), away, seed=1)
    assert baseline.metadata["truncated_by"] == "environment"
    assert changed(lambda: TimeLimit(SlidingEnv(), 20), baseline) == {"max_steps", "ended_by"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: cart_pole(max_episode_steps=50, sutton_barto_reward=True), {"spec", "rewards"}),
        (lambda: ClipReward(cart_pole(max_episode_steps=50), -1, 1), {"wrappers"}),
        (lambda: RecordEpisodeStatistics(cart_pole(max_episode_steps=50)), set()),
        (lambda: cart_pole(max_episode_steps=50, render_mode="rgb_array"), set()),
    ],
)
def test_arguments_and_wrappers_are_compared(
    fallen: Baseline, make: Callable[[], AnyEnv], words: set[str]
) -> None:
    assert changed(make, fallen) == words


def test_another_version_is_another_world(fallen: Baseline) -> None:
    def newer() -> AnyEnv:
        env = cart_pole(max_episode_steps=50)
        env.unwrapped.env_version = "CartPole-v1 with ice"  # type: ignore[attr-defined]
        return env

    assert changed(newer, fallen) == {"version"}


def test_recorded_actions_that_cannot_be_played_are_no_fault_of_the_candidate() -> None:
    class Strict(SlidingEnv):
        def step(self, action: Any) -> Any:
            if action["push"][0] == 1:
                raise ValueError("too hard")
            return super().step(action)

    Strict.__name__ = "SlidingEnv"
    run = run_closed_loop(
        Strict,
        recorded(SlidingEnv(), away, seed=1),
        as_policy(lambda obs: {"action.push/value": [-0.5]}),
    )
    assert run.repro["env_changed"] == ["error"]
    assert run.repro["env_error"] == "ValueError: too hard"
    assert run.outcome["success"] is True


def test_noise_is_not_called_a_change() -> None:
    def noisy() -> AnyEnv:
        return SlidingEnv(noise=0.1)

    found = replayed(noisy, recorded(noisy(), towards, seed=1)).repro
    assert (found["deterministic"], found["verified"], found["env_changed"]) == (False, False, [])


def test_an_outcome_that_the_environment_reports_is_recorded_as_it_is_measured() -> None:
    """Otherwise such an environment would always be another world than the recorded one."""

    class Reporting(SlidingEnv):
        def step(self, action: Any) -> Any:
            *answer, info = super().step(action)
            return *answer, {**info, "outcome": {"success": True, "reward_total": 9.0}}

    baseline = recorded(Reporting(), away, seed=1)
    assert (baseline.outcome["success"], baseline.outcome["reward_total"]) == (True, 9)
    assert changed(Reporting, baseline) == set()


def test_every_kind_of_observation_is_compared() -> None:
    kinds = {
        "text": spaces.Text(5),
        "flags": spaces.MultiBinary(3),
        "parts": spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (2, 2)))),
    }

    def make() -> AnyEnv:
        return SpaceEnv(spaces.Dict(kinds), spaces.Discrete(2))

    def zero(obs: Any) -> Any:
        return {"action/value": 0}

    baseline = recorded(make(), lambda observation: 0, seed=1)
    run = run_closed_loop(make, baseline, as_policy(zero))
    assert run.repro["verified"] is True
    for key in ("text", "flags", "parts.0", "parts.1"):
        sensors = dict(baseline.sensors or {})
        name = f"observation.{key}/value"
        sensors[name] = sensors[name][::-1].copy()
        run = run_closed_loop(make, replace(baseline, sensors=sensors), as_policy(zero))
        assert run.repro["env_changed"] == ["observations"], key
    sensors = dict(baseline.sensors or {})
    longer = sensors["observation.text/value"]
    sensors["observation.text/value"] = longer.astype(f"<U{longer.itemsize // 4 - 1}")
    run = run_closed_loop(make, replace(baseline, sensors=sensors), as_policy(zero))
    assert run.repro["env_changed"] == ["observations"], "a longer text than any that was recorded"


# ----------------------------------------------------------------- what the recording does not say


def test_without_recorded_actions_nothing_is_verified(fallen: Baseline) -> None:
    def same() -> AnyEnv:
        return cart_pole(max_episode_steps=50)

    found = replayed(same, replace(fallen, actions=None)).repro
    assert (found["verified"], found["env_changed"]) == (None, [])
    found = replayed(same, replace(fallen, sensors=None)).repro
    assert (found["verified"], found["env_changed"]) == (None, [])
    clock = {"observation/_t_ns": (fallen.sensors or {})["observation/_t_ns"]}
    found = replayed(same, replace(fallen, sensors=clock)).repro
    assert (found["verified"], found["deterministic"]) == (None, None)
    found = replayed(same, fallen, check_determinism=False).repro
    assert (found["verified"], found["env_changed"]) == (None, None)


def test_an_older_recording_is_not_verified_but_its_spec_is_compared(fallen: Baseline) -> None:
    older = without(fallen, DESCRIPTION_KEY, STEP_LIMIT_KEY)
    found = replayed(lambda: cart_pole(max_episode_steps=50), older).repro
    assert (found["verified"], found["env_changed"]) == (None, [])
    found = replayed(cart_pole, older).repro
    assert (found["verified"], found["env_changed"]) == (False, ["max_steps"])


def test_the_candidate_gets_no_more_steps_than_the_recorder_gave_the_baseline() -> None:
    """This baseline fell before the recorder would have stopped it."""
    baseline = recorded(cart_pole(), always_left, seed=7, max_steps=40)
    run = replayed(cart_pole, baseline)
    assert (len(run.actions), run.ended_by) == (40, "max_steps")
    assert run.repro["verified"] is True


def test_a_recording_that_does_not_say_why_it_ends_was_cut_off() -> None:
    baseline = without(
        recorded(cart_pole(), balance, seed=7, max_steps=40), "ended_by", STEP_LIMIT_KEY
    )
    run = replayed(cart_pole, baseline)
    assert len(run.actions) == 40
    assert run.repro["verified"] is None


def test_a_candidate_that_is_stopped_before_the_baseline_was_is_in_another_world(
    balanced: Baseline,
) -> None:
    run = replayed(lambda: cart_pole(max_episode_steps=50), balanced, max_steps=30)
    assert run.repro["env_changed"] == ["max_steps"]
    assert run.repro["verified"] is False


def test_observations_may_be_recorded_without_the_one_after_the_last_action(
    fallen: Baseline,
) -> None:
    sensors = dict(fallen.sensors or {})
    sensors["observation/value"] = sensors["observation/value"][:-1]
    run = replayed(lambda: cart_pole(max_episode_steps=50), replace(fallen, sensors=sensors))
    assert run.repro["verified"] is True
