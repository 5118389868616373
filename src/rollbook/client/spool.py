"""Spool: a folder with the journal of every episode that is being recorded, and the episodes that wait for the network.

    .draft-<name>/         being recorded or sent by a process that holds its writer.lock. If the process dies, the next
                           delivery finishes the episode
    .draft-<name>/steps/   its steps and frames, until they have become artifacts
    <name>/                waits for delivery: entry.json and its files. It appears in one step, by a rename
    <name>/progress.json   how far its delivery is
    .done-<name>/          delivered, about to be removed
    refused/<name>/        refused by the server; error.json says why

An entry fixes the idempotency key of its episode and the exact body that creates it. So sending it again after a crash
gives the same episode, never a second one.

A file of the caller is not copied while it is being sent: a draft has a hard link to it, or its path where a link is
not possible, with size and time of change. It is copied when the recording call returns before the file has arrived,
since the caller may change it from then on.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rollbook.client.artifact_files import ArtifactFile
from rollbook.client.file_slice import FileSlice, sha256_of
from rollbook.client.step_files import STEPS_FOLDER, FinishedSteps, finish_steps
from rollbook.client.uploads import Uploaded
from rollbook.contracts.episode import FILE_NAMES, ArtifactKind
from rollbook.errors import ConfigurationError, RollbookError, StorageError
from rollbook.files import (
    Lease,
    fsync_folder,
    make_folders,
    promote_folder,
    write_bytes,
    write_errors,
)

_log = logging.getLogger("rollbook.client")

VERSION = 2
_READABLE = (1, 2)
"""Version 1 had copies of files only, and in progress.json a list of those that had arrived."""
LEASE_S = 30.0
_DRAFT, _DONE, _REFUSED = ".draft-", ".done-", "refused"
_YOUNG_DRAFT_S = 60.0
"""A draft without an entry that is younger than this is still being made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFacts:
    """entry.json. It never changes after the entry appears."""

    base_url: str
    idempotency_key: str
    create: dict[str, Any]
    episode_id: str | None
    """Set if the episode was created on the server before the network failed."""
    files: dict[ArtifactKind, dict[str, Any]] = field(default_factory=dict)
    """Still to be uploaded: copies with size and SHA-256; files of the caller with size, `mtime_ns` and, if it is not
    linked, `path`."""
    finalize: dict[str, Any] = field(default_factory=dict)
    """Empty in a draft whose end is not known."""
    version: int = VERSION


@dataclass(slots=True, kw_only=True)
class Progress:
    """progress.json: the finished steps. Without it the steps are repeated, which is harmless."""

    episode_id: str | None = None
    uploads: dict[ArtifactKind, str] = field(default_factory=dict)
    """For a file sent in parts: the id of the upload on the server."""
    uploaded: dict[ArtifactKind, dict[str, Any]] = field(default_factory=dict)
    """Size and SHA-256 of the files that have arrived."""

    def __post_init__(self) -> None:
        if not isinstance(self.uploaded, dict):
            raise TypeError("written by an earlier release")


class _Journal:
    """A folder with an entry and its progress."""

    def __init__(self, folder: Path, facts: EntryFacts) -> None:
        self.folder = folder
        self.facts = facts
        self.progress = _read_progress(folder, facts)

    def note(self, progress: Progress) -> None:
        """Without a sync, because a step that is repeated after a power cut does no harm."""
        self.progress = progress
        temp = self.folder / ".progress"
        with suppress(OSError):  # on a full disk the delivery goes on, since it frees space
            temp.write_bytes(json.dumps(asdict(progress)).encode())
            os.replace(temp, self.folder / "progress.json")

    def note_episode(self, episode_id: str) -> None:
        self.note(replace(self.progress, episode_id=episode_id))

    def note_upload(self, kind: ArtifactKind, upload_id: str) -> None:
        self.note(replace(self.progress, uploads={**self.progress.uploads, kind: upload_id}))

    def note_arrival(self, kind: ArtifactKind, sent: Uploaded) -> None:
        uploaded = {**self.progress.uploaded, kind: sent.as_dict()}
        self.note(replace(self.progress, uploaded=uploaded))


class SpoolEntry(_Journal):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _read(folder / "entry.json"))

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def missing(self) -> list[ArtifactKind]:
        """What has not arrived yet."""
        return [kind for kind in self.facts.files if kind not in self.progress.uploaded]

    def file(self, kind: ArtifactKind) -> ArtifactFile:
        """Raises StorageError for a file of the caller that is not the one that was recorded any more."""
        recorded = self.facts.files[kind]
        path = Path(recorded.get("path") or self.folder / FILE_NAMES[kind])
        if "mtime_ns" in recorded and _identity(path) != (recorded["size"], recorded["mtime_ns"]):
            detail = (
                f"this {kind} was removed or changed after the program that recorded it was killed; "
                "put the file back as it was and deliver with retry_refused"
            )
            raise StorageError(path=str(path), detail=detail)
        return ArtifactFile(kind, path, recorded["size"])

    def ending(self) -> dict[str, Any]:
        """The body that finalizes the episode, with the digest of every file that has arrived."""
        body = dict(self.facts.finalize)
        artifacts = {**body.get("artifacts", {}), **self.progress.uploaded}
        if artifacts:
            body["artifacts"] = artifacts
            body.setdefault("bytes_total", sum(each["size"] for each in artifacts.values()))
        return body


class Spool:
    """Processes may share a folder."""

    def __init__(self, folder: str | os.PathLike[str], *, lease_s: float = LEASE_S) -> None:
        """`lease_s`: how long other processes wait after the delivering process died."""
        if not os.fspath(
            folder
        ):  # an environment variable that is not set would be the current folder
            raise ConfigurationError(message="spool= is empty; name a folder, or leave it out")
        self.folder = Path(folder)
        self._lease_s = lease_s
        try:
            make_folders(self.folder, mode=0o700)
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
        files: Iterable[ArtifactFile] = (),
        finalize: dict[str, Any] | None = None,
    ) -> SpoolDraft:
        """The journal of an episode, on disk when this returns. `files` and `finalize`: as far as they are known."""
        name = f"{time.time_ns():020d}-{os.urandom(4).hex()}"
        facts = EntryFacts(
            base_url=base_url,
            idempotency_key=idempotency_key,
            create=create,
            episode_id=episode_id,
            finalize=finalize or {},
        )
        return SpoolDraft(self.folder, name, facts, files)

    def waiting(self) -> list[str]:
        """Names of the entries, oldest first."""
        return sorted(
            each.name
            for each in self.folder.iterdir()
            if each.name != _REFUSED and not each.name.startswith(".") and each.is_dir()
        )

    def has_work(self) -> bool:
        """Whether a delivery would find anything: waiting entries, or drafts of dead processes."""
        return bool(self.waiting()) or any(map(_is_dead, self.folder.glob(f"{_DRAFT}*")))

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
        """Cleans up after dead processes: removes delivered entries, and turns drafts into entries.

        A draft whose end is known gets that end. The others are recordings that nobody finalized: they become failed
        episodes.
        """
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
        failed = {"status": "failed", "metadata": {"failure_reason": reason}}
        ended = replace(facts, finalize=facts.finalize or failed)
        steps = draft / STEPS_FOLDER
        try:
            if steps.is_dir():
                ended = _with_steps(draft, ended, finish_steps(steps))
                shutil.rmtree(steps, ignore_errors=True)
            _commit(_Journal(draft, facts), ended, self.folder / draft.name.removeprefix(_DRAFT))
        except (StorageError, ConfigurationError) as error:
            _log.warning("%s keeps its steps for the next delivery: %s", draft, error)

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


class SpoolDraft(_Journal):
    """An episode that is being recorded. Its process holds the lock for as long as it may still go on with it."""

    def __init__(
        self, spool: Path, name: str, facts: EntryFacts, files: Iterable[ArtifactFile]
    ) -> None:
        self._entry = spool / name
        folder = spool / f"{_DRAFT}{name}"
        with write_errors(folder):
            folder.mkdir(mode=0o700)
        self._lock = _lock(folder)
        super().__init__(folder, facts)
        self._write(files={file.kind: self._referred(file) for file in files})
        fsync_folder(spool)

    def refer(self, file: ArtifactFile) -> None:
        """Notes a file that is about to be sent, without copying it. A file that we wrote is kept instead."""
        self._replace(file.kind, self._referred(file))

    def keep(self, file: ArtifactFile) -> Uploaded:
        """Adds a copy of the file. The caller may change or remove the original afterwards."""
        try:
            kept = _copied(file, self.folder)
        except StorageError:
            self._write(files={k: v for k, v in self.facts.files.items() if k != file.kind})
            raise
        self._replace(file.kind, kept.as_dict())
        return kept

    def end(self, finalize: dict[str, Any]) -> None:
        """Notes how the episode ends, before the server is told. Its progress has the digests of what has arrived."""
        if finalize != self.facts.finalize:
            self._write(finalize=finalize)

    def commit(self, finalize: dict[str, Any]) -> None:
        """Makes the entry appear, complete and on disk. After a crash it is there or not there, never half."""
        missing = {k: v for k, v in self.facts.files.items() if k not in self.progress.uploaded}
        _commit(self, replace(self.facts, files=missing, finalize=finalize), self._entry)
        self.close()

    def discard(self) -> None:
        """The server has the episode, or has refused to create it. The rename makes the draft disappear in one step."""
        done = self._entry.with_name(f"{_DONE}{self._entry.name}")
        with suppress(OSError):  # what stays is delivered again, which changes nothing
            os.rename(self.folder, done)
            shutil.rmtree(done, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Leaves the draft to the next delivery."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()

    def _replace(self, kind: ArtifactKind, file: dict[str, Any]) -> None:
        if kind in self.progress.uploaded or kind in self.progress.uploads:
            progress = self.progress
            uploaded = {k: v for k, v in progress.uploaded.items() if k != kind}
            uploads = {k: v for k, v in progress.uploads.items() if k != kind}
            self.note(replace(progress, uploaded=uploaded, uploads=uploads))
        self._write(files={**self.facts.files, kind: file})

    def _write(self, **changes: Any) -> None:
        self.facts = replace(self.facts, **changes)
        _write(self.folder, self.facts)

    def _referred(self, file: ArtifactFile) -> dict[str, Any]:
        if file.is_ours:
            return _copied(file, self.folder).as_dict()
        target = self.folder / FILE_NAMES[file.kind]
        target.unlink(missing_ok=True)
        size, mtime_ns = _identity(file.path) or (file.size, 0)
        facts = {"size": size, "mtime_ns": mtime_ns}
        path = os.path.realpath(file.path)
        try:
            os.link(path, target)
        except OSError:  # on another disk, or of another owner
            return {**facts, "path": path}
        return facts


def _copied(file: ArtifactFile, folder: Path) -> Uploaded:
    """The copy appears under its name in one step: until then a link to the original may be there.

    The copy has the original's time of change. So the entry, which may still describe the original when the program
    is killed, is true of both.
    """
    copy = folder / f".{FILE_NAMES[file.kind]}"
    copy.unlink(missing_ok=True)
    digest = _link(file, copy) or _copy(file, copy)
    with write_errors(copy):
        found = file.path.stat()
        os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))
        os.replace(copy, folder / FILE_NAMES[file.kind])
    return Uploaded(file.size, digest)


def _with_steps(draft: Path, facts: EntryFacts, finished: FinishedSteps) -> EntryFacts:
    """The entry with the artifacts of logged steps, on disk when this returns: then the steps are not needed any more.

    An artifact that the entry has already is left alone, because the server may have it.
    """
    files = dict(facts.files)
    for kind, path in finished.files.items():
        if kind not in files:
            made = ArtifactFile(kind, path, path.stat().st_size, is_ours=True)
            files[kind] = _copied(made, draft).as_dict()
    complete = replace(facts, files=files, finalize=finished.ending(facts.finalize, facts.create))
    _write(draft, complete)
    return complete


def _identity(path: Path) -> tuple[int, int] | None:
    """Size and time of change; None when there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _commit(draft: _Journal, facts: EntryFacts, entry: Path) -> None:
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    metadata = {"spooled_at": now, **facts.finalize.get("metadata", {})}
    finalize = {**facts.finalize, "metadata": metadata}
    episode_id = draft.progress.episode_id
    _write(draft.folder, replace(facts, finalize=finalize, episode_id=episode_id))
    promote_folder(draft.folder, entry)


def _write(folder: Path, facts: EntryFacts) -> None:
    write_bytes(folder / "entry.json", json.dumps(asdict(facts)).encode())


def _read(path: Path) -> EntryFacts:
    try:
        facts = EntryFacts(**json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise StorageError(path=str(path), detail=f"not an entry of a spool: {error}") from error
    if facts.version not in _READABLE:
        detail = f"written by another release (version {facts.version}); deliver it with that one"
        raise StorageError(path=str(path), detail=detail)
    return facts


def _move(source: Path, target: Path) -> None:
    try:
        os.rename(source, target)
    except OSError as error:
        detail = f"cannot be moved to {target}: {error.strerror}"
        raise StorageError(path=str(source), detail=detail) from error
    # the new name first: after a power cut there may be two, but never none
    fsync_folder(target.parent)
    fsync_folder(source.parent)


def _link(file: ArtifactFile, target: Path) -> str | None:
    """The digest, or None if the file cannot be linked: it belongs to the caller or is on another disk."""
    if not file.is_ours:
        return None
    try:
        os.link(file.path, target)
    except OSError:
        return None
    with write_errors(target), open(target, "rb") as linked:
        os.fsync(linked.fileno())
    return sha256_of(target)


def _copy(file: ArtifactFile, target: Path) -> str:
    hasher = hashlib.sha256()
    try:
        with open(target, "xb") as out:
            for piece in FileSlice(file.path, 0, file.size).pieces():
                hasher.update(piece)
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        detail = f"{file.path} cannot be copied here: {error.strerror}"
        raise StorageError(path=str(target), detail=detail) from error
    return hasher.hexdigest()


def _lock(folder: Path) -> int:
    with write_errors(folder):
        lock = os.open(folder / "writer.lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _is_dead(draft: Path) -> bool:
    """An entry is written under the lock. So where there is one, a free lock means that nobody is at work."""
    with suppress(OSError):
        is_young = time.time() - draft.stat().st_mtime < _YOUNG_DRAFT_S
        with open(draft / "writer.lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return (draft / "entry.json").exists() or not is_young
    return False


def _read_progress(folder: Path, facts: EntryFacts) -> Progress:
    try:
        return Progress(**json.loads((folder / "progress.json").read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return Progress(episode_id=facts.episode_id)
