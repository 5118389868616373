"""The sidecars of a shard: its owner file, its success file, and the markers of failed attempts.

The owner file lies in the folder of the store before the folder gets its final name. The success file is written last.
Both name the digest of the store's manifest, which lists every file with its checksum. Whether a shard is finished is
therefore known from three small files, without looking at its arrays.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from rollbook.digest import sha256
from rollbook.errors import StorageError
from rollbook.files import AnyPath
from rollbook.store.manifest import (
    ROLLOUT_MANIFEST_FILENAME,
    ROLLOUT_SHARD_OWNER_FILENAME as ROLLOUT_SHARD_OWNER_FILENAME,
    ROLLOUT_SHARD_SUCCESS_FILENAME as ROLLOUT_SHARD_SUCCESS_FILENAME,
    json_bytes,
)
from rollbook.store.shards.lease_record import Process, names_in

_FAILED = re.compile(r"_FAILED\.(?P<shard_id>shard-\d{6,})\..+\.json")
_READ_BYTES = 1 << 17
T = TypeVar("T")
_SAME = ("shard_id", "writer_config_hash", "source_manifest_hash", "split_manifest_hash")
"""What the plan, the owner file and the success file of a shard must agree on."""


class PlannedDigests(Protocol):
    """A shard of a plan, with or without its rows."""

    @property
    def shard_id(self) -> str: ...
    @property
    def writer_config_hash(self) -> str: ...
    @property
    def source_manifest_hash(self) -> str: ...
    @property
    def split_manifest_hash(self) -> str: ...


class ShardCounts(msgspec.Struct, frozen=True, kw_only=True):
    rollouts: int = 0
    steps: int = 0
    candidates: int = 0


class FailedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a failed attempt when a later one has succeeded."""

    error_type: str
    error: str
    host: str
    failed_at: str
    sample_index: int | None = None


class OwnerFile(msgspec.Struct, frozen=True, kw_only=True):
    """Who made a shard, from what, and what is in it: what programs read of it."""

    sidecar_kind: str = "rollout_shard_owner"
    shard_id: str
    writer_config_hash: str
    source_manifest_hash: str
    split_manifest_hash: str
    source_cache_version: str
    split: str
    num_source_rows: int
    output_tmp: str
    output_final: str
    rollout_manifest_sha256: str | None
    """None for a shard whose rows gave no rollout. Its folder has no store."""
    content_sha256: str | None
    counts: ShardCounts
    bytes: int
    """Size of all files of the store."""
    stats: dict[str, Any]
    """Counters of the run, among them the reasons for skipped rows and targets."""
    seconds: float
    token: int
    built_by: Process
    built_at: str
    failures: tuple[FailedAttempt, ...] = ()
    """Attempts before this one that failed."""


class WrittenOwnerFile(OwnerFile, frozen=True, kw_only=True):
    """The whole owner file. Decoding its longest parts for every shard would double the time of a status."""

    runtime: dict[str, Any]
    shard_entry: dict[str, Any]


class SuccessFile(msgspec.Struct, frozen=True, kw_only=True):
    """Says that a shard is complete. It follows from the owner file alone, so two writers would write the same."""

    sidecar_kind: str = "rollout_shard_success"
    shard_id: str
    writer_config_hash: str
    source_manifest_hash: str
    split_manifest_hash: str
    rollout_manifest_sha256: str | None
    owner_sha256: str


class FailureMarker(msgspec.Struct, frozen=True, kw_only=True):
    """Why one attempt at a shard failed."""

    sidecar_kind: str = "rollout_shard_failure"
    shard_id: str
    writer_config_hash: str
    source_manifest_hash: str
    split_manifest_hash: str
    output_tmp: str
    output_final: str
    error_type: str
    error: str
    sample_index: int | None = None
    """The source row at which it failed, if known."""
    sample_key: str | None = None
    process: Process
    failed_at: str
    runtime: dict[str, Any]

    @property
    def attempt(self) -> FailedAttempt:
        return FailedAttempt(
            error_type=self.error_type,
            error=self.error,
            host=self.process.host,
            failed_at=self.failed_at,
            sample_index=self.sample_index,
        )


def sidecar_bytes(sidecar: OwnerFile | SuccessFile | FailureMarker) -> bytes:
    return json_bytes(msgspec.to_builtins(sidecar), "a sidecar")


def success_of(owner: OwnerFile, owner_bytes: bytes) -> SuccessFile:
    return SuccessFile(
        shard_id=owner.shard_id,
        writer_config_hash=owner.writer_config_hash,
        source_manifest_hash=owner.source_manifest_hash,
        split_manifest_hash=owner.split_manifest_hash,
        rollout_manifest_sha256=owner.rollout_manifest_sha256,
        owner_sha256=sha256(owner_bytes).hexdigest(),
    )


# ------------------------------------------------------------------------------- a finished shard


def read_finished(folder: Path, entry: PlannedDigests) -> OwnerFile:
    """The owner file of a shard that is complete and current. Otherwise StorageError says what is wrong.

    Both sidecars, the plan and the digest of manifest.json must agree. The payload is not read. The path of the error
    is that of the folder, or that of a file which cannot be read: such a file may be right all the same.
    """
    owner = find_finished(folder, entry)
    if owner is None:
        raise _problem(folder, f"there is no {ROLLOUT_SHARD_SUCCESS_FILENAME}")
    return owner


def find_finished(folder: Path, entry: PlannedDigests) -> OwnerFile | None:
    """None if there is no success file."""
    try:
        success_bytes = _read(folder, ROLLOUT_SHARD_SUCCESS_FILENAME)
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    owner_bytes = _read(folder, ROLLOUT_SHARD_OWNER_FILENAME)
    success = _decoded(folder, ROLLOUT_SHARD_SUCCESS_FILENAME, success_bytes, SuccessFile)
    owner = _decoded(folder, ROLLOUT_SHARD_OWNER_FILENAME, owner_bytes, OwnerFile)
    check_owner(folder, owner, entry)
    if success != success_of(owner, owner_bytes):
        name = ROLLOUT_SHARD_SUCCESS_FILENAME
        raise _problem(folder, f"{name} is not the one that belongs to the owner file")
    return owner


def check_owner(folder: Path, owner: OwnerFile, entry: PlannedDigests) -> None:
    """Refuses an owner file of another plan, and one whose store has another manifest."""
    check_planned(folder, owner, entry)
    if owner.rollout_manifest_sha256 is not None:
        manifest = sha256(_read(folder, ROLLOUT_MANIFEST_FILENAME)).hexdigest()
        if manifest != owner.rollout_manifest_sha256:
            raise _problem(folder, "manifest.json is not the one that the owner file names")


def check_planned(place: AnyPath, owner: OwnerFile, entry: PlannedDigests) -> None:
    """Refuses an owner file of another plan."""
    for name in _SAME:
        if getattr(owner, name) != getattr(entry, name):
            raise _problem(
                place,
                f"its owner file has {name} {getattr(owner, name)}, the plan {getattr(entry, name)}",
            )


def read_owner(folder: Path) -> tuple[WrittenOwnerFile, bytes]:
    data = _read(folder, ROLLOUT_SHARD_OWNER_FILENAME)
    return _decoded(folder, ROLLOUT_SHARD_OWNER_FILENAME, data, WrittenOwnerFile), data


def _read(folder: Path, name: str) -> bytes:
    try:
        # half the time of `open`, and a status reads three files of every shard
        file = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = []
            while part := os.read(file, _READ_BYTES):
                parts.append(part)
        finally:
            os.close(file)
    except FileNotFoundError as error:
        raise _problem(folder, f"there is no {name}") from error
    except (IsADirectoryError, NotADirectoryError) as error:
        raise _problem(folder, f"{name} cannot be read ({error.strerror})") from error
    except OSError as error:
        detail = f"it cannot be read ({error.strerror or error})"
        raise StorageError(path=f"{folder}/{name}", detail=detail) from error
    return b"".join(parts)


def _decoded(folder: Path, name: str, data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:  # also text that is not UTF-8
        raise _problem(folder, f"{name} cannot be read ({error})") from error


def _problem(place: AnyPath, detail: str) -> StorageError:
    return StorageError(path=str(place), detail=detail)


# --------------------------------------------------------------------------------- failed attempts


def failure_name(shard_id: str) -> str:
    """Names are in the order of time, to the microsecond: two attempts may fail in one second."""
    when = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S-%f")
    return f"_FAILED.{shard_id}.{when}-{os.urandom(4).hex()}.json"


def failure_files(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The shard and the name of every failure marker among the names of a folder."""
    for name in names:
        found = _FAILED.fullmatch(name)
        if found is not None:
            yield found["shard_id"], name


def failures_of(folder: Path, shard_id: str) -> list[Path]:
    """The failure markers of a shard, oldest first."""
    found = failure_files(names_in(folder))
    return [folder / name for name in sorted(name for shard, name in found if shard == shard_id)]


def read_failure(path: Path) -> FailureMarker | None:
    """None if the marker is gone or cannot be read: it is a note for people, on which nothing depends."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=FailureMarker)
    except (OSError, ValueError):  # also text that is not UTF-8
        return None
