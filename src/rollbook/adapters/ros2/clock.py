"""Clock of a topic: its log times, made to rise strictly, and rows put into the order of time where they are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOG_TIME = "_log_t_ns"
"""The times as they were recorded, in topics whose clock had to be changed."""
PUBLISH_TIME = "_publish_t_ns"
_ROWS_AT_ONCE = 4096


@dataclass(slots=True)
class ClockSurvey:
    """What a first pass found out about the times of a topic."""

    rows: int = 0
    first_ns: int = 2**63 - 1
    last_ns: int = -(2**63)
    repeated: int = 0
    backward: int = 0
    has_publish_times: bool = False
    """Whether a publish time differs from its log time."""
    _previous: int | None = None

    def add(self, log_ns: list[int], publish_ns: list[int] | None) -> None:
        times = np.array(log_ns, np.int64)
        before = times[:-1]
        after = times[1:]
        if self._previous is not None:
            before = np.concatenate([[self._previous], before])
            after = times
        self.repeated += int(np.count_nonzero(after == before))
        self.backward += int(np.count_nonzero(after < before))
        self._previous = int(times[-1])
        self.first_ns = min(self.first_ns, int(times.min()))
        self.last_ns = max(self.last_ns, int(times.max()))
        self.rows += len(times)
        if publish_ns is not None and not self.has_publish_times:
            self.has_publish_times = publish_ns != log_ns

    @property
    def is_changed(self) -> bool:
        return self.repeated + self.backward > 0


@dataclass(slots=True)
class RisingClock:
    """Moves a time that repeats the one before it to the next free nanosecond. Times come in order."""

    moved: int = 0
    _last: int | None = None

    def times(self, log_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        steps = np.arange(len(log_ns), dtype=np.int64)
        least = log_ns - steps
        if self._last is not None:
            least[0] = max(int(least[0]), self._last + 1)
        rising = np.maximum.accumulate(least) + steps
        self.moved += int(np.count_nonzero(rising != log_ns))
        self._last = int(rising[-1])
        return rising


@dataclass(slots=True)
class UnorderedRows:
    """Rows on disk until all are known, then given back by log time. Memory: 16 bytes for each row.

    A file is open only while it is written or read: there may be more columns than a process may have open files.
    """

    folder: Path
    """Used for nothing else."""
    _columns: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = field(default_factory=dict)
    """Type and shape of a row. The file is named by the place of the column."""
    _times: list[NDArray[np.int64]] = field(default_factory=list)

    def add(self, log_ns: NDArray[np.int64], columns: Mapping[str, NDArray[Any]]) -> None:
        self._times.append(log_ns)
        for number, (name, values) in enumerate(columns.items()):
            self._columns.setdefault(name, (values.dtype, values.shape[1:]))
            with open(self.folder / str(number), "ab") as file:
                file.write(values.tobytes())

    def ordered(self) -> Iterator[tuple[NDArray[np.int64], dict[str, NDArray[Any]]]]:
        times = np.concatenate(self._times)
        order = np.argsort(times, kind="stable")
        for first in range(0, len(order), _ROWS_AT_ONCE):
            rows = order[first : first + _ROWS_AT_ONCE]
            columns = enumerate(self._columns)
            yield times[rows], {name: self._taken(number, name, rows) for number, name in columns}

    def _taken(self, number: int, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        dtype, shape = self._columns[name]
        count = sum(map(len, self._times))
        stored = np.memmap(self.folder / str(number), dtype, "r", shape=(count, *shape))
        return np.asarray(stored[rows])
