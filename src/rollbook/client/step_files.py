"""FinishedSteps: the artifacts that the logged steps and frames of an episode become.

A program makes them when it finalizes the episode. If it was killed before, the next delivery makes them, from every
complete step and frame on disk.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.client.frame_log import CAMERAS_FILE, FRAMES_FILE
from rollbook.client.live_video import join_fragments
from rollbook.client.step_clock import step_ns
from rollbook.client.step_columns import CLOCK, REWARD_KEY, StepColumn, row_type
from rollbook.client.step_log import COLUMNS_FILE, ROWS_FILE, VERSION
from rollbook.contracts.episode import FILE_NAMES, ArtifactKind
from rollbook.contracts.npz import ArrayInPieces, write_npz
from rollbook.contracts.streams import CLOCK_FIELD, first_fall, split_key
from rollbook.contracts.typed_metadata import EpisodeOutcome
from rollbook.errors import StorageError

STEPS_FOLDER = "steps"
"""Name of the folder in the journal of the episode."""
_BLOCK = 8 << 20
"""Bytes of rows that are in memory at once."""


@dataclass(slots=True)
class FinishedSteps:
    files: dict[ArtifactKind, Path] = field(default_factory=dict)
    steps: int | None = None
    duration_s: float | None = None
    reward_total: float | None = None
    """None where no reward was logged, and where the sum is not a finite number."""
    cameras: list[dict[str, Any]] = field(default_factory=list)

    def ending(self, body: Mapping[str, Any], create: Mapping[str, Any]) -> dict[str, Any]:
        """The body that finalizes the episode, with what the steps say. What the caller said is not replaced."""
        ended = dict(body)
        known = {**(create.get("metadata") or {}), **(body.get("metadata") or {})}
        found: dict[str, Any] = {}
        if self.steps is not None:
            found["steps"] = known.get("steps", self.steps)
        if self.duration_s is not None:
            ended.setdefault("duration_s", self.duration_s)
        if self.cameras:
            found["video_cameras"] = self.cameras
        if self.reward_total is not None:
            outcome = known.get("outcome", EpisodeOutcome().to_dict())
            if isinstance(outcome, Mapping) and outcome.get("reward_total") is None:
                found["outcome"] = {**outcome, "reward_total": self.reward_total}
        if found:
            ended["metadata"] = {**(body.get("metadata") or {}), **found}
        return ended


def finish_steps(folder: Path) -> FinishedSteps:
    """Makes the artifacts inside the folder. It can be repeated: the same steps give the same files."""
    finished = FinishedSteps()
    if (folder / COLUMNS_FILE).exists():
        _finish_rows(_StoredRows(folder), folder, finished)
    video = folder / FILE_NAMES["video"]
    if (folder / FRAMES_FILE).exists() and join_fragments(folder / FRAMES_FILE, video):
        finished.files["video"] = video
        if (folder / CAMERAS_FILE).exists():
            finished.cameras = json.loads((folder / CAMERAS_FILE).read_bytes())
    return finished


def _finish_rows(rows: _StoredRows, folder: Path, finished: FinishedSteps) -> None:
    finished.steps = rows.count
    if not rows.count:
        return
    kinds: tuple[ArtifactKind, ...] = ("sensors", "actions")
    for kind in kinds:
        if arrays := rows.arrays(kind):
            path = folder / FILE_NAMES[kind]
            write_npz(path, arrays)
            finished.files[kind] = path
    finished.duration_s = rows.duration_s
    finished.reward_total = rows.reward_total


class _StoredRows:
    def __init__(self, folder: Path) -> None:
        self._path = folder / ROWS_FILE
        facts = _read(folder / COLUMNS_FILE)
        self._fps: float | None = facts["fps"]
        self._columns = [
            StepColumn(each["kind"], each["key"], np.dtype(each["dtype"]), tuple(each["shape"]))
            for each in facts["columns"]
        ]
        self._type = row_type(self._columns)
        self.count = self._path.stat().st_size // self._type.itemsize if self._path.exists() else 0
        self._first_ns, self._last_ns = 0, -1
        self._check_clock()

    def arrays(self, kind: ArtifactKind) -> dict[str, ArrayInPieces]:
        """In the order of `clocked_streams`, so that the file is the one that `log_episode` would make."""
        found: dict[str, ArrayInPieces] = {}
        for number, column in enumerate(self._columns):
            if column.kind == kind:
                found[column.key] = self._array(str(number), column.dtype, column.shape)
                clock = f"{split_key(column.key)[0]}/{CLOCK_FIELD}"
                found.setdefault(clock, self._array(CLOCK, np.dtype(np.int64), ()))
        return found

    @property
    def duration_s(self) -> float:
        """Of steps that are `1 / fps` apart, the last one counts too. Steps with times of their own end at the last."""
        passed_ns = self._last_ns - self._first_ns
        if self._fps is not None and passed_ns == step_ns(self.count - 1, self._fps):
            return self.count / self._fps
        return passed_ns / 1e9

    @property
    def reward_total(self) -> float | None:
        keys = [column.key for column in self._columns]
        if REWARD_KEY not in keys:
            return None
        pieces = self._pieces(str(keys.index(REWARD_KEY)))
        try:
            total = math.fsum(chain.from_iterable(piece.tolist() for piece in pieces))
        except (OverflowError, ValueError):
            return None
        return total if math.isfinite(total) else None

    def _array(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> ArrayInPieces:
        return ArrayInPieces(dtype, (self.count, *shape), partial(self._pieces, name))

    def _pieces(self, name: str) -> Iterator[NDArray[Any]]:
        if not self.count:  # a program that is killed at its first step leaves the columns alone
            return
        at_once = max(1, _BLOCK // self._type.itemsize)
        with open(self._path, "rb") as file:
            for start in range(0, self.count, at_once):
                rows = min(at_once, self.count - start)
                block = np.frombuffer(file.read(rows * self._type.itemsize), self._type)
                yield block[name]

    def _check_clock(self) -> None:
        """After a power cut the last rows can be zeros. The steps end where the clock stops rising."""
        whole, last = 0, None
        for times in self._pieces(CLOCK):
            if last is None:
                self._first_ns = int(times[0])
            known = times if last is None else np.concatenate([[last], times])
            fall = first_fall(known)
            rising = len(times) if fall is None else fall - (last is not None)
            whole += rising
            last = int(times[rising - 1]) if rising else last
            if fall is not None:
                break
        self.count = whole
        self._last_ns = -1 if last is None else last


def _read(path: Path) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads(path.read_bytes())
        version = facts["version"]
    except (ValueError, TypeError, KeyError) as error:
        raise StorageError(path=str(path), detail=f"not the columns of steps: {error}") from error
    if version != VERSION:
        detail = f"written by another release (version {version}); deliver it with that one"
        raise StorageError(path=str(path), detail=detail)
    return facts
