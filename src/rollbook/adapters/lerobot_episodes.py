"""EpisodeEntry: the files of one episode of a LeRobot dataset, its own (version 2) or shared (version 3)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollbook.adapters.extras import library
from rollbook.adapters.lerobot_info import LeRobotInfo, malformed
from rollbook.errors import MalformedJson, StorageError

_EPISODE_COLUMNS = (
    "episode_index",
    "length",
    "tasks",
    "data/chunk_index",
    "data/file_index",
    "dataset_from_index",
    "dataset_to_index",
)
_VIDEO_COLUMNS = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
_LARGEST_LINE = 16 << 20


@dataclass(frozen=True, slots=True)
class VideoSlice:
    path: Path
    from_s: float = 0.0
    to_s: float = math.inf


@dataclass(frozen=True, slots=True)
class EpisodeEntry:
    index: int
    length: int
    data: Path
    tasks: tuple[str, ...] = ()
    first_row: int | None = None
    """Index among all rows of the dataset, where several episodes share a file."""
    videos: Mapping[str, VideoSlice] = field(default_factory=dict)


def read_episodes(info: LeRobotInfo) -> dict[int, EpisodeEntry]:
    entries = _v2_entries(info) if info.major == 2 else _v3_entries(info)
    return {entry.index: entry for entry in sorted(entries, key=lambda entry: entry.index)}


def read_tasks(info: LeRobotInfo) -> dict[int, str]:
    """Tasks by number; empty where the dataset does not list them."""
    meta = info.root / "meta"
    if (meta / "tasks.jsonl").is_file():
        rows = _json_lines(meta / "tasks.jsonl")
        return {
            _whole(meta, row, "task_index"): str(row["task"]) for _, row in rows if "task" in row
        }
    if not (meta / "tasks.parquet").is_file():
        return {}
    with parquet_errors(meta / "tasks.parquet"):
        table = library("pyarrow.parquet").read_table(meta / "tasks.parquet", partitioning=None)
    text = next((name for name in ("task", "__index_level_0__") if name in table.column_names), "")
    if not text or "task_index" not in table.column_names:
        return {}
    numbers, texts = (table.column(name).to_pylist() for name in ("task_index", text))
    return {int(n): str(t) for n, t in zip(numbers, texts, strict=True) if n is not None}


@contextmanager
def parquet_errors(path: Path) -> Iterator[None]:
    """Turn errors about a missing, truncated or damaged table into StorageError."""
    try:
        yield
    except FileNotFoundError as error:
        raise StorageError(path=str(path), detail="the table is missing") from error
    except (OSError, library("pyarrow").ArrowException) as error:
        detail = f"it is not a complete Parquet file ({error})"
        raise StorageError(path=str(path), detail=detail) from error


# --------------------------------------------------------------------------------------- version 2


def _v2_entries(info: LeRobotInfo) -> Iterator[EpisodeEntry]:
    path = info.root / "meta" / "episodes.jsonl"
    if not path.is_file():
        raise StorageError(path=str(path), detail="it is missing, so no episode can be found")
    for number, row in _json_lines(path):
        try:
            yield _v2_entry(info, path, row)
        except MalformedJson as error:
            raise malformed(path, f"line {number}: {error.where}", error.detail) from error


def _v2_entry(info: LeRobotInfo, path: Path, row: Mapping[str, Any]) -> EpisodeEntry:
    index = _whole(path, row, "episode_index")
    place = {"episode_chunk": index // info.chunks_size, "episode_index": index}
    return EpisodeEntry(
        index=index,
        length=_whole(path, row, "length"),
        data=info.data_file(**place),
        tasks=_tasks(row.get("tasks")),
        videos={
            camera: VideoSlice(info.video_file(camera, **place)) for camera in info.video_cameras
        },
    )


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with open(path, "rb") as file:
        number = 0
        while line := file.readline(_LARGEST_LINE):
            number += 1
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise malformed(path, f"line {number}", f"not JSON ({error})") from error
            if not isinstance(row, dict):
                raise malformed(path, f"line {number}", "not an object")
            yield number, row


# --------------------------------------------------------------------------------------- version 3


def _v3_entries(info: LeRobotInfo) -> Iterator[EpisodeEntry]:
    folder = info.root / "meta" / "episodes"
    paths = sorted(folder.glob("**/*.parquet"))
    if not paths:
        raise StorageError(path=str(folder), detail="it contains no table of episodes")
    places = [f"videos/{camera}/{each}" for camera in info.video_cameras for each in _VIDEO_COLUMNS]
    parquet = library("pyarrow.parquet")
    for path in paths:
        with parquet_errors(path):
            present = set(parquet.read_schema(path).names)
            columns = [name for name in (*_EPISODE_COLUMNS, *places) if name in present]
            rows = parquet.read_table(path, columns=columns, partitioning=None).to_pylist()
        for row in rows:
            yield _v3_entry(info, path, row)


def _v3_entry(info: LeRobotInfo, path: Path, row: Mapping[str, Any]) -> EpisodeEntry:
    first, end = (_whole(path, row, f"dataset_{each}_index") for each in ("from", "to"))
    if row.get("length", end - first) != end - first:
        detail = f"{row['length']} rows, but {first} to {end} in the dataset"
        raise malformed(path, f"episode {row.get('episode_index')}", detail)
    return EpisodeEntry(
        index=_whole(path, row, "episode_index"),
        length=end - first,
        data=info.data_file(**_place(path, row, "data")),
        tasks=_tasks(row.get("tasks")),
        first_row=first,
        videos={camera: _v3_video(info, path, row, camera) for camera in info.video_cameras},
    )


def _v3_video(info: LeRobotInfo, path: Path, row: Mapping[str, Any], camera: str) -> VideoSlice:
    place = _place(path, row, f"videos/{camera}")
    times: list[Any] = [row.get(f"videos/{camera}/{each}_timestamp") for each in ("from", "to")]
    if not all(isinstance(t, int | float) and 0 <= t < math.inf for t in times):
        raise malformed(path, f"videos/{camera}/from_timestamp, to_timestamp", "not two times")
    return VideoSlice(info.video_file(camera, **place), float(times[0]), float(times[1]))


def _place(path: Path, row: Mapping[str, Any], prefix: str) -> dict[str, int]:
    return {each: _whole(path, row, f"{prefix}/{each}") for each in ("chunk_index", "file_index")}


# ------------------------------------------------------------------------------------------ values


def _whole(path: Path, row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    if type(value) is not int or value < 0:
        raise malformed(path, name, f"{value!r} is not a whole number of 0 or more")
    return value


def _tasks(value: Any) -> tuple[str, ...]:
    return tuple(str(task) for task in value) if isinstance(value, list) else ()
