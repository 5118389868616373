"""Episodes made of arrays, for the exporters that write streams with clocks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.exports.exported_episode import ExportedEpisode
from rollbook.client.video import VideoWriter
from rollbook.contracts.episode import FILE_NAMES, ArtifactKind
from rollbook.contracts.npz import write_npz

Arrays = Mapping[str, NDArray[Any]]
START = 1_700_000_000_000_000_123
JOINTS = ["shoulder", "elbow", "wrist"]


def clock(rows: int, *, start: int = START, step: int = 10_000_000) -> NDArray[np.int64]:
    return start + np.arange(rows, dtype=np.int64) * step


def episode(
    folder: Path,
    sensors: Arrays | None = None,
    actions: Arrays | None = None,
    *,
    frames: int = 0,
    metadata: Mapping[str, Any] | None = None,
    **facts: Any,
) -> ExportedEpisode:
    folder.mkdir(exist_ok=True)
    arrays: dict[ArtifactKind, Arrays | None] = {"sensors": sensors, "actions": actions}
    for kind, held in arrays.items():
        if held is not None:
            write_npz(folder / FILE_NAMES[kind], held)
    if frames:
        write_video(folder / FILE_NAMES["video"], frames)
    kinds: tuple[ArtifactKind, ...] = ("sensors", "actions", "video")
    files = {kind: folder / FILE_NAMES[kind] for kind in kinds}
    files = {kind: path for kind, path in files.items() if path.exists()}
    given: dict[str, Any] = {"name": "pick #1", "source": "sim", **facts}
    return ExportedEpisode(
        files=files,
        digests={
            kind: hashlib.sha256(path.read_bytes()).hexdigest() for kind, path in files.items()
        },
        metadata=metadata or {},
        **given,
    )


def write_video(path: Path, frames: int, fps: float = 25.0) -> None:
    with VideoWriter(path, fps) as video:
        for i in range(frames):
            picture = np.zeros((48, 64, 3), np.uint8)
            picture[:, : 2 + i % 60] = (200, 40 + 5 * (i % 40), 90)
            video.add(picture)


def robot_episode(folder: Path, rows: int = 50, **facts: Any) -> ExportedEpisode:
    """Joints, a pose, a log, numbers of several types, actions and a video."""
    random = np.random.default_rng(3)
    t = clock(rows)
    sensors: dict[str, NDArray[Any]] = {
        "/joint_states/_t_ns": t,
        "/joint_states/position": random.normal(size=(rows, 3)),
        "/joint_states/velocity": random.normal(size=(rows, 3)),
        "tcp/_t_ns": t + 7,
        "tcp/position": random.normal(size=(rows, 3)),
        "tcp/orientation": random.normal(size=(rows, 4)),
        "events/_t_ns": t[::10],
        "events/value": np.array([f"grasp {i} é" for i in range(len(t[::10]))]),
        "wrist.camera/_t_ns": t[:3],
        "wrist.camera/value": random.integers(0, 255, (3, 4, 6, 3), np.uint8),
        "gripper/_t_ns": t,
        "gripper/width": random.normal(size=rows).astype(np.float32),
        "gripper/closed": random.random(rows) > 0.5,
        "gripper/ticks": random.integers(-(2**62), 2**62, rows),
    }
    actions: dict[str, NDArray[Any]] = {
        "action/_t_ns": t,
        "action/value": random.normal(size=(rows, 4)).astype(np.float32),
    }
    metadata = {
        "channels": {"/joint_states": JOINTS, "action": ["a", "b", "c", "d"]},
        "tasks": ["pick the cup"],
        "outcome": {"__type": "robotrace.EpisodeOutcome", "success": True},
        "source_file": {"format": "hdf5", "digest": "ab" * 32, "size": 12},
    }
    given: dict[str, Any] = {
        "seed": 7,
        "robot": "arm",
        "env_version": "env-1",
        "policy_version": "p-2",
        "git_sha": "c0ffee",
        "episode_id": "ep-1",
        **facts,
    }
    return episode(folder, sensors, actions, frames=30, metadata=metadata, **given)
