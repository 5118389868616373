"""EpisodeReading: one episode of a Minari dataset while it is read and written to files.

The streams are those of rollbook.adapters.gymnasium: T + 1 observations, T actions, and T rewards at the ends of
their steps. So a closed-loop replay runs on an imported episode as on a recorded one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.minari.dataset import MinariDataset
from rollbook.adapters.minari.info_outcome import KEYS, InfoOutcome
from rollbook.adapters.minari.spaces import SpaceLeaf
from rollbook.adapters.minari.storage import (
    Column,
    OpenEpisode,
    Part,
    StoredEpisode,
    UnreadableColumn,
)
from rollbook.adapters.steps.camera_video import CameraVideo
from rollbook.adapters.steps.reward_total import RewardTotal
from rollbook.adapters.steps.step_clock import StepClock
from rollbook.adapters.steps.text_column import UnstorableText, check_width, text_array
from rollbook.adapters.stream_files import StreamFiles
from rollbook.adapters.video_source import decoded_picture
from rollbook.client.video import Picture, picture
from rollbook.contracts.episode import FILE_NAMES, ArtifactKind
from rollbook.contracts.streams import ONLY_FIELD
from rollbook.contracts.typed_metadata import EpisodeOutcome
from rollbook.errors import CountMismatch, DamagedRecording

FLAGS: dict[Part, str] = {"terminations": "terminated", "truncations": "truncated"}
REWARD = "reward"


class EpisodeReading:
    def __init__(
        self, dataset: MinariDataset, episode: StoredEpisode, opened: OpenEpisode, fps: float
    ) -> None:
        self._dataset = dataset
        self._episode = episode
        self._opened = opened
        self._clock = StepClock(fps)
        self._total = RewardTotal()
        self._reported = InfoOutcome()
        self.read: dict[str, int] = {}
        self.declared: dict[str, int] = {}
        self.skipped: dict[str, str] = {}
        self.steps = self._counted_steps()
        self.ended: dict[str, bool] = {}

    def _counted_steps(self) -> int:
        rewards = self._opened_column("rewards")
        found = rewards.rows - 1 if self._opened.padded else rewards.rows
        steps = found if self._episode.steps is None else self._episode.steps
        if self._episode.steps is not None:
            self.declared["steps"] = steps
        self._check("steps", steps, found)
        if steps < 1:
            raise DamagedRecording(path=self._place, detail="it has no steps")
        return steps

    @property
    def _place(self) -> str:
        return f"{self._episode.files[-1]} ({self._episode.key})"

    def _check(self, what: str, declared: int, read: int) -> None:
        if declared != read:
            detail = f"{self._episode.key} has another number of them"
            path = str(self._episode.files[-1])
            raise CountMismatch(path=path, what=what, declared=declared, read=read, detail=detail)

    # ---------------------------------------------------------------------------------- streams

    def write_streams(self, folder: Path) -> None:
        with StreamFiles(folder) as files:
            for leaf in self._dataset.observation:
                if not self._is_encoded(leaf):
                    self._leaf(files, "sensors", "observations", leaf, self.steps + 1)
            for leaf in self._dataset.action:
                self._leaf(files, "actions", "actions", leaf, self.steps)
            self._rewards(files)
            for part, name in FLAGS.items():
                self._flags(files, part, name)
            for info in self._opened.infos():
                self._info(files, info)
            files.write()
        self.read["steps"] = self.steps

    def _is_encoded(self, leaf: SpaceLeaf) -> bool:
        return leaf.is_picture and self._dataset.encoded

    def _leaf(
        self, files: StreamFiles, kind: ArtifactKind, part: Part, leaf: SpaceLeaf, rows: int
    ) -> None:
        if self._is_encoded(leaf):
            self.skipped[leaf.name] = "JPEG pictures are shown, and are not actions"
            return
        column = self._column(part, leaf, rows)
        if leaf.dtype is None:
            self._text(files, kind, leaf.name, column, rows)
            return
        self._numbers(files, kind, leaf.name, column, rows, leaf.shape)

    def _column(self, part: Part, leaf: SpaceLeaf, rows: int) -> Column:
        try:
            column = self._opened.column(part, leaf.path, encoded=self._is_encoded(leaf))
        except UnreadableColumn as reason:
            raise DamagedRecording(path=self._place, detail=f"{leaf.name}: {reason}") from None
        self._check(f"rows of {leaf.name}", self._rows_there(rows), column.rows)
        expected = "text" if leaf.dtype is None else "numbers"
        if column.kind not in (expected, "encoded"):
            detail = f"{leaf.name} holds {column.kind}; its space says {expected}"
            raise DamagedRecording(path=self._place, detail=detail)
        if column.kind == "numbers" and np.prod(column.shape) != leaf.size:
            detail = f"{leaf.name} has rows of shape {column.shape}; its space says {leaf.shape}"
            raise DamagedRecording(path=self._place, detail=detail)
        return column

    def _rows_there(self, rows: int) -> int:
        return self.steps + 1 if self._opened.padded else rows

    def _numbers(
        self,
        files: StreamFiles,
        kind: ArtifactKind,
        name: str,
        column: Column,
        rows: int,
        shape: tuple[int, ...],
        *,
        first_tick: int = 0,
        note: Callable[[int, NDArray[Any]], None] | None = None,
    ) -> None:
        done = 0
        for block in column.read(rows):
            values = np.asarray(block).reshape(len(block), *shape)
            times = self._clock.times(first_tick + done, len(values))
            files.add(kind, name, times, {ONLY_FIELD: values})
            if note is not None:
                note(first_tick + done, values)
            done += len(values)
        self.read[name] = done
        self._check(f"rows of {name}", rows, done)

    def _text(
        self, files: StreamFiles, kind: ArtifactKind, name: str, column: Column, rows: int
    ) -> None:
        """Text is read twice: the longest one decides the width of all."""
        lengths = [len(text) for block in column.read(rows) for text in block]
        width, done = max(lengths, default=0), 0
        try:
            check_width(width, len(lengths), sum(lengths))
            for block in column.read(rows):
                times = self._clock.times(done, len(block))
                files.add(kind, name, times, {ONLY_FIELD: text_array(block, width)})
                done += len(block)
        except UnstorableText as reason:
            self.skipped[name] = str(reason)
            return
        self.read[name] = done

    def _rewards(self, files: StreamFiles) -> None:
        column = self._plain("rewards")
        if column.kind != "numbers" or np.prod(column.shape) != 1:
            raise DamagedRecording(path=self._place, detail="rewards are not one number a step")
        self._numbers(
            files,
            "sensors",
            REWARD,
            column,
            self.steps,
            (),
            first_tick=1,
            note=lambda _, values: self._total.add(values),
        )

    def _flags(self, files: StreamFiles, part: Part, name: str) -> None:
        """The last flag says how the episode ended. Flags before it are rare; a stream keeps them then."""
        column = self._plain(part)
        if column.kind != "numbers" or np.prod(column.shape) != 1:
            raise DamagedRecording(path=self._place, detail=f"{part} are not one flag a step")
        true, last, done = 0, False, 0
        for block in column.read(self.steps):
            flags = np.asarray(block).reshape(-1) != 0
            true += int(np.count_nonzero(flags))
            last = bool(flags[-1])
            done += len(flags)
        self._check(f"rows of {part}", self.steps, done)
        self.ended[name] = last
        if true > last:
            self._numbers(files, "sensors", name, column, self.steps, (), first_tick=1)

    def _plain(self, part: Part) -> Column:
        column = self._opened_column(part)
        self._check(f"rows of {part}", self._rows_there(self.steps), column.rows)
        return column

    def _opened_column(self, part: Part) -> Column:
        try:
            return self._opened.column(part, (), encoded=False)
        except UnreadableColumn as reason:
            raise DamagedRecording(path=self._place, detail=f"{part}: {reason}") from None

    def _info(self, files: StreamFiles, info: Column | tuple[str, str]) -> None:
        """There is an info for each observation, or for each step."""
        if not isinstance(info, Column):
            self.skipped[info[0]] = info[1]
            return
        first_tick = {self.steps + 1: 0, self.steps: 1}.get(info.rows)
        if first_tick is None or info.kind == "text":
            reason = "it is text" if info.kind == "text" else f"it has {info.rows} rows"
            self.skipped[info.name] = f"{reason}; one number for each of {self.steps} steps is read"
            return
        key = info.name.removeprefix("info.")
        scalar = np.prod(info.shape) == 1
        shape = () if scalar else info.shape

        def note(step: int, values: NDArray[Any]) -> None:
            if scalar and key in KEYS:
                self._reported.add(key, step, values)

        self._numbers(
            files, "sensors", info.name, info, info.rows, shape, first_tick=first_tick, note=note
        )

    # ------------------------------------------------------------------------------------ video

    def write_video(self, folder: Path, cameras: Sequence[SpaceLeaf]) -> list[dict[str, Any]]:
        if not cameras:
            return []
        path = self._episode.files[-1]
        names = [each.name for each in cameras]
        with CameraVideo(folder / FILE_NAMES["video"], self._clock.fps, names, path) as video:
            for pictures in zip(*map(self._frames, cameras), strict=True):
                video.add(pictures)
        self._check("frames", self.steps + 1, video.frames)
        for leaf in cameras:
            self.read.setdefault(leaf.name, video.frames)
        return video.layout

    def _frames(self, leaf: SpaceLeaf) -> Iterator[Picture]:
        column = self._column("observations", leaf, self.steps + 1)
        number = 0
        for block in column.read(self.steps + 1):
            for each in block:
                what = f"{leaf.name} of row {number} in {self._episode.key}"
                if column.kind == "encoded":
                    yield decoded_picture(each, self._episode.files[-1], what)
                else:
                    yield picture(each.reshape(leaf.shape), what)
                number += 1

    # ---------------------------------------------------------------------------------- results

    def outcome(self) -> EpisodeOutcome:
        return EpisodeOutcome(
            success=self._reported.success,
            reward_total=self._total.value,
            collision_count=self._reported.collisions,
            time_to_goal_s=self._reported.time_to_goal_s(self._clock.fps),
        )

    def end(self) -> dict[str, Any]:
        """As the Gymnasium adapter says it. An episode that neither flag ends was cut off: why is not known."""
        found: dict[str, Any] = dict(self.ended)
        if self.ended["terminated"] or self.ended["truncated"]:
            found["ended_by"] = "terminated" if self.ended["terminated"] else "truncated"
        return found
