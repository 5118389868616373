"""Episodes as Rerun recordings. The SDK is large and optional, so its tests run in an environment of their own."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rollbook
from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.rrd import RrdExporter
from rollbook.contracts.npz import read_npz
from rollbook.errors import ConfigurationError
from tests.adapters.exports.streamed_episodes import JOINTS, START, clock, episode, robot_episode
from tests.public_packages import reader_python

_ROOT = Path(rollbook.__file__).parents[2]
_PACKAGES = ("rerun-sdk==0.41.0", "msgspec>=0.21", "xxhash>=3.5", "av>=14")


def test_without_the_sdk_the_error_names_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    made = robot_episode(tmp_path / "episode", 20)
    with pytest.raises(ConfigurationError, match=r"pip install 'rollbook\[rerun\]'"):
        RrdExporter().write([made], tmp_path / "out.rrd", lambda done, total: None)
    assert [path.name for path in tmp_path.iterdir()] == ["episode"]


def test_losses_are_known_without_the_sdk(tmp_path: Path) -> None:
    arrays: dict[str, NDArray[Any]] = {
        "a/_t_ns": clock(2),
        "a/exact": np.zeros((2, 3)),
        "a/narrow": np.zeros(2, np.int16),
        "a/wide": np.zeros(2, np.int64),
        "a/map": np.zeros((2, 3, 4), np.float32),
        "a/picture": np.zeros((2, 3, 4, 3), np.uint8),
        "b/value": np.zeros(2),
    }
    made = episode(tmp_path / "e", arrays)
    losses = {loss.what: loss.reason for loss in RrdExporter().losses([made])}
    assert losses == {
        "sensors: a/narrow": "int16 becomes float64, with the same values.",
        "sensors: a/map": "Rows of shape (3, 4) become lists of one length.",
        "sensors: b": "It has no clock, so its rows have no time. It is left out.",
    }


def test_a_video_that_rerun_does_not_show_is_left_out_and_said_so(tmp_path: Path) -> None:
    made = episode(tmp_path / "e", {"a/_t_ns": clock(1)}, frames=2)
    made.files["video"].write_bytes(b"\x1a\x45\xdf\xa3....webm" + bytes(64))
    assert [loss.what for loss in RrdExporter().losses([made])] == ["video"]


# ------------------------------------------------------------------------------------- with the SDK


def run_export(made: ExportedEpisode, target: Path) -> subprocess.CompletedProcess[str]:
    python = reader_python(*_PACKAGES)
    facts = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    facts |= {"files": {kind: str(path) for kind, path in made.files.items()}}
    facts |= {"digests": dict(made.digests), "metadata": dict(made.metadata)}
    script = Path(__file__).with_name("rrd_in_own_process.py")
    # the tests are not on the path: only Rollbook and what the environment has
    return subprocess.run(
        [str(python), "-W", "error::UserWarning", str(script), json.dumps(facts), str(target)],
        env={**os.environ, "PYTHONPATH": str(_ROOT / "src"), "RERUN_ANALYTICS": "0"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def exported(made: ExportedEpisode, target: Path) -> dict[str, Any]:
    done = run_export(made, target)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[ExportedEpisode, Path, Any]:
    folder = tmp_path_factory.mktemp("rrd")
    made = robot_episode(folder / "episode")
    return made, folder / "out.rrd", exported(made, folder / "out.rrd")


@pytest.mark.slow
def test_rerun_verifies_the_file(recording: tuple[ExportedEpisode, Path, Any]) -> None:
    _, path, _ = recording
    program = reader_python(*_PACKAGES).with_name("rerun")
    done = subprocess.run([program, "rrd", "verify", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "without error" in done.stdout + done.stderr


@pytest.mark.slow
def test_values_and_times_are_those_of_the_episode(
    recording: tuple[ExportedEpisode, Path, Any],
) -> None:
    made, _, found = recording
    columns = found["columns"]
    arrays = {
        f"/{kind}/{key.lstrip('/')}": array
        for kind in ("sensors", "actions")
        for key, array in read_npz(made.files[kind]).items()
    }
    for entity in (
        "/sensors/joint_states/position",
        "/sensors/tcp/orientation",
        "/sensors/gripper/width",
        "/sensors/gripper/closed",
        "/actions/action/value",
    ):
        shown, expected = columns[f"{entity} Scalars:scalars"], arrays[entity]
        assert shown["t"] == arrays[f"{entity.rpartition('/')[0]}/_t_ns"].tolist()
        values = np.array(shown["v"]).reshape(expected.shape)
        assert np.array_equal(values, expected.astype(np.float64)), entity
    ticks = columns["/sensors/gripper/ticks rollbook:value"]
    assert ticks["type"] == "list<item: int64>"
    assert [row[0] for row in ticks["v"]] == arrays["/sensors/gripper/ticks"].tolist()
    texts = columns["/sensors/events/value TextLog:text"]["v"]
    assert [row[0] for row in texts] == arrays["/sensors/events/value"].tolist()
    pictures = np.array(columns["/sensors/wrist.camera/value Image:buffer"]["v"], np.uint8)
    assert pictures.tobytes() == arrays["/sensors/wrist.camera/value"].tobytes()
    names = columns["/sensors/joint_states/position SeriesLines:names"]["v"]
    assert names == [JOINTS]


@pytest.mark.slow
def test_a_pose_is_a_transform_too(recording: tuple[ExportedEpisode, Path, Any]) -> None:
    made, _, found = recording
    position = read_npz(made.files["sensors"])["tcp/position"].astype(np.float32)
    shown = found["columns"]["/sensors/tcp Transform3D:translation"]
    assert np.array_equal(np.array(shown["v"], np.float32)[:, 0], position)
    assert shown["t"] == (clock(50) + 7).tolist()


@pytest.mark.slow
def test_the_video_is_kept_as_it_is_with_a_time_for_every_frame(
    recording: tuple[ExportedEpisode, Path, Any],
) -> None:
    made, _, found = recording
    assert found["columns"]["/video AssetVideo:blob"]["v"] == [made.digests["video"]]
    frames = found["columns"]["/video VideoFrameReference:timestamp"]
    assert frames["t"] == [START + i * 40_000_000 for i in range(30)]
    assert [row[0] for row in frames["v"]] == [i * 40_000_000 for i in range(30)]


@pytest.mark.slow
def test_provenance_is_in_the_properties_of_the_recording(
    recording: tuple[ExportedEpisode, Path, Any],
) -> None:
    made, _, found = recording
    columns = found["columns"]
    prefix = "/__properties/rollbook"
    assert columns[f"{prefix}.episode rollbook.episode:seed"]["v"] == [["7"]]
    assert columns[f"{prefix}.episode rollbook.episode:policy_version"]["v"] == [["p-2"]]
    digest = columns[f"{prefix}.sha256 rollbook.sha256:actions"]["v"]
    assert digest == [[made.digests["actions"]]]
    [[text]] = columns[f"{prefix}.metadata rollbook.metadata:json"]["v"]
    assert json.loads(text) == made.metadata
    assert (found["recording_id"], found["application_id"]) == ("ep-1", "rollbook")
    assert found["rows"] == 50 * 4 + 5 + 3 + 30


@pytest.mark.slow
def test_names_that_would_share_an_entity_stay_apart(tmp_path: Path) -> None:
    arrays = {
        "/a/_t_ns": clock(2),
        "/a/value": np.array([1.0, 2.0]),
        "a/_t_ns": clock(2),
        "a/value": np.array([3.0, 4.0]),
        "b c/_t_ns": clock(1),
        "b c/é": np.array([5], "M8[s]"),
        "b c/raw": np.array([b"ab\0c"]),
        "b c/texts": np.array([["x", "y"]]),
    }
    found = exported(episode(tmp_path / "e", arrays), tmp_path / "out.rrd")["columns"]
    values = sorted(each["v"] for name, each in found.items() if name.endswith("Scalars:scalars"))
    assert values == [[[1.0], [2.0]], [[3.0], [4.0]]]
    assert found["/sensors/b\\ c/texts rollbook:value"]["v"] == [[["x", "y"]]]
    assert found["/sensors/b\\ c/é rollbook:value"]["type"] == "list<item: timestamp[s]>"


@pytest.mark.slow
def test_a_damaged_video_is_refused_and_leaves_no_target(tmp_path: Path) -> None:
    made = episode(tmp_path / "e", {"a/_t_ns": clock(2), "a/value": np.zeros(2)}, frames=20)
    data = bytearray(made.files["video"].read_bytes())
    # the number of frames in the table of times: the SDK would count to it
    at = data.index(b"stts") + 12
    data[at : at + 4] = b"\xff" * 4
    made.files["video"].write_bytes(data[:-100])
    done = run_export(made, tmp_path / "out.rrd")
    assert done.returncode == 1
    assert "StorageError" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["e"]
