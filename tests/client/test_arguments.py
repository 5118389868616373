"""Mistakes in a call are found before anything has been created anywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.errors import ConfigurationError, InvalidValue
from tests.client.conftest import MakeClient
from tests.client.faulty_server import FaultyServer


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
        ({"video": {"frames": [1]}}, "encode the frames"),
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
