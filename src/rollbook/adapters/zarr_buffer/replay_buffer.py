"""ReplayBuffer: what a buffer holds, without its rows: its episodes, its arrays, its cameras, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.recording import RecordedStream, Skipped, Slot
from rollbook.adapters.steps.camera_video import chosen_cameras
from rollbook.adapters.storable_text import stream_name_problem
from rollbook.adapters.zarr_buffer.chunk_files import ChunkFiles
from rollbook.adapters.zarr_buffer.stored_array import ARRAY_FILE, StoredArray, UnreadableArray
from rollbook.errors import ConfigurationError, CountMismatch, DamagedRecording

ENDS = "meta/episode_ends"
_MOST_EPISODES = 10_000_000
_LEAST_SIDE = 16
"""Pixels. A smaller array of numbers is not taken for a picture."""
_LONGEST_VALUE = 64
"""Numbers of one episode in an array of `meta` that fit into its metadata."""


@dataclass(frozen=True, slots=True)
class ReplayBuffer:
    """The description of a buffer, without its rows."""

    path: Path
    ends: NDArray[np.int64]
    arrays: Mapping[str, StoredArray]
    meta: Mapping[str, StoredArray]
    """Arrays with one row for each episode."""
    cameras: tuple[str, ...]
    skipped: tuple[Skipped, ...]

    @classmethod
    def of(
        cls, files: ChunkFiles, cameras: Sequence[str] | None, timestamps: str | None
    ) -> ReplayBuffer:
        skipped: list[Skipped] = []
        ends = _episode_ends(files)
        steps = int(ends[-1])
        arrays = _readable(files, "data", skipped)
        if not arrays:
            detail = "none of its arrays in data/ can be read"
            raise DamagedRecording(path=str(files.path), detail=detail)
        for key, array in arrays.items():
            _check_length(files, key, array, steps)
            array.check_stored(files, steps)
            if array.shape[0] > steps:
                rest = f"its rows {steps} to {array.shape[0] - 1} are behind the last episode end"
                skipped.append(Skipped(f"data/{key}", rest))
        meta = _readable(files, "meta", skipped)
        meta.pop("episode_ends", None)
        for key, array in list(meta.items()):
            if array.shape[0] != len(ends) or np.prod(array.shape[1:]) > _LONGEST_VALUE:
                skipped.append(Skipped(f"meta/{key}", "it has not one short row for each episode"))
                del meta[key]
        shown = [key for key, array in arrays.items() if _is_picture(files, array)]
        chosen = chosen_cameras(shown, cameras, str(files.path))
        for camera in shown:
            if camera not in chosen:
                skipped.append(Skipped(f"data/{camera}", "this camera was not chosen"))
        _check_timestamps(files.path, arrays, timestamps)
        kept = {key: each for key, each in arrays.items() if key in chosen or key not in shown}
        return cls(files.path, ends, kept, meta, chosen, tuple(skipped))

    @property
    def steps(self) -> int:
        return int(self.ends[-1])

    def rows(self, index: int) -> tuple[int, int]:
        return (int(self.ends[index - 1]) if index else 0), int(self.ends[index])

    def files_of_all(self, files: ChunkFiles) -> tuple[Path, ...]:
        """The files in a folder that every episode needs."""
        ends = StoredArray.of(files, ENDS)
        names = [f"{ENDS}/{ARRAY_FILE}", *ends.chunk_names(0, len(self.ends))]
        names += (f"{array.name}/{ARRAY_FILE}" for array in self.arrays.values())
        return tuple(self.path / each for each in names)

    def files_of(self, files: ChunkFiles, index: int) -> Iterator[Path]:
        """The files in a folder with the rows of one episode."""
        for array in self.arrays.values():
            for name in array.chunk_names(*self.rows(index)):
                if files.has(name):
                    yield self.path / name

    def slot(self, key: str) -> Slot:
        if key in self.cameras:
            return "video"
        is_action = key in ("action", "actions") or key.startswith(("action.", "action_"))
        return "actions" if is_action else "sensors"

    def streams(self) -> Iterator[RecordedStream]:
        for key, array in self.arrays.items():
            yield RecordedStream(
                name=f"data/{key}", slot=self.slot(key), type=array.type, rows=self.steps
            )


# ------------------------------------------------------------------------------------------- checks


def _episode_ends(files: ChunkFiles) -> NDArray[np.int64]:
    place = f"{files.path}/{ENDS}"
    try:
        array = StoredArray.of(files, ENDS)
    except UnreadableArray as reason:
        raise DamagedRecording(path=place, detail=str(reason)) from None
    if array.dtype.kind not in "iu" or len(array.shape) != 1:
        detail = (
            f"it is {array.dtype} of shape {array.shape}, not one whole number for each episode"
        )
        raise DamagedRecording(path=place, detail=detail)
    if not 0 < array.shape[0] <= _MOST_EPISODES:
        detail = f"it has {array.shape[0]} episodes; 1 to {_MOST_EPISODES} can be read"
        raise DamagedRecording(path=place, detail=detail)
    blocks = [each.astype(np.int64) for each in array.blocks(files, 0, array.shape[0])]
    ends = np.concatenate(blocks)
    # compared, not subtracted: the difference of two whole numbers may not fit into 64 bits
    falls = np.flatnonzero(ends <= np.concatenate([[0], ends[:-1]]))
    if falls.size:
        row = int(falls[0])
        before = int(ends[row - 1]) if row else 0
        detail = (
            f"episode {row} ends at row {ends[row]}, which is not behind {before}, where it begins"
        )
        raise DamagedRecording(path=place, detail=detail)
    return ends


def _readable(files: ChunkFiles, group: str, skipped: list[Skipped]) -> dict[str, StoredArray]:
    found = {}
    for key in files.children(group):
        name = f"{group}/{key}"
        if not files.has(f"{name}/{ARRAY_FILE}"):
            skipped.append(Skipped(name, "it is not an array"))
            continue
        problem = stream_name_problem(key)
        if problem is not None:
            skipped.append(Skipped(name, problem))
            continue
        try:
            found[key] = StoredArray.of(files, name)
        except UnreadableArray as reason:
            skipped.append(Skipped(name, str(reason)))
    return found


def _check_length(files: ChunkFiles, key: str, array: StoredArray, steps: int) -> None:
    if array.shape[0] < steps:
        raise CountMismatch(
            path=f"{files.path}/data/{key}",
            what="rows",
            declared=steps,
            read=array.shape[0],
            detail="episode_ends says how many there have to be",
        )


def _is_picture(files: ChunkFiles, array: StoredArray) -> bool:
    """Bytes of the shape of pictures; or floats of that shape, if the first picture has whole numbers of 0 to 255."""
    shape = array.shape
    if len(shape) != 4 or shape[3] not in (1, 3) or min(shape[1:3]) < _LEAST_SIDE:
        return False
    if array.dtype == np.uint8:
        return True
    if array.dtype.kind != "f":
        return False
    [first] = array.blocks(files, 0, 1)
    return bool(is_whole(first).all())


def _check_timestamps(path: Path, arrays: Mapping[str, StoredArray], named: str | None) -> None:
    if named is None:
        return
    array = arrays.get(named)
    per_step = array is not None and array.dtype.kind in "fiu" and np.prod(array.shape[1:]) == 1
    if not per_step:
        known: Sequence[str] = [key for key, each in arrays.items() if each.dtype.kind == "f"]
        there = ", ".join(known) or "none"
        message = (
            f"timestamps={named!r}: {path} has no such array of one number a step; it has: {there}"
        )
        raise ConfigurationError(message=message)


def is_whole(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Which values are whole numbers of 0 to 255."""
    with np.errstate(invalid="ignore"):
        found: NDArray[np.bool_] = (rows >= 0) & (rows <= 255) & (rows == np.floor(rows))
    return found
