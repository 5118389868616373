"""build_shard: builds one shard so that it appears complete or not at all, and only once, whatever happens to workers.

    work folder → store → validation → owner file → sync → claim → rename → success file

A worker that is killed leaves the shard to another one, which goes on with its work folder. A worker that was paused
and wakes up later cannot promote its store any more: see ShardLease.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rollbook.digest import sha256
from rollbook.errors import GenerationFailed, LeaseLost, RollbookError, StorageError, UnfinishedRun
from rollbook.files import AnyPath, make_folders, write_bytes, write_errors
from rollbook.store.checks.validate import validate_rollout_zarr_store
from rollbook.store.config import RolloutZarrWriteResult
from rollbook.store.manifest import (
    ROLLOUT_MANIFEST_FILENAME,
    StoreManifest,
    read_manifest,
    utc_timestamp,
)
from rollbook.store.shards.entry import RolloutShardEntry
from rollbook.store.shards.final_place import (
    ABANDONED,
    FinalFolder,
    FinalPlace,
    RolloutShardRunResult as RolloutShardRunResult,
    abandon,
)
from rollbook.store.shards.lease_record import LeaseWatch, Process
from rollbook.store.shards.object_shards import FinalUrl
from rollbook.store.shards.shard_lease import ShardLease
from rollbook.store.shards.sidecars import (
    ROLLOUT_SHARD_OWNER_FILENAME,
    FailedAttempt,
    FailureMarker,
    ShardCounts,
    WrittenOwnerFile,
    check_owner,
    read_owner,
    sidecar_bytes,
)
from rollbook.store.urls.url_folder import local_path

DEFAULT_LEASE_S = 120.0
_LONGEST_ERROR = 4000


@dataclass(frozen=True, slots=True)
class BuiltStore:
    """What a builder returns."""

    result: RolloutZarrWriteResult | None
    """None if the rows of the shard gave no rollout."""
    stats: Mapping[str, Any] = field(default_factory=dict)
    runtime: Mapping[str, Any] = field(default_factory=dict)


Builder = Callable[[Path, Callable[[int], None]], BuiltStore]
"""Writes the store of a shard into the given folder. It calls the given function with the number of finished rows."""


def build_shard(
    entry: RolloutShardEntry,
    build: Builder,
    *,
    output_tmp: str | os.PathLike[str],
    output_final: str | os.PathLike[str],
    take_over: bool = False,
    lease_s: float = DEFAULT_LEASE_S,
    watch: LeaseWatch | None = None,
) -> RolloutShardRunResult:
    """Build one shard, or skip it if it is finished. `output_final` may be a URL; the work is done in `output_tmp`.

    Raises LeaseHeld while another worker is at it. Work that another worker left is refused with UnfinishedRun, unless
    `take_over` allows going on with it. A final folder that does not belong to the plan is never touched. A failed
    attempt leaves a marker beside the final folder; a success removes it.
    """
    entry.validate()
    final = final_place(entry, output_final)
    shard = _Shard(entry, Path(output_tmp).absolute(), final)
    final.check_work_folder(shard.tmp)
    if final.is_finished():
        shard.tidy(watch or LeaseWatch())
        return final.result(built=None)
    final.prepare()
    lease = ShardLease.acquire(
        final.leases,
        entry.shard_id,
        lease_s=lease_s,
        take_over=take_over,
        watch=watch or LeaseWatch(),
        rows_total=len(entry.rows),
        work_root=shard.tmp,
    )
    with lease:
        return shard.built_under(lease, build, take_over)


def final_place(entry: RolloutShardEntry, output_final: AnyPath) -> FinalPlace:
    """The final place of a shard: a folder, or a URL."""
    folder = local_path(output_final)
    if folder is None:
        return FinalUrl(entry, str(output_final))
    return FinalFolder(entry, folder.absolute())


class _Shard:
    """One shard, its work folder and its final place."""

    def __init__(self, entry: RolloutShardEntry, tmp: Path, final: FinalPlace) -> None:
        self.entry = entry
        self.tmp = tmp
        self.final = final

    # ------------------------------------------------------------------------------- before building

    def built_under(
        self, lease: ShardLease, build: Builder, take_over: bool
    ) -> RolloutShardRunResult:
        try:
            attempt = self._attempt_folder(lease, take_over)
        except UnfinishedRun:
            raise
        except StorageError as error:  # the disk of the work folder is full or read-only
            self._mark_failed(error)
            raise
        # looked at under the lease: nobody changes it now
        if self.final.is_finished() or self.final.finish_promotion(lease):
            self._tidy()
            return self.final.result(built=None)
        try:
            store = attempt / "store"
            owner = self._left_store(store, lease.token) or self._built(store, build, lease)
            write_bytes(store / ROLLOUT_SHARD_OWNER_FILENAME, sidecar_bytes(owner))
            self.final.promote(store, owner, lease)
        except LeaseLost:
            raise
        except BaseException as error:
            lease.check()  # with its shard a worker also loses its files; that is no failure of the shard
            if isinstance(error, Exception):
                self._mark_failed(error)
            raise
        self._tidy()
        return self.final.result(built=owner)

    def _attempt_folder(self, lease: ShardLease, take_over: bool) -> Path:
        """The work folder of this attempt, with the finished rows of the attempt before.

        The folder of the attempt before is renamed in one step, so its worker finds none of its files any more.
        """
        attempt = lease.work_folder
        with write_errors(attempt):
            make_folders(self.tmp)
            left = self._left_folders(lease)
            if left and not take_over:
                detail = "the work of an attempt that did not end; --take-over goes on with it"
                raise UnfinishedRun(
                    path=str(self.tmp), detail=f"{detail} (in Python: take_over=True)"
                )
            if left:
                with suppress(FileNotFoundError):
                    os.rename(left[0], attempt)
            for each in left:
                abandon(each)
            self.final.remove_copies()
            for each in self.tmp.glob(f".*{ABANDONED}"):
                shutil.rmtree(each, ignore_errors=True)
            attempt.mkdir(exist_ok=True)
        return attempt

    def _left_folders(self, lease: ShardLease) -> list[Path]:
        """The folders of earlier attempts, that of the former holder first.

        A lease file may have been edited, so nothing outside of the work folder of this shard is ever touched.
        """
        former = None if lease.former is None else Path(lease.former.work_folder)
        left = [
            each for each in self.tmp.glob("[!.]*") if each.is_dir() and each != lease.work_folder
        ]
        return sorted(left, key=lambda each: (each != former, each.name))

    # ------------------------------------------------------------------------------------ the store

    def _left_store(self, store: Path, token: int) -> WrittenOwnerFile | None:
        """The owner file of a store that the worker before had finished and could not promote."""
        try:
            owner, _ = read_owner(store)
            check_owner(store, owner, self.entry)
        except StorageError:
            return None
        is_empty = owner.rollout_manifest_sha256 is None
        if not is_empty and not validate_rollout_zarr_store(store, deep=True).ok:
            return None
        return msgspec.structs.replace(owner, token=token, failures=self._failed_attempts())

    def _failed_attempts(self) -> tuple[FailedAttempt, ...]:
        return tuple(each.attempt for each in self.final.failures())

    def _built(self, store: Path, build: Builder, lease: ShardLease) -> WrittenOwnerFile:
        with write_errors(store):
            if store.exists():  # not validated: it may be half of a store
                shutil.rmtree(store)
        started = time.monotonic()
        built = build(store, lease.progress)
        return self._checked(store, built, lease.token, time.monotonic() - started)

    def _checked(
        self, store: Path, built: BuiltStore, token: int, seconds: float
    ) -> WrittenOwnerFile:
        """Validates what the builder wrote. Returns its owner file."""
        if built.result is None:
            with write_errors(store):
                store.mkdir(parents=True)
            return self._owner(built, token, seconds, manifest=None, size=0)
        manifest = read_manifest(store)
        if not self._is_named_in(manifest):
            raise StorageError(path=str(store), detail="its manifest names another shard")
        checked = validate_rollout_zarr_store(store)
        if not checked.ok:
            detail = "; ".join(str(error) for error in checked.errors[:5])
            raise StorageError(path=str(store), detail=f"the store is not valid: {detail}")
        data = (store / ROLLOUT_MANIFEST_FILENAME).read_bytes()
        size = sum(size for size, _ in manifest.files.values()) + len(data)
        return self._owner(built, token, seconds, manifest=sha256(data).hexdigest(), size=size)

    def _is_named_in(self, manifest: StoreManifest) -> bool:
        try:
            named = manifest.payload["generation"]["shard"]
            return RolloutShardEntry.from_jsonable(named) == self.entry
        except (KeyError, TypeError, RollbookError):
            return False

    def _owner(
        self, built: BuiltStore, token: int, seconds: float, *, manifest: str | None, size: int
    ) -> WrittenOwnerFile:
        result, entry = built.result, self.entry
        counts = (
            ShardCounts()
            if result is None
            else ShardCounts(
                rollouts=result.num_rollouts,
                steps=result.num_steps,
                candidates=result.num_candidates,
            )
        )
        return WrittenOwnerFile(
            shard_id=entry.shard_id,
            writer_config_hash=entry.writer_config_hash,
            source_manifest_hash=entry.source_manifest_hash,
            split_manifest_hash=entry.split_manifest_hash,
            source_cache_version=entry.source_cache_version,
            split=entry.split,
            num_source_rows=len(entry.rows),
            output_tmp=str(self.tmp),
            output_final=self.final.place,
            rollout_manifest_sha256=manifest,
            content_sha256=None if result is None else result.content_sha256,
            counts=counts,
            bytes=size,
            stats=dict(built.stats),
            seconds=round(seconds, 3),
            token=token,
            built_by=Process.this(),
            built_at=utc_timestamp(),
            failures=self._failed_attempts(),
            runtime=dict(built.runtime),
            shard_entry=entry.to_jsonable(),
        )

    # ------------------------------------------------------------------------------------- afterwards

    def tidy(self, watch: LeaseWatch) -> None:
        """Removes what a worker left that was killed after its success file. A worker that is alive does it itself."""
        if self.tmp.exists() or self.final.has_leftovers():
            with suppress(StorageError):
                lease = ShardLease.acquire(
                    self.final.leases,
                    self.entry.shard_id,
                    lease_s=60.0,
                    take_over=True,
                    watch=watch,
                    work_root=self.tmp,
                )
                with lease:
                    self._tidy()

    def _tidy(self) -> None:
        """The shard is finished, whatever becomes of the rest."""
        shutil.rmtree(self.tmp, ignore_errors=True)
        with suppress(StorageError):
            self.final.tidy()

    def _mark_failed(self, error: BaseException) -> None:
        row = error if isinstance(error, GenerationFailed) else None
        marker = failure_of(
            self.entry,
            self.tmp,
            self.final.place,
            error_type=type(error).__name__,
            error=str(error),
            sample_index=None if row is None else row.sample_index,
            sample_key=None if row is None else row.sample_key,
        )
        with suppress(
            RollbookError
        ):  # the disk may be full; the error itself is raised to the caller
            self.final.add_failure(marker)


def failure_of(
    entry: RolloutShardEntry,
    output_tmp: AnyPath,
    output_final: AnyPath,
    *,
    error_type: str,
    error: str,
    sample_index: int | None = None,
    sample_key: str | None = None,
) -> FailureMarker:
    """The marker of an attempt that failed, or of one whose worker could not write it itself."""
    return FailureMarker(
        shard_id=entry.shard_id,
        writer_config_hash=entry.writer_config_hash,
        source_manifest_hash=entry.source_manifest_hash,
        split_manifest_hash=entry.split_manifest_hash,
        output_tmp=str(output_tmp),
        output_final=str(output_final),
        error_type=error_type,
        error=error[:_LONGEST_ERROR],
        sample_index=sample_index,
        sample_key=sample_key,
        process=Process.this(),
        failed_at=utc_timestamp(),
        runtime={},
    )


def write_failure(entry: RolloutShardEntry, marker: FailureMarker) -> None:
    """Leaves the marker beside the final place of the shard."""
    final_place(entry, marker.output_final).add_failure(marker)
