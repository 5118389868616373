"""FrameGrid: the times of the frames of one episode; and ClockFit, how the rows of a stream come onto them.

Everything is read in blocks: the memory does not depend on the length of a stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.npz import NpzArchive
from rollbook.contracts.streams import first_fall
from rollbook.errors import InvalidValue

Times: TypeAlias = "NDArray[np.int64]"
Resampling: TypeAlias = Literal["nearest", "last"]

TOLERANCE_NS = 100_000
"""LeRobot accepts a frame that is at most 1e-4 s from its time."""
NS = 1_000_000_000
_BLOCK = 1 << 16
_FARTHEST_NS = 2**62 - 1
"""146 years. The distance of two times then fits into 64 bits."""
_LONGEST_IN_FLOAT32_S = 512.0
"""Up to here, numbers of 32 bits are at most 6e-5 s apart."""


@dataclass(frozen=True, slots=True)
class FrameGrid:
    """`count` frames at `fps`, the first at `start_ns`."""

    start_ns: int
    fps: float
    count: int
    timestamp_type: str = "float32"
    """Type of the column `timestamp`."""

    def times(self, first: int, stop: int) -> Times:
        """In nanoseconds, on the clocks of the streams."""
        return self.start_ns + _nanoseconds(np.arange(first, stop) / self.fps)

    def seconds(self, first: int, stop: int) -> NDArray[Any]:
        """What the column `timestamp` holds: seconds from the first frame."""
        return (np.arange(first, stop) / self.fps).astype(self.timestamp_type)

    def read_back(self, first: int, stop: int) -> Times:
        """The clock that an import makes of the column `timestamp`."""
        return _nanoseconds(self.seconds(first, stop).astype(np.float64))

    @property
    def needs_float64(self) -> bool:
        """LeRobot itself writes float32, which misses its own tolerance in long episodes."""
        return self.count / self.fps > _LONGEST_IN_FLOAT32_S


def _nanoseconds(seconds: NDArray[np.float64]) -> Times:
    return np.rint(seconds * 1e9).astype(np.int64)


# ------------------------------------------------------------------------------------------- clocks


@dataclass(frozen=True, slots=True)
class StreamClock:
    """The clock of one namespace, without its times."""

    key: str
    rows: int
    first_ns: int
    last_ns: int
    times: Times | None = None
    """Kept of a short clock while the plan of its episode is made, so that it is read once."""

    @classmethod
    def of(cls, archive: NpzArchive, key: str, rows: int, record: str) -> StreamClock:
        """A clock that does not rise is refused. `record` names the episode in the message."""
        first, last, times = 0, None, np.empty(0, np.int64)
        for piece in archive.rows(key, 0, rows):
            times = piece.astype(np.int64, copy=False)
            if last is None:
                first = int(times[0])
            joined = times if last is None else np.concatenate([[last], times])
            fall = first_fall(joined)
            if fall is not None:
                raise InvalidValue(
                    record=record,
                    field=key,
                    value=f"{joined[fall]} ns",
                    expected=f"later than the row before, at {joined[fall - 1]} ns",
                )
            last = int(times[-1])
        if first < -_FARTHEST_NS or (last is not None and last > _FARTHEST_NS):
            raise InvalidValue(
                record=record,
                field=key,
                value=f"{first} to {last} ns",
                expected=f"times from {-_FARTHEST_NS} to {_FARTHEST_NS} ns",
            )
        kept = times if last is not None and len(times) == rows else None
        return cls(key, rows, first, first if last is None else last, kept)

    def pieces(self, archive: NpzArchive, start: int, stop: int) -> Iterator[Times]:
        """The times of these rows."""
        if self.times is not None:
            yield self.times[start:stop]
            return
        for piece in archive.rows(self.key, start, stop):
            yield piece.astype(np.int64, copy=False)

    def without_times(self) -> StreamClock:
        return replace(self, times=None)


@dataclass(frozen=True, slots=True)
class ClockFit:
    """Which row of the stream each frame takes."""

    clock: StreamClock
    offset: int | None
    """Frame `i` takes row `i + offset`; None where rows are chosen by their times."""
    is_next: bool = False
    """Every row lies one frame after the frame that it belongs to, as rewards do."""
    error_ns: int = 0
    """The greatest distance between a frame and the row that it takes."""
    moved_ns: int = 0
    """The greatest change of a time after the export was imported again, where frames take the rows one by one."""

    def rows_unused(self, count: int) -> int:
        """Rows before the first frame and after the last one, where frames take the rows one by one."""
        return 0 if self.offset is None else self.clock.rows - count


def fit_clock(
    archive: NpzArchive, clock: StreamClock, grid: FrameGrid, resampling: Resampling
) -> ClockFit:
    period = NS / grid.fps
    offset = round((grid.start_ns - clock.first_ns) / period)
    if 0 <= offset <= clock.rows - grid.count:
        fit = _same_rows(archive, clock, grid, offset, later=0)
        if fit is not None:
            return fit
    if offset == -1 and clock.rows == grid.count:
        fit = _same_rows(archive, clock, grid, 0, later=1)
        if fit is not None:
            return fit
    picker = RowPicker(archive, clock, grid, resampling)
    for first in range(0, grid.count, _BLOCK):
        picker.rows(first, min(first + _BLOCK, grid.count))
    return ClockFit(clock.without_times(), None, error_ns=picker.error_ns)


def _same_rows(
    archive: NpzArchive, clock: StreamClock, grid: FrameGrid, offset: int, *, later: int
) -> ClockFit | None:
    """The fit that takes the rows one by one; None where a time is too far from that of its frame."""
    error = moved = at = 0
    for times in clock.pieces(archive, offset, offset + grid.count):
        stop = at + len(times)
        expected = grid.times(at + later, stop + later)
        error = max(error, int(np.abs(times - expected).max()))
        if error > TOLERANCE_NS:
            return None
        back = grid.read_back(at, stop)
        moved = max(moved, int(np.abs(times - back).max()))
        at = stop
    kept = clock.without_times()
    return ClockFit(kept, offset, is_next=bool(later), error_ns=error, moved_ns=moved)


class RowPicker:
    """The rows that are nearest to frames in time, or the last ones before them. Frames are asked for in order."""

    def __init__(
        self, archive: NpzArchive, clock: StreamClock, grid: FrameGrid, resampling: Resampling
    ) -> None:
        self._pieces = clock.pieces(archive, 0, clock.rows)
        self._grid = grid
        self._resampling = resampling
        self._times: Times = np.empty(0, np.int64)
        self._first = 0
        self.error_ns = 0

    def rows(self, first: int, stop: int) -> Times:
        """For each frame the number of a row. They never fall."""
        times = self._grid.times(first, stop)
        self._read_past(int(times[-1]))
        known = self._times
        at = np.maximum(np.searchsorted(known, times, side="right") - 1, 0)
        if self._resampling == "nearest":
            after = np.minimum(at + 1, len(known) - 1)
            at = np.where(np.abs(known[after] - times) < np.abs(times - known[at]), after, at)
        self.error_ns = max(self.error_ns, int(np.abs(known[at] - times).max()))
        found = at + self._first
        kept = int(at[-1])
        self._times, self._first = known[kept:], self._first + kept
        return found

    def _read_past(self, t_ns: int) -> None:
        while not len(self._times) or self._times[-1] <= t_ns:
            piece = next(self._pieces, None)
            if piece is None:
                return
            self._times = np.concatenate([self._times, piece])
