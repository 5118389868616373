"""Closed loop: an environment is run again from the baseline's seed, and what comes out was measured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest

from rollbook.contracts.evals import EvalResult
from rollbook.contracts.wire.episodes import EpisodeRecord
from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.evals.baselines import Baseline
from rollbook.evals.calibration import calibrate
from rollbook.evals.policies.policy import ReplayEpisode, as_policy
from rollbook.evals.worlds.closed_loop import closed_loop_metrics, run_closed_loop
from rollbook.evals.worlds.environments import try_environment
from rollbook.scoring import rollup
from tests.adapters.small_envs import CountingEnv
from tests.evals.recorded_runs import SlidingEnv, away, push_towards, recorded, towards


def cart_pole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def balance(observation: Any) -> int:
    return int(observation[2] + observation[3] > 0)


def always_left(observation: Any) -> int:
    return 0


def balance_replayed(obs: dict[str, Any]) -> dict[str, Any]:
    return {"action/value": balance(obs["observation/value"])}


def push_left(obs: dict[str, Any]) -> dict[str, Any]:
    return {"action/value": 0}


@pytest.fixture(scope="module")
def fallen() -> Baseline:
    """CartPole, always pushed to the left: it falls at once."""
    return recorded(cart_pole(), always_left, seed=7)


def test_the_candidate_acts_in_the_baselines_environment_from_its_seed(fallen: Baseline) -> None:
    run = run_closed_loop(cart_pole, fallen, as_policy(balance_replayed))
    assert run.baseline_outcome["reward_total"] == fallen.outcome["reward_total"] < 15
    assert run.outcome["reward_total"] == 500 == len(run.actions)
    assert run.ended_by == "truncated"
    assert run.repro == {
        "env_version": {"baseline": "CartPole-v1", "candidate": "CartPole-v1"},
        "seed": {"baseline": 7, "candidate": 7},
        "env_match": True,
        "deterministic": True,
        "verified": True,
        "env_changed": [],
        "situation": run.repro["situation"],
    }


def test_what_the_environment_does_not_say_stays_unknown(fallen: Baseline) -> None:
    run = run_closed_loop(cart_pole, fallen, as_policy(balance_replayed))
    assert run.outcome["success"] is None
    assert run.outcome["collision_count"] is None
    assert run.evidence == {
        "success": "not_measured",
        "reward_total": "closed_loop",
        "collision_count": "not_measured",
        "time_to_goal_s": "not_measured",
        "actions": "closed_loop",
    }


def test_the_recorded_policy_comes_to_the_recorded_outcome() -> None:
    baseline = recorded(cart_pole(), balance, seed=3, max_steps=40)
    run = run_closed_loop(cart_pole, baseline, as_policy(balance_replayed))
    assert run.ended_by == "max_steps"
    assert len(run.actions) == 40
    assert run.outcome["reward_total"] == baseline.outcome["reward_total"]
    assert [int(each["action/value"]) for each in run.actions] == (baseline.actions or {})[
        "action/value"
    ].tolist()


def test_observations_have_the_keys_and_types_of_the_recording() -> None:
    baseline = recorded(SlidingEnv(), towards, seed=1)
    seen: list[dict[str, Any]] = []

    def looking(obs: dict[str, Any]) -> dict[str, Any]:
        seen.append(obs)
        return push_towards(obs)

    run_closed_loop(SlidingEnv, baseline, as_policy(looking))
    assert seen[0].keys() <= (baseline.sensors or {}).keys()
    for key in ("observation.x/value", "observation.left/value", "observation.x/_t_ns"):
        first = (baseline.sensors or {})[key][0]
        np.testing.assert_array_equal(seen[0][key], first)
        assert seen[0][key].dtype == first.dtype
    assert math.isnan(seen[0]["reward/value"])
    assert seen[1]["observation.x/_t_ns"] == 100_000_000


def test_success_collisions_and_time_are_what_the_environment_said() -> None:
    baseline = recorded(SlidingEnv(), away, seed=1)
    assert baseline.outcome["success"] is False
    run = run_closed_loop(SlidingEnv, baseline, as_policy(push_towards))
    assert run.outcome["success"] is True
    assert run.outcome["collision_count"] == 0
    assert run.outcome["time_to_goal_s"] == pytest.approx(len(run.actions) / 10)


def test_a_silent_recording_is_measured_again_where_its_actions_lead_to_the_same() -> None:
    loud = recorded(SlidingEnv(), away, seed=1)
    assert loud.outcome["collision_count"] > 10
    silent = replace(loud, outcome={"success": False})
    again = run_closed_loop(SlidingEnv, silent, as_policy(push_towards))
    assert again.baseline_outcome["collision_count"] == loud.outcome["collision_count"]
    noisy = run_closed_loop(lambda: SlidingEnv(noise=0.1), silent, as_policy(push_towards))
    assert noisy.repro["deterministic"] is False
    assert noisy.baseline_outcome["collision_count"] is None


def test_an_outcome_in_the_last_info_counts_most() -> None:
    last = {"success": False, "outcome": {"success": True, "collision_count": 2, "reward_total": 9}}
    infos: list[dict[str, Any]] = [{}, {"outcome": {"success": False}}, last]
    baseline = recorded(CountingEnv(length=2, render_mode=None), lambda o: np.zeros(3, "f4"), 1)

    def still(obs: dict[str, Any]) -> dict[str, Any]:
        return {"action": np.zeros(3)}

    run = run_closed_loop(
        lambda: CountingEnv(length=2, render_mode=None, infos=infos), baseline, as_policy(still)
    )
    assert run.outcome == {
        "success": True,
        "reward_total": 9.0,
        "collision_count": 2,
        "time_to_goal_s": None,
    }


def test_another_environment_is_named_as_such(fallen: Baseline) -> None:
    def newer() -> Any:
        env = cart_pole()
        env.unwrapped.env_version = "CartPole-v1 with ice"  # type: ignore[attr-defined]
        return env

    run = run_closed_loop(newer, fallen, as_policy(balance_replayed))
    assert run.repro["env_match"] is False
    assert run.repro["env_version"] == {
        "baseline": "CartPole-v1",
        "candidate": "CartPole-v1 with ice",
    }


def test_environments_that_name_no_version_match_nothing() -> None:
    baseline = recorded(CountingEnv(render_mode=None), lambda o: np.zeros(3, "f4"), 1)
    run = run_closed_loop(
        lambda: CountingEnv(render_mode=None),
        baseline,
        as_policy(lambda obs: {"action/value": np.zeros(3)}),
    )
    assert run.repro["env_match"] is None


def test_a_changed_recording_is_not_what_the_actions_lead_to(fallen: Baseline) -> None:
    sensors = dict(fallen.sensors or {})
    sensors["observation/value"] = sensors["observation/value"].copy()
    sensors["observation/value"][3, 0] = np.nextafter(
        sensors["observation/value"][3, 0], np.float32(9)
    )
    run = run_closed_loop(cart_pole, replace(fallen, sensors=sensors), as_policy(balance_replayed))
    assert run.repro["deterministic"] is False


def test_without_recorded_actions_nobody_knows_whether_it_is_deterministic(
    fallen: Baseline,
) -> None:
    run = run_closed_loop(cart_pole, replace(fallen, actions=None), as_policy(balance_replayed))
    assert run.repro["deterministic"] is None


def test_runs_that_differ_from_each_other_are_not_deterministic(fallen: Baseline) -> None:
    rng = np.random.default_rng(0)

    def guessing(obs: dict[str, Any]) -> dict[str, Any]:
        return {"action/value": rng.integers(2)}

    once = run_closed_loop(cart_pole, fallen, as_policy(guessing))
    assert once.repro["deterministic"] is True
    thrice = run_closed_loop(cart_pole, fallen, as_policy(guessing), repeat=3)
    assert thrice.repro["deterministic"] is False


def test_a_factory_may_be_named_and_may_ask_for_the_episode(fallen: Baseline) -> None:
    named = run_closed_loop(
        "tests.evals.test_closed_loop:cart_pole", fallen, as_policy(balance_replayed)
    )
    assert named.outcome["reward_total"] == 500
    asked: list[str | None] = []

    def factory(episode: ReplayEpisode) -> Any:
        asked.append(episode.env_version)
        return gymnasium.make(episode.env_version or "")

    run_closed_loop(factory, fallen, as_policy(balance_replayed))
    assert asked == ["CartPole-v1", "CartPole-v1"]


def test_chunks_are_acted_out_before_the_policy_is_asked_again(fallen: Baseline) -> None:
    class Chunks:
        chunk = 4
        asked = 0

        def act(self, obs: dict[str, Any]) -> dict[str, Any]:
            self.asked += 1
            return {"action/value": np.array([0, 1, 1, 0])}

    policy = Chunks()
    run = run_closed_loop(cart_pole, fallen, as_policy(policy))
    assert policy.asked == math.ceil(len(run.actions) / 4)
    assert [int(each["action/value"]) for each in run.actions[:8]] == [0, 1, 1, 0, 0, 1, 1, 0]


def test_a_chunk_that_is_too_short_is_refused(fallen: Baseline) -> None:
    class Chunks:
        chunk = 4

        def act(self, obs: dict[str, Any]) -> dict[str, Any]:
            return {"action/value": np.array([0, 1])}

    with pytest.raises(InvalidValue, match="4 rows"):
        run_closed_loop(cart_pole, fallen, as_policy(Chunks()))


def test_what_a_policy_says_of_itself_counts_for_nothing(fallen: Baseline) -> None:
    def boasting(obs: dict[str, Any]) -> dict[str, Any]:
        return {"action/value": 0, "_outcome": {"success": True, "reward_total": 999}}

    run = run_closed_loop(cart_pole, fallen, as_policy(boasting))
    assert run.outcome["success"] is None
    assert run.outcome["reward_total"] == fallen.outcome["reward_total"]


def test_environments_that_answer_as_they_used_to_are_refused(fallen: Baseline) -> None:
    class Old(CountingEnv):
        def reset(self, **options: Any) -> Any:
            return super().reset(**options)[0]

    with pytest.raises(InvalidValue, match=r"reset\(\) is ndarray"):
        run_closed_loop(Old, fallen, as_policy(balance_replayed))

    class Short(CountingEnv):
        def step(self, action: Any) -> Any:
            return super().step(action)[:4]

    with pytest.raises(InvalidValue, match="a tuple of 4"):
        run_closed_loop(
            lambda: Short(),
            fallen,
            as_policy(lambda obs: {"action/value": np.zeros(3)}),
            check_determinism=False,
        )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"arm/value": 1}, "arm/value.*expected 'action/value'"),
        ({"action/value": [0, 1]}, "of shape"),
        ({"action/value": 0.5}, "0.5"),
        ({"action/value": math.nan}, "not finite"),
        ({"action/value": "left"}, "expected finite int64"),
    ],
)
def test_an_action_that_does_not_fit_is_refused(
    fallen: Baseline, answer: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidValue, match=said):
        run_closed_loop(cart_pole, fallen, as_policy(lambda obs: answer))


def test_the_environment_is_closed_also_when_it_fails() -> None:
    made: list[SlidingEnv] = []

    def factory() -> SlidingEnv:
        made.append(SlidingEnv())
        return made[-1]

    def broken(obs: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("no idea")

    with pytest.raises(RuntimeError, match="no idea"):
        run_closed_loop(factory, recorded(SlidingEnv(), towards, 1), as_policy(broken))
    assert made
    assert all(each.closed for each in made)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (3, "environment is a int"),
        ("nowhere_at_all:make", "no module"),
        (dict, "without reset"),
        (lambda: gymnasium.make_vec("CartPole-v1", num_envs=2), "vector"),
    ],
)
def test_what_makes_no_environment_is_refused(fallen: Baseline, factory: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        run_closed_loop(factory, fallen, as_policy(balance_replayed))


def test_a_factory_that_fails_is_no_fault_of_the_policy(fallen: Baseline) -> None:
    def no_simulator() -> Any:
        raise ImportError("libsim.so is missing")

    with pytest.raises(ConfigurationError, match=r"cannot be made: ImportError: libsim\.so"):
        run_closed_loop(no_simulator, fallen, as_policy(balance_replayed))


def test_an_environment_is_tried_once_and_closed() -> None:
    made: list[SlidingEnv] = []

    def make() -> SlidingEnv:
        made.append(SlidingEnv())
        return made[-1]

    try_environment(make)
    assert [each.closed for each in made] == [True]
    try_environment(lambda episode: pytest.fail("there is no episode to make it for"))
    with pytest.raises(ConfigurationError, match="ZeroDivisionError"):
        try_environment("tests.cli.broken_policies:x")


def test_observations_recorded_under_another_name_keep_it(fallen: Baseline) -> None:
    renamed = replace(fallen, sensors={"/cart/state": (fallen.sensors or {})["observation/value"]})
    run = run_closed_loop(
        cart_pole, renamed, as_policy(lambda obs: {"action/value": balance(obs["/cart/state"])})
    )
    assert run.outcome["reward_total"] == 500
    assert run.repro["deterministic"] is True


def test_observations_that_were_not_recorded_are_refused(fallen: Baseline) -> None:
    other = replace(fallen, sensors={"/a/x": np.zeros((3, 1)), "/a/y": np.zeros((3, 1))})
    with pytest.raises(InvalidValue, match="/a/x, /a/y"):
        run_closed_loop(cart_pole, other, as_policy(balance_replayed))


def test_without_a_seed_the_environment_is_run_all_the_same(fallen: Baseline) -> None:
    assert fallen.record is not None
    unseeded = replace(fallen, record=msgspec.structs.replace(fallen.record, seed=None))
    run = run_closed_loop(cart_pole, unseeded, as_policy(balance_replayed))
    assert run.repro["seed"] == {"baseline": None, "candidate": None}
    assert run.repro["deterministic"] is False


def test_a_run_without_any_record_has_outcomes_and_no_claims() -> None:
    run = run_closed_loop(cart_pole, Baseline(id="x"), as_policy(balance_replayed))
    assert run.outcome["reward_total"] is not None
    assert run.repro["env_match"] is None


# --------------------------------------------------------------------------------------- a whole set


def test_results_roll_up_as_measured() -> None:
    baselines = [recorded(SlidingEnv(), away, seed) for seed in range(6)]
    results = []
    for each in baselines:
        run = run_closed_loop(SlidingEnv, each, as_policy(push_towards))
        metrics = closed_loop_metrics(run, each)
        results.append(EvalResult(each.id, None, "complete", metrics))
    summary = rollup(results)
    assert summary.success_rate.baseline == 0
    assert summary.success_rate.candidate == 1
    assert summary.success_rate.evidence == "closed_loop"
    assert summary.collision_rate.delta is not None
    assert summary.collision_rate.delta < 0


def test_a_baseline_against_itself_shows_no_difference_where_there_is_no_noise() -> None:
    baselines = [recorded(SlidingEnv(), towards, seed) for seed in range(8)]
    summary = calibrate(SlidingEnv, baselines)
    assert summary["calibration"] == {
        "replayed": "actions",
        "deterministic": 8,
        "nondeterministic": 0,
        "unknown": 0,
    }
    assert summary["reward_mean"]["delta"] == 0
    assert summary["success_rate"]["delta"] == 0


def test_a_baseline_against_itself_shows_the_noise_of_the_set_up() -> None:
    def noisy() -> SlidingEnv:
        return SlidingEnv(noise=0.4)

    baselines = [recorded(noisy(), towards, seed) for seed in range(8)]
    summary = calibrate(noisy, baselines)
    assert summary["calibration"]["nondeterministic"] == 8
    assert summary["reward_mean"]["delta"] != 0


def test_the_baselines_policy_may_be_calibrated_instead_of_its_actions() -> None:
    baselines = [recorded(SlidingEnv(), towards, seed) for seed in range(3)]

    def same(obs: dict[str, Any]) -> dict[str, Any]:
        return {"action.push/value": np.clip(-obs["observation.x/value"], -1, 1) * np.float32(0.5)}

    summary = calibrate(SlidingEnv, baselines, policy=same)
    assert summary["calibration"]["replayed"] == "policy"
    assert summary["reward_mean"]["delta"] == 0


def test_what_crashes_in_a_calibration_is_counted() -> None:
    baselines = [recorded(SlidingEnv(), towards, seed) for seed in range(2)]
    baselines.append(Baseline(id="nothing", record=EpisodeRecord(id="nothing", status="ready")))
    summary = calibrate(SlidingEnv, baselines)
    assert summary["counts"]["failed"] == 1
    assert summary["counts"]["complete"] == 2


def test_what_the_candidate_did_has_times_where_the_rate_is_known() -> None:
    baseline = recorded(SlidingEnv(), away, seed=1)
    run = run_closed_loop(SlidingEnv, baseline, as_policy(push_towards))
    assert run.t_ns is not None
    assert run.t_ns.tolist() == [step * 100_000_000 for step in range(len(run.actions))]
    metrics = closed_loop_metrics(run, baseline)
    assert metrics["success_candidate"] is True
    assert metrics["ended_by"] == "terminated"
