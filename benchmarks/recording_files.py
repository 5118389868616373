"""Files of other tools for the benchmark of imports, written by the libraries of those tools."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import h5py
import numcodecs
import numpy as np
from foxglove_schemas_protobuf.JointState_pb2 import JointState
from foxglove_schemas_protobuf.JointStates_pb2 import JointStates
from gymnasium import spaces
from numpy.typing import NDArray
from rosbags.rosbag2 import StoragePlugin

from rollbook.adapters.exports.exported_episode import ExportedEpisode
from tests.adapters import minari_datasets, rlds_datasets, zarr_buffers
from tests.adapters.exports.exported_episodes import clock, made, stream
from tests.adapters.ros2 import ros2_bags

JOINTS = [f"joint_{number}" for number in range(7)]
_START_NS = ros2_bags.START_NS
_STEP_NS = 10_000_000
_RLDS_SHARD = "robot-train.tfrecord-00000-of-00001"


def numbers(*shape: int, dtype: str = "f8", seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def times(rows: int) -> NDArray[np.int64]:
    return _START_NS + np.arange(rows, dtype=np.int64) * _STEP_NS


# --------------------------------------------------------------------------------------- ROS 2 and MCAP


def joint_state_bag(folder: Path, messages: int, storage: StoragePlugin) -> Path:
    values = numbers(messages, 3, len(JOINTS))
    rows = []
    for t_ns, (position, velocity, effort) in zip(times(messages).tolist(), values, strict=True):
        fields = (ros2_bags.header(t_ns), JOINTS, position, velocity, effort)
        message = ros2_bags.made(ros2_bags.JOINT_STATE, *fields)
        rows.append(("/joint_states", ros2_bags.JOINT_STATE, t_ns, message))
    return ros2_bags.write_bag(folder, rows, storage=storage)


def foxglove_file(path: Path, messages: int) -> Path:
    values = numbers(messages, len(JOINTS), 2)
    rows = []
    for t_ns, each in zip(times(messages).tolist(), values.tolist(), strict=True):
        message = JointStates()
        message.timestamp.FromNanoseconds(t_ns)
        for name, (position, velocity) in zip(JOINTS, each, strict=True):
            message.joints.append(JointState(name=name, position=position, velocity=velocity))
        rows.append(("/joints", t_ns, message.SerializeToString()))
    channels = {"/joints": ros2_bags.protobuf_channel(JointStates)}
    return ros2_bags.write_mcap(path, channels, rows, chunk_size=1 << 20)


# ------------------------------------------------------------------------------------------------ steps


def robomimic_file(path: Path, demos: int, steps: int) -> Path:
    widths = {"eef_pos": 3, "eef_quat": 4, "gripper": 2, "joint_pos": 7, "joint_vel": 7}
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = demos * steps
        environment = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20}}
        data.attrs["env_args"] = json.dumps(environment)
        for number in range(demos):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = steps
            demo["actions"] = numbers(steps, 7, seed=number)
            demo["states"] = numbers(steps, 45, seed=number)
            demo["rewards"], demo["dones"] = np.zeros(steps), np.zeros(steps, np.int64)
            for name, width in {**widths, "object": 14}.items():
                demo[f"obs/{name}"] = numbers(steps, width, seed=number)
    return path


def minari_dataset(folder: Path, episodes: int, steps: int) -> Path:
    played = [
        minari_datasets.made_up(
            steps,
            numbers(steps + 1, 29, seed=number),
            numbers(steps, 8, dtype="f4", seed=number),
        )
        for number in range(episodes)
    ]
    return minari_datasets.write(
        folder,
        played,
        observation_space=spaces.Box(-np.inf, np.inf, (29,), np.float64),
        action_space=spaces.Box(-np.inf, np.inf, (8,), np.float32),
    )


def zarr_buffer(path: Path, episodes: int, steps: int) -> Path:
    """With chunks of about 2 MB, as Diffusion Policy makes them."""
    rows = episodes * steps
    arrays = {"action": numbers(rows, 10, dtype="f4"), "state": numbers(rows, 20, dtype="f4")}
    ends = range(steps, rows + 1, steps)
    codec = numcodecs.Blosc("lz4", clevel=5, shuffle=numcodecs.Blosc.NOSHUFFLE)
    return zarr_buffers.write(path, arrays, ends, codec=codec, chunk=min(rows, 25_000))


def rlds_dataset(folder: Path, episodes: int, steps: int) -> Path:
    tensor, group = rlds_datasets.tensor, rlds_datasets.group
    features = group(
        steps=rlds_datasets.steps(
            group(
                observation=group(state=tensor("float32", 14)),
                action=tensor("float32", 7),
                reward=tensor("float32"),
                is_first=tensor("bool"),
                is_last=tensor("bool"),
                is_terminal=tensor("bool"),
                language_instruction=rlds_datasets.text(),
            )
        )
    )
    path = rlds_datasets.write(folder, {"train": [[]]}, features)
    records = (rlds_datasets.example(_rlds_episode(each, steps)) for each in range(episodes))
    rlds_shard(path).write_bytes(b"".join(map(_framed, records)))
    info = json.loads((path / "dataset_info.json").read_text())
    info["splits"][0]["shardLengths"] = [str(episodes)]
    (path / "dataset_info.json").write_text(json.dumps(info))
    return path


def rlds_shard(path: Path) -> Path:
    return path / _RLDS_SHARD


def _rlds_episode(number: int, steps: int) -> dict[str, Any]:
    first, last = np.arange(steps) == 0, np.arange(steps) == steps - 1
    return {
        "steps/observation/state": numbers(steps, 14, seed=number),
        "steps/action": numbers(steps, 7, seed=number),
        "steps/reward": last.astype(np.float32),
        "steps/is_first": first.astype(np.int64),
        "steps/is_last": last.astype(np.int64),
        "steps/is_terminal": last.astype(np.int64),
        "steps/language_instruction": ["pick up the cube"] * steps,
    }


def _framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + masked_checksum(length) + data + masked_checksum(data)


def masked_checksum(data: bytes) -> bytes:
    """As TFRecord files have it."""
    value = google_crc32c.value(data)
    turned = (value >> 15 | value << 17) & 0xFFFFFFFF
    return struct.pack("<I", (turned + 0xA282EAD8) & 0xFFFFFFFF)


# -------------------------------------------------------------------------------------------- to export


def lerobot_episodes(folder: Path, episodes: int, frames: int) -> list[ExportedEpisode]:
    """Without a camera."""
    t_ns = clock(frames, 30.0)
    return [
        made(
            folder / f"episode_{number}",
            sensors={
                **stream("observation.state", numbers(frames, 14, dtype="f4", seed=number), t_ns),
                **stream("next.reward", numbers(frames, dtype="f4", seed=number), t_ns),
                **stream("next.done", np.arange(frames) == frames - 1, t_ns),
            },
            actions=stream("action", numbers(frames, 14, dtype="f4", seed=number), t_ns),
            fps=30.0,
        )
        for number in range(episodes)
    ]


def arm_episodes(folder: Path, rows: int) -> Sequence[ExportedEpisode]:
    """One episode with three streams of so many rows."""
    t_ns = times(rows)
    sensors = {
        "joints/_t_ns": t_ns,
        "joints/position": numbers(rows, 7),
        "joints/velocity": numbers(rows, 7, seed=1),
        **stream("state", numbers(rows, 14, dtype="f4"), t_ns + 5),
    }
    actions = stream("action", numbers(rows, 7), t_ns)
    about = {"channels": {"joints": JOINTS}}
    return [made(folder / "arm", sensors=sensors, actions=actions, metadata=about)]
