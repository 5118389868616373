"""A blob as a file: one that is being received, and one that is being read. Threads do the work, one batch behind the
network."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import secrets
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from rollbook.errors import BlobStoreUnavailable
from rollbook.server.blobs.confined_files import ConfinedFiles
from rollbook.server.blobs.interface import BlobInfo

_CHUNK = 1 << 21
_COPIED_AT_ONCE = 1 << 20
_FLUSHED_AT_ONCE = 8 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_KERNEL_COPY = (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


class Incoming:
    """A file without its final name. A write or a rename may still run after its waiter was cancelled, so `busy` delays
    the clean-up until it ends."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / secrets.token_hex(16)
        try:
            self._file = FileIO(self.path, "xb")
        except FileNotFoundError as error:
            raise BlobStoreUnavailable(
                detail="the folder of the blob store is gone; is its disk mounted?"
            ) from error
        self._digest = hashlib.sha256()
        self.busy = threading.Lock()
        self.size = 0
        self._flushed = 0

    def write(self, data: bytes) -> None:
        with self.busy, disk_errors():
            rest = memoryview(data)
            while rest:  # more than one write after a signal, or on a disk that is nearly full
                rest = rest[self._file.write(rest) :]
            self.size += len(data)
            self._flush_early()

    def take(self, data: bytes) -> None:
        self.write(data)
        self.hash(data)

    def hash(self, data: bytes) -> None:
        """Separate from writing, so that two threads can work at the same time."""
        self._digest.update(data)

    def _flush_early(self) -> None:
        """Tells the system to start writing, so that the sync at the end has little left to do."""
        ready = self.size - self._flushed
        if ready >= _FLUSHED_AT_ONCE:
            # starts the write without waiting for it; the pages stay in memory
            os.posix_fadvise(self._file.fileno(), self._flushed, ready, os.POSIX_FADV_DONTNEED)
            self._flushed = self.size

    def append(self, part: FileIO) -> None:
        """Copies a whole file, in the kernel where possible, without hashing it."""
        left = os.fstat(part.fileno()).st_size
        try:
            while left > 0:
                copied = os.copy_file_range(part.fileno(), self._file.fileno(), left)
                if copied == 0:
                    raise BlobStoreUnavailable(detail="a part ended before its end; send it again")
                left -= copied
        except OSError as error:
            if error.errno not in _NO_KERNEL_COPY:
                raise
            shutil.copyfileobj(part, self._file, _COPIED_AT_ONCE)

    def sync(self) -> os.stat_result:
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno())

    def sha256(self) -> str:
        return self._digest.hexdigest()

    def discard(self) -> None:
        """Removes the file, unless it has its final name."""
        with self.busy:
            self._file.close()
            self.path.unlink(missing_ok=True)


def renamed(
    incoming: Incoming,
    rooted: ConfinedFiles,
    place: Sequence[str],
    *,
    create: bool = False,
    replace: bool = True,
) -> str:
    """Syncs the file before it gets its name, and the name before anybody is told. Returns the etag."""
    with incoming.busy:
        what = incoming.sync()
        with rooted.folder(place[:-1], create=create) as folder:
            if replace:
                os.replace(incoming.path, place[-1], dst_dir_fd=folder)
            else:
                os.link(incoming.path, place[-1], dst_dir_fd=folder)  # fails when the name is taken
            os.fsync(folder)
    return etag_of(what)


@dataclass(frozen=True)
class OpenBlob:
    """An open blob. It keeps its bytes, whatever is stored under the key meanwhile."""

    info: BlobInfo
    file: FileIO
    pool: ThreadPoolExecutor
    _busy: threading.Lock = field(default_factory=threading.Lock, repr=False)

    async def chunks(self, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Closes the blob at the end. One chunk is read ahead."""
        stop = self.info.size if end is None else min(end, self.info.size)
        try:
            ahead = self._read_ahead(start, stop)
            while start < stop:
                chunk = await ahead
                if not chunk:
                    raise BlobStoreUnavailable(detail=f"{self.info.key!r} ended before its end")
                start += len(chunk)
                if start < stop:
                    ahead = self._read_ahead(start, stop)
                yield chunk
        finally:
            self.close()

    def close(self) -> None:
        submit_without_waiting(self.pool, self._closed)

    def _closed(self) -> None:
        with self._busy:  # a descriptor must not be closed while a thread reads it
            self.file.close()

    def _read_ahead(self, start: int, stop: int) -> asyncio.Future[bytes]:
        ahead = asyncio.wrap_future(self.pool.submit(self._chunk, start, stop))
        ahead.add_done_callback(ignore_error)
        return ahead

    def _chunk(self, start: int, stop: int) -> bytes:
        with self._busy, disk_errors():
            return os.pread(self.file.fileno(), max(0, min(_CHUNK, stop - start)), start)


def info_of(key: str, what: os.stat_result) -> BlobInfo:
    return BlobInfo(key, what.st_size, etag_of(what), what.st_mtime_ns // 1000)


def etag_of(what: os.stat_result) -> str:
    """Every put makes a new file, so this changes with the bytes and needs no reading."""
    return f"{what.st_ino:x}-{what.st_mtime_ns:x}-{what.st_size:x}"


def submit_without_waiting(pool: ThreadPoolExecutor, work: Callable[[], object]) -> None:
    """Does not wait, so it also works in a task that is being cancelled."""
    try:
        pool.submit(work)
    except RuntimeError:  # the store was closed meanwhile
        work()


def ignore_error(future: asyncio.Future[Any]) -> None:
    """For a future that nobody waits for: nobody can be told about its error."""
    if not future.cancelled():
        future.exception()


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turns errors of the disk into our errors. "Exists" and "does not exist" pass through: they are answers."""
    try:
        yield
    except (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError):
        raise
    except OSError as error:
        if error.errno in _FULL:
            text = "the disk of the blob store is full; nothing was kept, make room and try again"
        else:
            text = f"the disk of the blob store does not work ({error.strerror}); see to it, then try again"
        raise BlobStoreUnavailable(detail=text) from error
