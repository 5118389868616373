"""Bags and MCAP files for tests, made by rosbags and mcap."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mcap.writer import CompressionType
from mcap.writer import Writer as McapWriter
from mcap_protobuf.schema import build_file_descriptor_set
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from rollbook.adapters.encoded import EncodedEpisode
from rollbook.adapters.ros2 import Ros2Importer
from rollbook.contracts.npz import read_npz

START_NS = 1_700_000_000_000_000_000
STEP_NS = 20_000_000
JOINTS = ("shoulder", "elbow", "wrist")
TYPES = get_typestore(Stores.LATEST)
JOINT_STATE = "sensor_msgs/msg/JointState"
TWIST = "geometry_msgs/msg/Twist"
STRING = "std_msgs/msg/String"
IMAGE = "sensor_msgs/msg/Image"

Row = tuple[str, str, int, Any]
"""Topic, type, log time and message."""


def made(kind: str, *values: Any) -> Any:
    return TYPES.types[kind](*values)


def header(t_ns: int, frame: str = "base") -> Any:
    stamp = made("builtin_interfaces/msg/Time", t_ns // 10**9, t_ns % 10**9)
    return made("std_msgs/msg/Header", stamp, frame)


def joint_state(i: int, names: Sequence[str] = JOINTS) -> Any:
    position = np.arange(len(names), dtype=np.float64) + i
    empty = np.zeros(0)
    return made(JOINT_STATE, header(5 * 10**9 + i), list(names), position, -position, empty)


def twist(i: int) -> Any:
    kind = "geometry_msgs/msg/Vector3"
    return made(TWIST, made(kind, float(i), 0.0, 0.0), made(kind, 0.0, 0.0, -float(i)))


def joint_rows(count: int, topic: str = "/joint_states") -> list[Row]:
    return [(topic, JOINT_STATE, START_NS + i * STEP_NS, joint_state(i)) for i in range(count)]


def text_rows(texts: Sequence[str], topic: str = "/chatter") -> list[Row]:
    rows = enumerate(texts)
    return [(topic, STRING, START_NS + i * STEP_NS, made(STRING, text)) for i, text in rows]


def image_rows(
    pictures: Iterable[np.ndarray[Any, Any]], topic: str = "/camera/image", encoding: str = "rgb8"
) -> list[Row]:
    rows = []
    for i, picture in enumerate(pictures):
        height, width, depth = picture.shape
        t_ns = START_NS + i * 100_000_000
        step = width * depth
        fields = (header(t_ns, "camera"), height, width, encoding, 0, step, picture.ravel())
        rows.append((topic, IMAGE, t_ns, made(IMAGE, *fields)))
    return rows


def write_bag(
    folder: Path,
    rows: Sequence[Row],
    *,
    storage: StoragePlugin = StoragePlugin.MCAP,
    mode: CompressionMode = CompressionMode.NONE,
    version: Any = 9,
    types: Any = TYPES,
) -> Path:
    writer = Writer(folder, version=version, storage_plugin=storage)
    if mode is not CompressionMode.NONE:
        writer.set_compression(mode, CompressionFormat.ZSTD)
    connections: dict[str, Any] = {}
    with writer:
        for topic, kind, t_ns, message in rows:
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=types)
            writer.write(connections[topic], t_ns, types.serialize_cdr(message, kind))
    return folder


def own_types(text: str, name: str) -> Any:
    """The standard types and one more."""
    types = get_typestore(Stores.LATEST)
    types.register(get_types_from_msg(text, name))
    return types


def data_file(folder: Path) -> Path:
    [path] = [p for p in folder.iterdir() if p.suffix in (".db3", ".mcap", ".zstd")]
    return path


def write_mcap(
    path: Path,
    channels: dict[str, tuple[str, str, bytes, str]],
    messages: Iterable[tuple[str, int, bytes]],
    *,
    compression: CompressionType = CompressionType.NONE,
    chunk_size: int = 1024,
    profile: str = "",
    **options: Any,
) -> Path:
    """`channels`: type, schema encoding, schema and message encoding by topic."""
    with open(path, "wb") as file:
        writer: Any = McapWriter(file, chunk_size=chunk_size, compression=compression, **options)
        writer.start(profile=profile, library="test")
        numbers = {}
        for topic, (name, form, schema, encoding) in channels.items():
            schema_id = writer.register_schema(name, form, schema) if form else 0
            numbers[topic] = writer.register_channel(topic, encoding, schema_id)
        for topic, t_ns, data in messages:
            writer.add_message(numbers[topic], t_ns, data, t_ns)
        writer.finish()
    return path


def protobuf_channel(kind: Any) -> tuple[str, str, bytes, str]:
    schema = build_file_descriptor_set(kind).SerializeToString()
    return kind.DESCRIPTOR.full_name, "protobuf", schema, "protobuf"


def json_channel(name: str = "State") -> tuple[str, str, bytes, str]:
    return name, "jsonschema", b'{"type": "object"}', "json"


def as_json(values: Any) -> bytes:
    return json.dumps(values).encode()


def imported(path: Path, out: Path, **options: Any) -> EncodedEpisode:
    importer = Ros2Importer(**options)
    out.mkdir(parents=True)
    return importer.encode(importer.scan(path), 0, out)


def sensors(encoded: EncodedEpisode) -> dict[str, Any]:
    return read_npz(encoded.files["sensors"])


def reasons(encoded: EncodedEpisode) -> dict[str, str]:
    return {each["name"]: each["reason"] for each in encoded.metadata["skipped"]}
