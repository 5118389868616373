"""Episodes as MCAP files: every value and time comes back, Foxglove finds its schemas, and one episode always gives the
same bytes."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import pytest
from foxglove_schemas_protobuf.JointStates_pb2 import JointStates
from foxglove_schemas_protobuf.Log_pb2 import Log
from foxglove_schemas_protobuf.PoseInFrame_pb2 import PoseInFrame
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from mcap.exceptions import McapError
from mcap.reader import make_reader
from numpy.typing import NDArray

from rollbook.adapters.exports import mcap as exporting
from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.adapters.exports.mcap import McapExporter
from rollbook.adapters.mcap_stream import McapField, McapStream
from rollbook.adapters.ros2 import Ros2Importer
from rollbook.contracts.npz import read_npz
from rollbook.errors import (
    ConfigurationError,
    InvalidValue,
    RollbookError,
    StorageError,
    TargetExists,
)
from tests.adapters.exports.mcap_contents import Contents, columns_of, read
from tests.adapters.exports.streamed_episodes import (
    JOINTS,
    START,
    clock,
    episode,
    robot_episode,
    write_video,
)
from tests.public_packages import reader_python


def exported(made: ExportedEpisode, target: Path, **options: Any) -> Contents:
    McapExporter(**options).write([made], target, lambda done, total: None)
    return read(target)


def assert_equal(found: dict[str, NDArray[Any]], expected: dict[str, NDArray[Any]]) -> None:
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        assert (found[key].dtype, found[key].shape) == (array.dtype, array.shape), key
        assert found[key].tobytes() == array.tobytes(), key


# ------------------------------------------------------------------------------------------- values


def test_every_array_comes_back_bit_for_bit(tmp_path: Path) -> None:
    made = robot_episode(tmp_path / "episode")
    found = exported(made, tmp_path / "out.mcap")
    assert_equal(found.arrays("sensors"), read_npz(made.files["sensors"]))
    assert_equal(found.arrays("actions"), read_npz(made.files["actions"]))


def test_only_the_video_and_streams_without_rows_do_not_come_back(tmp_path: Path) -> None:
    made = robot_episode(tmp_path / "episode")
    assert [loss.what for loss in McapExporter().losses([made])] == ["video"]
    empty = episode(tmp_path / "empty", {"a/_t_ns": np.zeros(0, np.int64)})
    assert [loss.what for loss in McapExporter().losses([empty])] == ["sensors: a"]


@pytest.mark.parametrize("schemas", ["foxglove", "exact"])
def test_texts_narrower_than_their_array_and_streams_without_a_name_are_listed(
    tmp_path: Path, schemas: Literal["foxglove", "exact"]
) -> None:
    arrays = {
        **{f"{name}/_t_ns": clock(2) for name in ("log", "grid", "")},
        "log/value": np.array(["a", "bb"], "<U9"),
        "grid/words": np.array([["a"], ["ü"]], "<U4"),
        "/x": np.zeros(2),
    }
    exporter = McapExporter(schemas=schemas)
    losses = {loss.what: loss.reason for loss in exporter.losses([episode(tmp_path / "e", arrays)])}
    assert losses.keys() == {"sensors: log/value", "sensors: grid/words", "sensors: "}
    assert "at most 2 characters long, so the width of 9" in losses["sensors: log/value"]
    exact = {**arrays, "log/value": arrays["log/value"].astype("<U2")}
    exact = {k: v for k, v in exact.items() if k.startswith("log")}
    assert exporter.losses([episode(tmp_path / "exact", exact)]) == []


def test_exact_schemas_use_no_schema_of_foxglove(tmp_path: Path) -> None:
    made = robot_episode(tmp_path / "episode")
    found = exported(made, tmp_path / "out.mcap", schemas="exact")
    named = {name.partition(".")[0] for topic, name in found.schemas.items() if topic != "video"}
    assert named == {"rollbook"}
    assert_equal(found.arrays("sensors"), read_npz(made.files["sensors"]))
    with pytest.raises(ConfigurationError, match="joint states"):
        McapExporter(schemas="exact", joints=("tcp",)).losses([made])


def test_streams_get_the_schemas_of_foxglove_where_these_keep_every_value(tmp_path: Path) -> None:
    found = exported(robot_episode(tmp_path / "episode"), tmp_path / "out.mcap")
    assert found.profile == ""
    assert found.schemas == {
        "/joint_states": "foxglove.JointStates",
        "tcp": "foxglove.PoseInFrame",
        "events": "foxglove.Log",
        "wrist.camera": "rollbook.wrist_camera",
        "gripper": "rollbook.gripper",
        "action": "rollbook.action",
        "video": "foxglove.CompressedVideo",
    }
    first = found.messages["/joint_states"][0]
    assert [joint.name for joint in first.joints] == JOINTS
    assert first.timestamp.ToNanoseconds() == START
    assert not first.joints[0].HasField("effort")
    assert found.messages["tcp"][0].frame_id == "world"
    assert found.messages["events"][1].message == "grasp 1 é"


def test_a_message_is_written_at_the_time_of_its_row_and_in_the_order_of_time(
    tmp_path: Path,
) -> None:
    found = exported(robot_episode(tmp_path / "episode"), tmp_path / "out.mcap")
    assert found.times["tcp"] == (clock(50) + 7).tolist()
    assert found.order == sorted(found.order)
    assert found.sequences["tcp"] == list(range(50))


_TYPES = (
    "f8",
    "f4",
    "f2",
    "i1",
    "i2",
    "i4",
    "i8",
    "u1",
    "u2",
    "u4",
    "u8",
    "b1",
    "M8[ns]",
    "m8[us]",
)
_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)


@st.composite
def streams(draw: st.DrawFn) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for namespace in draw(st.lists(st.sampled_from(["a", "/b/c", "a b", "ä", "A"]), unique=True)):
        rows = draw(st.integers(1, 4))
        steps = draw(st.lists(st.integers(1, 2**59), min_size=rows, max_size=rows))
        arrays[f"{namespace}/_t_ns"] = np.cumsum(np.array(steps, np.int64)) - steps[0]
        names = st.sampled_from(["position", "velocity", "orientation", "x y", "x_y", "9", "value"])
        for name in draw(st.lists(names, unique=True, max_size=3)):
            shape = draw(npst.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
            dtype = np.dtype(draw(st.sampled_from(_TYPES)))
            elements = _TEXT if draw(st.integers(0, 9)) == 0 else None
            if elements is not None:
                values = draw(npst.arrays("U5", (rows, *shape), elements=elements))
            else:
                values = draw(npst.arrays(dtype, (rows, *shape)))
            arrays[f"{namespace}/{name}"] = values
    return arrays


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(arrays=streams())
def test_any_stream_comes_back_bit_for_bit(
    arrays: dict[str, NDArray[Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    names = {"channels": {"a": ["j1", "j2"], "/b/c": ["j1"]}}
    made = episode(folder, arrays or {"e/_t_ns": clock(1)}, metadata=names)
    found = exported(made, folder / "out.mcap")
    assert_equal(found.arrays("sensors"), read_npz(made.files["sensors"]))


@settings(max_examples=50, deadline=None)
@given(
    t_ns=st.lists(st.integers(0, 2**62), min_size=1, max_size=5, unique=True).map(sorted),
    seed=st.integers(0, 2**32 - 1),
)
def test_messages_made_in_blocks_are_those_of_the_protobuf_library(
    t_ns: list[int], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("blocks")
    random, rows = np.random.default_rng(seed), len(t_ns)
    values = random.choice([0.0, -0.0, 1.5, np.nan, np.inf, 1e-300], (rows, 7))
    texts = np.array(["x" * (i * 90) + "é" for i in range(rows)])
    times = np.array(t_ns, np.int64)
    arrays = {
        "joints/_t_ns": times,
        "joints/effort": values[:, :2],
        "joints/position": values[:, 2:4],
        "pose/_t_ns": times,
        "pose/value": values,
        "log/_t_ns": times,
        "log/value": texts,
    }
    channels = {"joints": ["left", "right"], "pose": ["qw", "qx", "qy", "qz", "x", "y", "z"]}
    found = exported(episode(folder, arrays, metadata={"channels": channels}), folder / "o.mcap")
    for row, t in enumerate(t_ns):
        joints = JointStates()
        joints.timestamp.FromNanoseconds(t)
        for i, name in enumerate(("left", "right")):
            joints.joints.add(name=name, position=values[row, 2 + i], effort=values[row, i])
        assert found.raw["joints"][row] == joints.SerializeToString()
        log = Log(level=Log.INFO, message=texts[row], name="log")
        log.timestamp.FromNanoseconds(t)
        assert found.raw["log"][row] == log.SerializeToString()
        pose = PoseInFrame(frame_id="world")
        pose.timestamp.FromNanoseconds(t)
        qw, qx, qy, qz, x, y, z = values[row]
        pose.pose.position.x, pose.pose.position.y, pose.pose.position.z = x, y, z
        turn = pose.pose.orientation
        turn.x, turn.y, turn.z, turn.w = qx, qy, qz, qw
        # zeros are written out in the block, which the library leaves out
        parsed = PoseInFrame.FromString(found.raw["pose"][row])
        assert parsed.SerializeToString() == pose.SerializeToString()


def test_rows_of_several_blocks_are_joined(tmp_path: Path) -> None:
    rows = 9001
    t = clock(rows, start=0, step=1)
    arrays = {"a/_t_ns": t, "a/value": np.arange(rows), "b/_t_ns": t[::2], "b/value": t[::2] * 3}
    found = exported(episode(tmp_path / "e", arrays), tmp_path / "out.mcap")
    assert_equal(found.arrays("sensors"), arrays)


def test_packed_archives_are_read_too(tmp_path: Path) -> None:
    rows = 9001
    arrays = {"a/_t_ns": clock(rows), "a/value": np.arange(rows * 3.0).reshape(rows, 3)}
    made = episode(tmp_path / "e", arrays)
    np.savez_compressed(made.files["sensors"], **arrays)  # type: ignore[arg-type]
    found = exported(made, tmp_path / "out.mcap")
    assert_equal(found.arrays("sensors"), arrays)


def test_poses_in_a_list_are_poses_in_a_frame(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = {
        "hands/_t_ns": clock(4),
        "hands/translation": random.normal(size=(4, 2, 3)),
        "hands/rotation": random.normal(size=(4, 2, 4)),
    }
    found = exported(episode(tmp_path / "e", arrays), tmp_path / "out.mcap", frame="base")
    assert found.schemas == {"hands": "foxglove.PosesInFrame"}
    assert found.messages["hands"][0].frame_id == "base"
    assert len(found.messages["hands"][0].poses) == 2
    assert_equal(found.arrays("sensors"), arrays)


@pytest.mark.parametrize(
    ("fields", "channels"),
    [
        ({"position": np.zeros((2, 3), np.float32)}, JOINTS),
        ({"position": np.zeros((2, 3)), "stamp": np.zeros(2)}, JOINTS),
        ({"position": np.zeros((2, 3))}, []),
        ({"position": np.zeros((2, 3))}, JOINTS[:2]),
        ({"position": np.zeros((2, 3))}, ["x", "y", "z"]),
        ({"value": np.zeros((2, 3))}, JOINTS),
        ({"position": np.zeros((2, 3)), "orientation": np.zeros((2, 3))}, []),
        ({"position": np.zeros((2, 0, 3)), "orientation": np.zeros((2, 0, 4))}, []),
    ],
)
def test_what_a_schema_of_foxglove_would_change_gets_its_own_schema(
    tmp_path: Path, fields: dict[str, NDArray[Any]], channels: list[str]
) -> None:
    arrays = {"arm/_t_ns": clock(2), **{f"arm/{name}": array for name, array in fields.items()}}
    made = episode(tmp_path / "e", arrays, metadata={"channels": {"arm": channels}})
    found = exported(made, tmp_path / "out.mcap")
    assert found.schemas == {"arm": "rollbook.arm"}
    assert_equal(found.arrays("sensors"), arrays)


def test_streams_that_are_chosen_become_joint_states(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    arrays: dict[str, NDArray[Any]] = {"state/_t_ns": clock(2), "state/value": values}
    made = episode(tmp_path / "e", arrays, metadata={"channels": {"state": JOINTS}})
    found = exported(made, tmp_path / "out.mcap", joints=("state",))
    assert found.schemas == {"state": "foxglove.JointStates"}
    assert [joint.position for joint in found.messages["state"][1].joints] == [3, 4, 5]
    assert_equal(found.arrays("sensors"), arrays)


def test_a_stream_that_cannot_become_joint_states_is_refused(tmp_path: Path) -> None:
    made = episode(tmp_path / "e", {"state/_t_ns": clock(2), "state/value": np.zeros((2, 3))})
    for joints, reason in ((("arm",), "no stream 'arm'"), (("state",), "name its joints")):
        with pytest.raises(ConfigurationError, match=reason):
            McapExporter(joints=joints).losses([made])


def test_sensors_and_actions_of_one_name_are_two_topics(tmp_path: Path) -> None:
    sensors = {"arm/_t_ns": clock(2), "arm/value": np.zeros(2)}
    actions = {"arm/_t_ns": clock(2), "arm/value": np.ones(2)}
    found = exported(episode(tmp_path / "e", sensors, actions), tmp_path / "out.mcap")
    assert list(found.schemas) == ["arm", "actions/arm"]
    assert_equal(found.arrays("sensors"), sensors)
    assert_equal(found.arrays("actions"), actions)


# ---------------------------------------------------------------------------------------- re-import


def imported(path: Path, folder: Path, **options: Any) -> ExportedEpisode:
    importer = Ros2Importer(**options)
    folder.mkdir()
    return ExportedEpisode.of_encoded(importer.encode(importer.scan(path), 0, folder), {})


@pytest.mark.parametrize("schemas", ["foxglove", "exact"])
def test_an_import_gives_back_the_episode(tmp_path: Path, schemas: str) -> None:
    made = robot_episode(tmp_path / "robot")
    exported(made, tmp_path / "robot.mcap", schemas=schemas)
    again = imported(tmp_path / "robot.mcap", tmp_path / "again", cameras=())
    for kind in ("sensors", "actions"):
        assert_equal(read_npz(again.files[kind]), read_npz(made.files[kind]))
    for fact in ("name", "source", "robot", "seed", "env_version"):
        assert getattr(again, fact) == getattr(made, fact)
    for key in ("tasks", "outcome", "channels"):
        assert again.metadata[key] == made.metadata[key]


def test_types_and_names_that_protobuf_does_not_have_come_back(tmp_path: Path) -> None:
    made = described_episode(tmp_path)
    exported(made, tmp_path / "out.mcap")
    again = imported(tmp_path / "out.mcap", tmp_path / "again")
    assert_equal(read_npz(again.files["sensors"]), read_npz(made.files["sensors"]))


def test_sensors_and_actions_of_one_name_come_back_apart(tmp_path: Path) -> None:
    sensors = {"arm/_t_ns": clock(2), "arm/value": np.zeros(2)}
    actions = {"arm/_t_ns": clock(2), "arm/value": np.ones(2)}
    exported(episode(tmp_path / "e", sensors, actions), tmp_path / "out.mcap")
    again = imported(tmp_path / "out.mcap", tmp_path / "again")
    assert_equal(read_npz(again.files["sensors"]), sensors)
    assert_equal(read_npz(again.files["actions"]), actions)


def described_episode(folder: Path) -> ExportedEpisode:
    """Streams of every schema, and of types and names that protobuf does not have."""
    made = robot_episode(folder / "robot")
    sensors = {
        **read_npz(made.files["sensors"]),
        "odd/_t_ns": clock(3),
        "odd/a b": np.arange(3, dtype=np.float16),
        "odd/when": np.arange(3).astype("M8[ms]"),
        "odd/raw": np.array([b"ab", b"", b"\0c"]),
        "odd/none": np.zeros((3, 0, 2)),
        "odd/small": np.arange(3, dtype=np.uint8),
        "odd/signed": np.arange(-2, 4, dtype=np.int8).reshape(3, 2),
        "odd/flags": np.ones((3, 2, 2), np.bool_),
        "odd/texts": np.array([["a", "bb"], ["é", ""], ["c", "d"]]),
        "hands/_t_ns": clock(3),
        "hands/translation": np.arange(18.0).reshape(3, 2, 3),
        "hands/rotation": np.arange(24.0).reshape(3, 2, 4),
    }
    return episode(folder / "all", sensors, metadata=made.metadata)


def test_the_metadata_of_a_channel_gives_back_the_stream_from_columns(tmp_path: Path) -> None:
    made = described_episode(tmp_path)
    found = exported(made, tmp_path / "out.mcap")
    restored: dict[str, NDArray[Any]] = {}
    for topic, metadata in found.channels.items():
        described = McapStream.in_metadata(metadata)
        assert described is not None
        rows = len(found.messages[topic])
        fields = described.restored(columns_of(found.messages[topic], described), rows)
        assert fields is not None
        restored[f"{described.namespace}/_t_ns"] = np.array(found.times[topic])
        restored |= {f"{described.namespace}/{name}": array for name, array in fields.items()}
    assert_equal(restored, read_npz(made.files["sensors"]))


@pytest.mark.parametrize(
    "changed",
    [
        {"rollbook.slot": "video"},
        {"rollbook.fields": "["},
        {"rollbook.fields": "5"},
        {"rollbook.fields": "[5]"},
        {"rollbook.fields": '[{"name": "a"}]'},
        {"rollbook.fields": '[{"name": "a", "dtype": "|O8", "shape": [], "path": "a"}]'},
        {"rollbook.fields": '[{"name": "a", "dtype": "<f3", "shape": [], "path": "a"}]'},
        {"rollbook.fields": '[{"name": "a", "dtype": "<f8", "shape": [-1], "path": "a"}]'},
        {"rollbook.fields": '[{"name": "a", "dtype": "<f8", "shape": [true], "path": "a"}]'},
        {
            "rollbook.fields": '[{"name": "a", "dtype": "<f8", "shape": [9999999, 999, 0], "path": "a"}]'
        },
        {"rollbook.fields": "[" * 5000},
    ],
)
def test_a_description_that_is_not_ours_is_ignored(changed: dict[str, str]) -> None:
    field = McapField("a", np.dtype("f8"), (), "a")
    metadata = McapStream("sensors", "n", (field,)).to_metadata()
    assert McapStream.in_metadata(metadata) == McapStream("sensors", "n", (field,))
    assert McapStream.in_metadata({**metadata, **changed}) is None
    assert McapStream.in_metadata({}) is None


@pytest.mark.parametrize(
    ("dtype", "shape", "path"),
    [
        ("<f8", (2**30, 2**30), "a"),
        ("<U100000000", (), "a"),
        ("<S1000000000", (), "a"),
        ("<c16", (3,), "a"),
        ("<M8[ns]", (3,), "a"),
        ("<f8", (3,), "b"),
        ("<f8", (3, 2), "a,b"),
    ],
)
def test_a_description_that_does_not_fit_the_columns_gives_nothing(
    dtype: str, shape: tuple[int, ...], path: str
) -> None:
    stream = McapStream("sensors", "n", (McapField("x", np.dtype(dtype), shape, path),))
    assert stream.restored({"a": np.zeros((5, 3))}, 5) is None


# -------------------------------------------------------------------------------------------- video


def nal_types(data: bytes) -> list[int]:
    starts = [i for i in range(len(data) - 3) if data[i : i + 3] == b"\0\0\1"]
    return [data[i + 3] & 0x1F for i in starts]


def decoded(source: Any, form: str) -> list[bytes]:
    with av.open(source, format=form) as container:
        return [frame.to_ndarray().tobytes() for frame in container.decode(video=0)]


def test_the_video_is_copied_frame_by_frame_without_encoding(tmp_path: Path) -> None:
    made = robot_episode(tmp_path / "episode")
    found = exported(made, tmp_path / "out.mcap")
    messages = found.messages["video"]
    assert {message.format for message in messages} == {"h264"}
    assert found.times["video"] == [START + i * 40_000_000 for i in range(30)]
    assert [m.timestamp.ToNanoseconds() for m in messages] == found.times["video"]
    joined = io.BytesIO(b"".join(message.data for message in messages))
    assert decoded(joined, "h264") == decoded(str(made.files["video"]), "mp4")


def test_every_key_frame_of_the_video_has_its_parameter_sets(tmp_path: Path) -> None:
    found = exported(robot_episode(tmp_path / "episode"), tmp_path / "out.mcap")
    kinds = [nal_types(message.data) for message in found.messages["video"]]
    keys = [i for i, each in enumerate(kinds) if 5 in each]
    assert keys[0] == 0
    assert len(keys) > 1  # the video has a key frame at least every half second
    for i, each in enumerate(kinds):
        assert sum(kind in (1, 5) for kind in each) == 1, "one frame in every message"
        assert ({7, 8} <= set(each)) == (i in keys)


def test_a_video_with_b_frames_is_encoded_again_and_said_so(tmp_path: Path) -> None:
    made = episode(tmp_path / "e", {"a/_t_ns": clock(1)}, frames=1)
    with av.open(str(made.files["video"]), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=20, options={"bf": "2"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for i in range(30):
            picture = np.zeros((48, 64, 3), np.uint8)
            picture[:, i : i + 9] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    [loss] = McapExporter().losses([made])
    assert loss.what == "video"
    assert "encoded again as H.264" in loss.reason
    found = exported(made, tmp_path / "out.mcap")
    assert found.times["video"] == [START + i * 50_000_000 for i in range(30)]
    assert nal_types(found.messages["video"][0].data).count(7) == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["out.mcap"]


def test_one_camera_gives_its_name_to_the_topic(tmp_path: Path) -> None:
    tile = {"camera": "front", "x": 0, "y": 0, "width": 64, "height": 48}
    made = episode(tmp_path / "e", frames=3, metadata={"video_cameras": [tile]})
    found = exported(made, tmp_path / "out.mcap")
    assert list(found.schemas) == ["front"]
    assert json.loads(found.channels["front"]["rollbook.cameras"]) == [tile]
    assert found.times["front"] == [0, 40_000_000, 80_000_000]


def test_a_damaged_video_is_refused(tmp_path: Path) -> None:
    made = episode(tmp_path / "e", frames=3)
    made.files["video"].write_bytes(made.files["video"].read_bytes()[:300])
    with pytest.raises(StorageError, match=r"video\.mp4"):
        exported(made, tmp_path / "out.mcap")
    assert [path.name for path in tmp_path.iterdir()] == ["e"]


# --------------------------------------------------------------------------------------- provenance


def test_facts_digests_and_metadata_are_records_of_the_file(tmp_path: Path) -> None:
    made = robot_episode(tmp_path / "episode", fps=25.0)
    found = exported(made, tmp_path / "out.mcap")
    assert found.records["rollbook.episode"] == {
        "name": "pick #1",
        "source": "sim",
        "robot": "arm",
        "fps": "25.0",
        "seed": "7",
        "env_version": "env-1",
        "policy_version": "p-2",
        "git_sha": "c0ffee",
        "episode_id": "ep-1",
    }
    assert found.records["rollbook.sha256"] == dict(made.digests)
    assert found.records["rollbook.source_file"]["digest"] == "ab" * 32
    assert json.loads(found.records["rollbook.metadata"]["json"]) == made.metadata


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    made = episode(tmp_path / "e", {"a/_t_ns": clock(1)})
    found = exported(made, tmp_path / "out.mcap")
    assert found.records["rollbook.episode"] == {"name": "pick #1", "source": "sim"}
    assert "rollbook.source_file" not in found.records


def test_the_same_episode_gives_the_same_bytes(tmp_path: Path) -> None:
    made = robot_episode(tmp_path / "episode")
    for name in ("one.mcap", "two.mcap"):
        exported(made, tmp_path / name)
    assert (tmp_path / "one.mcap").read_bytes() == (tmp_path / "two.mcap").read_bytes()


def test_changed_bytes_are_noticed_by_a_reader(tmp_path: Path) -> None:
    exported(robot_episode(tmp_path / "episode"), tmp_path / "out.mcap")
    data = bytearray((tmp_path / "out.mcap").read_bytes())
    data[len(data) // 2] ^= 1
    with pytest.raises(Exception, match=r"(?i)crc|decompress|corrupt") as caught:
        list(make_reader(io.BytesIO(data), validate_crcs=True).iter_messages())
    assert isinstance(caught.value, McapError) or type(caught.value).__module__.startswith("z")


# -------------------------------------------------------------------------------------------- files


def test_several_episodes_are_a_folder_of_files(tmp_path: Path) -> None:
    made = [robot_episode(tmp_path / name, 20, name=name) for name in ("first", "second")]
    seen: list[tuple[int, int]] = []
    target = tmp_path / "out"
    summary = McapExporter().write(made, target, lambda done, total: seen.append((done, total)))
    names = sorted(path.name for path in target.iterdir())
    assert names == ["episode_000000.mcap", "episode_000001.mcap"]
    assert seen == [(1, 2), (2, 2)]
    held = [read(target / name) for name in names]
    assert [each.records["rollbook.episode"]["name"] for each in held] == ["first", "second"]
    assert (summary.format, summary.episodes, summary.files) == ("mcap", 2, 2)
    assert summary.rows == sum(len(each.order) for each in held)
    assert summary.size == sum(path.stat().st_size for path in target.iterdir())


def test_one_file_holds_one_episode(tmp_path: Path) -> None:
    made = [robot_episode(tmp_path / name, 20) for name in ("first", "second")]
    with pytest.raises(ConfigurationError, match="name a folder"):
        McapExporter().write(made, tmp_path / "out.mcap", lambda done, total: None)


@pytest.mark.parametrize("name", ["out", "out.mcap"])
def test_a_target_that_exists_is_not_replaced(tmp_path: Path, name: str) -> None:
    made = robot_episode(tmp_path / "episode", 20)
    target = tmp_path / name
    (target / "kept").mkdir(parents=True)
    with pytest.raises(TargetExists):
        McapExporter().write([made], target, lambda done, total: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["episode", name]


@pytest.mark.parametrize("name", ["out", "out.mcap"])
def test_after_a_crash_there_is_no_target(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = robot_episode(tmp_path / "episode", 20)

    def crash(*_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting, "_video_messages", crash)
    with pytest.raises(KeyboardInterrupt):
        McapExporter().write([made], tmp_path / name, lambda done, total: None)
    assert [path.name for path in tmp_path.iterdir()] == ["episode"]


# ------------------------------------------------------------------------------------- wrong input


def test_a_stream_without_a_clock_is_left_out_and_said_so(tmp_path: Path) -> None:
    arrays = {
        "a/value": np.zeros(3),
        "b/_t_ns": np.zeros(3),
        "b/value": np.zeros(3),
        "c/_t_ns": clock(3),
        "c/value": np.zeros(3),
        "c/other": np.zeros(2),
        "c/single": np.array(1.0),
    }
    made = episode(tmp_path / "e", arrays)
    losses = {loss.what: loss.reason for loss in McapExporter().losses([made])}
    assert losses.keys() == {"sensors: a", "sensors: b", "sensors: c/other", "sensors: c/single"}
    found = exported(made, tmp_path / "out.mcap")
    assert_equal(found.arrays("sensors"), {k: arrays[k] for k in ("c/_t_ns", "c/value")})


@pytest.mark.parametrize("times", [[3, 2], [5, 5], [-1, 4], [2**63 - 1, -(2**63)]])
def test_a_clock_that_mcap_cannot_hold_is_refused(tmp_path: Path, times: list[int]) -> None:
    made = episode(tmp_path / "e", {"a/_t_ns": np.array(times), "a/value": np.zeros(2)})
    with pytest.raises(InvalidValue, match="the clock of a"):
        exported(made, tmp_path / "out.mcap")
    if times[0] < 0:  # known before anything is written
        with pytest.raises(InvalidValue, match="the clock of a is -1 ns at row 0, expected 0 or"):
            McapExporter().losses([made])
    assert [path.name for path in tmp_path.iterdir()] == ["e"]


def test_text_that_is_not_unicode_is_refused(tmp_path: Path) -> None:
    for name, fields in (("log", {"value"}), ("mix", {"value", "other"})):
        arrays = {f"s/{field}": np.array(["\ud800"]) for field in fields}
        made = episode(tmp_path / name, {"s/_t_ns": clock(1), **arrays})
        with pytest.raises(InvalidValue, match="half a character"):
            exported(made, tmp_path / "out.mcap")


@pytest.mark.parametrize("data", [b"", b"not a zip", b"PK\5\6" + bytes(18)])
def test_sensors_that_are_no_archive_are_refused(tmp_path: Path, data: bytes) -> None:
    made = episode(tmp_path / "e", {"a/_t_ns": clock(1)})
    made.files["sensors"].write_bytes(data)
    if data[:2] == b"PK":
        assert exported(made, tmp_path / "out.mcap").order == []
        return
    for act in (lambda: McapExporter().losses([made]), lambda: exported(made, tmp_path / "o.mcap")):
        with pytest.raises(RollbookError, match="sensors of pick #1"):
            act()


@pytest.mark.parametrize("kind", ["sensors", "video"])
def test_damaged_files_give_our_errors_and_no_target(
    tmp_path: Path, kind: Literal["sensors", "video"]
) -> None:
    made = robot_episode(tmp_path / "episode", 20)
    good = made.files[kind].read_bytes()
    random = np.random.default_rng(5)
    for attempt in range(60):
        data = bytearray(good)
        if attempt % 2:
            del data[random.integers(len(data)) :]
        else:
            for at in random.integers(0, min(len(data), 1500), 20).tolist():
                data[at] = int(random.integers(256))
        made.files[kind].write_bytes(data)
        target = tmp_path / f"{attempt}.mcap"
        with suppress(RollbookError):
            McapExporter().losses([made])
            McapExporter().write([made], target, lambda done, total: None)
            assert target.is_file()
            continue
        assert not target.exists()


def test_an_episode_of_nothing_is_a_file_of_its_facts(tmp_path: Path) -> None:
    found = exported(episode(tmp_path / "e"), tmp_path / "out.mcap")
    assert (found.order, found.records["rollbook.episode"]["name"]) == ([], "pick #1")


# ------------------------------------------------------------------------------------------- memory


def peak(work: Callable[[], object]) -> int:
    tracemalloc.start()
    work()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


@pytest.mark.slow
def test_memory_does_not_grow_with_the_length_of_the_recording(tmp_path: Path) -> None:
    peaks = []
    for rows in (15_000, 150_000):
        arrays = {"a/_t_ns": clock(rows), "a/value": np.zeros((rows, 14))}
        made = episode(tmp_path / str(rows), arrays)
        del arrays
        write_video(tmp_path / str(rows) / "video.mp4", 100)
        target = tmp_path / f"{rows}.mcap"
        peaks.append(peak(partial(McapExporter().write, [made], target, lambda done, total: None)))
    # the index at the end of the file holds a few bytes for each chunk of a megabyte
    assert peaks[1] < peaks[0] + (2 << 20)


# ------------------------------------------------------------------------------ independent readers

_READ_BY_RERUN = """
import json, sys
import numpy as np
from rerun.chunk import McapReader

found = {}
for chunk in McapReader(sys.argv[1]).stream():
    batch = chunk.to_record_batch()
    if "message_log_time" not in batch.schema.names:
        continue
    times = batch.column("message_log_time").to_numpy(zero_copy_only=False).view(np.int64)
    shown = found.setdefault(chunk.entity_path, {"times": [], "values": {}})
    shown["times"] += times.tolist()
    for field in batch.schema:
        if "Video" not in field.name and ":" in field.name:
            values = shown["values"].setdefault(field.name, [])
            values += batch.column(field.name).to_pylist()
sys.stdout.write(json.dumps(found, default=str))
"""


@pytest.mark.slow
def test_rerun_finds_no_problem_and_reads_the_same_values(tmp_path: Path) -> None:
    made = robot_episode(tmp_path / "episode")
    exported(made, tmp_path / "out.mcap")
    python = reader_python("rerun-sdk==0.41.0", "msgspec>=0.21", "xxhash>=3.5", "av>=14")
    program, path = str(python.with_name("rerun")), str(tmp_path / "out.mcap")
    command = [program, "mcap", "check", "--full", path]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    lines = [line.split() for line in checked.stdout.splitlines() if line.startswith("ok")]
    assert len(lines) == 7, checked.stdout
    done = subprocess.run(
        [python, "-c", _READ_BY_RERUN, tmp_path / "out.mcap"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    expected = read_npz(made.files["sensors"])
    assert found["/tcp"]["times"] == expected["tcp/_t_ns"].tolist()
    assert found["/video"]["times"] == [START + i * 40_000_000 for i in range(30)]
    states = found["/joint_states"]["values"]["foxglove.JointStates:message"]
    positions = [[joint["position"] for joint in row[0]["joints"]] for row in states]
    assert np.array_equal(positions, expected["/joint_states/position"])
    gripper = found["/gripper"]["values"]["rollbook.gripper:message"]
    assert [row[0]["ticks"] for row in gripper] == expected["gripper/ticks"].tolist()
    assert [row[0]["closed"] for row in gripper] == expected["gripper/closed"].tolist()
    texts = found["/events"]["values"]["TextLog:text"]
    assert [row[0] for row in texts] == expected["events/value"].tolist()
    translations = found["/tcp"]["values"]["InstancePoses3D:translations"]
    shown = np.array(translations, np.float32)[:, 0]
    assert np.array_equal(shown, expected["tcp/position"].astype(np.float32))


_READ_BY_FOXGLOVE = """
const { McapStreamReader } = require("@mcap/core");
const { decompress } = require("fzstd");
const unpack = { zstd: (data, size) => decompress(data, new Uint8Array(Number(size))) };
const reader = new McapStreamReader({ decompressHandlers: unpack, validateCrcs: true });
reader.append(require("fs").readFileSync(process.argv[1]));
const topics = {}, times = {}, records = {};
for (let record; (record = reader.nextRecord()); ) {
  if (record.type === "Channel") topics[record.id] = record.topic;
  if (record.type === "Metadata") records[record.name] = Object.fromEntries(record.metadata);
  if (record.type === "Message") (times[topics[record.channelId]] ??= []).push(String(record.logTime));
}
console.log(JSON.stringify({ done: reader.done(), times, records }));
"""


@pytest.mark.slow
def test_the_library_of_foxglove_reads_the_file(tmp_path: Path) -> None:
    made = robot_episode(tmp_path / "episode")
    exported(made, tmp_path / "out.mcap")
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    command = ["npm", "install", "--no-audit", "--no-fund", "@mcap/core@2.2.2", "fzstd@0.1.1"]
    got = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    if got.returncode != 0:
        pytest.skip(f"@mcap/core cannot be had here: {got.stderr.strip().splitlines()[-1]}")
    command = ["node", "-e", _READ_BY_FOXGLOVE, str(tmp_path / "out.mcap")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["done"]
    assert found["times"]["tcp"] == [str(t) for t in (clock(50) + 7).tolist()]
    assert found["records"]["rollbook.sha256"] == dict(made.digests)
