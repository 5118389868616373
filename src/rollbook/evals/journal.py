"""Journal: what a runner has found out, on disk before it is on its way to the server.

`<folder>/<runner>.jsonl` holds one line per row and one when rows have been delivered; lines are only ever added.
Actions and differences lie beside it, one file for each batch of rows, and go when the batch has been delivered. A
runner that is killed, or whose server is gone, loses nothing: the next one finds what was not delivered, and delivers
it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from rollbook.contracts.episode import ArtifactKind
from rollbook.errors import StorageError
from rollbook.files import fsync_folder, write_bytes

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
class Row:
    """One baseline that is over with: a result, and the artifacts of its replay episode."""

    baseline_episode_id: str
    status: str
    metrics: dict[str, Any]
    error: str | None = None
    duration_s: float | None = None
    fps: float | None = None
    files: Mapping[ArtifactKind, bytes] = field(default_factory=dict, repr=False)
    """Still in memory."""
    pieces: dict[ArtifactKind, Piece] = field(default_factory=dict)
    """On disk."""
    candidate_episode_id: str | None = None

    @property
    def bytes(self) -> int:
        return sum(map(len, self.files.values())) + 4096

    def as_line(self) -> dict[str, Any]:
        return {
            "baseline_episode_id": self.baseline_episode_id,
            "status": self.status,
            "metrics": self.metrics,
            "error": self.error,
            "duration_s": self.duration_s,
            "fps": self.fps,
            "pieces": {
                kind: [piece.file, piece.start, piece.size, piece.sha256]
                for kind, piece in self.pieces.items()
            },
        }

    @classmethod
    def of_line(cls, line: Mapping[str, Any]) -> Row:
        return cls(
            line["baseline_episode_id"],
            line["status"],
            line["metrics"],
            line["error"],
            line["duration_s"],
            line["fps"],
            pieces={kind: Piece(*piece) for kind, piece in line["pieces"].items()},
        )


class Journal:
    """Of one runner. Others may have theirs in the same folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._token = os.urandom(6).hex()
        self._lock = threading.Lock()
        self._batches = 0
        path = folder / f"{self._token}{_SUFFIX}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file: BinaryIO = open(path, "ab")  # noqa: SIM115 - closed by close
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            detail = (
                f"the journal cannot be written: {error.strerror}; journal= names another folder"
            )
            raise StorageError(path=str(folder), detail=detail) from error
        fsync_folder(folder)

    def keep(self, rows: Sequence[Row]) -> None:
        """When this returns they survive whatever happens to this process."""
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

    def created(self, episodes: Mapping[str, str]) -> None:
        """Replay episodes by baseline, so that a later runner fills these and makes no others."""
        self._add([{"created": dict(episodes)}], sync=False)

    def delivered(self, rows: Iterable[Row]) -> None:
        """Losing this line costs a later runner a question to the server, and nothing else.

        Files that others left behind stay until all of theirs is delivered: they were batched differently.
        """
        gone = list(rows)
        self._add([{"delivered": [row.baseline_episode_id for row in gone]}], sync=False)
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


class LeftBehind:
    """Journals of runners that are gone. Held until `close`, so that two who resume do not deliver the same."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: list[BinaryIO] = []
        self._rows: dict[str, Row] = {}
        created: dict[str, str] = {}
        for path in sorted(folder.glob(f"*{_SUFFIX}")) if folder.is_dir() else ():
            file = open(path, "rb")  # noqa: SIM115 - closed by close
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # someone is at it
                file.close()
                continue
            self._files.append(file)
            for line in _lines(file):
                self._take(line, created)
        for row in self._rows.values():
            row.candidate_episode_id = created.get(row.baseline_episode_id)

    def _take(self, line: Mapping[str, Any], created: dict[str, str]) -> None:
        if "row" in line:
            row = Row.of_line(line["row"])
            self._rows[row.baseline_episode_id] = row
        for baseline_id in line.get("delivered", ()):
            self._rows.pop(baseline_id, None)
        created.update(line.get("created", {}))

    @property
    def rows(self) -> list[Row]:
        """Complete ones that nobody delivered. Failed ones are tried again, so they are not among them."""
        whole = (row for row in self._rows.values() if row.status == "complete")
        return [row for row in whole if self._is_whole(row)]

    def _is_whole(self, row: Row) -> bool:
        return all(
            (self.folder / piece.file).is_file()
            and (self.folder / piece.file).stat().st_size >= piece.start + piece.size
            for piece in row.pieces.values()
        )

    def remove(self) -> None:
        """Once everything in them was delivered or done again."""
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
    """Of runners that are gone, when a run is over. What else lies there stays."""
    LeftBehind(folder).remove()
    with suppress(OSError):
        folder.rmdir()


def _lines(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """A runner that was killed may have written half of its last line."""
    for line in file:
        try:
            said = json.loads(line)
        except ValueError:
            return
        if isinstance(said, dict):
            yield said
