"""What one writes to read a recording with the library of its format: the peers of our importers.

Each reads everything. Those whose library gives arrays write them with numpy.savez too, one file for each episode, as
an import writes its artifacts. Clocks, metadata, comparing with what the file declares, and memory that does not grow
with the recording are only in ours.
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from mcap.reader import make_reader
from mcap.writer import Writer
from mcap_protobuf.decoder import DecoderFactory
from rosbags.rosbag2 import Reader

from benchmarks.recording_files import masked_checksum, rlds_shard
from tests.adapters.ros2.ros2_bags import TYPES, data_file

_MINARI = ("observations", "actions", "rewards", "terminations", "truncations")
_TEXT, _BYTES, _MESSAGE, _FLOAT, _INT64 = 9, 12, 11, 2, 3
_ONE, _MANY = 1, 3
"""Types and labels of fields in descriptor.proto."""


# --------------------------------------------------------------------------------------- ROS 2 and MCAP


def rosbags_messages(bag: Path, out: Path) -> int:
    with Reader(data_file(bag)) as reader:
        return sum(
            TYPES.deserialize_cdr(data, connection.msgtype) is not None
            for connection, _, data in reader.messages()
        )


def mcap_decoded(path: Path, out: Path) -> int:
    with open(path, "rb") as file:
        reader = make_reader(file, decoder_factories=[DecoderFactory()])
        return sum(1 for _ in reader.iter_decoded_messages())


def mcap_messages(path: Path) -> list[tuple[Any, Any, Any]]:
    with open(path, "rb") as file:
        return list(make_reader(file).iter_messages())


def mcap_written(messages: list[tuple[Any, Any, Any]], out: Path) -> None:
    with open(out / "bare.mcap", "wb") as file:
        writer: Any = Writer(file, enable_data_crcs=True)
        writer.start()
        numbers: dict[int, int] = {}
        for schema, channel, message in messages:
            if channel.id not in numbers:
                known = writer.register_schema(schema.name, schema.encoding, schema.data)
                numbers[channel.id] = writer.register_channel(
                    channel.topic, channel.message_encoding, known, channel.metadata
                )
            writer.add_message(
                numbers[channel.id],
                message.log_time,
                message.data,
                message.publish_time,
                message.sequence,
            )
        writer.finish()


# ----------------------------------------------------------------------------------------------- arrays


def h5py_savez(path: Path, out: Path) -> None:
    with h5py.File(path) as file:
        for name, demo in file["data"].items():
            np.savez(out / f"{name}.npz", **_datasets(demo))


def h5py_read(path: Path, out: Path) -> None:
    with h5py.File(path) as file:
        for demo in file["data"].values():
            _datasets(demo)


def _datasets(group: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def visit(name: str, each: Any) -> None:
        if isinstance(each, h5py.Dataset):
            found[name] = each[()]

    group.visititems(visit)
    return found


def minari_savez(path: Path, out: Path) -> None:
    with h5py.File(path / "data" / "main_data.hdf5") as file:
        for name, episode in file.items():
            np.savez(out / f"{name}.npz", **{part: episode[part][()] for part in _MINARI})


def zarr_savez(path: Path, out: Path) -> None:
    """Reads each array whole, which is the fastest way, and needs the memory."""
    root: Any = zarr.open_group(path, mode="r", zarr_format=2)
    arrays = {name: root[f"data/{name}"][:] for name in ("action", "state")}
    first = 0
    for number, end in enumerate(root["meta/episode_ends"][:]):
        np.savez(out / f"{number}.npz", **{name: each[first:end] for name, each in arrays.items()})
        first = end


def parquet_savez(path: Path, out: Path) -> None:
    """Reads all tables at once, which is the fastest way, and needs the memory."""
    table = pq.read_table(path / "data", partitioning=None)
    arrays = {name: _array(table.column(name).combine_chunks()) for name in table.column_names}
    lengths = pq.read_table(path / "meta" / "episodes", columns=["length"], partitioning=None)
    first = 0
    for number, length in enumerate(lengths.column("length").to_pylist()):
        rows = slice(first, first + length)
        np.savez(out / f"{number}.npz", **{name: each[rows] for name, each in arrays.items()})
        first += length


def _array(column: Any) -> Any:
    if pa.types.is_fixed_size_list(column.type):
        return _array(column.flatten()).reshape(len(column), -1)
    return column.to_numpy(zero_copy_only=False)


# ------------------------------------------------------------------------------------------------- RLDS


def protobuf_savez(path: Path, out: Path) -> None:
    """The framing with both checksums, and the record by protobuf."""
    example, number = _example(), 0
    with open(rlds_shard(path), "rb") as file:
        while head := file.read(12):
            length, checksum = struct.unpack("<Q4s", head)
            data = file.read(length)
            assert masked_checksum(head[:8]) == checksum
            assert masked_checksum(data) == file.read(4)
            features = example.FromString(data).features.feature
            arrays = {key: _values(each) for key, each in features.items()}
            np.savez(out / f"{number}.npz", **arrays)
            number += 1


def _values(feature: Any) -> Any:
    if feature.HasField("float_list"):
        return np.array(feature.float_list.value, np.float32)
    if feature.HasField("int64_list"):
        return np.array(feature.int64_list.value, np.int64)
    return np.array([each.decode() for each in feature.bytes_list.value])


@cache
def _example() -> Any:
    """The class of tf.train.Example."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")
    for name, kind in (("BytesList", _BYTES), ("FloatList", _FLOAT), ("Int64List", _INT64)):
        _add_field(file.message_type.add(name=name), "value", 1, kind, _MANY)
    feature = file.message_type.add(name="Feature")
    for number, name in enumerate(("Bytes", "Float", "Int64"), start=1):
        _add_field(feature, f"{name.lower()}_list", number, _MESSAGE, _ONE, f".t.{name}List")
    features = file.message_type.add(name="Features")
    _add_field(features, "feature", 1, _MESSAGE, _MANY, ".t.Features.FeatureEntry")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    _add_field(entry, "key", 1, _TEXT, _ONE)
    _add_field(entry, "value", 2, _MESSAGE, _ONE, ".t.Feature")
    example = file.message_type.add(name="Example")
    _add_field(example, "features", 1, _MESSAGE, _ONE, ".t.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


def _add_field(
    message: Any, name: str, number: int, kind: int, label: int, type_name: str | None = None
) -> None:
    message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)
