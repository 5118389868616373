"""FinalPlace: where the finished store of one shard goes. FinalFolder: a folder of this machine or of a file server."""

from __future__ import annotations

import errno
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from rollbook.errors import LeaseLost, StorageError, TargetExists
from rollbook.files import make_folders, promote_folder, write_bytes, write_errors
from rollbook.store.checks.validate import validate_rollout_zarr_store
from rollbook.store.config import RolloutZarrWriteResult
from rollbook.store.manifest import ROLLOUT_MANIFEST_FILENAME, read_manifest
from rollbook.store.shards.entry import RolloutShardEntry
from rollbook.store.shards.lease_files import LeaseFiles, LeaseFolder
from rollbook.store.shards.shard_lease import ShardLease
from rollbook.store.shards.sidecars import (
    ROLLOUT_SHARD_OWNER_FILENAME,
    ROLLOUT_SHARD_SUCCESS_FILENAME,
    FailureMarker,
    OwnerFile,
    check_owner,
    failure_name,
    failures_of,
    find_finished,
    read_failure,
    read_finished,
    read_owner,
    sidecar_bytes,
    success_of,
)
from rollbook.store.stored_files import StoredFiles
from rollbook.store.urls.url_folder import folder_at

ABANDONED = ".abandoned"
COPY_NAME = re.compile(r"\.(shard-\d{6,})\.\d{6,}-[0-9a-f]{8}\.incoming", re.ASCII)
"""The copy of a store beside its final folder: the id of the shard, then the name of the attempt."""


@dataclass(frozen=True, slots=True)
class RolloutShardRunResult:
    """One shard that is finished: built by this call, or before it."""

    place: str
    """The folder of the shard, or its URL."""
    skipped: bool
    """Whether the shard was finished before."""
    store_result: RolloutZarrWriteResult | None
    """What was written; None if nothing was, if no row of the shard gave a rollout, and for a shard at a URL."""

    @property
    def final_dir(self) -> Path:
        """The folder of the shard. A shard at a URL has none."""
        return folder_at(self.place)

    @property
    def success_path(self) -> Path:
        return self.final_dir / ROLLOUT_SHARD_SUCCESS_FILENAME

    @property
    def owner_path(self) -> Path:
        return self.final_dir / ROLLOUT_SHARD_OWNER_FILENAME


class FinalPlace(ABC):
    """The final place of one shard, with its lease files and the markers of its failed attempts."""

    def __init__(self, entry: RolloutShardEntry, place: str, leases: LeaseFiles) -> None:
        self.entry = entry
        self.place = place
        """The path or the URL of the shard."""
        self.leases = leases

    @abstractmethod
    def check_work_folder(self, tmp: Path) -> None:
        """Refuses a work folder that is in the way: it is removed when the shard is finished."""

    @abstractmethod
    def prepare(self) -> None:
        """Make what is needed before a lease can be taken."""

    @abstractmethod
    def is_finished(self) -> bool:
        """Whether the shard is complete and current. Raises StorageError for one of another plan."""

    @abstractmethod
    def owner(self) -> OwnerFile:
        """The owner file of the finished shard. Raises StorageError unless it is complete and current."""

    @abstractmethod
    def finish_promotion(self, lease: ShardLease) -> bool:
        """Finish what a worker promoted and did not mark as finished. False if there is nothing of that kind."""

    @abstractmethod
    def promote(self, store: Path, owner: OwnerFile, lease: ShardLease) -> None:
        """Put a validated store in its place and mark the shard as finished. Raises LeaseLost for the second one.

        The owner file is in the folder of the store.
        """

    @abstractmethod
    def result(self, *, built: OwnerFile | None) -> RolloutShardRunResult:
        """What `build_shard` returns. `built` is None for a shard that was finished before."""

    @abstractmethod
    def failures(self) -> list[FailureMarker]:
        """The failed attempts, oldest first."""

    @abstractmethod
    def add_failure(self, marker: FailureMarker) -> None:
        """Leave a marker of a failed attempt."""

    @abstractmethod
    def remove_copies(self) -> None:
        """Remove the copies of attempts before this one. The caller has the lease."""

    @abstractmethod
    def has_leftovers(self) -> bool:
        """Whether there is something that `tidy` removes, or a lease file."""

    @abstractmethod
    def tidy(self) -> None:
        """Remove what a finished shard does not need. The caller has the lease."""

    def not_ours(self, detail: str) -> TargetExists:
        """The error about a place that has something else, or a shard that was changed. No attempt can help."""
        advice = "look at it, then remove the folder, or plan the campaign in another one"
        return TargetExists(path=self.place, detail=f"{detail}; {advice}")

    @contextmanager
    def judged(self, before: str = "") -> Iterator[None]:
        """A block that reads sidecars. Wrong ones are not ours. One that cannot be read now may be right: that error
        stays as it is, so that nobody removes a finished shard for it."""
        try:
            yield
        except StorageError as error:
            if error.path != self.place:
                raise
            raise self.not_ours(f"{before}{error.detail}") from error


class FinalFolder(FinalPlace):
    """The store gets its final name by one rename. It is copied first if it is on another file system."""

    def __init__(self, entry: RolloutShardEntry, folder: Path) -> None:
        super().__init__(entry, str(folder), LeaseFolder(folder.parent))
        self._folder = folder

    def check_work_folder(self, tmp: Path) -> None:
        if overlap(tmp, self._folder):
            detail = f"the work folder {tmp} and the final folder must not contain each other"
            raise StorageError(path=self.place, detail=detail)

    def prepare(self) -> None:
        with write_errors(self._folder.parent):
            make_folders(self._folder.parent)

    def is_finished(self) -> bool:
        with self.judged():
            return find_finished(self._folder, self.entry) is not None

    def owner(self) -> OwnerFile:
        return read_finished(self._folder, self.entry)

    # -------------------------------------------------------------------------------------- promotion

    def promote(self, store: Path, owner: OwnerFile, lease: ShardLease) -> None:
        if store.stat().st_dev != self._folder.parent.stat().st_dev:
            self._rename_copy(store, lease)
        else:
            try:
                self._rename(store, lease)
            except StorageError as error:
                if not is_cross_device(error):
                    raise
                # two mounts of one file system, as containers have them: they cannot be told apart before
                self._rename_copy(store, lease)
        self._write_success(owner, sidecar_bytes(owner))

    def _rename(self, finished: Path, lease: ShardLease) -> None:
        """The only step that makes the store visible. The lease is claimed right before it, for each attempt at it."""
        lease.claim_promotion()
        try:
            promote_folder(finished, self._folder)
        except TargetExists as error:
            detail = "another worker has finished the shard"
            raise LeaseLost(path=self.place, detail=detail) from error

    def _rename_copy(self, store: Path, lease: ShardLease) -> None:
        """From another file system: first a copy beside the final folder. A copy that is not needed does not stay.

        Its name is that of one attempt. Tokens begin again when nobody has the shard, so two workers can have had the
        same one, and the first of them may only be paused.
        """
        attempt = lease.work_folder.name
        incoming = self._folder.with_name(f".{self.entry.shard_id}.{attempt}.incoming")
        try:
            self._copy(store, incoming)
            self._rename(incoming, lease)
        finally:
            # on a full disk, this also makes room for the marker of the failure
            with suppress(OSError):
                abandon(incoming)

    def _copy(self, store: Path, incoming: Path) -> None:
        """Every byte is compared with the manifest on the way."""
        with write_errors(incoming):
            incoming.mkdir()
            names = [ROLLOUT_SHARD_OWNER_FILENAME]
            if (store / ROLLOUT_MANIFEST_FILENAME).exists():
                names += [ROLLOUT_MANIFEST_FILENAME, "zarr.json"]
                stored = StoredFiles(read_manifest(store))
                for path in stored.listed:
                    (incoming / path).parent.mkdir(parents=True, exist_ok=True)
                    (incoming / path).write_bytes(stored.read(path))
            for name in names:
                shutil.copyfile(store / name, incoming / name)

    def _write_success(self, owner: OwnerFile, owner_bytes: bytes) -> None:
        data = sidecar_bytes(success_of(owner, owner_bytes))
        write_bytes(self._folder / ROLLOUT_SHARD_SUCCESS_FILENAME, data)

    def finish_promotion(self, lease: ShardLease) -> bool:
        """The worker before was killed after the rename. The store is looked at closely, then marked as finished."""
        if not os.path.lexists(self._folder):
            return False
        with self.judged("it is not complete: "):
            owner, data = read_owner(self._folder)
            check_owner(self._folder, owner, self.entry)
        for each in self._folder.glob(f".{ROLLOUT_SHARD_SUCCESS_FILENAME}.*.tmp"):
            each.unlink(missing_ok=True)
        if owner.rollout_manifest_sha256 is not None:
            checked = validate_rollout_zarr_store(self._folder, deep=True)
            if not checked.ok:
                raise self.not_ours(f"it is not complete and not valid: {checked.errors[0]}")
        lease.claim_promotion()
        self._write_success(owner, data)
        return True

    def result(self, *, built: OwnerFile | None) -> RolloutShardRunResult:
        written = None
        if built is not None and built.rollout_manifest_sha256 and built.content_sha256:
            written = RolloutZarrWriteResult(
                store_dir=self._folder,
                num_rollouts=built.counts.rollouts,
                num_steps=built.counts.steps,
                num_candidates=built.counts.candidates,
                manifest_path=self._folder / ROLLOUT_MANIFEST_FILENAME,
                manifest_sha256=built.rollout_manifest_sha256,
                content_sha256=built.content_sha256,
            )
        return RolloutShardRunResult(self.place, built is None, written)

    # ------------------------------------------------------------------------------------- afterwards

    def failures(self) -> list[FailureMarker]:
        found = map(read_failure, failures_of(self._folder.parent, self.entry.shard_id))
        return [each for each in found if each is not None]

    def add_failure(self, marker: FailureMarker) -> None:
        write_bytes(self._folder.parent / failure_name(marker.shard_id), sidecar_bytes(marker))

    def remove_copies(self) -> None:
        for each in self._folder.parent.glob(f".{self.entry.shard_id}.*.incoming"):
            abandon(each)

    def has_leftovers(self) -> bool:
        shard_id = self.entry.shard_id
        left = chain(
            failures_of(self._folder.parent, shard_id),
            self._folder.parent.glob(f"_LEASE.{shard_id}.*.json"),
        )
        return next(left, None) is not None

    def tidy(self) -> None:
        parent, shard_id = self._folder.parent, self.entry.shard_id
        # a process that is killed while it writes a file leaves one with a hidden name
        unnamed = (parent.glob(f".{kind}.{shard_id}.*.tmp") for kind in ("_LEASE", "_FAILED"))
        for each in chain(failures_of(parent, shard_id), *unnamed):
            with suppress(OSError):
                each.unlink()


def is_cross_device(error: StorageError) -> bool:
    """Whether a rename failed because the two names are not in one mount of a file system."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EXDEV


def overlap(one: Path, other: Path) -> bool:
    """Whether one folder is or contains the other, also by way of symbolic links or mounts."""
    first, second = (Path(os.path.realpath(each)) for each in (one, other))
    if first.is_relative_to(second) or second.is_relative_to(first):
        return True
    with suppress(OSError):
        return first.samefile(second)
    return False


def abandon(folder: Path) -> None:
    """Renames a folder, then removes it. Nobody can promote it meanwhile, when a part of it is already gone."""
    aside = folder.with_name(f".{folder.name}.{os.urandom(4).hex()}{ABANDONED}")
    with suppress(FileNotFoundError):
        os.rename(folder, aside)
        shutil.rmtree(aside, ignore_errors=True)
