"""LeRobot datasets as LeRobot writes them, small: version 2.1 with files per episode, version 3.0 with shared ones."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tests.adapters.pictures import BLUE, GREEN, RED, numbered, write_video

FPS = 10
TOP = "observation.images.top"
WRIST = "observation.images.wrist"
COLOURS = {TOP: RED, WRIST: BLUE}
Picture = NDArray[np.uint8]


@dataclass
class Plan:
    """Which episodes, which cameras, and what the columns hold. Frame numbers run through all episodes."""

    lengths: tuple[int, ...] = (12, 7, 9)
    cameras: tuple[str, ...] = (TOP,)
    fps: float = FPS
    codec: str = "libx264"
    columns: Callable[[int, int], dict[str, Any]] = field(default=lambda episode, length: {})
    """More columns, or others in place of the usual ones; None takes one away."""
    info: dict[str, Any] = field(default_factory=dict)

    def first_row(self, episode: int) -> int:
        return sum(self.lengths[:episode])

    def table(self, episode: int) -> pa.Table:
        length, first = self.lengths[episode], self.first_row(episode)
        columns = {
            "observation.state": vectors(state(first, length)),
            "action": vectors(action(first, length)),
            "next.reward": pa.array(np.arange(length, dtype=np.float32) / 4),
            "next.done": pa.array([False] * (length - 1) + [True]),
            "next.success": pa.array([row >= length - 2 for row in range(length)]),
            "timestamp": pa.array((np.arange(length) / self.fps).astype(np.float32)),
            "frame_index": pa.array(np.arange(length)),
            "episode_index": pa.array(np.full(length, episode)),
            "index": pa.array(np.arange(first, first + length)),
            "task_index": pa.array(np.full(length, episode % 2)),
            **self.columns(episode, length),
        }
        return pa.table({name: values for name, values in columns.items() if values is not None})

    def frames(self, camera: str, episode: int) -> list[Picture]:
        first = self.first_row(episode)
        width = 64 if camera == TOP else 80
        return [
            numbered(row, COLOURS[camera], width=width)
            for row in range(first, first + self.lengths[episode])
        ]

    def described(self, version: str) -> dict[str, Any]:
        features: dict[str, Any] = {
            name: {"dtype": "float32", "shape": [3], "names": {"motors": ["a", "b", "c"]}}
            for name in ("observation.state", "action")
        }
        for camera in self.cameras:
            features[camera] = {
                "dtype": "video",
                "shape": [48, 64, 3],
                "names": ["height", "width", "channels"],
            }
        return {
            "codebase_version": version,
            "robot_type": "so100",
            "total_episodes": len(self.lengths),
            "total_frames": sum(self.lengths),
            "chunks_size": 1000,
            "fps": self.fps,
            "features": features,
        }


def state(first: int, length: int) -> NDArray[np.float32]:
    numbers = np.arange(first * 3, (first + length) * 3, dtype=np.float32)
    return (numbers / np.float32(7)).reshape(length, 3)


def action(first: int, length: int) -> NDArray[np.float32]:
    numbers = np.arange(first * 2, (first + length) * 2, dtype=np.float32)
    return (-numbers / np.float32(3)).reshape(length, 2)


def vectors(values: NDArray[Any]) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def png(picture: Picture) -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format="image2pipe") as container:
        stream: Any = container.add_stream("png", rate=1)
        stream.height, stream.width, stream.pix_fmt = *picture.shape[:2], "rgb24"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return out.getvalue()


def in_table(camera: str = TOP) -> Plan:
    """A dataset whose pictures lie in its tables."""

    def columns(episode: int, length: int) -> dict[str, Any]:
        pictures = [{"bytes": png(numbered(row, GREEN)), "path": None} for row in range(length)]
        return {camera: pa.array(pictures)}

    plan = Plan(lengths=(5,), columns=columns)
    features = plan.described("v2.1")["features"]
    features[camera] = {"dtype": "image", "shape": [48, 64, 3], "names": None}
    plan.info = {"features": features, "video_path": None}
    return plan


def write_v2(root: Path, plan: Plan | None = None) -> Path:
    plan = plan or Plan()
    info = {
        **plan.described("v2.1"),
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        **plan.info,
    }
    put_json(root / "meta" / "info.json", info)
    (root / "data" / "chunk-000").mkdir(parents=True)
    lines, tasks = [], ["pick", "place"]
    for episode, length in enumerate(plan.lengths):
        name = f"episode_{episode:06d}"
        pq.write_table(plan.table(episode), root / "data" / "chunk-000" / f"{name}.parquet")
        for camera in plan.cameras:
            if info["features"][camera]["dtype"] == "video":
                path = root / "videos" / "chunk-000" / camera / f"{name}.mp4"
                write_video(path, plan.frames(camera, episode), plan.fps, plan.codec)
        lines.append({"episode_index": episode, "tasks": [tasks[episode % 2]], "length": length})
    put_lines(root / "meta" / "episodes.jsonl", lines)
    put_lines(
        root / "meta" / "tasks.jsonl", [{"task_index": i, "task": t} for i, t in enumerate(tasks)]
    )
    return root


def write_v3(root: Path, plan: Plan | None = None) -> Path:
    """All episodes in one table and in one film for each camera; their places in several tables of episodes."""
    plan = plan or Plan()
    info = {
        **plan.described("v3.0"),
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        **plan.info,
    }
    put_json(root / "meta" / "info.json", info)
    (root / "data" / "chunk-000").mkdir(parents=True)
    tables = [plan.table(episode) for episode in range(len(plan.lengths))]
    pq.write_table(
        pa.concat_tables(tables),
        root / "data" / "chunk-000" / "file-000.parquet",
        row_group_size=10,
    )
    for camera in plan.cameras:
        frames = [f for e in range(len(plan.lengths)) for f in plan.frames(camera, e)]
        path = root / "videos" / camera / "chunk-000" / "file-000.mp4"
        write_video(path, frames, plan.fps, plan.codec)
    for episode in range(len(plan.lengths)):
        path = root / "meta" / "episodes" / "chunk-000" / f"file-{episode:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([_v3_row(plan, episode)]), path)
    tasks = pa.table({"task_index": [0, 1], "__index_level_0__": ["pick", "place"]})
    pq.write_table(tasks, root / "meta" / "tasks.parquet")
    return root


def _v3_row(plan: Plan, episode: int) -> dict[str, Any]:
    first, length = plan.first_row(episode), plan.lengths[episode]
    row: dict[str, Any] = {
        "episode_index": episode,
        "tasks": [["pick"], ["place"]][episode % 2],
        "length": length,
        "data/chunk_index": 0,
        "data/file_index": 0,
        "dataset_from_index": first,
        "dataset_to_index": first + length,
        "stats/action/mean": [0.0, 0.0],
    }
    for camera in plan.cameras:
        row |= {
            f"videos/{camera}/chunk_index": 0,
            f"videos/{camera}/file_index": 0,
            f"videos/{camera}/from_timestamp": first / plan.fps,
            f"videos/{camera}/to_timestamp": (first + length) / plan.fps,
        }
    return row


def put_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def put_lines(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def change_info(root: Path, **changes: Any) -> None:
    path = root / "meta" / "info.json"
    info = {**json.loads(path.read_text()), **changes}
    put_json(path, {key: value for key, value in info.items() if value is not ...})
