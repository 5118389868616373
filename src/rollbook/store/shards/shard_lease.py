"""ShardLease: the right to build one shard. Nothing here needs a file lock, so it holds on NFS too.

A worker takes a shard by creating the lease file with the next number, its token. Creating a file that must not exist
is decided by the file server, so only one worker can create each token. The highest token has the shard. To promote
its store, a worker creates one more token: this fails if somebody has taken the shard over meanwhile, however long
this worker was paused.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import msgspec

from rollbook.errors import LeaseHeld, LeaseLost, StorageError, UnfinishedRun
from rollbook.store.manifest import utc_timestamp
from rollbook.store.shards.lease_files import LeaseFiles
from rollbook.store.shards.lease_record import LeaseRecord, LeaseWatch, Process

BEATS_PER_LEASE = 6
_TAKEN = "another worker has taken the shard over"


class ShardLease:
    """Opened as a context. Its heartbeat runs in a thread; its files are gone when the block ends."""

    def __init__(self, files: LeaseFiles, record: LeaseRecord, former: LeaseRecord | None) -> None:
        """Called by `acquire` only."""
        self._files = files
        self.former = former
        """The record of the worker from which the shard was taken over."""
        self._record = record
        self._lost: str | None = None
        self._changing = threading.Lock()
        self._ended = threading.Event()
        self._file = files.open(record)
        self._heart = threading.Thread(target=self._beat_until_ended, daemon=True)

    @classmethod
    def acquire(
        cls,
        files: LeaseFiles,
        shard_id: str,
        *,
        lease_s: float,
        take_over: bool,
        watch: LeaseWatch,
        rows_total: int = 0,
        work_root: Path,
    ) -> ShardLease:
        """Take a free shard. With `take_over`, also one whose worker's lease is over.

        The work folder of this holder is one in `work_root` that nobody had before.

        Raises LeaseHeld while another worker has it, and UnfinishedRun for a worker that left it.
        """
        record = LeaseRecord(
            shard_id=shard_id,
            token=0,
            nonce=os.urandom(16).hex(),
            process=Process.this(),
            lease_s=lease_s,
            rows_total=rows_total,
        )
        while True:
            former = files.highest(shard_id)
            if former is not None:
                _refuse_held(files, former, take_over, watch)
            token = 1 if former is None else former.token + 1
            record = msgspec.structs.replace(
                record, token=token, work_folder=str(work_root / f"{token:06d}-{record.nonce[:8]}")
            )
            if files.create(record):
                tokens = files.tokens(shard_id)
                if max(tokens, default=token) > token:
                    # this worker was paused before it created its token, and others had the shard meanwhile
                    files.remove(shard_id, token)
                    continue
                lease = cls(files, record, former)
                lease._remove_lower(tokens)
                return lease

    @property
    def token(self) -> int:
        return self._record.token

    @property
    def work_folder(self) -> Path:
        return Path(self._record.work_folder)

    # -------------------------------------------------------------------------------- heartbeat

    def _beat_until_ended(self) -> None:
        while not self._ended.wait(self._record.lease_s / BEATS_PER_LEASE):
            self._beat()

    def _beat(self) -> None:
        with self._changing:
            if self._ended.is_set() or self._lost is not None:
                return
            self._record = msgspec.structs.replace(
                self._record, beat=self._record.beat + 1, beat_at=utc_timestamp()
            )
            try:
                self._file.write(self._record)
            except LeaseLost as error:
                self._lost = error.detail

    def progress(self, rows_done: int) -> None:
        """Called by the builder after every row. Raises LeaseLost when another worker has taken the shard over."""
        with self._changing:
            self._record = msgspec.structs.replace(self._record, rows_done=rows_done)
        self.check()

    def check(self) -> None:
        """Raises LeaseLost if this worker has certainly lost the shard. Only `claim_promotion` decides it for good."""
        if self._lost is None and self._file.is_taken():
            self._lost = _TAKEN
        if self._lost is not None:
            path = self._files.path(self._record.shard_id, self._record.token)
            raise LeaseLost(path=path, detail=f"{self._lost}; this worker stops")

    # -------------------------------------------------------------------------------- promotion

    def claim_promotion(self) -> None:
        """Take the next token, which only the present holder can: if anybody took it, the shard is lost."""
        self.check()
        with self._changing:
            following = msgspec.structs.replace(
                self._record, token=self._record.token + 1, role="promoting"
            )
            if not self._files.create(following):
                self._lost = _TAKEN
            else:
                opened = self._files.open(following)
                self._file.close()
                self._record, self._file = following, opened
        self.check()
        self._remove_lower(self._files.tokens(self._record.shard_id))

    def _remove_lower(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            if token < self._record.token:
                self._files.remove(self._record.shard_id, token)

    # -------------------------------------------------------------------------------------- end

    def __enter__(self) -> ShardLease:
        self._heart.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._heart.join()
        self._file.close()
        shard_id = self._record.shard_id
        with suppress(
            StorageError
        ):  # what is done is done; the next worker sees that this process has ended
            for token in (self._record.token - 1, self._record.token):
                found = self._files.read(shard_id, token)
                if found is not None and found.nonce == self._record.nonce:
                    self._files.remove(shard_id, token)


def _refuse_held(
    files: LeaseFiles, former: LeaseRecord, take_over: bool, watch: LeaseWatch
) -> None:
    path = files.path(former.shard_id, former.token)
    if not watch.is_over(former):
        detail = f"its last sign of life was at {former.beat_at}"
        raise LeaseHeld(path=path, owner=former.owner, detail=detail)
    if not take_over:
        detail = f"the lease of {former.owner}, which has ended; --take-over goes on with its work"
        raise UnfinishedRun(path=path, detail=f"{detail} (in Python: take_over=True)")
