"""RunWork: the folder of a training run while it runs. What was finished before an interruption is kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rollbook.files import make_folders, write_bytes, write_errors
from rollbook.learned.run_folder import (
    BATCHES_FOLDER,
    CHECKPOINT_FOLDER,
    METRICS_FILE,
    STATE_FOLDER,
)

_UNNAMED = ".*.tmp"
"""What a killed process leaves of a file that it was writing."""

Report = dict[str, Any]
"""`head`, `iteration`, `loss` and `validation_regret`; a learner may add more."""
OnReport = Callable[[Report], None]


class RunWork:
    """What a learner uses while it fits: reports, checkpoint files, and named pieces of finished work.

    A piece is saved when it is finished. A resumed run finds it again, so that the same work gives the same bytes,
    with and without an interruption.
    """

    def __init__(self, folder: Path, on_report: OnReport | None = None) -> None:
        self.folder = folder
        self._on_report = on_report
        self._reports: list[Report] = []
        self._checkpoint: set[str] = set()
        make_folders(folder / STATE_FOLDER)
        make_folders(folder / CHECKPOINT_FOLDER)
        for place in (".", STATE_FOLDER, CHECKPOINT_FOLDER, BATCHES_FOLDER):
            for left in (folder / place).glob(_UNNAMED):
                left.unlink(missing_ok=True)

    def restart_reports(self, keep: Callable[[Report], bool]) -> None:
        """Drop the reports of work that an interruption cut off."""
        try:
            lines = (self.folder / METRICS_FILE).read_bytes().splitlines()
        except FileNotFoundError:
            lines = []
        known = [report for report in map(_report_of, lines) if report is not None]
        self._reports = [report for report in known if keep(report)]
        self._write_reports()

    def report(self, report: Report) -> None:
        """Add a line to the metrics. The values must be finite."""
        self._reports.append(report)
        with (
            write_errors(self.folder / METRICS_FILE),
            open(self.folder / METRICS_FILE, "ab") as out,
        ):
            out.write(msgspec.json.encode(report) + b"\n")
        if self._on_report is not None:
            self._on_report(report)

    def piece(self, name: str) -> Path:
        """Where a finished piece is kept."""
        return self.folder / STATE_FOLDER / name

    def saved(self, name: str) -> bytes | None:
        """A piece that was finished before; None if it was not."""
        try:
            return self.piece(name).read_bytes()
        except FileNotFoundError:
            return None

    def save(self, name: str, data: bytes) -> None:
        """Keep a finished piece until the end of the run."""
        write_bytes(self.piece(name), data)

    def write_checkpoint(self, name: str, data: bytes) -> None:
        write_bytes(self.folder / CHECKPOINT_FOLDER / name, data)
        self._checkpoint.add(name)

    def checkpoint_files(self) -> list[str]:
        """Paths of the checkpoint files in the run folder, in order. Whatever else lies there is no part of it."""
        return [f"{CHECKPOINT_FOLDER}/{name}" for name in sorted(self._checkpoint)]

    def finish(self) -> None:
        """Write the metrics as one file."""
        self._write_reports()

    def remove_state(self) -> None:
        shutil.rmtree(self.folder / STATE_FOLDER, ignore_errors=True)

    def _write_reports(self) -> None:
        lines = [msgspec.json.encode(report) + b"\n" for report in self._reports]
        write_bytes(self.folder / METRICS_FILE, b"".join(lines))


def _report_of(line: bytes) -> Report | None:
    """None for a line that a killed process did not finish, or that is no report."""
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    is_report = isinstance(found, Mapping) and isinstance(found.get("head"), int)
    return dict(found) if is_report else None
