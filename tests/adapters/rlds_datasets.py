"""RLDS datasets for tests: records, checksums and JSON are written here byte by byte, without a library."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

PACKAGE = "tensorflow_datasets.core.features"


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """The slow way, bit by bit from the polynomial."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def checksum(data: bytes) -> bytes:
    value = crc32c(data)
    turned = (value >> 15 | value << 17) & 0xFFFFFFFF
    return struct.pack("<I", (turned + 0xA282EAD8) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + checksum(length) + data + checksum(data)


# ----------------------------------------------------------------------------------- tf.train.Example


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(value: Any) -> bytes:
    """A list of bytes or text, or an array of floats or whole numbers."""
    if isinstance(value, list):
        entries = [each.encode() if isinstance(each, str) else each for each in value]
        return field(1, b"".join(field(1, each) for each in entries))
    array = np.asarray(value)
    if array.dtype.kind == "f":
        return field(2, field(1, array.astype("<f4").tobytes()))
    return field(3, field(1, b"".join(varint(int(each)) for each in array.ravel())))


def example(values: Mapping[str, Any]) -> bytes:
    entries = [field(1, key.encode()) + field(2, feature(v)) for key, v in values.items()]
    return field(1, b"".join(field(1, each) for each in entries))


# ------------------------------------------------------------------------------------------ features


def tensor(dtype: str, *shape: int, encoding: str = "none") -> dict[str, Any]:
    dimensions = {"dimensions": [str(each) for each in shape]} if shape else {}
    described = {"shape": dimensions, "dtype": dtype, "encoding": encoding}
    return {"pythonClassName": f"{PACKAGE}.tensor_feature.Tensor", "tensor": described}


def text() -> dict[str, Any]:
    return {"pythonClassName": f"{PACKAGE}.text_feature.Text", "text": {}}


def image(*shape: int, dtype: str = "uint8") -> dict[str, Any]:
    described = {
        "shape": {"dimensions": [str(each) for each in shape]},
        "dtype": dtype,
        "encodingFormat": "jpeg",
    }
    return {"pythonClassName": f"{PACKAGE}.image_feature.Image", "image": described}


def group(**features: Any) -> dict[str, Any]:
    name = f"{PACKAGE}.features_dict.FeaturesDict"
    return {"pythonClassName": name, "featuresDict": {"features": features}}


def listed(inside: Any, kind: str = "sequence_feature.Sequence") -> dict[str, Any]:
    return {"pythonClassName": f"{PACKAGE}.{kind}", "sequence": {"feature": inside}}


def steps(inside: Any) -> dict[str, Any]:
    return listed(inside, "dataset_feature.Dataset")


ROBOT = {
    "observation": group(state=tensor("float32", 3), image=image(32, 48, 3)),
    "action": tensor("float32", 2),
    "reward": tensor("float64"),
    "discount": tensor("float32"),
    "gripper": tensor("int32"),
    "is_first": tensor("bool"),
    "is_last": tensor("bool"),
    "is_terminal": tensor("bool"),
    "language_instruction": text(),
}


def robot_features(**more: Any) -> dict[str, Any]:
    own = group(file_path=text(), success=tensor("bool"), **more)
    return group(steps=steps(group(**ROBOT)), episode_metadata=own)


def jpeg(shade: int) -> bytes:
    made = io.BytesIO()
    Image.fromarray(np.full((32, 48, 3), shade, np.uint8)).save(made, "JPEG", quality=95)
    return made.getvalue()


def robot_episode(number: int, length: int, *, terminal: bool = True) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    flags = np.zeros(length, np.int64)
    first, last = flags.copy(), flags.copy()
    first[0] = last[-1] = 1
    return {
        "steps/observation/state": rng.normal(size=(length, 3)).astype(np.float32),
        "steps/observation/image": [jpeg(40 + 16 * i % 200) for i in range(length)],
        "steps/action": rng.normal(size=(length, 2)).astype(np.float32),
        "steps/reward": last.astype(np.float32),
        "steps/discount": np.ones(length, np.float32),
        "steps/gripper": rng.integers(-(2**31), 2**31, length),
        "steps/is_first": first,
        "steps/is_last": last,
        "steps/is_terminal": last if terminal else flags,
        "steps/language_instruction": [f"pick up cube {number}"] * length,
        "episode_metadata/file_path": [f"raw/{number}.npy"],
        "episode_metadata/success": np.array([number % 2]),
    }


def write(
    folder: Path,
    splits: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]],
    features: Mapping[str, Any] | None = None,
    **info: Any,
) -> Path:
    """`splits`: for each split its shards, for each shard its episodes."""
    folder.mkdir(parents=True)
    stated = []
    for split, shards in splits.items():
        for number, episodes in enumerate(shards):
            name = f"robot-{split}.tfrecord-{number:05d}-of-{len(shards):05d}"
            data = b"".join(record(example(each)) for each in episodes)
            (folder / name).write_bytes(data)
        lengths = [str(len(episodes)) for episodes in shards]
        template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        stated.append({"name": split, "shardLengths": lengths, "filepathTemplate": template})
    described = {"name": "robot", "version": "1.0.0", "fileFormat": "tfrecord", "splits": stated}
    (folder / "dataset_info.json").write_text(json.dumps({**described, **info}))
    (folder / "features.json").write_text(json.dumps(features or robot_features()))
    return folder


def write_robot(folder: Path) -> Path:
    """Two shards of training episodes and one of validation."""
    train = [[robot_episode(0, 4), robot_episode(1, 6)], [robot_episode(2, 3, terminal=False)]]
    return write(folder / "robot" / "1.0.0", {"train": train, "val": [[robot_episode(3, 5)]]})
