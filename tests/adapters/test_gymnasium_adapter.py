"""What a recording of an environment holds: every value, its time, the last observation, the picture, the outcome."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rollbook.adapters import gymnasium as adapter
from rollbook.adapters.encoded import EncodedEpisode
from rollbook.contracts.npz import read_npz
from rollbook.contracts.typed_metadata import EpisodeOutcome, plain_metadata
from rollbook.errors import ConfigurationError, TargetExists
from tests.adapters.pictures import BLUE, RED, colour_of, decode, is_close
from tests.adapters.small_envs import CountingEnv, SpaceEnv

public_evals: Any = import_module("robotrace.evals")


def still(observation: Any) -> Any:
    return np.array([observation[0] / 10, 0, -1], np.float32)


def encode(tmp_path: Path, env: Any = None, policy: Any = still, **options: Any) -> EncodedEpisode:
    return adapter.encode_rollout(env or CountingEnv(), policy, tmp_path / "out", **options)


def outcome_of(encoded: EncodedEpisode) -> EpisodeOutcome:
    outcome = encoded.metadata["outcome"]
    assert isinstance(outcome, EpisodeOutcome)
    return outcome


# ----------------------------------------------------------------------------------------- values


def test_every_observation_is_kept_with_the_last_one_although_the_environment_reuses_its_array(
    tmp_path: Path,
) -> None:
    sensors = read_npz(encode(tmp_path).files["sensors"])
    expected = np.array([[step, step / 3] for step in range(7)])
    assert sensors["observation/value"].dtype == np.float64
    assert (sensors["observation/value"] == expected).all()
    assert sensors["observation/_t_ns"].tolist() == [step * 20_000_000 for step in range(7)]


def test_an_action_is_kept_for_every_step(tmp_path: Path) -> None:
    actions = read_npz(encode(tmp_path).files["actions"])
    assert actions["action/value"].dtype == np.float32
    assert actions["action/value"].shape == (6, 3)
    assert actions["action/value"][:, 0].tolist() == pytest.approx([s / 10 for s in range(6)])
    assert actions["action/_t_ns"].tolist() == [step * 20_000_000 for step in range(6)]


def test_a_reward_is_kept_for_every_step_at_the_end_of_it(tmp_path: Path) -> None:
    sensors = read_npz(encode(tmp_path).files["sensors"])
    assert sensors["reward/value"].tolist() == [step * 0.1 for step in range(1, 7)]
    assert sensors["reward/_t_ns"].tolist() == [step * 20_000_000 for step in range(1, 7)]


def test_times_do_not_drift_when_a_step_is_no_whole_number_of_nanoseconds(tmp_path: Path) -> None:
    sensors = read_npz(encode(tmp_path, CountingEnv(length=300), fps=30).files["sensors"])
    assert sensors["observation/_t_ns"][300] == 10_000_000_000


def test_the_public_harness_sees_one_observation_for_each_action(tmp_path: Path) -> None:
    encoded = encode(tmp_path)
    sensors = read_npz(encoded.files["sensors"])
    observed = public_evals.materialize_observations(sensors, np=np)
    assert len(observed) == len(read_npz(encoded.files["actions"])["action/value"]) == 6
    assert observed[5]["observation/value"].tolist() == [5, 5 / 3]


@pytest.mark.parametrize(
    ("space", "leaf"),
    [
        (spaces.Box(0, 255, (4, 5, 3), np.uint8), "observation"),
        (spaces.Discrete(7, start=-3), "observation"),
        (spaces.MultiDiscrete(np.array([[3, 4], [5, 6]])), "observation"),
        (spaces.MultiBinary([2, 3]), "observation"),
        (spaces.Dict({"arm": spaces.Dict({"q": spaces.Box(-1, 1, (2,))})}), "observation.arm.q"),
        (spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, ())]), "observation.1"),
    ],
)
def test_every_space_with_a_fixed_shape_is_kept_as_it_is(
    tmp_path: Path, space: spaces.Space[Any], leaf: str
) -> None:
    env = SpaceEnv(space, space)
    acted: list[Any] = []

    def policy(observation: Any) -> Any:
        acted.append(space.sample())
        return acted[-1]

    encoded = encode(tmp_path, env, policy, record_video=None)
    sensors, actions = (read_npz(encoded.files[kind]) for kind in ("sensors", "actions"))
    keys = [int(key) if key.isdigit() else key for key in leaf.split(".")[1:]]

    def picked(value: Any) -> Any:
        for key in keys:
            value = value[key]
        return value

    expected = np.stack([np.asarray(picked(each)) for each in env.seen])
    assert (sensors[f"{leaf}/value"] == expected).all()
    assert sensors[f"{leaf}/value"].dtype == picked(space).dtype if keys else space.dtype
    assert sensors[f"{leaf}/value"].shape == expected.shape
    same = leaf.replace("observation", "action")
    assert (actions[f"{same}/value"] == np.stack([np.asarray(picked(a)) for a in acted])).all()


def test_text_is_kept_without_pickle(tmp_path: Path) -> None:
    env = SpaceEnv(spaces.Dict({"said": spaces.Text(20, min_length=0)}), spaces.Discrete(2))
    encoded = encode(tmp_path, env, lambda observation: 1)
    with np.load(encoded.files["sensors"], allow_pickle=False) as sensors:
        assert sensors["observation.said/value"].tolist() == [each["said"] for each in env.seen]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Sequence(spaces.Discrete(3)),
        spaces.Dict({"graph": spaces.Graph(spaces.Box(0, 1, (2,)), None)}),
        spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]),
    ],
)
def test_a_space_without_a_fixed_shape_is_refused_before_anything_runs(
    tmp_path: Path, space: spaces.Space[Any]
) -> None:
    env = SpaceEnv(space, spaces.Discrete(2))
    with pytest.raises(ConfigurationError, match="no fixed shape"):
        encode(tmp_path, env, lambda observation: 0)
    assert env.seen == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "action", [np.zeros(2), "left", np.array([0, 0, 1e300]), None, {"a": 1}, np.zeros(3, complex)]
)
def test_an_action_that_does_not_fit_its_space_is_refused_not_bent(
    tmp_path: Path, action: Any
) -> None:
    with pytest.raises(ConfigurationError, match=r"action is .*its space says float32"):
        encode(tmp_path, policy=lambda observation: action)


@pytest.mark.parametrize("action", [1.5, -1, np.int64(300), float("nan")])
def test_a_number_that_its_type_cannot_hold_is_refused(tmp_path: Path, action: Any) -> None:
    env = SpaceEnv(spaces.Discrete(2), spaces.Box(0, 255, (), np.uint8))
    with pytest.raises(ConfigurationError, match="its space says uint8"):
        encode(tmp_path, env, lambda observation: action)


def test_a_part_of_a_space_that_is_missing_is_named(tmp_path: Path) -> None:
    env = SpaceEnv(spaces.Discrete(2), spaces.Dict({"grip": spaces.Discrete(2)}))
    with pytest.raises(ConfigurationError, match=r"action\.grip is missing"):
        encode(tmp_path, env, lambda observation: {})


def test_two_parts_of_a_space_with_one_name_are_refused(tmp_path: Path) -> None:
    twice = spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})})
    with pytest.raises(ConfigurationError, match=r"observation\.a\.b"):
        adapter.scan_env(SpaceEnv(twice, spaces.Discrete(2)))


@pytest.mark.slow
def test_a_long_run_with_a_camera_among_its_observations_does_not_fill_memory(
    tmp_path: Path,
) -> None:
    """400 MB of pictures are recorded by a process that may take 150 MB more for itself, and no more."""
    program = f"""
import re, resource
from pathlib import Path
import gymnasium
import numpy as np
import rollbook.contracts.npz
from gymnasium import spaces
from rollbook.adapters import gymnasium as adapter
from tests.adapters.small_envs import SpaceEnv

class Camera(SpaceEnv):
    def step(self, action):
        self.steps = getattr(self, "steps", 0) + 1
        return np.full((1000, 1000), self.steps % 256, np.uint8), 0, self.steps == 400, False, {{}}

env = Camera(spaces.Box(0, 255, (1000, 1000), np.uint8), spaces.Discrete(2))
taken = int(re.search(r"VmData:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (taken + (150 << 20), -1))
adapter.encode_rollout(env, lambda observation: 0, {str(tmp_path / "out")!r})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kept = np.load(tmp_path / "out" / "sensors.npz")["observation/value"]
    assert kept.shape == (401, 1000, 1000)
    assert kept[1:, 0, 0].tolist() == [step % 256 for step in range(1, 401)]


# ------------------------------------------------------------------------------------------ video


def test_the_video_has_the_colours_of_the_environment_and_its_rate(tmp_path: Path) -> None:
    encoded = encode(tmp_path)
    video = decode(encoded.files["video"])
    assert video.numbers == list(range(7))
    assert all(is_close(colour_of(frame), RED) for frame in video.pictures[:6])
    assert is_close(colour_of(video.pictures[6]), BLUE)
    assert video.times == pytest.approx([step / 50 for step in range(7)])
    assert encoded.fps == 50
    assert encoded.duration_s == pytest.approx(6 / 50)


def test_a_given_rate_counts_more_than_the_declared_one(tmp_path: Path) -> None:
    encoded = encode(tmp_path, fps=4)
    assert decode(encoded.files["video"]).times[-1] == pytest.approx(6 / 4)
    assert read_npz(encoded.files["sensors"])["observation/_t_ns"][-1] == 1_500_000_000


def test_a_rate_nobody_declared_is_assumed_and_said_to_be(tmp_path: Path) -> None:
    env = SpaceEnv(spaces.Discrete(2), spaces.Discrete(2))
    encoded = encode(tmp_path, env, lambda observation: 0)
    assert (encoded.fps, encoded.metadata["fps_assumed"]) == (30, True)
    assert (
        "fps_assumed" not in adapter.encode_rollout(CountingEnv(), still, tmp_path / "2").metadata
    )


@pytest.mark.parametrize(("mode", "wanted"), [(None, None), ("rgb_array", False)])
def test_there_is_no_video_when_nothing_is_rendered_or_none_is_wanted(
    tmp_path: Path, mode: str | None, wanted: bool | None
) -> None:
    encoded = encode(tmp_path, CountingEnv(render_mode=mode), record_video=wanted)
    assert sorted(encoded.files) == ["actions", "sensors"]


def test_a_video_that_cannot_be_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="render_mode='rgb_array'"):
        encode(tmp_path, CountingEnv(render_mode=None), record_video=True)


# ---------------------------------------------------------------------------------------- outcome


@pytest.mark.parametrize("truncates", [False, True])
def test_terminated_and_truncated_are_kept_apart(tmp_path: Path, truncates: bool) -> None:
    metadata = encode(tmp_path, CountingEnv(truncates=truncates)).metadata
    assert (metadata["terminated"], metadata["truncated"]) == (not truncates, truncates)
    assert metadata["ended_by"] == ("truncated" if truncates else "terminated")


def test_a_run_that_was_stopped_is_neither_terminated_nor_truncated(tmp_path: Path) -> None:
    metadata = encode(tmp_path, max_steps=3).metadata
    assert (metadata["terminated"], metadata["truncated"]) == (False, False)
    assert (metadata["ended_by"], metadata["steps"]) == ("max_steps", 3)


def test_evals_can_read_reward_and_success(tmp_path: Path) -> None:
    infos = [{"is_success": step >= 4} for step in range(7)]
    metadata = plain_metadata(encode(tmp_path, CountingEnv(infos=infos)).metadata)
    assert public_evals.extract_outcome(metadata) == {
        "success": True,
        "reward_total": pytest.approx(2.1),
        "time_to_goal_s": pytest.approx(4 / 50),
    }


def test_success_is_what_the_environment_said_last(tmp_path: Path) -> None:
    infos = [{"is_success": np.float32(step == 3)} for step in range(7)]
    outcome = outcome_of(encode(tmp_path, CountingEnv(infos=infos)))
    assert (outcome.success, outcome.time_to_goal_s) == (False, None)


def test_success_nobody_spoke_of_stays_unknown(tmp_path: Path) -> None:
    infos: list[dict[str, Any]] = [{"is_success": None}] * 7
    assert outcome_of(encode(tmp_path, CountingEnv(infos=infos))).success is None
    assert outcome_of(adapter.encode_rollout(CountingEnv(), still, tmp_path / "2")).success is None


def test_rewards_that_are_no_numbers_give_no_total(tmp_path: Path) -> None:
    class Lost(CountingEnv):
        def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
            observation, _, *rest = super().step(action)
            return observation, float("nan"), *rest

    encoded = encode(tmp_path, Lost())
    assert outcome_of(encoded).reward_total is None
    assert np.isnan(read_npz(encoded.files["sensors"])["reward/value"]).all()
    json.dumps(plain_metadata(encoded.metadata), allow_nan=False)


def test_what_the_environment_can_be_made_from_again_is_kept(tmp_path: Path) -> None:
    gym.register("Counting-v3", lambda **options: CountingEnv(**options), kwargs={"length": 4})
    try:
        env = gym.make("Counting-v3", render_mode="rgb_array", disable_env_checker=True)
        encoded = encode(tmp_path, env, seed=11)
    finally:
        del gym.registry["Counting-v3"]
    assert (encoded.name, encoded.env_version, encoded.seed) == (
        "Counting-v3 #11",
        "Counting-v3",
        11,
    )
    assert encoded.metadata["gymnasium_env_id"] == "Counting-v3"
    assert encoded.metadata["steps"] == 4


def test_a_registered_environment_can_be_made_again_from_its_recording(tmp_path: Path) -> None:
    env = gym.make("FrozenLake-v1", is_slippery=False)
    encoded = encode(tmp_path, env, lambda observation: 1, seed=3)
    spec = plain_metadata(encoded.metadata)["gymnasium_spec"]
    again = gym.make(gym.envs.registration.EnvSpec.from_json(json.dumps(spec)))
    second = adapter.encode_rollout(again, lambda observation: 1, tmp_path / "again", seed=3)
    first_bytes = encoded.files["sensors"].read_bytes()
    assert second.files["sensors"].read_bytes() == first_bytes


# ----------------------------------------------------------------------------------------- policy


def test_a_policy_that_needs_two_arguments_is_given_the_info(tmp_path: Path) -> None:
    infos = [{"hint": step} for step in range(7)]
    given: list[int] = []

    def policy(observation: Any, info: dict[str, Any]) -> Any:
        given.append(info["hint"])
        return still(observation)

    encode(tmp_path, CountingEnv(infos=infos), policy)
    assert given == list(range(6))


def test_an_optional_argument_is_left_to_the_policy(tmp_path: Path) -> None:
    def policy(observation: Any, state: Any = None) -> Any:
        assert state is None
        return still(observation)

    assert encode(tmp_path, policy=policy).metadata["steps"] == 6


def test_a_policy_that_changes_what_it_is_given_does_not_change_the_record(tmp_path: Path) -> None:
    def policy(observation: Any) -> Any:
        action = still(observation)
        observation[:] = -1
        return action

    sensors = read_npz(encode(tmp_path, policy=policy).files["sensors"])
    assert sensors["observation/value"][:, 0].tolist() == list(range(7))


def test_an_error_in_the_environment_leaves_what_ran_before_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="stuck") as caught:
        encode(tmp_path, CountingEnv(fails_at=3))
    assert any(str(tmp_path / "out") in note for note in caught.value.__notes__)
    sensors = read_npz(tmp_path / "out" / "sensors.npz")
    assert len(sensors["observation/value"]) == 4
    assert len(sensors["reward/value"]) == 3
    assert len(read_npz(tmp_path / "out" / "actions.npz")["action/value"]) == 4
    assert decode(tmp_path / "out" / "video.mp4").numbers == [0, 1, 2, 3]


def test_an_error_in_the_first_step_of_a_policy_leaves_the_first_observation(
    tmp_path: Path,
) -> None:
    def broken(observation: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        encode(tmp_path, policy=broken)
    names = ["episode.json", "sensors.npz", "video.mp4"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == names
    assert read_npz(tmp_path / "out" / "sensors.npz").keys() == {
        "observation/value",
        "observation/_t_ns",
    }


def test_files_of_another_episode_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    encode(tmp_path)
    env = CountingEnv(render_mode=None)
    with pytest.raises(TargetExists, match=r"video\.mp4"):
        encode(tmp_path, env)
    assert env.seeds == []


# ------------------------------------------------------------------------------------------- scan


def test_scanning_says_what_would_be_recorded_and_runs_nothing() -> None:
    env = CountingEnv()
    found = adapter.scan_env(env)
    assert [column.name for column in found.observation] == ["observation"]
    assert (found.env_id, found.fps, found.has_video) == ("CountingEnv", 50, True)
    assert found.action[0].shape == (3,)
    assert env.seeds == []


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"str is not a gymnasium\.Env"):
        adapter.scan_env("CartPole-v1")  # type: ignore[arg-type]
    many = gym.make_vec("CartPole-v1", num_envs=2)
    with pytest.raises(ConfigurationError, match="one by one"):
        adapter.scan_env(many)  # type: ignore[arg-type]
    many.close()


@pytest.mark.parametrize(
    "options", [{"max_steps": 0}, {"fps": 0}, {"policy": 3}, {"seed": -1}, {"seed": 1.5}]
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        encode(tmp_path, **options)
