"""Writes the files of a LeRobot dataset from a plan, block by block."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.exports.array_rows import ArrayRows
from rollbook.adapters.exports.exporter import OnEpisode
from rollbook.adapters.exports.provenance import provenance
from rollbook.adapters.extras import library
from rollbook.adapters.lerobot_export.clock import Resampling, RowPicker
from rollbook.adapters.lerobot_export.features import INTERNAL
from rollbook.adapters.lerobot_export.plan import CameraPlan, DatasetPlan, EpisodePlan
from rollbook.adapters.lerobot_export.stats import ColumnStats, stat_columns
from rollbook.adapters.lerobot_export.tables import (
    EpisodeFiles,
    TableFiles,
    episode_schema,
    write_tasks,
)
from rollbook.adapters.lerobot_export.video import CameraFiles, EpisodeVideo, encode_tiles
from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.npz import NpzArchive

_BLOCK_BYTES = 8 << 20
_BLOCK_ROWS = 1 << 14
_MB = 1 << 20
_VERSION = "v3.0"
_DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
_INTERNAL_TYPES = {name: "int64" for name in INTERNAL if name != "timestamp"}


@dataclass(frozen=True, slots=True)
class FileLimits:
    data_mb: int = 100
    video_mb: int = 200
    per_chunk: int = 1000
    """Files of one folder."""


@dataclass(slots=True)
class LeRobotWriter:
    plan: DatasetPlan
    root: Path
    limits: FileLimits
    resampling: Resampling
    rows: int = 0
    _stats: dict[str, ColumnStats] = field(default_factory=dict)

    def write(self, on_episode: OnEpisode) -> None:
        plan, limits = self.plan, self.limits
        first = plan.episodes[0]
        (self.root / "meta").mkdir(parents=True)
        schema = self._data_schema()
        cameras = [camera.feature for camera in first.cameras]
        repeating = [c.feature for c in first.columns if c.dtype in ("string", "bool")]
        with ExitStack() as stack:
            data = stack.enter_context(
                TableFiles(
                    self.root / "data",
                    schema,
                    limits.data_mb * _MB,
                    limits.per_chunk,
                    repeating=[*repeating, "episode_index", "task_index"],
                )
            )
            episodes_schema = episode_schema(cameras, self._stat_types(cameras))
            tables = stack.enter_context(
                TableFiles(
                    self.root / "meta" / "episodes",
                    episodes_schema,
                    limits.data_mb * _MB,
                    limits.per_chunk,
                )
            )
            videos = {
                camera: stack.enter_context(
                    CameraFiles(
                        self.root, camera, plan.fps, limits.video_mb * _MB, limits.per_chunk
                    )
                )
                for camera in cameras
            }
            listed = EpisodeFiles(tables)
            for index, episode in enumerate(plan.episodes):
                listed.add(self._write_episode(index, episode, data, videos))
                on_episode(index + 1, len(plan.episodes))
            listed.flush()
        write_tasks(self.root / "meta" / "tasks.parquet", plan.tasks)
        self._write_json("stats.json", self._all_stats(cameras))
        self._write_json("info.json", self._info())

    # ------------------------------------------------------------------------------- one episode

    def _write_episode(
        self,
        index: int,
        episode: EpisodePlan,
        data: TableFiles,
        videos: Mapping[str, CameraFiles],
    ) -> dict[str, Any]:
        """The row of meta/episodes."""
        count = episode.grid.count
        width = sum(column.row_bytes for column in episode.columns) + 8 * len(INTERNAL)
        chunk, file = data.place(width * count)
        stats: dict[str, ColumnStats] = {}
        for batch in self._batches(index, episode, width, stats):
            data.add(batch)
        row: dict[str, Any] = {
            "episode_index": index,
            "tasks": list(episode.tasks),
            "length": count,
            "data/chunk_index": chunk,
            "data/file_index": file,
            "dataset_from_index": self.rows,
            "dataset_to_index": self.rows + count,
        }
        task = self.plan.tasks.index(episode.tasks[0])
        stats |= {
            "timestamp": ColumnStats.of_counting(count, step=1 / self.plan.fps),
            "frame_index": ColumnStats.of_counting(count),
            "episode_index": ColumnStats.of_counting(count, first=index, step=0),
            "index": ColumnStats.of_counting(count, first=self.rows),
            "task_index": ColumnStats.of_counting(count, first=task, step=0),
        }
        self.rows += count
        shown = self._write_videos(episode, videos, row)
        for name, each in {**stats, **shown}.items():
            self._stats[name] = each.joined(self._stats.get(name))
            values = each.listed_for_pictures() if name in shown else each.listed()
            row |= stat_columns(name, values)
        row |= {f"rollbook/{name}": value for name, value in provenance(episode.episode).items()}
        return row

    def _batches(
        self, index: int, episode: EpisodePlan, width: int, stats: dict[str, ColumnStats]
    ) -> Iterator[Any]:
        """The frames in blocks. The statistics of each column are kept in `stats`."""
        arrow = library("pyarrow")
        grid, schema = episode.grid, self._data_schema()
        order = [column.feature for column in self.plan.episodes[0].columns]
        at_once = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // width))
        task = self.plan.tasks.index(episode.tasks[0])
        with ExitStack() as stack:
            sources = _Sources.of(episode, self.resampling, stack)
            for first in range(0, grid.count, at_once):
                stop = min(first + at_once, grid.count)
                arrays: dict[str, Any] = {}
                for feature, values in sources.values(first, stop):
                    column = sources.columns[feature]
                    if column.dtype != "string":
                        stats[feature] = ColumnStats.of_block(values).joined(stats.get(feature))
                    arrays[feature] = column.arrow_array(values)
                numbers = np.arange(first, stop)
                internal = {
                    "timestamp": grid.seconds(first, stop),
                    "frame_index": numbers,
                    "episode_index": np.full(stop - first, index),
                    "index": numbers + self.rows,
                    "task_index": np.full(stop - first, task),
                }
                arrays |= {name: arrow.array(values) for name, values in internal.items()}
                columns = [arrays[name] for name in (*order, *INTERNAL)]
                yield arrow.RecordBatch.from_arrays(columns, schema=schema)

    def _write_videos(
        self, episode: EpisodePlan, videos: Mapping[str, CameraFiles], row: dict[str, Any]
    ) -> dict[str, ColumnStats]:
        if not episode.cameras:
            return {}
        count, stats = episode.grid.count, {}
        source = EpisodeVideo.of(episode.episode.files["video"])
        with tempfile.TemporaryDirectory(prefix=".cut-", dir=self.root) as folder:
            cut = self._cut(episode, source, Path(folder))
            for camera in episode.cameras:
                video = cut.get(camera.feature, source)
                place = videos[camera.feature].append(video, count)
                stats[camera.feature] = video.stats(count)
                prefix = f"videos/{camera.feature}"
                row |= {
                    f"{prefix}/chunk_index": place.chunk,
                    f"{prefix}/file_index": place.file,
                    f"{prefix}/from_timestamp": place.from_s,
                    f"{prefix}/to_timestamp": place.to_s,
                }
        return stats

    def _cut(
        self, episode: EpisodePlan, source: EpisodeVideo, folder: Path
    ) -> dict[str, EpisodeVideo]:
        """The cameras that cannot be copied, as videos of their own."""
        again = [camera for camera in episode.cameras if not camera.is_copied]
        if not again:
            return {}
        targets = [folder / f"{number}.mp4" for number in range(len(again))]
        frames, _ = source.picks(episode.grid, episode.video_start_ns)
        tiles = [camera.tile for camera in again]
        encode_tiles(source, frames, tiles, targets, self.plan.fps)
        return {
            camera.feature: EpisodeVideo.of(target)
            for camera, target in zip(again, targets, strict=True)
        }

    # ------------------------------------------------------------------------------- description

    def _data_schema(self) -> Any:
        arrow = library("pyarrow")
        columns = {c.feature: c.arrow_type() for c in self.plan.episodes[0].columns}
        kinds = {"timestamp": self.plan.timestamp_type, **_INTERNAL_TYPES}
        columns |= {name: arrow.from_numpy_dtype(kind) for name, kind in kinds.items()}
        return arrow.schema(list(columns.items()))

    def _stat_types(self, cameras: list[str]) -> dict[str, dict[str, Any]]:
        arrow = library("pyarrow")
        number, whole = arrow.float64(), arrow.int64()
        types: dict[str, dict[str, Any]] = {}
        kinds = {c.feature: c.dtype for c in self.plan.episodes[0].columns if c.dtype != "string"}
        kinds |= {"timestamp": self.plan.timestamp_type, **_INTERNAL_TYPES}
        for feature, kind in kinds.items():
            ends = number
            if kind == "bool":
                ends = arrow.bool_()
            elif "int" in kind and kind != "uint64":
                ends = whole
            types[feature] = _stat_columns(arrow.list_(ends), arrow.list_(number), whole)
        for camera in cameras:
            colours = arrow.list_(arrow.list_(arrow.list_(number)))
            types[camera] = _stat_columns(colours, colours, whole)
        return types

    def _all_stats(self, cameras: list[str]) -> dict[str, Any]:
        return {
            name: stats.listed_for_pictures() if name in cameras else stats.listed()
            for name, stats in self._stats.items()
        }

    def _info(self) -> dict[str, Any]:
        plan, limits = self.plan, self.limits
        first = plan.episodes[0]
        features: dict[str, Any] = {
            c.feature: c.described(plan.channels(c.feature)) for c in first.columns
        }
        for camera in first.cameras:
            features[camera.feature] = self._described(camera)
        for name, kind in {"timestamp": plan.timestamp_type, **_INTERNAL_TYPES}.items():
            features[name] = {"dtype": kind, "shape": [1], "names": None}
        fps = int(plan.fps) if plan.fps.is_integer() else plan.fps
        return {
            "codebase_version": _VERSION,
            "robot_type": plan.robot,
            "total_episodes": len(plan.episodes),
            "total_frames": self.rows,
            "total_tasks": len(plan.tasks),
            "chunks_size": limits.per_chunk,
            "data_files_size_in_mb": limits.data_mb,
            "video_files_size_in_mb": limits.video_mb,
            "fps": fps,
            "splits": {"train": f"0:{len(plan.episodes)}"},
            "data_path": _DATA_PATH,
            "video_path": _VIDEO_PATH if first.cameras else None,
            "features": features,
        }

    def _described(self, camera: CameraPlan) -> dict[str, Any]:
        path = self.root / _VIDEO_PATH.format(video_key=camera.feature, chunk_index=0, file_index=0)
        video = EpisodeVideo.of(path)
        return {
            "dtype": "video",
            "shape": [video.height, video.width, 3],
            "names": ["height", "width", "channels"],
            "info": {
                "video.height": video.height,
                "video.width": video.width,
                "video.codec": video.codec,
                "video.pix_fmt": video.pixels,
                "video.is_depth_map": False,
                "video.fps": round(self.plan.fps),
                "video.channels": 3,
                "has_audio": False,
            },
        }

    def _write_json(self, name: str, value: dict[str, Any]) -> None:
        text = json.dumps(value, indent=4, ensure_ascii=False)
        (self.root / "meta" / name).write_text(text, "utf-8")


def _stat_columns(ends: Any, middle: Any, whole: Any) -> dict[str, Any]:
    count = library("pyarrow").list_(whole)
    return {"min": ends, "max": ends, "mean": middle, "std": middle, "count": count}


# ------------------------------------------------------------------------------------------- values


@dataclass(slots=True)
class _Sources:
    """The columns of one episode, frame by frame."""

    columns: dict[str, Any]
    _plan: EpisodePlan
    _rows: dict[str, ArrayRows]
    _pickers: dict[tuple[ArtifactKind, str], RowPicker]

    @classmethod
    def of(cls, plan: EpisodePlan, resampling: Resampling, stack: ExitStack) -> _Sources:
        archives: dict[ArtifactKind, NpzArchive] = {
            kind: stack.enter_context(plan.episode.open(kind))
            for kind in dict.fromkeys(column.kind for column in plan.columns)
        }
        pickers = {
            (kind, namespace): RowPicker(archives[kind], fit.clock, plan.grid, resampling)
            for (kind, namespace), fit in plan.fits.items()
            if fit.offset is None
        }
        rows = {c.feature: ArrayRows(archives[c.kind], c.key, c.facts) for c in plan.columns}
        return cls({c.feature: c for c in plan.columns}, plan, rows, pickers)

    def values(self, first: int, stop: int) -> Iterator[tuple[str, NDArray[Any]]]:
        """For each feature the values of these frames. Frames are asked for in order."""
        picked = {key: picker.rows(first, stop) for key, picker in self._pickers.items()}
        for feature, column in self.columns.items():
            rows, offset = self._rows[feature], self._plan.fit(column).offset
            if offset is None:
                values = rows.take(picked[column.kind, column.namespace])
            else:
                values = rows.span(first + offset, stop + offset)
            yield feature, column.converted(values)
