"""Episodes become a LeRobot dataset: what comes back is what went in, or it was listed beforehand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.lerobot_export.exporter import LeRobotExporter
from rollbook.contracts.npz import read_npz, write_npz
from rollbook.errors import ConfigurationError, InvalidValue, RollbookError, TargetExists
from tests.adapters.exports.exported_episodes import clock, ignore, imported, made, stream
from tests.adapters.lerobot_datasets import TOP, WRIST, Plan, vectors, write_v2, write_v3
from tests.adapters.pictures import RED, colour_of, decode, is_close, numbered

both_versions = pytest.mark.parametrize("write", [write_v2, write_v3])
Write = Callable[..., Path]
Change = Callable[[Path], None]


def exported(
    episodes: list[ExportedEpisode], target: Path, **options: Any
) -> tuple[Path, list[str]]:
    """The dataset, and what was listed as lost, as `stream: reason`."""
    exporter = LeRobotExporter(**options)
    losses = [f"{each.what}: {each.reason}" for each in exporter.losses(episodes)]
    exporter.write(episodes, target, ignore)
    return target, losses


def info_of(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "meta" / "info.json").read_text())
    return found


def frames_of(root: Path) -> pa.Table:
    return pq.read_table(root / "data", partitioning=None)


def listed(root: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(root / "meta" / "episodes").to_pylist()
    return rows


def arrays_of(episode: ExportedEpisode) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Everything that the tables of an episode hold, bit for bit."""
    found = {}
    for kind in ("sensors", "actions"):
        if kind in episode.files:
            for key, array in read_npz(episode.files[kind]).items():
                found[f"{kind}: {key}"] = (array.dtype.str, array.shape, array.tobytes())
    return found


# --------------------------------------------------------------------------------------- round trip

_NUMBERS = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
_FLOATS = ["float16", "float32", "float64"]
_SHAPES = [(), (3,), (7,), (2, 3), (2, 1, 2)]


def _arrow(values: NDArray[Any]) -> pa.Array:
    made_of = pa.array(values.reshape(-1))
    for length in reversed(values.shape[1:]):
        made_of = pa.FixedSizeListArray.from_arrays(made_of, length)
    return made_of


@st.composite
def _plans(draw: st.DrawFn) -> Plan:
    lengths = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    kinds = st.tuples(st.sampled_from([*_NUMBERS, *_FLOATS, "text"]), st.sampled_from(_SHAPES))
    extra = draw(st.dictionaries(st.sampled_from(["a", "b.c", "observation.d", "action.e"]), kinds))
    seed = draw(st.integers(0, 2**32 - 1))

    def columns(episode: int, length: int) -> dict[str, Any]:
        rng = np.random.default_rng([seed, episode])
        found: dict[str, Any] = {}
        for name, (kind, shape) in extra.items():
            if kind == "text":
                found[name] = pa.array([f"é{rng.integers(10**6)}" for _ in range(length)])
            else:
                bits = rng.integers(0, 256, (length, *shape, np.dtype(kind).itemsize), np.uint8)
                raw = bits % 2 if kind == "bool" else bits
                found[name] = _arrow(raw.view(kind).reshape(length, *shape))
        return found

    fps = draw(st.sampled_from([10, 30, 50, 29.97, 7.5]))
    return Plan(lengths=lengths, cameras=(), fps=fps, columns=columns)


@both_versions
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=_plans())
def test_import_export_import_gives_the_same_bits(
    write: Write, plan: Plan, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("trip")
    first = imported(write(folder / "pusht", plan), folder / "first")
    root, losses = exported(first, folder / "out")
    again = imported(root, folder / "again")
    assert losses == []
    assert len(again) == len(first)
    for one, other in zip(first, again, strict=True):
        assert arrays_of(one) == arrays_of(other)
        for key in ("tasks", "channels", "outcome", "steps", "lerobot_episode_outcome"):
            assert one.metadata[key] == other.metadata[key]
        assert (one.fps, one.duration_s, one.robot) == (other.fps, other.duration_s, other.robot)


@both_versions
def test_what_cannot_come_back_the_same_is_listed(write: Write, tmp_path: Path) -> None:
    def columns(episode: int, length: int) -> dict[str, Any]:
        return {
            "one": vectors(np.zeros((length, 1), np.float32)),
            "timestamp": pa.array(np.arange(length) / 10 + 5),
        }

    plan = Plan(lengths=(4,), cameras=(), columns=columns)
    _, losses = exported(imported(write(tmp_path / "set", plan), tmp_path / "in"), tmp_path / "out")
    assert (
        "sensors: one/value: Its shape (1,) becomes a single value, as LeRobot stores it." in losses
    )
    moved = [each for each in losses if each.startswith("actions: action: Times become frame / 10")]
    assert moved[0].endswith("they move by up to 5.000000000 s.")


# ------------------------------------------------------------------------------------------- tables


def test_every_column_is_a_feature_and_every_feature_is_a_column_or_a_video(tmp_path: Path) -> None:
    root, _ = exported(
        imported(write_v3(tmp_path / "set", Plan(lengths=(5, 4))), tmp_path / "in"),
        tmp_path / "out",
    )
    info = info_of(root)
    videos = {name for name, feature in info["features"].items() if feature["dtype"] == "video"}
    assert videos == {TOP}
    assert set(frames_of(root).column_names) == set(info["features"]) - videos
    totals = {name: info[f"total_{name}"] for name in ("episodes", "frames", "tasks")}
    assert totals == {"episodes": 2, "frames": 9, "tasks": 2}
    assert info["splits"] == {"train": "0:2"}
    assert info["features"]["observation.state"]["names"] == ["a", "b", "c"]
    assert info["features"][TOP]["shape"] == [48, 64, 3]
    assert isinstance(info["fps"], int)


def test_frames_are_numbered_and_timed(tmp_path: Path) -> None:
    episodes = imported(
        write_v3(tmp_path / "set", Plan(lengths=(3, 2), cameras=(), fps=30)), tmp_path / "in"
    )
    root, _ = exported(episodes, tmp_path / "out")
    frames = frames_of(root)
    assert frames["episode_index"].to_pylist() == [0, 0, 0, 1, 1]
    assert frames["frame_index"].to_pylist() == [0, 1, 2, 0, 1]
    assert frames["index"].to_pylist() == [0, 1, 2, 3, 4]
    assert frames["task_index"].to_pylist() == [0, 0, 0, 1, 1]
    expected = np.array([0, 1, 2, 0, 1]) / 30
    assert np.abs(np.array(frames["timestamp"].to_pylist()) - expected).max() < 1e-6
    assert str(frames.schema.field("timestamp").type) == "float"


def test_pandas_finds_the_tasks_in_the_index(tmp_path: Path) -> None:
    root, _ = exported(
        imported(write_v3(tmp_path / "set", Plan(lengths=(3, 2), cameras=())), tmp_path / "in"),
        tmp_path / "out",
    )
    tasks = pd.read_parquet(root / "meta" / "tasks.parquet")
    assert [tasks.iloc[i].name for i in range(2)] == ["pick", "place"]
    assert tasks["task_index"].tolist() == [0, 1]


def test_files_and_folders_are_limited_in_size(tmp_path: Path) -> None:
    rows = 20_000
    values = np.random.default_rng(0).normal(size=(rows, 8))
    episodes = [
        made(tmp_path / f"e{i}", actions=stream("action", values + i, clock(rows, 50)), fps=50)
        for i in range(3)
    ]
    root, _ = exported(episodes, tmp_path / "out", data_file_mb=2, files_per_chunk=2)
    names = sorted(str(path.relative_to(root)) for path in (root / "data").rglob("*.parquet"))
    assert names == [
        "data/chunk-000/file-000.parquet",
        "data/chunk-000/file-001.parquet",
        "data/chunk-001/file-000.parquet",
    ]
    places = [(row["data/chunk_index"], row["data/file_index"]) for row in listed(root)]
    assert places == [(0, 0), (0, 1), (1, 0)]
    again = imported(root, tmp_path / "again")
    for i, episode in enumerate(again):
        assert np.array_equal(read_npz(episode.files["actions"])["action/value"], values + i)


def test_small_episodes_share_a_file(tmp_path: Path) -> None:
    action = np.zeros((3, 2), np.float32)
    one = made(tmp_path / "e", actions=stream("action", action, clock(3, 10)))
    root, _ = exported([replace(one, name=f"e{i}") for i in range(300)], tmp_path / "out")
    assert len(list((root / "data").rglob("*.parquet"))) == 1
    assert len(list((root / "meta" / "episodes").rglob("*.parquet"))) == 1
    assert [row["rollbook/name"] for row in listed(root)] == [f"e{i}" for i in range(300)]
    assert listed(root)[299]["dataset_to_index"] == 900


def test_every_episode_says_where_it_comes_from(tmp_path: Path) -> None:
    source = {
        **{"format": "ros2", "name": "bag", "digest": "d" * 64, "size": 9, "files": 1},
        **{"episode": "bag_0", "options": {}},
    }
    facts: dict[str, Any] = {
        "policy_version": "p1",
        "seed": 7,
        "env_version": "env-2",
        "git_sha": "abc",
    }
    actions = stream("action", np.zeros((3, 2), np.float32), clock(3, 10))
    outcome = {"__type": "robotrace.EpisodeOutcome", "success": True, "reward_total": 1.5}
    episode = made(
        tmp_path / "e",
        actions=actions,
        metadata={"source_file": source, "outcome": outcome},
        episode_id="ep_1",
        robot="arm",
        **facts,
    )
    root, losses = exported([episode], tmp_path / "out")
    [row] = listed(root)
    found = {name.removeprefix("rollbook/"): value for name, value in row.items()}
    assert found["episode_id"] == "ep_1"
    assert found["actions_sha256"] == episode.digests["actions"]
    assert found["video_sha256"] is None
    assert (found["source_format"], found["source_digest"]) == ("ros2", "d" * 64)
    assert len(found["import_key"]) == 64
    assert {name: found[name] for name in facts} == {**facts, "seed": "7"}
    assert (found["success"], found["reward_total"]) == (True, 1.5)
    assert info_of(root)["robot_type"] == "arm"
    assert [
        each for each in losses if each.startswith("policy_version, env_version, git_sha, seed:")
    ]


# ---------------------------------------------------------------------------------------- statistics


def test_statistics_are_those_of_all_frames(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    episodes: list[ExportedEpisode] = []
    states: list[NDArray[Any]] = []
    flags: list[NDArray[Any]] = []
    for i, rows in enumerate((40_000, 3)):
        state = (rng.normal(size=(rows, 3)) * 1e3 + 1e6).astype(np.float32)
        flag = rng.random(rows) > 0.3
        states.append(state.astype(np.float64))
        flags.append(flag)
        times = clock(rows, 100)
        sensors = {**stream("observation.state", state, times), **stream("ok", flag, times)}
        episodes.append(made(tmp_path / f"e{i}", sensors=sensors, fps=100))
    root, _ = exported(episodes, tmp_path / "out")
    stats = json.loads((root / "meta" / "stats.json").read_text())
    lines = listed(root)
    for name, parts in (("observation.state", states), ("ok", flags)):
        for found, values in [
            (stats[name], np.concatenate(parts)),
            *(
                ({k: row[f"stats/{name}/{k}"] for k in stats[name]}, part)
                for row, part in zip(lines, parts, strict=True)
            ),
        ]:
            flat = values.reshape(len(values), -1)
            assert found["min"] == flat.min(axis=0).tolist()
            assert found["max"] == flat.max(axis=0).tolist()
            assert np.allclose(found["mean"], flat.mean(axis=0), rtol=1e-12)
            assert np.allclose(found["std"], flat.std(axis=0), rtol=1e-9)
            assert found["count"] == [len(values)]
    assert stats["index"]["max"] == [40_002]
    assert np.isclose(stats["index"]["std"][0], np.arange(40_003).std())
    assert np.isclose(lines[0]["stats/timestamp/std"][0], (np.arange(40_000) / 100).std())
    assert lines[1]["stats/episode_index/min"] == lines[1]["stats/episode_index/max"] == [1]


def test_statistics_of_pictures_are_one_number_for_each_colour(tmp_path: Path) -> None:
    plan = Plan(lengths=(4, 3))
    root, _ = exported(
        imported(write_v2(tmp_path / "set", plan), tmp_path / "in"), tmp_path / "out"
    )
    stats = json.loads((root / "meta" / "stats.json").read_text())[TOP]
    shown = np.stack(decode(root / "videos" / TOP / "chunk-000" / "file-000.mp4").pictures) / 255
    assert np.shape(stats["mean"]) == np.shape(stats["std"]) == (3, 1, 1)
    assert np.allclose(np.ravel(stats["mean"]), shown.mean(axis=(0, 1, 2)))
    assert np.allclose(np.ravel(stats["std"]), shown.std(axis=(0, 1, 2)))
    assert np.allclose(np.ravel(stats["max"]), shown.max(axis=(0, 1, 2)))
    assert stats["count"] == [7]


def test_values_that_are_not_finite_do_not_stop_the_export(tmp_path: Path) -> None:
    state = np.array([[1, np.nan, 0], [3, 2, np.inf]], np.float32)
    sensors = stream("observation.state", state, clock(2, 10))
    root, losses = exported([made(tmp_path / "e", sensors=sensors)], tmp_path / "out")
    stats = json.loads((root / "meta" / "stats.json").read_text())["observation.state"]
    assert stats["mean"][0] == 2
    assert np.isnan(stats["mean"][1])
    assert stats["max"][2] == np.inf
    assert losses == []


# -------------------------------------------------------------------------------------------- videos


def test_a_single_camera_is_copied_without_encoding(tmp_path: Path) -> None:
    """Its frames refer to later ones, and its key frames are far apart."""
    episodes = imported(write_v2(tmp_path / "set", Plan()), tmp_path / "in")
    root, losses = exported(episodes, tmp_path / "out")
    assert losses == []
    shown = decode(root / "videos" / TOP / "chunk-000" / "file-000.mp4")
    sources = [picture for each in episodes for picture in decode(each.files["video"]).pictures]
    assert shown.numbers == list(range(28))
    assert np.array_equal(np.stack(shown.pictures), np.stack(sources))
    assert np.allclose(shown.times, np.arange(28) / 10, atol=1e-9)
    rows = listed(root)
    ends = [
        (row[f"videos/{TOP}/from_timestamp"], row[f"videos/{TOP}/to_timestamp"]) for row in rows
    ]
    assert np.allclose(ends, [(0, 1.2), (1.2, 1.9), (1.9, 2.8)])


def test_cameras_side_by_side_are_cut_apart(tmp_path: Path) -> None:
    plan = Plan(lengths=(5, 4), cameras=(TOP, WRIST))
    episodes = imported(write_v3(tmp_path / "set", plan), tmp_path / "in")
    root, losses = exported(episodes, tmp_path / "out")
    assert sum("cut out of the picture" in each for each in losses) == 4
    for camera, width in ((TOP, 64), (WRIST, 80)):
        shown = decode(root / "videos" / camera / "chunk-000" / "file-000.mp4")
        assert shown.numbers == list(range(9))
        assert shown.width == width == info_of(root)["features"][camera]["shape"][1]
    assert is_close(
        colour_of(decode(root / "videos" / TOP / "chunk-000" / "file-000.mp4").pictures[3]), RED
    )


def test_videos_that_differ_in_their_coding_are_in_files_of_their_own(tmp_path: Path) -> None:
    first = imported(write_v2(tmp_path / "one", Plan(lengths=(4,))), tmp_path / "in")
    second = imported(write_v3(tmp_path / "two", Plan(lengths=(2, 3))), tmp_path / "in")
    root, losses = exported([*first, *second], tmp_path / "out", files_per_chunk=1)
    assert losses == []
    places = [
        (row[f"videos/{TOP}/chunk_index"], row[f"videos/{TOP}/file_index"]) for row in listed(root)
    ]
    assert places == [(0, 0), (1, 0), (1, 0)]
    assert decode(root / "videos" / TOP / "chunk-000" / "file-000.mp4").numbers == [0, 1, 2, 3]
    assert decode(root / "videos" / TOP / "chunk-001" / "file-000.mp4").numbers == [0, 1, 2, 3, 4]
    assert [e.metadata["steps"] for e in imported(root, tmp_path / "again")] == [4, 2, 3]


def test_a_video_of_another_rate_shows_the_nearest_frame(tmp_path: Path) -> None:
    pictures = [numbered(i) for i in range(20)]
    actions = stream("action", np.arange(10.0), clock(10, 10))
    episode = made(tmp_path / "e", actions=actions, video=pictures, video_fps=20)
    root, losses = exported([episode], tmp_path / "out")
    camera = "observation.images.video"
    shown = decode(root / "videos" / camera / "chunk-000" / "file-000.mp4")
    assert shown.numbers == list(range(0, 20, 2))
    assert "video: 10 of 20 frames are left out." in losses
    assert any("encoded again" in each for each in losses)


def test_the_frame_after_the_last_action_is_left_out_without_encoding(tmp_path: Path) -> None:
    pictures = [numbered(i) for i in range(6)]
    times = clock(6, 10)
    sensors = {
        **stream("observation.state", np.arange(6.0), times),
        **stream("reward", np.arange(5.0) / 2, times[1:]),
    }
    actions = stream("command", np.arange(5.0), times[:5])
    episode = made(tmp_path / "e", sensors=sensors, actions=actions, video=pictures)
    root, losses = exported([episode], tmp_path / "out")
    frames = frames_of(root)
    assert frames["observation.state"].to_pylist() == [0, 1, 2, 3, 4]
    assert frames["action"].to_pylist() == [0, 1, 2, 3, 4]
    assert frames["next.reward"].to_pylist() == [0, 0.5, 1, 1.5, 2]
    shown = decode(root / "videos" / "observation.images.video" / "chunk-000" / "file-000.mp4")
    source = decode(episode.files["video"])
    assert np.array_equal(np.stack(shown.pictures), np.stack(source.pictures[:5]))
    assert "video: 1 of 6 frames are left out." in losses
    assert "actions: command/value: Its name becomes action." in losses
    assert "sensors: reward/value: Its name becomes next.reward." in losses
    assert any("1 of 6 rows lie before the first frame or behind" in each for each in losses)
    assert not any("encoded again" in each for each in losses)


def test_a_file_of_video_ends_before_its_times_are_too_coarse(tmp_path: Path) -> None:
    """Readers compare times as float32. Behind 1024 s these are more than 1e-4 s apart."""
    pictures = [np.full((16, 16, 3), i % 7 * 30, np.uint8) for i in range(350)]
    episodes = [
        made(
            tmp_path / f"e{i}",
            actions=stream("action", np.arange(350.0), clock(350, 0.5)),
            video=pictures,
            video_fps=0.5,
            fps=0.5,
        )
        for i in range(2)
    ]
    root, _ = exported(episodes, tmp_path / "out")
    assert [row["videos/observation.images.video/file_index"] for row in listed(root)] == [0, 1]
    assert info_of(root)["features"]["timestamp"]["dtype"] == "float64"
    assert frames_of(root)["timestamp"].to_pylist()[349] == 698


# -------------------------------------------------------------------------------------------- clocks


def test_streams_of_other_rates_come_onto_the_frames(tmp_path: Path) -> None:
    fast = np.arange(100)
    slow_t = np.array([0, 400, 900], np.int64) * 1_000_000
    sensors = {
        **stream("imu", fast, clock(100, 100)),
        **stream("slow", np.array([1.0, 2.0, 3.0]), slow_t),
    }
    actions = stream("action", np.arange(10.0), clock(10, 10))
    episode = made(tmp_path / "e", sensors=sensors, actions=actions)
    root, losses = exported([episode], tmp_path / "near")
    assert frames_of(root)["imu"].to_pylist() == list(range(0, 100, 10))
    assert frames_of(root)["slow"].to_pylist() == [1, 1, 1, 2, 2, 2, 2, 3, 3, 3]
    [about] = [each for each in losses if each.startswith("sensors: slow: ")]
    assert "3 rows come onto 10 frames at 10 fps" in about
    assert "largest time error is 0.200000 s" in about
    last, losses = exported([episode], tmp_path / "last", resample="last")
    assert frames_of(last)["slow"].to_pylist() == [1, 1, 1, 1, 2, 2, 2, 2, 2, 3]
    [about] = [each for each in losses if each.startswith("sensors: slow: ")]
    assert "last row before it. The largest time error is 0.400000 s" in about


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_frame_takes_the_row_that_a_search_over_all_times_finds(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("nearest")
    steps = data.draw(st.lists(st.integers(1, 400), min_size=1, max_size=60))
    times = np.cumsum(steps).astype(np.int64) * 1_000_000
    how = data.draw(st.sampled_from(["nearest", "last"]))
    episode = made(
        folder / "e",
        sensors=stream("s", np.arange(len(times)), times),
        actions=stream("action", np.arange(20.0), clock(20, 10)),
    )
    root, _ = exported([episode], folder / "out", resample=how)
    grid = np.rint(np.arange(20) / 10 * 1e9).astype(np.int64)
    away = np.abs(times[None, :] - grid[:, None])
    if how == "last":
        before = times[None, :] <= grid[:, None]
        away = np.where(before | ~before.any(axis=1, keepdims=True), away, np.iinfo(np.int64).max)
    taken = np.array(frames_of(root)["s"].to_pylist())
    assert np.array_equal(away[np.arange(20), taken], away.min(axis=1))


def test_a_rate_that_only_the_times_show_is_found(tmp_path: Path) -> None:
    actions = stream("action", np.arange(5.0), clock(5, 20))
    root, losses = exported([made(tmp_path / "e", actions=actions, fps=None)], tmp_path / "out")
    assert info_of(root)["fps"] == 20
    assert losses == []


def test_another_rate_can_be_chosen(tmp_path: Path) -> None:
    actions = stream("action", np.arange(9.0), clock(9, 20))
    root, losses = exported(
        [made(tmp_path / "e", actions=actions, fps=20)], tmp_path / "out", fps=5
    )
    assert frames_of(root)["action"].to_pylist() == [0, 4, 8]
    assert "9 rows come onto 3 frames at 5 fps" in losses[0]


# ------------------------------------------------------------------------------------ types and names


def test_types_that_lerobot_has_no_name_for_are_listed(tmp_path: Path) -> None:
    t = clock(2, 10)
    sensors = {
        **stream("time", np.array([1, 2], "M8[ms]"), t),
        **stream("bytes", np.array([b"a", b"b"]), t),
        **stream("texts", np.array([["a", "b"], ["c", "d"]]), t),
        **stream("wide", np.array(["ab", "c"], "U9"), t),
        **stream("none", np.zeros((2, 0)), t),
        **stream("deep", np.arange(128.0).reshape(2, 2, 2, 2, 2, 2, 2), t),
        **{"arm/left/position": np.arange(2.0), "arm/left/_t_ns": t},
    }
    root, losses = exported([made(tmp_path / "e", sensors=sensors)], tmp_path / "out")
    frames = frames_of(root)
    assert frames["time"].to_pylist() == [1, 2]
    assert np.array_equal(np.array(frames["deep"].to_pylist()), np.arange(128.0).reshape(2, 64))
    assert frames["arm.left.position"].to_pylist() == [0, 1]
    assert not {"bytes", "texts", "none"} & set(frames.column_names)
    about = {each.split(": ")[1].partition("/value")[0] for each in losses}
    assert about == {"time", "bytes", "texts", "wide", "none", "deep", "arm/left/position"}


def test_streams_can_be_chosen_and_renamed(tmp_path: Path) -> None:
    t = clock(2, 10)
    sensors = {
        **{"arm/position": np.ones((2, 3)), "arm/velocity": np.ones((2, 3)), "arm/_t_ns": t},
        **stream("imu", np.zeros(2), t),
    }
    actions = {
        "left/value": np.zeros(2),
        "left/_t_ns": t,
        "right/value": np.ones(2),
        "right/_t_ns": t,
    }
    metadata = {"channels": {"arm/position": ["x", "y", "z"]}}
    episode = made(tmp_path / "e", sensors=sensors, actions=actions, metadata=metadata)
    root, losses = exported(
        [episode],
        tmp_path / "out",
        only=("arm/position", "left", "right"),
        rename=("arm/position=observation.state",),
    )
    names = set(frames_of(root).column_names) - {"timestamp", "frame_index", "episode_index"}
    assert names - {"index", "task_index"} == {"observation.state", "action.left", "action.right"}
    assert info_of(root)["features"]["observation.state"]["names"] == ["x", "y", "z"]
    assert "sensors: imu/value: It was not chosen by only. It is left out." in losses


def test_sensors_do_not_take_the_names_of_actions_or_of_columns_of_lerobot(tmp_path: Path) -> None:
    t = clock(2, 10)
    sensors = {**stream("action", np.zeros(2), t), **stream("timestamp", np.ones(2), t)}
    root, losses = exported([made(tmp_path / "e", sensors=sensors)], tmp_path / "out")
    assert {"sensor.action", "sensor.timestamp"} <= set(frames_of(root).column_names)
    assert len(losses) == 2


def test_episodes_without_a_task_and_with_several_are_listed(tmp_path: Path) -> None:
    actions = stream("action", np.zeros(2), clock(2, 10))
    none = made(tmp_path / "none", actions=actions, metadata={"tasks": []})
    two = made(tmp_path / "two", actions=actions, metadata={"tasks": ["lift", "place"]})
    root, losses = exported([none, two], tmp_path / "out", task="move")
    assert [row["tasks"] for row in listed(root)] == [["move"], ["lift", "place"]]
    assert frames_of(root)["task_index"].to_pylist() == [0, 0, 1, 1]
    assert [each.partition(":")[0] for each in losses] == ["tasks", "tasks"]


# ------------------------------------------------------------------------------------------ refusals


def _states(
    folder: Path, name: str, width: int = 3, rows: int = 4, **facts: Any
) -> ExportedEpisode:
    sensors = stream("observation.state", np.zeros((rows, width), np.float32), clock(rows, 10))
    return made(folder / name, sensors=sensors, **facts)


def test_episodes_that_differ_are_refused_by_name(tmp_path: Path) -> None:
    one, other = _states(tmp_path, "one"), _states(tmp_path, "other", width=4)
    with pytest.raises(ConfigurationError, match=r"one and other differ in observation.state"):
        LeRobotExporter().losses([one, other])
    with pytest.raises(ConfigurationError, match="one has 10 fps, slow has 5"):
        LeRobotExporter().losses([one, _states(tmp_path, "slow", fps=5.0)])
    channels = [
        _states(tmp_path, f"c{i}", metadata={"channels": {"observation.state": names}})
        for i, names in enumerate((["x", "y", "z"], ["z", "y", "x"]))
    ]
    with pytest.raises(ConfigurationError, match="differ in the channels of observation"):
        LeRobotExporter().losses(channels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": ("observation.stat",)}, "did you mean observation.state"),
        ({"rename": ("observation.state",)}, "write STREAM=FEATURE"),
        ({"rename": ("observation.state=a/b",)}, "a slash"),
        ({"rename": ("observation.state=index",)}, "LeRobot fills"),
        ({"rename": ("nothing=a",)}, "rename 'nothing'"),
        ({"fps": 0.0}, "fps=0.0"),
        ({"fps": 5000.0}, "fps=5000.0"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LeRobotExporter(**options).losses([_states(tmp_path, "e")])


def test_sizes_below_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="data_mb=0"):
        LeRobotExporter(data_file_mb=0).write([_states(tmp_path, "e")], tmp_path / "out", ignore)


def test_no_episode_no_rate_and_no_stream_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no episode"):
        LeRobotExporter().losses([])
    times = np.array([0, 10, 11, 40], np.int64)
    uneven = made(tmp_path / "uneven", sensors=stream("s", np.zeros(4), times), fps=None)
    with pytest.raises(ConfigurationError, match="uneven has no frame rate"):
        LeRobotExporter().losses([uneven])
    nothing = made(tmp_path / "nothing", sensors=stream("s", np.zeros((2, 0)), clock(2, 10)))
    with pytest.raises(ConfigurationError, match="nothing: none of its streams"):
        LeRobotExporter().losses([nothing])
    namesake = _states(tmp_path, "other")
    with pytest.raises(ConfigurationError, match="nothing: none of its streams"):
        LeRobotExporter().losses([replace(namesake, name="nothing"), nothing])


def test_two_streams_of_one_name_are_refused(tmp_path: Path) -> None:
    t = clock(2, 10)
    sensors = {**stream("a/b", np.zeros(2), t), **stream("a.b", np.zeros(2), t)}
    with pytest.raises(ConfigurationError, match="would both be a"):
        LeRobotExporter().losses([made(tmp_path / "e", sensors=sensors)])


def test_a_clock_that_falls_and_one_that_never_ends_are_refused(tmp_path: Path) -> None:
    falls = made(
        tmp_path / "falls", sensors=stream("s", np.zeros(3), np.array([0, 5, 5], np.int64))
    )
    with pytest.raises(InvalidValue, match="later than the row before, at 5 ns"):
        LeRobotExporter().losses([falls])
    ends = np.array([-(2**61), 2**61], np.int64)
    endless = made(tmp_path / "endless", sensors=stream("s", np.zeros(2), ends))
    with pytest.raises(ConfigurationError, match="at most 10000000 are written"):
        LeRobotExporter().losses([endless])
    ends = np.array([-(2**63), 2**63 - 1], np.int64)
    apart = made(tmp_path / "apart", sensors=stream("s", np.zeros(2), ends))
    with pytest.raises(InvalidValue, match="expected times from"):
        LeRobotExporter().losses([apart])


@pytest.mark.parametrize(
    "tiles",
    [
        [{"camera": "a", "x": 0, "y": 0, "width": 999, "height": 48}],
        [{"camera": "a", "x": -1, "y": 0, "width": 9, "height": 9}],
        [{"camera": "a", "x": 0, "y": 0, "width": 0, "height": 9}],
        [{"camera": "a", "x": True, "y": 0, "width": 9, "height": 9}],
        [{"camera": "", "x": 0, "y": 0, "width": 9, "height": 9}],
        [{"camera": "a", "x": 0, "y": 0, "width": 8, "height": 8}] * 2,
        ["a"],
    ],
)
def test_cameras_that_are_not_in_the_picture_are_refused(tmp_path: Path, tiles: list[Any]) -> None:
    actions = stream("action", np.zeros(3), clock(3, 10))
    pictures = [numbered(i) for i in range(3)]
    episode = made(
        tmp_path / "e", actions=actions, video=pictures, metadata={"video_cameras": tiles}
    )
    with pytest.raises(RollbookError, match="video_cameras in its metadata"):
        LeRobotExporter().losses([episode])


def test_the_name_of_a_camera_stays_inside_of_the_dataset(tmp_path: Path) -> None:
    actions = stream("action", np.zeros(3), clock(3, 10))
    pictures = [numbered(i) for i in range(3)]
    tile = {"camera": "../../../evil", "x": 0, "y": 0, "width": 64, "height": 48}
    episode = made(
        tmp_path / "e", actions=actions, video=pictures, metadata={"video_cameras": [tile]}
    )
    root, _ = exported([episode], tmp_path / "out")
    assert [path.name for path in (root / "videos").iterdir()] == [
        "observation.images..........evil"
    ]
    for name in ("..", "."):
        bad = {**tile, "camera": name}
        hostile = replace(episode, metadata={"adapter": "lerobot", "video_cameras": [bad]})
        with pytest.raises(RollbookError, match="cannot be the name"):
            LeRobotExporter().losses([hostile])


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _scramble(path: Path) -> None:
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 200] = bytes(200)
    path.write_bytes(data)


def _replace(path: Path) -> None:
    path.write_bytes(b"something else")


@pytest.mark.parametrize("kind", ["sensors", "actions", "video"])
@pytest.mark.parametrize("change", [_cut, _replace, Path.unlink])
def test_damaged_files_give_errors_of_rollbook_and_no_dataset(
    tmp_path: Path, kind: Any, change: Change
) -> None:
    [episode] = imported(write_v2(tmp_path / "set", Plan(lengths=(5,))), tmp_path / "in")
    change(episode.files[kind])
    with pytest.raises(RollbookError):
        LeRobotExporter().write([episode], tmp_path / "out", ignore)
    assert not list(tmp_path.glob("*out*"))


def test_damaged_pictures_give_an_error_or_come_back(tmp_path: Path) -> None:
    """A decoder hides some damage. It never ends in an error of the library."""
    [episode] = imported(write_v2(tmp_path / "set", Plan(lengths=(5,))), tmp_path / "in")
    _scramble(episode.files["video"])
    try:
        LeRobotExporter().write([episode], tmp_path / "out", ignore)
    except RollbookError:
        assert not list(tmp_path.glob("*out*"))


def test_text_that_is_not_unicode_is_refused(tmp_path: Path) -> None:
    sensors = stream("note", np.array(["a", "\ud800"]), clock(2, 10))
    episode = made(tmp_path / "e", sensors=sensors)
    with pytest.raises(InvalidValue, match="text of Unicode characters"):
        LeRobotExporter().write([episode], tmp_path / "out", ignore)


@pytest.mark.parametrize("where", ["task", "name", "channel", "metadata"])
def test_half_characters_give_an_error_of_rollbook(tmp_path: Path, where: str) -> None:
    half = "\ud800"
    given: dict[str, dict[str, Any]] = {
        "task": {"tasks": [half]},
        "channel": {"channels": {"observation.state": [half] * 3}},
        "metadata": {"note": half},
        "name": {},
    }
    episode = _states(tmp_path, "e", metadata=given[where])
    if where == "name":
        episode = replace(episode, name=half)
    if where == "metadata":  # JSON has a way to write it
        exported([episode], tmp_path / "out")
        return
    with pytest.raises(InvalidValue, match="Unicode characters"):
        LeRobotExporter().write([episode], tmp_path / "out", ignore)
    assert not list(tmp_path.glob("*out*"))


def test_an_existing_target_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(TargetExists):
        LeRobotExporter().write([_states(tmp_path, "e")], tmp_path / "out", ignore)
    assert list((tmp_path / "out").iterdir()) == []


def test_an_interrupted_export_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LeRobotExporter().write([_states(tmp_path, "e")], tmp_path / "out", interrupted)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e"]


# ------------------------------------------------------------------------------------------- packing


def test_packed_arrays_are_read_in_order(tmp_path: Path) -> None:
    """Files of other tools may be compressed: their rows are reached only from the front."""
    rows = 3000
    values = np.random.default_rng(0).normal(size=(rows, 300))
    arrays: dict[str, Any] = {
        **stream("fast", values, clock(rows, 100)),
        **stream("same", values, clock(rows, 50)),
    }
    episode = made(tmp_path / "e", sensors=arrays, fps=50)
    np.savez_compressed(episode.files["sensors"], **arrays)
    root, _ = exported([episode], tmp_path / "out", only=("fast", "same"))
    frames = frames_of(root)
    fast = np.array(frames["fast"].to_pylist())
    assert np.array_equal(fast[:1500], values[::2])
    assert np.array_equal(np.array(frames["same"].to_pylist()), values)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_recording(tmp_path: Path) -> None:
    script = r"""
import re, sys
from pathlib import Path
from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.lerobot_export.exporter import LeRobotExporter
folder = Path(sys.argv[1])
files = {"actions": folder / "actions.npz"}
episode = ExportedEpisode(name="e", source="sim", files=files, digests={}, metadata={}, fps=100.0)
LeRobotExporter().write([episode], folder / "out", lambda done, of: None)
print(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
"""
    peaks = []
    for rows in (200_000, 2_000_000):
        folder = tmp_path / str(rows)
        folder.mkdir()
        times = np.arange(rows, dtype=np.int64) * 10_000_000
        values = np.random.default_rng(0).normal(size=(rows, 16)).astype(np.float32)
        write_npz(folder / "actions.npz", stream("action", values, times))
        done = subprocess.run(
            [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout) / 1024)
    assert peaks[1] - peaks[0] < 40, f"{peaks} MB; the longer one has 128 MB of numbers more"
