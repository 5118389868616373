"""Mistakes in a call are found before anything has been created anywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.client.video import VideoWriter
from rollbook.errors import ConfigurationError, InvalidValue
from tests.adapters.pictures import decode
from tests.client.conftest import MakeClient
from tests.client.faulty_server import FaultyServer

FRAMES = np.random.default_rng(0).integers(0, 255, (3, 8, 8, 3), np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("run.mp4", "data.npz", "data.parquet"):
        (tmp_path / name).write_bytes(b"some bytes")
    (tmp_path / "empty.npz").touch()
    (tmp_path / "inside").mkdir()
    os.mkfifo(tmp_path / "pipe.npz")
    return tmp_path


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"video": "missing.mp4"}, r"video='.*missing.mp4': there is no such file"),
        ({"sensors": "inside"}, "sensors=.* is not a file"),
        ({"sensors": "pipe.npz"}, "sensors=.* is not a file"),
        ({"actions": "empty.npz"}, "actions=.* is empty"),
        ({"video": "data.npz"}, "video takes a video"),
        (
            {"video": "run.mp4"},
            "video=.*run.mp4' is not a video: expected MP4, WebM, Matroska or AVI",
        ),
        ({"sensors": "run.mp4"}, "sensors takes data"),
        ({"actions": "run.mp4"}, "actions takes data"),
    ],
)
def test_files_are_looked_at_first(
    wire: FaultyServer, client_of: MakeClient, folder: Path, given: dict[str, str], says: str
) -> None:
    files: dict[str, Any] = {kind: folder / name for kind, name in given.items()}
    with pytest.raises(ConfigurationError, match=says):
        client_of(wire).log_episode(**files)
    assert wire.seen == []


@pytest.mark.parametrize("slot", ["sensors", "actions"])
@pytest.mark.parametrize("name", ["data.npz", "data.parquet"])
def test_data_fits_both_sensors_and_actions(
    wire: FaultyServer, client_of: MakeClient, folder: Path, slot: str, name: str
) -> None:
    files: dict[str, Any] = {slot: folder / name}
    assert client_of(wire).log_episode(**files).status == "ready"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"source": "dream"}, "source='dream'"),
        ({"status": "recording"}, "status='recording'"),
        ({"name": "x" * 201}, "at most 200"),
        ({"robot": "x" * 121}, "at most 120"),
        ({"policy_version": 4}, "policy_version= has to be text"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"seed": True}, "seed=True"),
        ({"fps": -1}, "fps=-1"),
        ({"fps": float("nan")}, "fps=nan"),
        ({"fps": True}, "fps=True"),
        ({"duration_s": float("inf")}, "duration_s=inf"),
        ({"duration_s": "3"}, "duration_s='3'"),
        ({"failure_time_s": 1.0}, "status='failed'"),
        ({"failure_time_s": -1.0, "status": "failed"}, "failure_time_s=-1.0"),
        ({"tags": "night"}, "tags= has to be a list"),
        ({"tags": [1]}, "tags= has to be text"),
        ({"video": {"frames": [1]}}, "takes a file or an array of frames, not dict"),
        ({"video": b"frames"}, "takes a file or an array of frames, not bytes"),
        ({"video": FRAMES}, "video= is an array of frames: give fps= too"),
        ({"video": iter(FRAMES), "fps": 5}, "an array or a list of frames, not "),
        ({"video": FRAMES, "fps": 0}, "give fps= too"),
        ({"video": FRAMES[:0], "fps": 10}, "video= has 0 frames"),
        ({"video": [], "fps": 10}, "video= has 0 frames"),
        ({"video": FRAMES[0], "fps": 10}, r"video= is an array of shape \(8, 8, 3\)"),
        ({"video": FRAMES / 255, "fps": 10}, r"video= at row 0 is float64 .* \* 255"),
        ({"video": [FRAMES[0], FRAMES[0, 1:]], "fps": 10}, r"frame 1 is \(7, 8, 3\)"),
        ({"video": [FRAMES[0], None], "fps": 10}, "video= at row 1 is object"),
        ({"sensors": np.zeros(3)}, "sensors= takes a file or arrays by name"),
        ({"actions": [1, 2]}, "actions= takes a file or arrays by name"),
    ],
)
def test_values_are_looked_at_first(
    wire: FaultyServer, client_of: MakeClient, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        client_of(wire).log_episode(**given)
    assert wire.seen == []


@pytest.mark.parametrize(
    "given",
    [
        {"metadata": {"loss": float("nan")}},
        {"metadata": ["not", "a", "mapping"]},
        {"sensors": {"a": np.zeros(3)}},
        {"sensors": {"a": np.zeros(3)}, "t_ns": np.arange(4)},
        {"sensors": {"a": np.array([{}], object)}, "t_ns": [0]},
        {"actions": {}, "t_ns": [0]},
        {"sensors": {"a": np.zeros(3)}, "t_ns": [0, 2, 1]},
        {"actions": {"a": np.zeros(2)}, "t_ns": [1, 1]},
        {"sensors": {"a": np.zeros((0, 7))}, "t_ns": []},
        {"sensors": {"a": np.zeros(2, complex)}, "t_ns": [0, 1]},
    ],
)
def test_metadata_and_arrays_are_looked_at_first(
    wire: FaultyServer, client_of: MakeClient, given: dict[str, Any]
) -> None:
    with pytest.raises(InvalidValue):
        client_of(wire).log_episode(**given)
    assert wire.seen == []


def test_numpy_numbers_are_numbers(wire: FaultyServer, client_of: MakeClient) -> None:
    client_of(wire).log_episode(seed=np.int64(5), fps=np.float32(30), duration_s=np.int32(2))  # type: ignore[arg-type]
    [episode] = wire.episodes.values()
    assert (episode["seed"], episode["fps"], episode["duration_s"]) == (5, 30.0, 2.0)


def test_a_path_that_cannot_be_one_is_refused(wire: FaultyServer, client_of: MakeClient) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        client_of(wire).log_episode(video="nul\0byte.mp4")
    assert wire.seen == []


@pytest.mark.parametrize(
    "frames", [FRAMES, FRAMES[..., 0], list(FRAMES)], ids=["rgb", "grey", "list"]
)
def test_frames_with_a_rate_are_encoded(
    wire: FaultyServer, client_of: MakeClient, frames: Any
) -> None:
    client = client_of(wire)
    logged = client.log_episode(video=frames, fps=10)
    with client.start_episode(fps=10, artifacts=["video"]) as started:
        started.upload("video", frames)
    for episode_id in (logged.id, started.id):
        found = decode(client.episode(str(episode_id)).video())
        assert found.times == pytest.approx([0, 0.1, 0.2], abs=1e-4)
        assert (found.height, found.width) == (8, 8)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"a/value": [1, 2], "a/_t_ns": [5, 5]}, "a/_t_ns is 5 at row 1, not later than 5"),
        ({"a/value": np.zeros((0, 2)), "a/_t_ns": np.zeros(0, int)}, "a/value has 0 rows"),
        ({"a/value": [1j]}, "a/value has complex values"),
    ],
)
def test_a_file_of_doubtful_arrays_is_recorded_with_a_warning(
    wire: FaultyServer,
    client_of: MakeClient,
    tmp_path: Path,
    arrays: dict[str, Any],
    says: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It cannot be recorded again, so it is not refused as the arrays themselves would be."""
    np.savez(tmp_path / "sensors.npz", **arrays)
    assert client_of(wire).log_episode(sensors=tmp_path / "sensors.npz").status == "ready"
    assert [says in each for each in caplog.messages] == [True]


@pytest.mark.parametrize(
    ("cut", "says"), [(36, "nothing can play it: it has no index"), (-5, "it is cut short")]
)
def test_a_video_that_was_not_ended_is_recorded_with_a_warning(
    wire: FaultyServer,
    client_of: MakeClient,
    tmp_path: Path,
    cut: int,
    says: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "run.mp4"
    with VideoWriter(path, 10) as video:
        video.add(FRAMES[0])
    path.write_bytes(path.read_bytes()[:cut])
    assert client_of(wire).log_episode(video=path).status == "ready"
    assert [says in each for each in caplog.messages] == [True]
