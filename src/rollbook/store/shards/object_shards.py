"""Shards at a URL: the same leases, sidecars and markers as in a folder, as objects of an object store.

    <root>/<shard_id>/_SUCCESS.json                     says that the shard is complete, and where its store is
    <root>/<shard_id>/_LEASE.<shard_id>.<token>.json    who works on it
    <root>/<shard_id>/_FAILED.<shard_id>.<time>.json    a failed attempt
    <root>/<shard_id>/<token>-<random>/                 the store of one attempt

An object store cannot rename a folder. Every attempt therefore uploads to a place of its own, and the success object
names the attempt that counts. It is created under the condition that it does not exist, which the object store
decides: exactly one worker can create it. The leases only save work; they decide nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rollbook.digest import sha256
from rollbook.errors import ConfigurationError, LeaseLost, StorageError
from rollbook.store.manifest import ROLLOUT_MANIFEST_FILENAME, json_bytes
from rollbook.store.shards.entry import RolloutShardEntry
from rollbook.store.shards.final_place import FinalPlace, RolloutShardRunResult
from rollbook.store.shards.lease_files import LeaseFiles, OpenLease
from rollbook.store.shards.lease_record import (
    LeaseRecord,
    decoded_lease,
    lease_name,
    leases_among,
)
from rollbook.store.shards.shard_lease import BEATS_PER_LEASE, ShardLease
from rollbook.store.shards.sidecars import (
    ROLLOUT_SHARD_SUCCESS_FILENAME,
    FailureMarker,
    OwnerFile,
    PlannedDigests,
    SuccessFile,
    check_planned,
    failure_files,
    failure_name,
    sidecar_bytes,
    success_of,
)
from rollbook.store.urls.remote import publish_store
from rollbook.store.urls.url_folder import UrlFolder

_ATTEMPT = re.compile(r"[0-9]{6,}-[0-9a-f]{8}")


class SuccessObject(SuccessFile, frozen=True, kw_only=True):
    """The success file of a shard at a URL. One object says all that there is to know about a finished shard."""

    store: str
    """The folder of the store, below the URL of the shard."""
    owner: dict[str, Any]
    """The owner file."""


class FinishedObjects(NamedTuple):
    """A shard at a URL that is complete and current."""

    owner: OwnerFile
    store: str
    """The folder of its store, below the URL of the shard."""


def read_finished_objects(remote: UrlFolder, entry: PlannedDigests) -> FinishedObjects:
    """The finished shard at a URL. Otherwise StorageError says what is wrong. The payload is not read.

    The success object, the plan and the digest of manifest.json must agree. The path of the error is the URL of the
    shard, or that of an object which cannot be read: such an object may be right all the same.
    """
    found = find_finished_objects(remote, entry)
    if found is None:
        raise StorageError(path=remote.url, detail=f"there is no {ROLLOUT_SHARD_SUCCESS_FILENAME}")
    return found


def find_finished_objects(remote: UrlFolder, entry: PlannedDigests) -> FinishedObjects | None:
    """None if there is no success object."""
    name = ROLLOUT_SHARD_SUCCESS_FILENAME
    data = remote.read_if_there(name)
    if data is None:
        return None
    try:
        success = msgspec.json.decode(data, type=SuccessObject)
        owner_bytes = json_bytes(success.owner, "a sidecar")
        owner = msgspec.json.decode(owner_bytes, type=OwnerFile)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StorageError(path=remote.url, detail=f"{name} cannot be read ({error})") from error
    check_planned(remote.url, owner, entry)
    if success != _success(owner, owner_bytes, success.store) or not _ATTEMPT.fullmatch(
        success.store
    ):
        detail = f"{name} is not the one that belongs to its owner"
        raise StorageError(path=remote.url, detail=detail)
    if owner.rollout_manifest_sha256 is not None:
        manifest = remote.read_if_there(f"{success.store}/{ROLLOUT_MANIFEST_FILENAME}")
        if manifest is None or sha256(manifest).hexdigest() != owner.rollout_manifest_sha256:
            detail = f"{success.store}/manifest.json is not the one that {name} names"
            raise StorageError(path=remote.url, detail=detail)
    return FinishedObjects(owner, success.store)


def _success(owner: OwnerFile, owner_bytes: bytes, store: str) -> SuccessObject:
    plain = msgspec.structs.asdict(success_of(owner, owner_bytes))
    return SuccessObject(**plain, store=store, owner=msgspec.json.decode(owner_bytes))


class ShardNames(NamedTuple):
    """The names directly below the URL of a shard, sorted by what they mean."""

    is_finished: bool
    """Whether there is a success object."""
    tokens: list[int]
    """Of the lease objects."""
    failures: list[str]
    """The failure markers, oldest first."""
    attempts: set[str]
    """Folders of attempts. One of them may be that of the finished store."""
    foreign: set[str]
    """Names of something else."""

    @classmethod
    def among(cls, names: set[str], shard_id: str) -> ShardNames:
        tokens = [token for shard, token in leases_among(names) if shard == shard_id]
        failures = sorted(name for shard, name in failure_files(names) if shard == shard_id)
        attempts = {name for name in names if _ATTEMPT.fullmatch(name)}
        leases = (lease_name(shard_id, token) for token in tokens)
        known = {ROLLOUT_SHARD_SUCCESS_FILENAME, *leases, *failures, *attempts}
        is_finished = ROLLOUT_SHARD_SUCCESS_FILENAME in names
        return cls(is_finished, tokens, failures, attempts, names - known)


def described_foreign(foreign: set[str]) -> str:
    """What is wrong with the URL of a shard that has files of something else."""
    return f"there are files that belong to no shard, {min(foreign)!r} first"


def read_failure_object(remote: UrlFolder, name: str) -> FailureMarker | None:
    """None if the marker is gone or cannot be read: it is a note for people, on which nothing depends."""
    try:
        return msgspec.json.decode(remote.read_if_there(name) or b"", type=FailureMarker)
    except (StorageError, ValueError):  # also text that is not UTF-8
        return None


# -------------------------------------------------------------------------------------------- leases


class LeaseObjects(LeaseFiles):
    """Lease files of one shard, below its URL."""

    def __init__(self, remote: UrlFolder) -> None:
        self._remote = remote
        self._is_proved = False
        """Whether the object store has refused to create an object twice."""

    def path(self, shard_id: str, token: int) -> str:
        return f"{self._remote.url}/{lease_name(shard_id, token)}"

    def tokens(self, shard_id: str) -> list[int]:
        return ShardNames.among(self._remote.names(), shard_id).tokens

    def read(self, shard_id: str, token: int) -> LeaseRecord | None:
        data = self._remote.read_if_there(lease_name(shard_id, token))
        return None if data is None else decoded_lease(data, shard_id, token)

    def create(self, record: LeaseRecord) -> bool:
        name, data = lease_name(record.shard_id, record.token), record.encode()
        if not self._remote.create(name, data):
            # a request can be repeated after its answer was lost: then the object is ours
            found = self.read(record.shard_id, record.token)
            return found is not None and found.nonce == record.nonce
        if not self._is_proved and self._remote.create(name, data):
            self.remove(record.shard_id, record.token)
            message = (
                f"{self._remote.url}: this object store ignores the condition If-None-Match, so two workers could both "
                "finish a shard; use a folder, then `rollbook campaign publish`"
            )
            raise ConfigurationError(message=message)
        self._is_proved = True
        return True

    def open(self, record: LeaseRecord) -> OpenLease:
        return _OpenObject(self, self._remote, record)

    def remove(self, shard_id: str, token: int) -> None:
        with suppress(StorageError):
            self._remote.remove_if_there([lease_name(shard_id, token)])


class _OpenObject(OpenLease):
    """Asks the object store seldom, and believes in its lease while the object store cannot be reached."""

    def __init__(self, leases: LeaseObjects, remote: UrlFolder, record: LeaseRecord) -> None:
        self._leases = leases
        self._remote = remote
        self._record = record
        self._looked = time.monotonic()

    def write(self, record: LeaseRecord) -> None:
        if self._found_taken():
            path = self._leases.path(record.shard_id, record.token)
            raise LeaseLost(path=path, detail="another worker has taken the shard over")
        with suppress(StorageError):
            self._remote.write({lease_name(record.shard_id, record.token): record.encode()})

    def is_taken(self) -> bool:
        waited = time.monotonic() - self._looked
        return waited >= self._record.lease_s / BEATS_PER_LEASE and self._found_taken()

    def _found_taken(self) -> bool:
        """Whoever takes a shard over has a higher token, and removes the lease objects below its own."""
        self._looked = time.monotonic()
        try:
            tokens = self._leases.tokens(self._record.shard_id)
        except StorageError:
            return False
        return max(tokens, default=0) != self._record.token

    def close(self) -> None:
        """There is nothing to close."""


# ---------------------------------------------------------------------------------------- final place


class FinalUrl(FinalPlace):
    """The final place of a shard at a URL."""

    def __init__(self, entry: RolloutShardEntry, url: str) -> None:
        self._remote = UrlFolder(url, None)
        super().__init__(entry, self._remote.url, LeaseObjects(self._remote))

    def check_work_folder(self, tmp: Path) -> None:
        """Every folder will do: none is below a URL."""

    def prepare(self) -> None:
        """Refuses a place that has anything else than what attempts at a shard leave."""
        foreign = self.names().foreign
        if foreign:
            raise self.not_ours(described_foreign(foreign))

    def finished_store(self) -> str | None:
        """The folder of the store that counts; None if the shard is not finished or was changed."""
        with suppress(StorageError):
            return read_finished_objects(self._remote, self.entry).store
        return None

    def is_finished(self) -> bool:
        with self.judged():
            return find_finished_objects(self._remote, self.entry) is not None

    def owner(self) -> OwnerFile:
        return read_finished_objects(self._remote, self.entry).owner

    def finish_promotion(self, lease: ShardLease) -> bool:
        return False  # the success object is the promotion

    def promote(self, store: Path, owner: OwnerFile, lease: ShardLease) -> None:
        attempt = lease.work_folder.name
        if owner.rollout_manifest_sha256 is not None:
            publish_store(store, f"{self.place}/{attempt}")
        lease.claim_promotion()
        success = _success(owner, sidecar_bytes(owner), attempt)
        if self._remote.create(ROLLOUT_SHARD_SUCCESS_FILENAME, sidecar_bytes(success)):
            return
        # a request can be repeated after its answer was lost: then the object is ours
        if read_finished_objects(self._remote, self.entry).store != attempt:
            self._remove_attempts({attempt})
            detail = "another worker has finished the shard"
            raise LeaseLost(path=self.place, detail=detail)

    def result(self, *, built: OwnerFile | None) -> RolloutShardRunResult:
        return RolloutShardRunResult(self.place, built is None, None)

    # ------------------------------------------------------------------------------------- afterwards

    def names(self) -> ShardNames:
        return ShardNames.among(self._remote.names(), self.entry.shard_id)

    def failures(self) -> list[FailureMarker]:
        return [
            each
            for name in self.names().failures
            if (each := read_failure_object(self._remote, name)) is not None
        ]

    def add_failure(self, marker: FailureMarker) -> None:
        self._remote.write({failure_name(marker.shard_id): sidecar_bytes(marker)})

    def remove_copies(self) -> None:
        """Nothing before there is a success object: a worker that was paused could still create it for its copy."""

    def has_leftovers(self) -> bool:
        names, finished = self.names(), read_finished_objects(self._remote, self.entry)
        return bool(names.tokens or names.failures or names.attempts - {finished.store})

    def tidy(self) -> None:
        names, finished = self.names(), read_finished_objects(self._remote, self.entry)
        self._remote.remove_if_there(names.failures)
        self._remove_attempts(names.attempts - {finished.store})

    def _remove_attempts(self, attempts: Iterable[str]) -> None:
        for attempt in attempts:
            below = UrlFolder(f"{self.place}/{attempt}", None)
            below.remove_if_there(below.sizes())
