"""Journal: keeps finished replays on disk before they are sent to the server.

`<folder>/<runner>.jsonl` has one line for each finished replay and one line for each delivered batch; lines are only
appended. The artifacts of a batch are in one file beside it, which is removed when the batch is delivered. A runner
that is killed, or that loses its server, loses no results: the next runner finds the undelivered ones and delivers
them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.evals import EvalResult
from rollbook.errors import StorageError
from rollbook.files import fsync_folder, make_folders, write_bytes

_SUFFIX = ".jsonl"
_BATCH_SUFFIX = ".batch"


@dataclass(frozen=True, slots=True)
class Piece:
    """An artifact inside the file of its batch."""

    file: str
    start: int
    size: int
    sha256: str


@dataclass(slots=True)
class FinishedReplay:
    """A result, and the artifacts of the replay episode that goes with it."""

    result: EvalResult
    duration_s: float | None = None
    fps: float | None = None
    files: Mapping[ArtifactKind, bytes] = field(default_factory=dict, repr=False)
    """Artifacts that are still in memory."""
    pieces: dict[ArtifactKind, Piece] = field(default_factory=dict)
    """Artifacts that are in the journal."""

    @property
    def id(self) -> str:
        """Of the baseline."""
        return self.result.baseline_episode_id

    def set_episode(self, candidate_episode_id: str | None) -> None:
        self.result = replace(self.result, candidate_episode_id=candidate_episode_id)

    @property
    def bytes(self) -> int:
        return sum(map(len, self.files.values())) + 4096

    def as_line(self) -> dict[str, Any]:
        return {
            "baseline_episode_id": self.id,
            "status": self.result.status,
            "metrics": self.result.metrics,
            "error": self.result.error,
            "duration_s": self.duration_s,
            "fps": self.fps,
            "pieces": {
                kind: [piece.file, piece.start, piece.size, piece.sha256]
                for kind, piece in self.pieces.items()
            },
        }

    @classmethod
    def of_line(cls, line: Mapping[str, Any]) -> FinishedReplay:
        return cls(
            EvalResult(
                line["baseline_episode_id"], None, line["status"], line["metrics"], line["error"]
            ),
            line["duration_s"],
            line["fps"],
            pieces={kind: Piece(*piece) for kind, piece in line["pieces"].items()},
        )


class Journal:
    """The journal of one runner. Other runners may have theirs in the same folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._token = os.urandom(6).hex()
        self._lock = threading.Lock()
        self._batches = 0
        path = folder / f"{self._token}{_SUFFIX}"
        try:
            make_folders(folder, mode=0o700)
            self._file: BinaryIO = open(path, "ab")  # noqa: SIM115 - closed by close
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            detail = (
                f"the journal cannot be written: {error.strerror}; journal= names another folder"
            )
            raise StorageError(path=str(folder), detail=detail) from error
        fsync_folder(folder)

    def keep(self, rows: Sequence[FinishedReplay]) -> None:
        """Writes them to disk. When this returns they survive a crash of this process."""
        with self._lock:
            self._batches += 1
            name = f"{self._token}-{self._batches:06d}{_BATCH_SUFFIX}"
        parts: list[bytes] = []
        start = 0
        for row in rows:
            for kind, data in row.files.items():
                digest = hashlib.sha256(data).hexdigest()
                row.pieces[kind] = Piece(name, start, len(data), digest)
                parts.append(data)
                start += len(data)
            row.files = {}
        if parts:
            write_bytes(self.folder / name, b"".join(parts))
        self._add([{"row": row.as_line()} for row in rows])

    def started(self, baseline_id: str) -> None:
        """Notes that a replay begins, so that a later runner knows about replays that never ended."""
        self._add([{"started": baseline_id}], sync=False)

    def created(self, episodes: Mapping[str, str]) -> None:
        """Notes the replay episodes by baseline, so that a later runner fills these instead of creating others."""
        self._add([{"created": dict(episodes)}], sync=False)

    def delivered(self, rows: Iterable[FinishedReplay]) -> None:
        """Notes a delivered batch and removes its file. Without this line a later runner delivers it once more.

        Files of earlier runners stay until all of their results are delivered, since their batches were others.
        """
        gone = list(rows)
        self._add([{"delivered": [row.id for row in gone]}], sync=False)
        for name in {piece.file for row in gone for piece in row.pieces.values()}:
            if name.startswith(self._token):
                (self.folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        self._file.close()

    def _add(self, lines: Iterable[Mapping[str, Any]], *, sync: bool = True) -> None:
        text = "".join(
            json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n" for line in lines
        )
        try:
            with self._lock:
                self._file.write(text.encode())
                self._file.flush()
                if sync:
                    os.fsync(self._file.fileno())
        except OSError as error:
            detail = (
                f"the journal cannot be written: {error.strerror}; make room and resume the run"
            )
            raise StorageError(path=str(self.folder), detail=detail) from error


class AbandonedJournals:
    """Journals of runners that have ended. They are locked until `close`, so that only one runner resumes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: list[BinaryIO] = []
        self._rows: dict[str, FinishedReplay] = {}
        self._started: set[str] = set()
        created: dict[str, str] = {}
        paths = sorted(folder.glob(f"*{_SUFFIX}")) if folder.is_dir() else []
        self.any_found = bool(paths)
        """Whether a runner has left a journal here, or is writing one."""
        for path in paths:
            file = open(path, "rb")  # noqa: SIM115 - closed by close
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # its runner is alive
                file.close()
                continue
            self._files.append(file)
            for line in _lines(file):
                self._take(line, created)
        for row in self._rows.values():
            row.set_episode(created.get(row.id))

    def _take(self, line: Mapping[str, Any], created: dict[str, str]) -> None:
        if "started" in line:
            self._started.add(line["started"])
        if "row" in line:
            row = FinishedReplay.of_line(line["row"])
            self._rows[row.id] = row
            self._started.discard(row.id)
        for baseline_id in line.get("delivered", ()):
            self._rows.pop(baseline_id, None)
        created.update(line.get("created", {}))

    @property
    def interrupted(self) -> frozenset[str]:
        """Baselines whose replay began and never ended, or of whose result a part is lost."""
        lost = (row.id for row in self._rows.values() if not self._has_artifacts(row))
        return frozenset(self._started).union(lost)

    @property
    def rows(self) -> list[FinishedReplay]:
        """Replays that were not delivered. A failed one counts too: the runner decides whether it is repeated."""
        return [row for row in self._rows.values() if self._has_artifacts(row)]

    def _has_artifacts(self, row: FinishedReplay) -> bool:
        return all(
            (self.folder / piece.file).is_file()
            and (self.folder / piece.file).stat().st_size >= piece.start + piece.size
            for piece in row.pieces.values()
        )

    def remove(self) -> None:
        """Removes them. Call this when all of their results are delivered or replayed again."""
        for file in self._files:
            path = Path(file.name)
            for batch in self.folder.glob(f"{path.name.removesuffix(_SUFFIX)}-*{_BATCH_SUFFIX}"):
                batch.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        for file in self._files:
            file.close()


def remove_journals(folder: Path) -> None:
    """Removes the journals of runners that have ended, when the run is complete. Other files stay."""
    AbandonedJournals(folder).remove()
    with suppress(OSError):
        folder.rmdir()


def _lines(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """Without lines that are not JSON: a killed runner may have written half of its last line."""
    for line in file:
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict):
            yield said
