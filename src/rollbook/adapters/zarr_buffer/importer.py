"""ZarrBufferImporter: a replay buffer of Diffusion Policy, all episodes in a row, one array for each field.

`data/<key>` has one row for each step of all episodes. `meta/episode_ends` says where each episode ends. There are no
times. Rows behind the last end belong to no episode: a recorder writes an episode before it counts it.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.encoded import EncodedEpisode, files_in
from rollbook.adapters.recording import (
    EpisodeInRecording,
    Recording,
)
from rollbook.adapters.steps.camera_video import LOSSY, CameraVideo
from rollbook.adapters.steps.reward_total import RewardTotal
from rollbook.adapters.steps.step_clock import ASSUMED_KEY, StepClock
from rollbook.adapters.stream_files import StreamFiles
from rollbook.adapters.zarr_buffer.chunk_files import ChunkFiles, OpenChunkFiles
from rollbook.adapters.zarr_buffer.replay_buffer import ENDS, ReplayBuffer, is_whole
from rollbook.adapters.zarr_buffer.stored_array import ARRAY_FILE, StoredArray
from rollbook.client.video import Picture, picture
from rollbook.contracts.episode import FILE_NAMES, LONGEST_NAME, ArtifactKind
from rollbook.contracts.streams import ONLY_FIELD, first_fall
from rollbook.contracts.typed_metadata import EpisodeOutcome
from rollbook.digest import Plain
from rollbook.errors import (
    ConfigurationError,
    CountMismatch,
    DamagedRecording,
    UnknownFormat,
)

FORMAT = "zarr-buffer"
_REWARDS = ("reward", "rewards")


def looks_like(path: Path) -> str | None:
    found = f"there is {ENDS}"
    if path.is_dir():
        return found if (path / ENDS / ARRAY_FILE).is_file() else None
    if path.suffix != ".zip" or not path.is_file():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            return found if f"{ENDS}/{ARRAY_FILE}" in archive.NameToInfo else None
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OverflowError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ZarrBufferImporter:
    fps: float = field(
        default=10.0,
        metadata={
            "help": "Steps per second. The buffer has no times; they are made from this rate."
        },
    )
    timestamps: str | None = field(
        default=None,
        metadata={"help": "Name of the array with the time of each step, in seconds."},
    )
    cameras: tuple[str, ...] | None = field(
        default=None,
        metadata={"help": "Cameras in the video. Without this option: all of them."},
    )

    @property
    def format(self) -> str:
        return FORMAT

    def options(self) -> dict[str, Plain]:
        cameras = None if self.cameras is None else list(self.cameras)
        return {"fps": float(self.fps), "timestamps": self.timestamps, "cameras": cameras}

    def scan(self, path: Path) -> Recording:
        StepClock(self.fps)
        _check_format(path)
        with OpenChunkFiles(path) as files:
            if not files.has(f"{ENDS}/{ARRAY_FILE}"):
                raise UnknownFormat(path=str(path), detail=_missing(files))
            buffer = ReplayBuffer.of(files, self.cameras, self.timestamps)
            episodes = tuple(self._episodes(buffer, files))
            paths = files.paths()
        return Recording(
            format=FORMAT,
            path=path,
            name=path.resolve().name.removesuffix(".zip").removesuffix(".zarr"),
            episodes=episodes,
            streams=tuple(buffer.streams()),
            skipped=buffer.skipped,
            losses=tuple(self._losses(buffer)),
            files=paths,
            about={"steps": buffer.steps, "cameras": list(buffer.cameras)},
            detail=buffer,
        )

    def encode(self, recording: Recording, index: int, folder: Path) -> EncodedEpisode:
        buffer: ReplayBuffer = recording.detail
        if not 0 <= index < len(buffer.ends):
            message = f"{recording.path} has {len(buffer.ends)} episodes; there is no {index}"
            raise ConfigurationError(message=message)
        with OpenChunkFiles(recording.path) as files:
            reading = _Reading(self, buffer, files, index)
            reading.write_streams(folder)
            layout = reading.write_video(folder)
        suffix = f" #{index}"
        return EncodedEpisode(
            files=files_in(folder),
            name=recording.name[: LONGEST_NAME - len(suffix)] + suffix,
            source="real",
            fps=float(self.fps),
            duration_s=reading.duration_s,
            metadata={**reading.metadata(recording), "video_cameras": layout},
        )

    def _episodes(self, buffer: ReplayBuffer, files: ChunkFiles) -> Iterator[EpisodeInRecording]:
        in_folder = not files.path.is_file()
        for_all = buffer.files_of_all(files) if in_folder else ()
        for index in range(len(buffer.ends)):
            start, stop = buffer.rows(index)
            own = buffer.files_of(files, index) if in_folder else ()
            yield EpisodeInRecording(
                index=index,
                key=f"episode_{index}",
                rows=stop - start,
                duration_s=None if self.timestamps else (stop - start) / self.fps,
                files=(*for_all, *own),
            )

    def _losses(self, buffer: ReplayBuffer) -> Iterator[str]:
        if self.timestamps is None:
            yield f"Steps have no times: they are taken to be 1/{self.fps:g} s apart."
            if "timestamp" in buffer.arrays:
                yield (
                    "The array timestamp is kept as numbers; the option timestamps=timestamp makes it the clock."
                )
        elif buffer.cameras:
            yield f"Frames of the video are 1/{self.fps:g} s apart, whatever {self.timestamps} says."
        for camera in buffer.cameras:
            yield LOSSY.format(camera)
            if buffer.arrays[camera].dtype.kind == "f":
                yield f"{camera} holds whole numbers as {buffer.arrays[camera].dtype}; its frames are uint8."


# ------------------------------------------------------------------------------------- one episode


class _Reading:
    """One episode while it is read."""

    def __init__(
        self, options: ZarrBufferImporter, buffer: ReplayBuffer, files: ChunkFiles, index: int
    ) -> None:
        self._options = options
        self._buffer = buffer
        self._files = files
        self._index = index
        self._start, self._stop = buffer.rows(index)
        self._read: dict[str, int] = {}
        self._total = RewardTotal()

    def write_streams(self, folder: Path) -> None:
        with StreamFiles(folder) as streams:
            for key, array in self._buffer.arrays.items():
                if key not in self._buffer.cameras:
                    self._write(streams, key, array)
            streams.write()

    def _write(self, streams: StreamFiles, key: str, array: StoredArray) -> None:
        kind: ArtifactKind = "actions" if self._buffer.slot(key) == "actions" else "sensors"
        read = 0
        for rows in array.blocks(self._files, self._start, self._stop):
            times = self._times(self._start + read, len(rows))
            streams.add(kind, key, times, {ONLY_FIELD: rows})
            if key in _REWARDS and rows.size == len(rows) and rows.dtype.kind in "biuf":
                self._total.add(rows)
            read += len(rows)
        self._read[key] = read

    def _times(self, first: int, count: int) -> NDArray[np.int64]:
        named = self._options.timestamps
        if named is None:
            return StepClock(self._options.fps).times(first - self._start, count)
        array = self._buffer.arrays[named]
        # one row before these, so that a fall between two blocks is seen
        before = max(self._start, first - 1)
        blocks = array.blocks(self._files, before, first + count)
        seconds = np.concatenate([each.reshape(-1).astype(np.float64) for each in blocks])
        finite = np.abs(seconds) < 9e9
        times = np.rint(np.where(finite, seconds, 0) * 1e9).astype(np.int64)
        wrong = int(finite.argmin()) if not finite.all() else first_fall(times)
        if wrong is not None:
            row = before + wrong
            detail = f"row {row} is {seconds[wrong]} s, not later than the one before"
            path = f"{self._buffer.path}/data/{named}"
            raise DamagedRecording(path=path, detail=detail)
        return times[first - before :]

    def write_video(self, folder: Path) -> list[dict[str, Any]]:
        cameras = self._buffer.cameras
        if not cameras:
            return []
        target, path = folder / FILE_NAMES["video"], self._buffer.path
        with CameraVideo(target, float(self._options.fps), cameras, path) as video:
            for pictures in zip(*(self._frames(each) for each in cameras), strict=True):
                video.add(pictures)
        for camera in cameras:
            self._read[camera] = video.frames
        return video.layout

    def _frames(self, camera: str) -> Iterator[Picture]:
        row = self._start
        for rows in self._buffer.arrays[camera].blocks(self._files, self._start, self._stop):
            frames = rows
            if rows.dtype != np.uint8:
                frames = _whole_numbers(rows, self._buffer.path, camera, row)
            for frame in frames:
                yield picture(frame, f"row {row} of {camera}")
                row += 1

    @property
    def duration_s(self) -> float:
        named = self._options.timestamps
        if named is None:
            return (self._stop - self._start) / self._options.fps
        array = self._buffer.arrays[named]
        ends = [next(array.blocks(self._files, at, at + 1)) for at in (self._start, self._stop - 1)]
        return float(ends[1].item() - ends[0].item())

    def metadata(self, recording: Recording) -> dict[str, Any]:
        steps = self._stop - self._start
        declared = dict.fromkeys(self._buffer.arrays, steps)
        for key, count in declared.items():
            if self._read[key] != count:
                raise CountMismatch(
                    path=f"{self._buffer.path}/data/{key}",
                    what="rows",
                    declared=count,
                    read=self._read[key],
                    detail=f"episode {self._index}",
                )
        found: dict[str, Any] = {
            "adapter": FORMAT,
            "steps": steps,
            "declared": declared,
            "read": self._read,
            "skipped": [{"name": each.name, "reason": each.reason} for each in recording.skipped],
            "losses": [*recording.losses, *self._made_up()],
            "outcome": EpisodeOutcome(reward_total=self._total.value),
            "zarr_buffer_meta": self._meta(),
        }
        return found if self._options.timestamps else {**found, ASSUMED_KEY: True}

    def _made_up(self) -> Iterator[str]:
        for key, array in self._buffer.arrays.items():
            names = array.chunk_names(self._start, self._stop)
            missing = sum(not self._files.has(name) for name in names)
            if missing:
                yield f"{missing} chunks of {key} are not stored; they are read as {array.fill}."

    def _meta(self) -> dict[str, Any]:
        """Values of the episode in the arrays of `meta`. JSON has no NaN, so such a value is left out."""
        found = {}
        for key, array in self._buffer.meta.items():
            [row] = array.blocks(self._files, self._index, self._index + 1)
            if row.dtype.kind != "f" or np.isfinite(row).all():
                found[key] = row[0].tolist()
        return found


def _check_format(path: Path) -> None:
    if path.is_dir():
        return
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise UnknownFormat(path=str(path), detail="it is neither a folder nor a zip file")


def _missing(files: ChunkFiles) -> str:
    if files.has("zarr.json"):
        return "it is a Zarr store of version 3; replay buffers are of version 2"
    return f"there is no {ENDS} in it"


def _whole_numbers(rows: NDArray[Any], path: Path, camera: str, first: int) -> NDArray[np.uint8]:
    right = is_whole(rows).reshape(len(rows), -1).all(axis=1)
    if not right.all():
        row = first + int(right.argmin())
        detail = f"row {row} is no picture: it has values other than whole numbers of 0 to 255"
        raise DamagedRecording(path=f"{path}/data/{camera}", detail=detail)
    return rows.astype(np.uint8)
