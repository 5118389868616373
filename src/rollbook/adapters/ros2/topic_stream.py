"""TopicStream: one topic on its way into an episode. It is surveyed in a first pass and written in a second one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.mcap_stream import McapStream
from rollbook.adapters.recording import Slot
from rollbook.adapters.ros2.cameras import PICTURE_FIELDS, VIDEO_FRAME, Camera
from rollbook.adapters.ros2.clock import (
    LOG_TIME,
    PUBLISH_TIME,
    ClockSurvey,
    RisingClock,
    UnorderedRows,
)
from rollbook.adapters.ros2.packed import unpacked
from rollbook.adapters.ros2.shape import ColumnPlan, ShapeProblem
from rollbook.adapters.ros2.storage import Batch, Channel
from rollbook.adapters.ros2.topic_reader import TopicReader
from rollbook.adapters.stream_files import StreamFiles

BLOCK_BYTES = 1 << 20
_BLOCK_ROWS = 8192
_PADDED_BYTES = 1 << 25
"""Bytes of columns that are made at once."""


@dataclass(slots=True)
class _Block:
    """Messages that wait until there are enough of them."""

    log_ns: list[int] = field(default_factory=list)
    publish_ns: list[int] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)
    size: int = 0


@dataclass(slots=True, kw_only=True)
class TopicStream:
    name: str
    """The topic. With the type behind it where an earlier channel of the same topic has another type."""
    channel: Channel
    slot: Slot
    declared: int | None
    exported: McapStream | None = None
    """How an export of Rollbook described the stream: its fields are given back under their own names and types."""
    reader: TopicReader | None = None
    spare: TopicReader | None = None
    """Used if the first messages do not match what the file says about their type."""
    skipped: str | None = None
    """Why the topic is not imported."""
    is_packed: bool = False
    """Whether each message is compressed on its own."""
    read: int = 0
    clock: ClockSurvey = field(default_factory=ClockSurvey)
    camera: Camera | None = None
    plan: ColumnPlan = field(default_factory=lambda: ColumnPlan(columns=()))
    moved: int = 0
    """Times that were moved because they repeat the one before."""
    _block: _Block = field(default_factory=_Block)
    _rising: RisingClock = field(default_factory=RisingClock)
    _unordered: UnorderedRows | None = None
    _written: int = 0

    @property
    def artifact(self) -> Literal["sensors", "actions"]:
        return "actions" if self.slot == "actions" else "sensors"

    @property
    def is_read(self) -> bool:
        return self.skipped is None and self.reader is not None

    @property
    def waiting_bytes(self) -> int:
        return self._block.size

    def skip(self, reason: str) -> None:
        self.skipped = reason
        self._block = _Block()

    # --------------------------------------------------------------------------------------- survey

    def look_at(self, batch: Batch) -> None:
        self.read += len(batch.log_ns)
        self._add(batch)
        if self._is_full:
            self.finish_look()

    def finish_look(self) -> None:
        block, self._block = self._block, _Block()
        if not block.log_ns:
            return
        self.clock.add(block.log_ns, block.publish_ns or None)
        if not self.is_read:
            return
        try:
            self._look_at(block.data)
        except ValueError as error:
            before = self.clock.rows - len(block.log_ns)
            kind = self.channel.type or self.channel.encoding
            self.skip(f"after message {before}, one cannot be decoded as {kind}: {error}")

    def _look_at(self, messages: list[bytes]) -> None:
        assert self.reader is not None
        try:
            self.reader.look_at(messages)
        except ValueError:
            if self.spare is None or self.clock.rows > len(messages):
                raise
            self.reader, self.spare = self.spare, None
            self.reader.look_at(messages)

    def make_plan(self) -> None:
        """After the survey: the columns and what does not become one."""
        assert self.reader is not None
        try:
            plan = self.reader.plan()
        except ShapeProblem as problem:
            self.skip(str(problem))
            return
        left_out: set[str] = set()
        if self.channel_names:
            left_out = {self._names_field}
        if self.slot == "video":
            left_out = {c.name for c in plan.columns if c.name.partition(".")[0] in PICTURE_FIELDS}
        columns = tuple(column for column in plan.columns if column.name not in left_out)
        self.plan = ColumnPlan(columns=columns, skipped=plan.skipped, empty=plan.empty)
        if self.exported is not None:
            single = {column.name: column.empty(1) for column in columns}
            if self.exported.restored(single, 1) is None:
                self.exported = None  # the messages are not those that were described

    @property
    def channel_names(self) -> tuple[str, ...]:
        """Names of joints that are the same in every message."""
        names = {} if self.reader is None else self.reader.survey.names
        return names.get(self._names_field, ())

    @property
    def _names_field(self) -> str:
        names = {} if self.reader is None else self.reader.survey.names
        return next((field for field, known in names.items() if known), "")

    @property
    def column_count(self) -> int:
        extra = self.clock.is_changed + self.clock.has_publish_times + (self.camera is not None)
        return 1 + len(self.plan.columns) + extra

    # -------------------------------------------------------------------------------------- writing

    def write(self, batch: Batch, files: StreamFiles, folder: Path) -> None:
        self._add(batch)
        if self._is_full:
            self.finish_block(files, folder)

    def finish_block(self, files: StreamFiles, folder: Path) -> None:
        """Write the messages that wait. Rows that are not in the order of time go to temporary files first."""
        block, self._block = self._block, _Block()
        at_once = max(1, _PADDED_BYTES // max(1, self.plan.row_bytes))
        for first in range(0, len(block.log_ns), at_once):
            rows = slice(first, first + at_once)
            log_ns = np.array(block.log_ns[rows], np.int64)
            columns = self._columns(block, rows, log_ns)
            if self.clock.backward:
                if self._unordered is None:
                    self._unordered = UnorderedRows(Path(tempfile.mkdtemp(dir=folder)))
                self._unordered.add(log_ns, columns)
            else:
                self._store(log_ns, columns, files)

    def finish(self, files: StreamFiles, folder: Path) -> None:
        self.finish_block(files, folder)
        if self._unordered is not None:
            for log_ns, columns in self._unordered.ordered():
                self._store(log_ns, columns, files)
        self.moved = self._rising.moved

    def _columns(
        self, block: _Block, rows: slice, log_ns: NDArray[np.int64]
    ) -> dict[str, NDArray[Any]]:
        assert self.reader is not None
        columns = {column.name: column.empty(len(log_ns)) for column in self.plan.columns}
        self.reader.read(block.data[rows], columns)
        if self.clock.has_publish_times:
            columns[PUBLISH_TIME] = np.array(block.publish_ns[rows], np.int64)
        if self.camera is not None:
            shown = self.camera.frames[self._written : self._written + len(log_ns)]
            columns[VIDEO_FRAME] = np.array(shown, np.int64)
        self._written += len(log_ns)
        return columns

    def _store(
        self, log_ns: NDArray[np.int64], columns: Mapping[str, NDArray[Any]], files: StreamFiles
    ) -> None:
        fields = dict(columns)
        if self.exported is not None:
            fields = self.exported.restored(columns, len(log_ns)) or fields
        if self.clock.is_changed:
            fields[LOG_TIME] = log_ns
        files.add(self.artifact, self.name, self._rising.times(log_ns), fields)

    # -------------------------------------------------------------------------------------- messages

    def _add(self, batch: Batch) -> None:
        block = self._block
        block.log_ns += batch.log_ns
        if batch.publish_ns is not None:
            block.publish_ns += batch.publish_ns
        if not self.is_read:
            return
        try:
            data = [self.unpacked(each) for each in batch.data] if self.is_packed else batch.data
        except ValueError as error:
            self.skip(f"a message cannot be unpacked: {error}")
            return
        block.data += data
        block.size += sum(map(len, data))

    def unpacked(self, data: bytes) -> bytes:
        return unpacked(data, "zstd") if self.is_packed else data

    @property
    def _is_full(self) -> bool:
        return self._block.size >= BLOCK_BYTES or len(self._block.log_ns) >= _BLOCK_ROWS


def full_first(streams: Mapping[Any, TopicStream], most: int) -> Iterator[TopicStream]:
    """The streams to empty so that all together wait with at most `most` bytes."""
    waiting = sum(stream.waiting_bytes for stream in streams.values())
    for stream in sorted(streams.values(), key=lambda each: -each.waiting_bytes):
        if waiting <= most:
            return
        waiting -= stream.waiting_bytes
        yield stream
