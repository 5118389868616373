"""Spool: a folder in which episodes wait for the network.

    <name>/                one complete episode: entry.json and its files. It appears in one step, by a rename
    <name>/progress.json   how far its delivery is
    .draft-<name>/         still being recorded. If its process dies, the episode is delivered as failed
    .done-<name>/          delivered, about to be removed
    refused/<name>/        refused by the server; error.json says why

An entry fixes the idempotency key of its episode and the exact body that creates it. So sending it again after a crash
gives the same episode, never a second one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from rollbook.client.artifact_files import ArtifactFile
from rollbook.client.file_slice import FileSlice, sha256_of
from rollbook.client.uploads import Uploaded
from rollbook.contracts.episode import FILE_NAMES, ArtifactKind
from rollbook.errors import ConfigurationError, RollbookError, StorageError
from rollbook.files import Lease, fsync_folder, promote_folder, write_bytes

VERSION = 1
LEASE_S = 30.0
_DRAFT, _DONE, _REFUSED = ".draft-", ".done-", "refused"
_YOUNG_DRAFT_S = 60.0
"""A draft younger than this may not have taken its lock yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFacts:
    """entry.json. It never changes after the entry appears."""

    base_url: str
    idempotency_key: str
    create: dict[str, Any]
    episode_id: str | None
    """Set if the episode was created on the server before the network failed."""
    files: dict[ArtifactKind, dict[str, Any]] = field(default_factory=dict)
    """Still to be uploaded, with size and SHA-256."""
    finalize: dict[str, Any] = field(default_factory=dict)
    """Empty in a draft."""
    version: int = VERSION


@dataclass(slots=True, kw_only=True)
class Progress:
    """progress.json: the finished steps. Without it the steps are repeated, which is harmless."""

    episode_id: str | None = None
    uploads: dict[str, str] = field(default_factory=dict)
    """For a file sent in parts: the id of the upload on the server."""
    uploaded: list[str] = field(default_factory=list)


class SpoolEntry:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts = _read(folder / "entry.json")
        self.progress = self._read_progress()

    @property
    def name(self) -> str:
        return self.folder.name

    def file(self, kind: ArtifactKind) -> ArtifactFile:
        return ArtifactFile(kind, self.folder / FILE_NAMES[kind], self.facts.files[kind]["size"])

    def note(self, progress: Progress) -> None:
        self.progress = progress
        with suppress(StorageError):  # on a full disk the delivery goes on, since it frees space
            write_bytes(self.folder / "progress.json", json.dumps(asdict(progress)).encode())

    def _read_progress(self) -> Progress:
        try:
            return Progress(**json.loads((self.folder / "progress.json").read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return Progress(episode_id=self.facts.episode_id)


class Spool:
    """Processes may share a folder."""

    def __init__(self, folder: str | os.PathLike[str], *, lease_s: float = LEASE_S) -> None:
        """`lease_s`: how long other processes wait after the delivering process died."""
        self.folder = Path(folder)
        self._lease_s = lease_s
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            message = f"spool={str(folder)!r} cannot be used: {error.strerror}"
            raise ConfigurationError(message=message) from error

    def draft(
        self,
        *,
        base_url: str,
        idempotency_key: str,
        create: dict[str, Any],
        episode_id: str | None = None,
    ) -> SpoolDraft:
        name = f"{time.time_ns():020d}-{os.urandom(4).hex()}"
        facts = EntryFacts(
            base_url=base_url,
            idempotency_key=idempotency_key,
            create=create,
            episode_id=episode_id,
        )
        return SpoolDraft(self.folder, name, facts)

    def waiting(self) -> list[str]:
        """Names of the entries, oldest first."""
        return sorted(
            each.name
            for each in self.folder.iterdir()
            if each.name != _REFUSED and not each.name.startswith(".") and each.is_dir()
        )

    def refused(self) -> list[str]:
        folder = self.folder / _REFUSED
        return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []

    def open(self, name: str) -> SpoolEntry | None:
        """None if another process has delivered the entry meanwhile."""
        try:
            return SpoolEntry(self.folder / name)
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        """The last step of a delivery. The rename makes the entry disappear in one step."""
        done = self.folder / f"{_DONE}{name}"
        _move(self.folder / name, done)
        shutil.rmtree(done, ignore_errors=True)

    def refuse(self, name: str, error: RollbookError) -> Path:
        aside = self.folder / _REFUSED / name
        aside.parent.mkdir(exist_ok=True)
        said = json.dumps(error.as_dict(), indent=2, default=str)
        with suppress(StorageError):
            write_bytes(self.folder / name / "error.json", said.encode())
        _move(self.folder / name, aside)
        return aside

    def take_back_refused(self) -> None:
        """Puts refused entries back, without their progress: an uploaded file may be the reason for the refusal."""
        for name in self.refused():
            (self.folder / _REFUSED / name / "progress.json").unlink(missing_ok=True)
            _move(self.folder / _REFUSED / name, self.folder / name)

    def sweep(self) -> None:
        """Cleans up after dead processes: removes delivered entries, and turns drafts into failed episodes."""
        for each in self.folder.iterdir():
            if each.name.startswith(_DONE):
                shutil.rmtree(each, ignore_errors=True)
            elif each.name.startswith(_DRAFT) and _is_dead(each):
                self._recover(each)

    def _recover(self, draft: Path) -> None:
        try:
            facts = _read(draft / "entry.json")
        except (StorageError, FileNotFoundError):
            shutil.rmtree(draft, ignore_errors=True)
            return
        reason = "the program ended before it finalized the episode"
        ending = {"status": "failed", "metadata": {"failure_reason": reason}}
        if facts.files:
            ending["artifacts"] = facts.files
        _commit(draft, facts, ending, self.folder / draft.name.removeprefix(_DRAFT))

    @contextmanager
    def delivering(self) -> Iterator[threading.Event]:
        """Only one process at a time; the others get LeaseHeld. The event is set if the lease is lost."""
        owner = f"{socket.gethostname()}:{os.getpid()}"
        lease = Lease.acquire(self.folder / "delivery.lease", owner=owner, ttl_s=self._lease_s)
        ended, lost = threading.Event(), threading.Event()

        def keep() -> None:
            while not ended.wait(self._lease_s / 3):
                try:
                    lease.renew()
                except RollbookError:
                    lost.set()
                    return

        keeper = threading.Thread(target=keep, name="rollbook-lease", daemon=True)
        keeper.start()
        try:
            yield lost
        finally:
            ended.set()
            keeper.join()
            lease.release()


class SpoolDraft:
    """An episode that is being recorded into the spool. It is durable when `commit` returns."""

    def __init__(self, spool: Path, name: str, facts: EntryFacts) -> None:
        self._entry = spool / name
        self._folder = spool / f"{_DRAFT}{name}"
        self._facts = facts
        self._folder.mkdir(mode=0o700)
        self._lock = _lock(self._folder)
        _write(self._folder, facts)

    def add(self, file: ArtifactFile) -> Uploaded:
        """Adds a copy of the file. The caller may change or remove the original afterwards."""
        target = self._folder / FILE_NAMES[file.kind]
        target.unlink(missing_ok=True)
        added = Uploaded(file.size, _link(file, target) or _copy(file, target))
        files = {**self._facts.files, file.kind: added.as_dict()}
        self._facts = replace(self._facts, files=files)
        _write(self._folder, self._facts)
        return added

    def commit(self, finalize: dict[str, Any]) -> None:
        """Makes the entry appear, complete and on disk. After a crash it is there or not there, never half."""
        _commit(self._folder, self._facts, finalize, self._entry)
        self._lock.close()


def _commit(draft: Path, facts: EntryFacts, finalize: dict[str, Any], entry: Path) -> None:
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    metadata = {"spooled_at": now, **finalize.get("metadata", {})}
    _write(draft, replace(facts, finalize={**finalize, "metadata": metadata}))
    promote_folder(draft, entry)


def _write(folder: Path, facts: EntryFacts) -> None:
    write_bytes(folder / "entry.json", json.dumps(asdict(facts)).encode())


def _read(path: Path) -> EntryFacts:
    try:
        facts = EntryFacts(**json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise StorageError(path=str(path), detail=f"not an entry of a spool: {error}") from error
    if facts.version != VERSION:
        detail = f"written by another release (version {facts.version}); deliver it with that one"
        raise StorageError(path=str(path), detail=detail)
    return facts


def _move(source: Path, target: Path) -> None:
    try:
        os.rename(source, target)
    except OSError as error:
        detail = f"cannot be moved to {target}: {error.strerror}"
        raise StorageError(path=str(source), detail=detail) from error
    fsync_folder(source.parent)


def _link(file: ArtifactFile, target: Path) -> str | None:
    """The digest, or None if the file cannot be linked: it belongs to the caller or is on another disk."""
    if not file.is_ours:
        return None
    try:
        os.link(file.path, target)
    except OSError:
        return None
    return sha256_of(target)


def _copy(file: ArtifactFile, target: Path) -> str:
    hasher = hashlib.sha256()
    try:
        with open(target, "xb") as out:
            for piece in FileSlice(file.path, 0, file.size).pieces():
                hasher.update(piece)
                out.write(piece)
    except OSError as error:
        detail = f"{file.path} cannot be copied here: {error.strerror}"
        raise StorageError(path=str(target), detail=detail) from error
    return hasher.hexdigest()


def _lock(folder: Path) -> BinaryIO:
    lock = open(folder / "writer.lock", "ab")  # noqa: SIM115 - held for as long as the draft lives
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _is_dead(draft: Path) -> bool:
    with suppress(OSError):
        if time.time() - draft.stat().st_mtime < _YOUNG_DRAFT_S:
            return False
        with open(draft / "writer.lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False
