"""LeaseFiles: the lease files of shards, as a lease needs them. LeaseFolder: those in a folder, also over NFS."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path

from rollbook.errors import LeaseLost, StorageError, TargetExists
from rollbook.files import write_bytes
from rollbook.store.shards.lease_record import LeaseRecord, lease_files, lease_path, read_lease


class OpenLease(ABC):
    """The lease file of a holder."""

    @abstractmethod
    def write(self, record: LeaseRecord) -> None:
        """Overwrite the record. A file that was removed must never come back. Raises LeaseLost if it is gone."""

    @abstractmethod
    def is_taken(self) -> bool:
        """Whether another worker has certainly taken the shard over."""

    @abstractmethod
    def close(self) -> None:
        """Called once, at the end."""


class LeaseFiles(ABC):
    """Where lease files are. Creating one that must not exist is decided by the server of the files."""

    @abstractmethod
    def path(self, shard_id: str, token: int) -> str:
        """The place of a lease file, for messages."""

    @abstractmethod
    def tokens(self, shard_id: str) -> list[int]:
        """The tokens that have a lease file."""

    @abstractmethod
    def read(self, shard_id: str, token: int) -> LeaseRecord | None:
        """None if the file is gone. A record that cannot be read has no nonce and no process."""

    @abstractmethod
    def create(self, record: LeaseRecord) -> bool:
        """Create a lease file; False if its token exists."""

    @abstractmethod
    def open(self, record: LeaseRecord) -> OpenLease:
        """The file that was created with this record. Raises LeaseLost if it is gone."""

    @abstractmethod
    def remove(self, shard_id: str, token: int) -> None:
        """Remove a lease file, if it can be removed."""

    def highest(self, shard_id: str) -> LeaseRecord | None:
        tokens = self.tokens(shard_id)
        return self.read(shard_id, max(tokens)) if tokens else None


class LeaseFolder(LeaseFiles):
    """Lease files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, shard_id: str, token: int) -> str:
        return str(lease_path(self._folder, shard_id, token))

    def tokens(self, shard_id: str) -> list[int]:
        return [token for name, token in lease_files(self._folder) if name == shard_id]

    def read(self, shard_id: str, token: int) -> LeaseRecord | None:
        return read_lease(self._folder, shard_id, token)

    def create(self, record: LeaseRecord) -> bool:
        path = lease_path(self._folder, record.shard_id, record.token)
        try:
            write_bytes(path, record.encode(), replace=False)
        except TargetExists:
            # over NFS a request can be repeated after its answer was lost: then the file is ours
            found = self.read(record.shard_id, record.token)
            return found is not None and found.nonce == record.nonce
        except StorageError as error:
            # a worker that finished the shard at this moment took the unnamed file for one of a killed process
            if isinstance(error.__cause__, FileNotFoundError) and self._folder.is_dir():
                return False
            raise
        return True

    def open(self, record: LeaseRecord) -> OpenLease:
        path = lease_path(self._folder, record.shard_id, record.token)
        return _OpenFile(path, lease_path(self._folder, record.shard_id, record.token + 1))

    def remove(self, shard_id: str, token: int) -> None:
        with suppress(OSError):
            lease_path(self._folder, shard_id, token).unlink()


class _OpenFile(OpenLease):
    def __init__(self, path: Path, following: Path) -> None:
        self._path = path
        self._following = following
        try:
            # without O_CREAT: a lease file that was removed must never come back
            self._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise LeaseLost(path=str(path), detail="its lease file is gone") from error

    def write(self, record: LeaseRecord) -> None:
        try:
            size = os.fstat(self._file).st_size
            os.pwrite(self._file, record.encode(size), 0)
        except OSError as error:
            detail = f"its lease file cannot be written ({error.strerror or error})"
            raise LeaseLost(path=str(self._path), detail=detail) from error

    def is_taken(self) -> bool:
        """Whoever takes a shard over removes the lease files below its own."""
        try:
            return os.path.lexists(self._following) or os.fstat(self._file).st_nlink == 0
        except OSError:  # over NFS
            return True

    def close(self) -> None:
        os.close(self._file)
