"""Episodes as a robomimic file: what comes back equal, what is named as lost beforehand, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from rollbook.adapters import gymnasium as recorder
from rollbook.adapters.encoded import EncodedEpisode
from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.hdf5 import Hdf5Exporter
from rollbook.adapters.hdf5 import Hdf5Importer
from rollbook.client.video import VideoWriter
from rollbook.contracts.npz import read_npz, write_npz
from rollbook.errors import ConfigurationError, StorageError, TargetExists
from tests.adapters.hdf5.hdf5_files import (
    ENV_ARGS,
    write_aloha,
    write_libero,
    write_robomimic,
    write_robosuite,
)


def imported(path: Path, folder: Path, **options: Any) -> list[EncodedEpisode]:
    importer = Hdf5Importer(**options)
    recording = importer.scan(path)
    found = []
    for episode in recording.episodes:
        out = folder / f"{path.stem}-{episode.index}"
        out.mkdir(parents=True)
        found.append(importer.encode(recording, episode.index, out))
    return found


def exported(encoded: Sequence[EncodedEpisode]) -> list[ExportedEpisode]:
    return [
        ExportedEpisode.of_encoded(
            each,
            {k: hashlib.sha256(p.read_bytes()).hexdigest() for k, p in each.files.items()},
        )
        for each in encoded
    ]


def exported_file(episodes: Sequence[ExportedEpisode], target: Path, **options: Any) -> Path:
    Hdf5Exporter(**options).write(episodes, target, lambda done, all_of_them: None)
    return target


def streams(encoded: EncodedEpisode) -> dict[str, NDArray[Any]]:
    return {
        f"{kind}:{key}": values
        for kind in ("sensors", "actions")
        if kind in encoded.files
        for key, values in read_npz(encoded.files[kind]).items()
    }


def assert_equal_streams(one: EncodedEpisode, other: EncodedEpisode) -> None:
    left, right = streams(one), streams(other)
    assert left.keys() == right.keys()
    for key, values in left.items():
        assert values.dtype == right[key].dtype
        np.testing.assert_array_equal(values, right[key], err_msg=key)


def losses(episodes: Sequence[ExportedEpisode], **options: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for loss in Hdf5Exporter(**options).losses(episodes):
        reasons = found.setdefault(loss.what, [])
        if loss.reason not in reasons:
            reasons.append(loss.reason)
    return found


def made_episode(
    folder: Path,
    actions: Mapping[str, NDArray[Any]],
    sensors: Mapping[str, NDArray[Any]],
    **metadata: Any,
) -> ExportedEpisode:
    folder.mkdir()
    write_npz(folder / "actions.npz", actions)
    write_npz(folder / "sensors.npz", sensors)
    return ExportedEpisode(
        name="run 1",
        source="real",
        files={"actions": folder / "actions.npz", "sensors": folder / "sensors.npz"},
        digests={"actions": "a" * 64, "sensors": "b" * 64},
        metadata=metadata,
        fps=10.0,
        seed=7,
        policy_version="v4",
        git_sha="abc",
        robot="panda",
        episode_id="ep_1",
    )


def ticks(count: int, first: int = 0, step: int = 100_000_000) -> NDArray[np.int64]:
    return (first + np.arange(count) * step).astype(np.int64)


# -------------------------------------------------------------------------------------- round trips

_KEPT = ("steps", "declared", "read", "tasks", "outcome", "skipped", "video_cameras")
_KEPT_HDF5 = ("hdf5_masks", "hdf5_texts", "hdf5_not_per_step", "timestamps_assumed")


def _assert_equal(one: EncodedEpisode, other: EncodedEpisode) -> None:
    assert_equal_streams(one, other)
    for key in (*_KEPT, *_KEPT_HDF5):
        assert one.metadata.get(key) == other.metadata.get(key), key
    for owner, values in one.metadata["hdf5_attributes"].items():
        known = other.metadata["hdf5_attributes"][owner]
        assert {name: known.get(name) for name in values if name != "rollbook_episode"} == {
            name: value for name, value in values.items() if name != "rollbook_episode"
        }
    for name in ("name", "fps", "duration_s", "robot", "env_version", "source"):
        assert getattr(one, name) == getattr(other, name), name


def test_an_export_of_robomimic_numbers_loses_nothing(tmp_path: Path) -> None:
    before = imported(write_robomimic(tmp_path / "file.hdf5"), tmp_path / "before")
    assert Hdf5Exporter().losses(exported(before)) == []


@pytest.mark.parametrize("write", [write_robomimic, write_libero, write_robosuite])
def test_demonstrations_come_back_equal(write: Any, tmp_path: Path) -> None:
    before = imported(write(tmp_path / "file.hdf5"), tmp_path / "before")
    target = exported_file(exported(before), tmp_path / "exported.hdf5")
    after = imported(target, tmp_path / "after")
    assert len(before) == len(after)
    for one, other in zip(before, after, strict=True):
        _assert_equal(one, other)
        assert other.metadata["hdf5_group"].startswith("data/demo_")


def test_a_second_export_gives_the_same_datasets(tmp_path: Path) -> None:
    before = imported(write_robomimic(tmp_path / "file.hdf5"), tmp_path / "before")
    first = exported_file(exported(before), tmp_path / "first.hdf5")
    again = imported(first, tmp_path / "again")
    second = exported_file(exported(again), tmp_path / "second.hdf5")
    with h5py.File(first) as one, h5py.File(second) as two:
        names: list[str] = []
        one.visit(names.append)
        other: list[str] = []
        two.visit(other.append)
        assert names == other
        for name in names:
            if isinstance(one[name], h5py.Dataset):
                np.testing.assert_array_equal(one[name][()], two[name][()])


_DTYPES = st.sampled_from(["f4", "f8", "f2", "i8", "i4", "u1", "u2", "?", ">f8"])
_NAMES = st.text("abcXYZ01_ -é", min_size=1, max_size=8).filter(lambda name: name.strip(". "))


@st.composite
def _demos(draw: st.DrawFn) -> list[dict[str, NDArray[Any]]]:
    def values(shape: tuple[int, ...]) -> NDArray[Any]:
        return draw(npst.arrays(np.dtype(draw(_DTYPES)), shape))

    demos = []
    for _ in range(draw(st.integers(1, 3))):
        steps = draw(st.integers(1, 6))
        demo = {"actions": draw(npst.arrays(np.float64, (steps, draw(st.integers(1, 3)))))}
        for group in ("obs", "next_obs", "extra"):
            for name in draw(st.sets(_NAMES, max_size=2)):
                rest = draw(st.lists(st.integers(1, 3), max_size=2))
                demo[f"{group}/{name}"] = values((steps, *rest))
        if draw(st.booleans()):
            demo["rewards"] = draw(npst.arrays(np.float64, (steps,)))
        if draw(st.booleans()):
            demo["calibration"] = values((2, 2) if draw(st.booleans()) else ())
        demos.append(demo)
    return demos


@given(demos=_demos(), masks=st.lists(st.sets(st.integers(0, 2), min_size=1), max_size=2))
@settings(max_examples=25, deadline=None)
def test_any_numbers_come_back_equal(
    demos: list[dict[str, NDArray[Any]]], masks: list[set[int]]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "file.hdf5"
        with h5py.File(path, "w") as file:
            data = file.create_group("data")
            data.attrs["total"] = sum(len(demo["actions"]) for demo in demos)
            data.attrs["env_args"] = json.dumps(ENV_ARGS)
            for number, demo in enumerate(demos):
                group = data.create_group(f"demo_{number}")
                group.attrs["num_samples"] = len(demo["actions"])
                for key, values in demo.items():
                    group[key] = values
            for number, members in enumerate(masks):
                known = [f"demo_{i}".encode() for i in sorted(members) if i < len(demos)]
                if known:
                    file[f"mask/m{number}"] = np.array(known)
        before = imported(path, folder / "before")
        target = exported_file(exported(before), folder / "exported.hdf5")
        for one, other in zip(before, imported(target, folder / "after"), strict=True):
            _assert_equal(one, other)


def test_video_and_colours_come_back_as_the_losses_say(tmp_path: Path) -> None:
    path = write_libero(tmp_path / "drawer.hdf5")
    before = imported(path, tmp_path / "before", colour_order="bgr")
    episodes = exported(before)
    assert "encoded again" in losses(episodes)["video"][0]
    assert "red, green, blue" in losses(episodes)["hdf5_colour_order"][0]
    target = exported_file(episodes, tmp_path / "exported.hdf5")
    with h5py.File(path) as old, h5py.File(target) as new:
        for name in ("agentview_rgb", "eye_in_hand_rgb"):
            left = old[f"data/demo_1/obs/{name}"][()][..., ::-1].astype(int)
            right = new[f"data/demo_1/obs/{name}"][()].astype(int)
            assert left.shape == right.shape
            assert np.abs(left - right).mean() < 8
    without = exported_file(episodes, tmp_path / "without.hdf5", images=False)
    with h5py.File(without) as file:
        assert list(file["data/demo_1/obs"]) == ["ee_pos"]
    assert losses(episodes, images=False)["video"] == ["it is left out, because images=False"]


def test_an_aloha_episode_becomes_observations_and_an_action_dict(tmp_path: Path) -> None:
    before = imported(write_aloha(tmp_path / "episode_0.hdf5"), tmp_path / "before")
    told = losses(exported(before))
    assert told["observations/qpos/value"] == ["it comes back as obs/qpos"]
    assert told["base_action/value"] == ["it comes back as action_dict/base_action"]
    target = exported_file(exported(before), tmp_path / "exported.hdf5")
    (after,) = imported(target, tmp_path / "after")
    old, new = streams(before[0]), streams(after)
    for left, right in (
        ("actions:action/value", "actions:actions/value"),
        ("actions:base_action/value", "actions:action_dict/base_action/value"),
        ("sensors:observations/qvel/value", "sensors:obs/qvel/value"),
        ("sensors:observations/qvel/_t_ns", "sensors:obs/qvel/_t_ns"),
    ):
        np.testing.assert_array_equal(old[left], new[right])
    cameras = [tile["camera"] for tile in after.metadata["video_cameras"]]
    assert cameras == ["obs/cam_high_image", "obs/cam_left_image"]


# ---------------------------------------------------------------------------------------- gymnasium


@pytest.fixture
def cartpole(tmp_path: Path) -> list[EncodedEpisode]:
    def run(seed: int) -> EncodedEpisode:
        env = gymnasium.make("CartPole-v1")
        try:
            return recorder.encode_rollout(
                env,
                lambda observation: int(observation[2] > 0),
                tmp_path / f"run-{seed}",
                seed=seed,
            )
        finally:
            env.close()

    return [run(3), run(4)]


def test_a_gymnasium_run_comes_back_as_the_losses_say(
    cartpole: list[EncodedEpisode], tmp_path: Path
) -> None:
    episodes = exported(cartpole)
    told = losses(episodes, next_obs=True)
    assert "in obs/observation and in next_obs/observation" in told["observation/value"][1]
    assert "the end of each step" in told["reward/value"][1]
    assert told["dones"][0].startswith("it is made from how the episode ended")
    target = exported_file(episodes, tmp_path / "exported.hdf5", next_obs=True)
    after = imported(target, tmp_path / "after")
    for one, other in zip(cartpole, after, strict=True):
        old, new = streams(one), streams(other)
        steps = one.metadata["steps"]
        actions = new["actions:actions/value"]
        np.testing.assert_array_equal(actions, old["actions:action/value"][:, None])
        np.testing.assert_array_equal(new["actions:actions/_t_ns"], old["actions:action/_t_ns"])
        seen = old["sensors:observation/value"]
        np.testing.assert_array_equal(new["sensors:obs/observation/value"], seen[:-1])
        np.testing.assert_array_equal(new["sensors:next_obs/observation/value"], seen[1:])
        np.testing.assert_array_equal(new["sensors:rewards/value"], old["sensors:reward/value"])
        assert new["sensors:dones/value"].tolist() == [0] * (steps - 1) + [1]
        assert "timestamps_assumed" not in other.metadata
        assert other.metadata["outcome"] == one.metadata["outcome"]
        for name in ("name", "source", "seed", "fps", "env_version"):
            assert getattr(other, name) == getattr(one, name)


def test_without_next_obs_the_last_observation_is_left_out(
    cartpole: list[EncodedEpisode], tmp_path: Path
) -> None:
    told = losses(exported(cartpole))
    assert "its last row, after the last action, is left out" in told["observation/value"][1]
    with h5py.File(exported_file(exported(cartpole), tmp_path / "exported.hdf5")) as file:
        assert "next_obs" not in file["data/demo_0"]
        steps = [demo.attrs["num_samples"] for demo in file["data"].values()]
        assert file["data"].attrs["total"] == sum(steps)
        args = json.loads(file["data"].attrs["env_args"])
        assert (args["env_name"], args["type"]) == ("CartPole-v1", 2)


# --------------------------------------------------------------------------------- clocks and refusal


def test_provenance_is_an_attribute_of_the_demonstration(tmp_path: Path) -> None:
    episode = made_episode(
        tmp_path / "run",
        {"action/value": np.zeros((3, 2)), "action/_t_ns": ticks(3)},
        {"state/value": np.zeros((3, 4)), "state/_t_ns": ticks(3)},
        source_file={"digest": "c" * 64},
        tasks=["open the door"],
    )
    target = exported_file([episode], tmp_path / "exported.hdf5")
    with h5py.File(target) as file:
        stored = json.loads(file["data/demo_0"].attrs["rollbook_episode"])
    expected = {
        "episode_id": "ep_1",
        "policy_version": "v4",
        "git_sha": "abc",
        "seed": 7,
        "robot": "panda",
        "sha256": {"actions": "a" * 64, "sensors": "b" * 64},
        "source_file": {"digest": "c" * 64},
    }
    assert {name: stored[name] for name in expected} == expected
    (after,) = imported(target, tmp_path / "after")
    assert (after.policy_version, after.git_sha, after.robot, after.seed) == (
        "v4",
        "abc",
        "panda",
        7,
    )
    assert after.metadata["tasks"] == ["open the door"]


def test_a_stream_at_other_times_is_refused_unless_resampling_is_asked_for(tmp_path: Path) -> None:
    state = np.arange(30, dtype="f8").reshape(30, 1)
    episode = made_episode(
        tmp_path / "run",
        {"action/value": np.zeros((3, 2)), "action/_t_ns": ticks(3)},
        {
            "fast/value": state,
            "fast/_t_ns": ticks(30, first=-5_000_000, step=10_000_000),
            "late/value": np.ones((2, 1)),
            "late/_t_ns": ticks(2, first=50_000_000),
            "words/value": np.array(["a", "bb", "c"]),
            "words/_t_ns": ticks(3),
        },
    )
    assert "only with the option resample=previous" in losses([episode])["fast/value"][1]
    target = tmp_path / "exported.hdf5"
    with pytest.raises(ConfigurationError, match="fast/value, late/value: not at the times"):
        exported_file([episode], target)
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]
    told = losses([episode], resample="previous")
    assert "30 rows become 3" in told["fast/value"][1]
    assert "1 steps are before its first row and get NaN" in told["late/value"][1]
    exported_file([episode], target, resample="previous")
    with h5py.File(target) as file:
        obs = file["data/demo_0/obs"]
        assert obs["fast"][:, 0].tolist() == [0, 10, 20]
        np.testing.assert_array_equal(obs["late"][:, 0], [np.nan, 1, 1])
        assert obs["words"].asstr()[:].tolist() == ["a", "bb", "c"]


def test_whole_numbers_before_their_first_row_cannot_be_resampled(tmp_path: Path) -> None:
    episode = made_episode(
        tmp_path / "run",
        {"action/value": np.zeros((3, 2)), "action/_t_ns": ticks(3)},
        {"late/value": np.ones((2,), "i8"), "late/_t_ns": ticks(2, first=50_000_000)},
    )
    with pytest.raises(ConfigurationError, match="no value that means missing"):
        losses([episode], resample="previous")  # known before anything is written
    with pytest.raises(ConfigurationError, match="no value that means missing"):
        exported_file([episode], tmp_path / "exported.hdf5", resample="previous")
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]


def test_a_video_with_fewer_frames_than_actions_is_left_out_and_said_so(tmp_path: Path) -> None:
    steps, fps = 5, 10.0
    clock = ticks(steps, step=100_000_000)
    actions = {"action/value": np.zeros((steps, 2)), "action/_t_ns": clock}
    episode = made_episode(tmp_path / "run", actions, {})
    video = tmp_path / "run" / "video.mp4"
    with VideoWriter(video, fps) as frames:
        for _ in range(steps - 1):
            frames.add(np.zeros((16, 16, 3), np.uint8))
    shown = replace(episode, files={**episode.files, "video": video}, fps=fps)
    assert "it has 4 frames, and there are 5 actions" in losses([shown])["video"][0]
    with h5py.File(exported_file([shown], tmp_path / "exported.hdf5")) as file:
        assert "obs" not in file["data/demo_0"]


def test_actions_without_values_and_complex_numbers_do_not_come_back(tmp_path: Path) -> None:
    clock = ticks(3)
    nothing = {"action/value": np.zeros((3, 0)), "action/_t_ns": clock}
    with pytest.raises(ConfigurationError, match="name the stream that becomes `actions`"):
        losses([made_episode(tmp_path / "none", nothing, {})])
    actions = {"action/value": np.zeros((3, 2)), "action/_t_ns": clock}
    sensors = {"wave/value": np.zeros(3, complex), "wave/_t_ns": clock}
    told = losses([made_episode(tmp_path / "run", actions, sensors)])
    assert any("do not come back" in reason for reason in told["wave/value"])


def test_the_action_has_to_be_named_where_there_are_several(tmp_path: Path) -> None:
    clock = ticks(2)
    episode = made_episode(
        tmp_path / "run",
        {
            "/cmd/position": np.ones((2, 2)),
            "/cmd/velocity": np.zeros((2, 2)),
            "/cmd/_t_ns": clock,
        },
        {"state/value": np.zeros((2, 4)), "state/_t_ns": clock},
    )
    with pytest.raises(ConfigurationError, match="known: /cmd/position, /cmd/velocity"):
        Hdf5Exporter().losses([episode])
    target = exported_file([episode], tmp_path / "exported.hdf5", action="/cmd/position")
    with h5py.File(target) as file:
        demo = file["data/demo_0"]
        assert demo["actions"][()].tolist() == [[1, 1], [1, 1]]
        assert demo["action_dict/cmd.velocity"].shape == (2, 2)


def test_streams_that_would_become_one_dataset_are_refused(tmp_path: Path) -> None:
    clock = ticks(2)
    episode = made_episode(
        tmp_path / "run",
        {"action/value": np.ones((2, 2)), "action/_t_ns": clock},
        {
            **{"obs/x/value": np.zeros(2), "obs/x/_t_ns": clock},
            **{"observation/x/value": np.zeros(2), "observation/x/_t_ns": clock},
        },
    )
    with pytest.raises(ConfigurationError, match="two streams would become the dataset obs/x"):
        Hdf5Exporter().losses([episode])


def test_an_existing_target_is_kept_and_a_failure_leaves_none(tmp_path: Path) -> None:
    clock = ticks(2)
    episode = made_episode(
        tmp_path / "run",
        {"action/value": np.ones((2, 2)), "action/_t_ns": clock},
        {"state/value": np.zeros((2, 4)), "state/_t_ns": clock},
    )
    target = tmp_path / "exported.hdf5"
    target.write_text("mine")
    with pytest.raises(TargetExists):
        exported_file([episode], target)
    assert target.read_text() == "mine"

    def stop(done: int, all_of_them: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Hdf5Exporter().write([episode], tmp_path / "new.hdf5", stop)
    assert {each.name for each in tmp_path.iterdir()} == {"run", "exported.hdf5"}
    with pytest.raises(StorageError, match="cannot be written"):
        exported_file([episode], tmp_path / "missing" / "new.hdf5")
    with pytest.raises(ConfigurationError, match="no episode"):
        exported_file([], tmp_path / "new.hdf5")


def test_environments_that_contradict_each_other_are_reported(tmp_path: Path) -> None:
    first = imported(write_robomimic(tmp_path / "one.hdf5", (2,)), tmp_path / "a")
    path = write_robomimic(tmp_path / "two.hdf5", (2,))
    with h5py.File(path, "r+") as file:
        file["data"].attrs["env_args"] = json.dumps({**ENV_ARGS, "env_name": "Stack"})
    second = imported(path, tmp_path / "b")
    told = losses(exported([*first, *second]))
    assert told["attribute env_args of data"] == [
        "an earlier episode has another value, and a file has one"
    ]


def test_the_summary_counts_what_was_written(tmp_path: Path) -> None:
    before = imported(write_robomimic(tmp_path / "file.hdf5", (5, 4)), tmp_path / "before")
    seen: list[tuple[int, int]] = []
    target = tmp_path / "exported.hdf5"
    summary = Hdf5Exporter().write(
        exported(before), target, lambda done, all_of_them: seen.append((done, all_of_them))
    )
    assert (summary.episodes, summary.rows, summary.files) == (2, 9, 1)
    assert summary.size == target.stat().st_size
    assert seen == [(1, 2), (2, 2)]


def test_names_in_metadata_do_not_lead_out_of_the_demonstration(tmp_path: Path) -> None:
    clock = ticks(2)
    episode = made_episode(
        tmp_path / "run",
        {"actions/value": np.ones((2, 2)), "actions/_t_ns": clock},
        {"/mask/train/value": np.zeros(2), "/mask/train/_t_ns": clock},
        adapter="hdf5",
        hdf5_layout="robomimic",
        hdf5_texts={"/evil": "text"},
        hdf5_masks=["/../up", 7],
        hdf5_not_per_step={"/mask/train": ["x", -1]},
        hdf5_attributes={
            "data": {"env_args": {"a": 1}, "huge": 2**80, "ragged": [[1], [2, 3]], "ok": [1, 2]},
            "episode": {"nul": "a\0b", "none": None},
        },
    )
    told = losses([episode])
    assert "cannot hold" in told["attribute env_args of data"][0]
    assert "cannot hold" in told["attribute nul of episode"][0]
    with h5py.File(exported_file([episode], tmp_path / "exported.hdf5")) as file:
        assert set(file) == {"data", "mask"}
        assert set(file["mask"]) == {"up", "7"}
        assert set(file["data/demo_0"]) == {"actions", "mask", "evil", "rollbook_t_ns"}
        assert set(file["data"].attrs) == {"ok", "total"}


def test_a_disk_without_room_is_named_before_hdf5_meets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDF5 ends the process when it cannot close a file."""
    episodes = exported(imported(write_robomimic(tmp_path / "a.hdf5"), tmp_path / "in"))
    usage = shutil.disk_usage(tmp_path)._replace(free=4 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StorageError, match="no space left"):
        exported_file(episodes, tmp_path / "b.hdf5")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.hdf5", "in"]
