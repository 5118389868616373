"""MCAP files of other tools than ROS: protobuf, JSON, compressed chunks, metadata and attachments."""

from __future__ import annotations

import io
import json
import os
import resource
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from foxglove_schemas_protobuf.CompressedVideo_pb2 import CompressedVideo
from foxglove_schemas_protobuf.JointState_pb2 import JointState
from foxglove_schemas_protobuf.JointStates_pb2 import JointStates
from foxglove_schemas_protobuf.PoseInFrame_pb2 import PoseInFrame
from foxglove_schemas_protobuf.RawImage_pb2 import RawImage
from google.protobuf import struct_pb2
from mcap.writer import CompressionType
from mcap.writer import Writer as McapWriter

from rollbook.adapters.mcap_stream import facts_in_records
from rollbook.adapters.ros2 import Ros2Importer
from rollbook.errors import CountMismatch, StorageError
from tests.adapters.pictures import decode, numbered
from tests.adapters.ros2.ros2_bags import (
    JOINTS,
    START_NS,
    as_json,
    imported,
    json_channel,
    protobuf_channel,
    reasons,
    sensors,
    write_mcap,
)
from tests.scheduling import ordinary_scheduling

Message = tuple[str, int, bytes]


def json_messages(*values: Any, topic: str = "/state") -> list[Message]:
    return [(topic, START_NS + i, as_json(value)) for i, value in enumerate(values)]


def json_file(path: Path, *values: Any) -> Path:
    return write_mcap(path, {"/state": json_channel()}, json_messages(*values))


def joint_states(i: int) -> JointStates:
    made = JointStates()
    made.timestamp.FromNanoseconds(10**9 + i)
    for k, name in enumerate(JOINTS):
        made.joints.append(JointState(name=name, position=i + k, velocity=-1.0))
    return made


# ----------------------------------------------------------------------------------------- protobuf


@pytest.mark.parametrize("compression", list(CompressionType)[:2])
def test_foxglove_joint_states_become_vectors_with_names(
    compression: CompressionType, tmp_path: Path
) -> None:
    messages = [("/joints", START_NS + i, joint_states(i).SerializeToString()) for i in range(600)]
    path = write_mcap(
        tmp_path / "a.mcap",
        {"/joints": protobuf_channel(JointStates)},
        messages,
        compression=compression,
    )
    encoded = imported(path, tmp_path / "out")
    arrays = sensors(encoded)
    expected = np.arange(600)[:, None] + np.arange(3.0)
    assert np.array_equal(arrays["/joints/joints.position"], expected)
    assert np.array_equal(arrays["/joints/timestamp_ns"], 10**9 + np.arange(600))
    assert encoded.metadata["channels"] == {"/joints": list(JOINTS)}
    assert encoded.metadata["declared"] == encoded.metadata["read"] == {"/joints": 600}
    assert encoded.metadata["ros2_empty_fields"] == {
        "/joints": ["joints.acceleration", "joints.effort"]
    }


def test_a_field_that_is_not_set_is_marked_and_not_zero(tmp_path: Path) -> None:
    with_pose = PoseInFrame(frame_id="map")
    with_pose.pose.position.x = 0.0
    messages = [
        ("/pose", START_NS, with_pose.SerializeToString()),
        ("/pose", START_NS + 1, PoseInFrame(frame_id="odom").SerializeToString()),
    ]
    path = write_mcap(tmp_path / "a.mcap", {"/pose": protobuf_channel(PoseInFrame)}, messages)
    arrays = sensors(imported(path, tmp_path / "out"))
    assert arrays["/pose/pose._present"].tolist() == [True, False]
    assert arrays["/pose/frame_id"].tolist() == ["map", "odom"]
    assert np.array_equal(arrays["/pose/pose.position.x"], [0.0, np.nan], equal_nan=True)


def test_types_that_contain_themselves_are_named(tmp_path: Path) -> None:
    value = struct_pb2.ListValue(values=[struct_pb2.Value(number_value=2.0)])
    channels = {"/tree": protobuf_channel(struct_pb2.ListValue), "/state": json_channel()}
    messages = [("/tree", START_NS, value.SerializeToString()), *json_messages({"x": 1})]
    encoded = imported(write_mcap(tmp_path / "a.mcap", channels, messages), tmp_path / "out")
    assert reasons(encoded)["/tree values.list_value"] == "its type contains itself"
    assert sensors(encoded)["/tree/values.number_value"].tolist() == [[2.0]]


@pytest.mark.parametrize("schema", [b"", b"\xff\xff", b"\x0a\x02\x0a\x00"])
def test_descriptors_that_cannot_be_used_skip_the_topic(schema: bytes, tmp_path: Path) -> None:
    channels = {"/bad": ("Nothing", "protobuf", schema, "protobuf"), "/state": json_channel()}
    messages = [("/bad", START_NS, b"\x08\x01"), *json_messages({"x": 1})]
    encoded = imported(write_mcap(tmp_path / "a.mcap", channels, messages), tmp_path / "out")
    assert "cannot be used" in reasons(encoded)["/bad"]
    assert encoded.metadata["read"] == {"/bad": 1, "/state": 1}


def test_a_raw_image_and_a_video_stream_are_cameras(tmp_path: Path) -> None:
    raw, packets = [], h264_packets(5)
    for i in range(5):
        picture = numbered(i)
        image = RawImage(encoding="rgb8", height=48, width=64, step=192, data=picture.tobytes())
        raw.append(("/raw", START_NS + i * 10**8, image.SerializeToString()))
    video = [
        (
            "/video",
            START_NS + i * 10**8,
            CompressedVideo(format="h264", data=data).SerializeToString(),
        )
        for i, data in enumerate(packets)
    ]
    channels = {"/raw": protobuf_channel(RawImage), "/video": protobuf_channel(CompressedVideo)}
    for topic, messages in (("/raw", raw), ("/video", video)):
        path = tmp_path / f"{topic[1:]}.mcap"
        write_mcap(path, {topic: channels[topic]}, messages, chunk_size=1 << 20)
        encoded = imported(path, tmp_path / f"out{topic}")
        assert decode(encoded.files["video"]).numbers == [0, 1, 2, 3, 4]
        assert sensors(encoded)[f"{topic}/video_frame"].tolist() == [0, 1, 2, 3, 4]


def h264_packets(count: int) -> list[bytes]:
    with ordinary_scheduling():
        encoder: Any = av.CodecContext.create("libx264", "w")
        encoder.width, encoder.height, encoder.pix_fmt = 64, 48, "yuv420p"
        encoder.time_base = Fraction(1, 10)
        encoder.options = {"tune": "zerolatency", "crf": "12"}
        packets = []
        for i in range(count):
            frame = av.VideoFrame.from_ndarray(numbered(i), format="rgb24")
            frame.pts = i
            packets += [bytes(packet) for packet in encoder.encode(frame)]
        packets += [bytes(packet) for packet in encoder.encode()]
    assert len(packets) == count
    return packets


# --------------------------------------------------------------------------------------------- JSON


def test_json_objects_become_columns_by_their_values(tmp_path: Path) -> None:
    path = json_file(
        tmp_path / "a.mcap",
        {"n": 1, "x": 1, "on": True, "at": {"x": [1, 2.5]}, "who": "a", "list": [{"k": 1}]},
        {"n": 2, "x": 2.5, "on": False, "at": {"x": [3, 4]}, "who": "bb", "list": []},
    )
    encoded = imported(path, tmp_path / "out")
    arrays = sensors(encoded)
    assert arrays["/state/n"].dtype == np.int64
    assert arrays["/state/n"].tolist() == [1, 2]
    assert arrays["/state/x"].tolist() == [1.0, 2.5]
    assert arrays["/state/on"].tolist() == [True, False]
    assert arrays["/state/at.x"].tolist() == [[1.0, 2.5], [3.0, 4.0]]
    assert arrays["/state/who"].tolist() == ["a", "bb"]
    assert arrays["/state/list._length"].tolist() == [1, 0]
    assert arrays["/state/list.k"].tolist() == [[1], [0]]
    assert encoded.metadata["skipped"] == []


def test_json_values_that_are_missing_or_mixed_are_not_made_up(tmp_path: Path) -> None:
    path = json_file(
        tmp_path / "a.mcap",
        {"x": 1.5, "mixed": 1, "gone": None, "big": 2**70, "a/b": 1, "a.b": 1, "holes": [1, None]},
        {"mixed": "one", "gone": None, "big": 1, "a/b": 2, "a.b": 2, "holes": [1, 2]},
    )
    encoded = imported(path, tmp_path / "out")
    arrays = sensors(encoded)
    assert arrays["/state/x._present"].tolist() == [True, False]
    assert np.array_equal(arrays["/state/x"], [1.5, np.nan], equal_nan=True)
    assert {name for name in arrays if name.count("/") == 2} == {
        "/state/_t_ns",
        "/state/x._present",
        "/state/x",
    }
    assert reasons(encoded) == {
        "/state mixed": "its values are of different kinds: texts and whole numbers",
        "/state gone": "it is null in every message",
        "/state big": "it has whole numbers of more than 64 bits",
        "/state a.b": "its name cannot be the name of a column",
        "/state a/b": "its name cannot be the name of a column",
        "/state holes": "its arrays contain null",
    }


def test_lists_inside_of_lists_are_dimensions(tmp_path: Path) -> None:
    """Each level has a length of its own, and nothing is filled up where all lists are equally long."""
    path = json_file(
        tmp_path / "a.mcap",
        *(
            {
                "tall": [[1, 2], [3, 4], [5, 6]],
                "wide": [[1, 2, 3], [4, 5, 6]],
                "deep": np.arange(24).reshape(2, 3, 4).tolist(),
                "words": [["a", "bb"], ["c", ""], ["d", "e"]],
                "boxes": [[{"k": 1}, {"k": 2}], [{"k": 3}, {"k": 4}], [{"k": 5}, {"k": 6}]],
                "grows": [[i, i]] * (i + 1),
                "ragged": [[7] * (i + 1), [8]][: i + 1],
            }
            for i in range(2)
        ),
    )
    encoded = imported(path, tmp_path / "out")
    arrays = sensors(encoded)
    assert encoded.metadata["skipped"] == []
    assert arrays["/state/tall"].tolist() == [[[1, 2], [3, 4], [5, 6]]] * 2
    assert arrays["/state/wide"].tolist() == [[[1, 2, 3], [4, 5, 6]]] * 2
    assert np.array_equal(arrays["/state/deep"][1], np.arange(24).reshape(2, 3, 4))
    assert arrays["/state/words"].tolist() == [[["a", "bb"], ["c", ""], ["d", "e"]]] * 2
    assert arrays["/state/boxes.k"].tolist() == [[[1, 2], [3, 4], [5, 6]]] * 2
    assert arrays["/state/grows"].tolist() == [[[0, 0], [0, 0]], [[1, 1], [1, 1]]]
    assert arrays["/state/grows._length"].tolist() == [1, 2]
    assert arrays["/state/ragged"].tolist() == [[[7, 0], [0, 0]], [[7, 7], [8, 0]]]
    assert arrays["/state/ragged._length"].tolist() == [1, 2]
    assert arrays["/state/ragged._length_2"].tolist() == [[1, 0], [2, 1]]
    lengths = {name for name in arrays if "_length" in name}
    assert lengths == {
        "/state/grows._length",
        "/state/ragged._length",
        "/state/ragged._length_2",
    }


def test_texts_that_end_in_nul_are_counted(tmp_path: Path) -> None:
    """NumPy pads short texts with NUL, so it is gone when the array is read."""
    path = json_file(tmp_path / "a.mcap", {"s": "a\0"}, {"s": "b\0c"}, {"s": ""}, {"s": "\0"})
    encoded = imported(path, tmp_path / "out")
    assert sensors(encoded)["/state/s"].tolist() == ["a", "b\0c", "", ""]
    assert encoded.metadata["losses"] == [
        "/state: 2 texts end in NUL, which an array of text does not keep."
    ]


def test_unordered_topics_with_many_columns_need_few_open_files(tmp_path: Path) -> None:
    """Rows that come in another order than their times wait on disk, one file for each column."""
    topics = [f"/t{i}" for i in range(4)]
    channels = {topic: json_channel(topic) for topic in topics}
    wide = as_json({f"f{i}": i for i in range(100)})
    messages = [(topic, START_NS + t, wide) for t in (5, 1, 3) for topic in topics]
    path = write_mcap(tmp_path / "a.mcap", channels, messages)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 64, before[1]))
    try:
        encoded = imported(path, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    arrays = sensors(encoded)
    for topic in topics:
        assert (arrays[f"{topic}/_t_ns"] - START_NS).tolist() == [1, 3, 5]
        assert arrays[f"{topic}/f99"].tolist() == [99, 99, 99]


@pytest.mark.parametrize("data", [b"[1]", b"{", b"\xff", b"3", b"[" * 100_000])
def test_messages_that_are_no_json_objects_skip_the_topic(data: bytes, tmp_path: Path) -> None:
    channels = {"/bad": json_channel("Bad"), "/state": json_channel()}
    messages = [("/bad", START_NS, data), *json_messages({"x": 1})]
    path = write_mcap(tmp_path / "a.mcap", channels, messages, chunk_size=1 << 20)
    encoded = imported(path, tmp_path / "out")
    assert "cannot be decoded" in reasons(encoded)["/bad"]
    assert sensors(encoded)["/state/x"].tolist() == [1]


def test_more_fields_than_an_artifact_holds_skip_the_topic(tmp_path: Path) -> None:
    channels = {"/wide": json_channel("Wide"), "/state": json_channel()}
    wide = {f"f{i}": i for i in range(3000)}
    messages = [("/wide", START_NS, as_json(wide)), *json_messages({"x": 1})]
    path = write_mcap(tmp_path / "a.mcap", channels, messages, chunk_size=1 << 20)
    assert "fields" in reasons(imported(path, tmp_path / "out"))["/wide"]


def test_one_very_long_text_does_not_make_a_huge_column(tmp_path: Path) -> None:
    path = write_mcap(
        tmp_path / "a.mcap",
        {"/state": json_channel()},
        json_messages(*({"x": i, "text": "a" * (400_000 if i == 5 else 1)} for i in range(400))),
        chunk_size=1 << 20,
    )
    encoded = imported(path, tmp_path / "out")
    assert "its lengths differ too much" in reasons(encoded)["/state text"]
    assert len(sensors(encoded)["/state/x"]) == 400


# -------------------------------------------------------------------------------------------- file


def test_two_types_of_one_topic_are_two_streams(tmp_path: Path) -> None:
    with open(tmp_path / "a.mcap", "wb") as file:
        writer: Any = McapWriter(file, compression=CompressionType.NONE)
        writer.start()
        for name in ("One", "Two"):
            schema = writer.register_schema(name, "jsonschema", b"{}")
            channel = writer.register_channel("/state", "json", schema)
            writer.add_message(channel, START_NS, as_json({"x": 1}), START_NS)
        writer.finish()
    encoded = imported(tmp_path / "a.mcap", tmp_path / "out")
    assert set(sensors(encoded)) == {
        f"{name}/{column}" for name in ("/state", "/state:Two") for column in ("_t_ns", "x")
    }
    assert encoded.metadata["read"] == {"/state": 2}


def test_a_file_cannot_say_that_it_came_from_a_store_or_another_file() -> None:
    """Lineage would follow it: the records of a file may come from anybody."""
    told = {
        "rollout": {"store_content_sha256": "d" * 64, "rollout_row_id": 3},
        "source_file": {"digest": "e" * 64},
        **{"tasks": 5, "outcome": "yes", "channels": [], "steps": "many"},
        **{"timestamps_assumed": True, "lights": "on"},
    }
    facts = facts_in_records({"rollbook.metadata": {"json": json.dumps(told)}})
    assert facts.metadata == {"timestamps_assumed": True, "lights": "on"}
    assert facts.kept == {"timestamps_assumed": True}


def test_attachments_are_named_and_metadata_is_kept(tmp_path: Path) -> None:
    with open(tmp_path / "a.mcap", "wb") as file:
        writer: Any = McapWriter(file, compression=CompressionType.NONE)
        writer.start(profile="my-robot", library="test")
        channel = writer.register_channel("/state", "json", 0)
        writer.add_message(channel, START_NS, as_json({"x": 1}), START_NS - 5)
        writer.add_attachment(START_NS, START_NS, "notes.txt", "text/plain", b"abc")
        writer.add_metadata("run", {"operator": "Ada"})
        writer.finish()
    encoded = imported(tmp_path / "a.mcap", tmp_path / "out")
    assert reasons(encoded) == {
        "attachment notes.txt": "an attachment of 3 bytes: attachments are not imported"
    }
    assert encoded.metadata["ros2_bag"]["metadata"] == {"run": {"operator": "Ada"}}
    assert encoded.metadata["ros2_bag"]["profile"] == "my-robot"
    assert sensors(encoded)["/state/_publish_t_ns"].tolist() == [START_NS - 5]


@pytest.mark.parametrize("use_statistics", [True, False])
@pytest.mark.parametrize("use_chunking", [True, False])
def test_files_without_chunks_or_statistics_are_read(
    use_statistics: bool, use_chunking: bool, tmp_path: Path
) -> None:
    path = write_mcap(
        tmp_path / "a.mcap",
        {"/state": json_channel()},
        json_messages(*({"x": i} for i in range(20))),
        use_statistics=use_statistics,
        use_chunking=use_chunking,
    )
    encoded = imported(path, tmp_path / "out")
    assert sensors(encoded)["/state/x"].tolist() == list(range(20))
    assert encoded.metadata["declared"] == encoded.metadata["read"] == {"/state": 20}
    assert "damage" not in encoded.metadata


def test_statistics_that_do_not_match_are_refused(tmp_path: Path) -> None:
    target = io.BytesIO()
    writer: Any = McapWriter(target, compression=CompressionType.NONE, enable_crcs=False)
    writer.start()
    channel = writer.register_channel("/state", "json", 0)
    writer.add_message(channel, START_NS, as_json({"x": 1}), START_NS)
    statistics = next(v for v in vars(writer).values() if type(v).__name__ == "Statistics")
    statistics.message_count = 7
    statistics.channel_message_counts[channel] = 7
    writer.finish()
    path = tmp_path / "a.mcap"
    path.write_bytes(target.getvalue())
    with pytest.raises(CountMismatch) as caught:
        imported(path, tmp_path / "out")
    assert (caught.value.declared, caught.value.read) == (7, 1)


@pytest.mark.parametrize("topic", ["../up", "a\\b", "new\nline", "", "/", "x" * 600])
def test_topics_whose_name_is_no_key_are_named(topic: str, tmp_path: Path) -> None:
    channels = {topic: json_channel("Bad"), "/state": json_channel()}
    messages = [(topic, START_NS, as_json({"x": 1})), *json_messages({"x": 1})]
    encoded = imported(write_mcap(tmp_path / "a.mcap", channels, messages), tmp_path / "out")
    assert reasons(encoded) == {topic: "its name cannot be the name of a stream"}


def test_a_file_without_messages_is_refused(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "a.mcap", {"/state": json_channel()}, [])
    with pytest.raises(StorageError, match="/state: it has no messages"):
        Ros2Importer().scan(path)
