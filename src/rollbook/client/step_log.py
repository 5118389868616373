"""StepLog: the steps of an episode, written to disk one by one while the episode is recorded.

    columns.json    key, type and shape of each column, fixed by the first step
    rows.bin        the steps, each a row of the same size

The operating system has a row, in one write, before `add` returns. So a program that is killed keeps every step that it
has logged, and the memory in use does not depend on the number of steps.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollbook.client.step_clock import StepClock
from rollbook.client.step_columns import StepColumn, StepRow
from rollbook.files import write_bytes, write_errors

COLUMNS_FILE, ROWS_FILE = "columns.json", "rows.bin"
VERSION = 1


class StepLog:
    """Threads may share one."""

    def __init__(self, folder: Path, fps: float | None) -> None:
        self._path = folder / ROWS_FILE
        self._fps = fps
        self._clock = StepClock("step", fps)
        self._lock = threading.Lock()
        self._row: StepRow | None = None
        self._file = -1
        self.rows = 0

    def add(self, given: Mapping[str, Any], t: float | None, t_ns: int | None) -> None:
        """A step that is refused, or that the disk does not take, changes nothing."""
        with self._lock:
            now_ns = self._clock.next_ns(t, t_ns)
            row = self._row or self._begun(StepRow(given))
            row.fill(given, now_ns, self.rows)
            self._write(row.data.data)
            self._clock.accept(now_ns, is_given=t is not None or t_ns is not None)
            self.rows += 1

    def _begun(self, row: StepRow) -> StepRow:
        write_columns(self._path.with_name(COLUMNS_FILE), row.columns, self._fps)
        with write_errors(self._path):
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, self._file)
        self._row = row
        return row

    def _write(self, data: memoryview) -> None:
        """A failed write leaves less than a row at the place of the row, and the next one replaces it."""
        at = self.rows * len(data)
        with write_errors(self._path):
            while data:
                written = os.pwrite(self._file, data, at)
                data, at = data[written:], at + written


def write_columns(path: Path, columns: list[StepColumn], fps: float | None) -> None:
    listed = [
        {"kind": each.kind, "key": each.key, "dtype": each.dtype.str, "shape": list(each.shape)}
        for each in columns
    ]
    facts = {"version": VERSION, "fps": fps, "columns": listed}
    write_bytes(path, json.dumps(facts).encode())
