"""The file of a Recorder: an append-only journal of records, each with its length and its checksums.

    0   magic, format version, zero                                          16 bytes
    16  records, one after the other:
        marker, payload length, number, position of the record before it that
        belongs to the same rollout (0: none), checksum of the payload        40 bytes
        checksum of these 40 bytes                                             8 bytes
        payload, then an end mark

A process that is killed leaves the first part of a record at the end, never more: every record is one write. Such a
tail, and one that a power cut filled with zeros, is `torn`. It was never acknowledged. Anything else that is wrong is
damage, and the error names the record. Reading never trusts a length before the header that holds it was checked.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rollbook.digest import piecewise_checksum
from rollbook.errors import (
    ChecksumMismatch,
    ConfigurationError,
    LeaseHeld,
    StorageError,
    TargetExists,
    UnknownFormat,
    UnsupportedVersion,
)
from rollbook.files import atomic_write, make_folders, write_errors

MAGIC = b"ROLLJRNL"
VERSION = 1
_PREAMBLE = struct.Struct("<8sII")
_HEADER = struct.Struct("<4sIQQ16s8s")
_SEALED = _HEADER.size - 8
"""The bytes of a header that its own checksum covers."""
_MARKER = b"Rrec"
_END = b"end\n"
_BLOCK = 1 << 20
_LARGEST_PAYLOAD = 1 << 30
_STILL_WRITING_S = 0.02
"""A live writer completes a record in much less time."""


@dataclass(frozen=True, slots=True)
class TornTail:
    """An incomplete record at the end of a journal: what was being written when its process was killed."""

    position: int
    """Where the incomplete record begins, in bytes."""
    size: int
    """How many bytes there are of it."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One record of the file, with its checksums checked."""

    number: int
    position: int
    previous: int
    payload: bytes

    @property
    def end(self) -> int:
        return self.position + _HEADER.size + len(self.payload) + len(_END)


def is_journal_file(path: str | os.PathLike[str]) -> bool:
    """Whether the file begins like a journal. It may still be damaged."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise _unreadable(str(path), error) from error


def _unreadable(path: str, error: OSError) -> StorageError:
    return StorageError(path=path, detail=f"cannot be opened ({error.strerror or error})")


def _frame_bytes(number: int, previous: int, payload: bytes) -> bytes:
    sealed = _HEADER.pack(
        _MARKER, len(payload), number, previous, piecewise_checksum(payload).digest(), bytes(8)
    )[:_SEALED]
    return b"".join((sealed, _header_checksum(sealed), payload, _END))


def _header_checksum(sealed: bytes) -> bytes:
    return piecewise_checksum(sealed).digest()[:8]


# ---------------------------------------------------------------------------------------- reading


class JournalReader:
    """Reads the records of an open journal by position or in order. Another process may be appending to it."""

    def __init__(self, path: str, file: IO[bytes]) -> None:
        self.path = path
        self._file = file
        self.torn: TornTail | None = None
        """Known after `frames` came to its end."""

    def check_preamble(self) -> None:
        start = self._read(0, _PREAMBLE.size)
        if len(start) < _PREAMBLE.size or start[: len(MAGIC)] != MAGIC:
            raise UnknownFormat(path=self.path, detail="it does not begin like a rollout journal")
        _, version, zero = _PREAMBLE.unpack(start)
        if version != VERSION:
            raise UnsupportedVersion.of(self.path, version, VERSION)
        if zero:
            raise ChecksumMismatch(path=self.path, detail="its first 16 bytes are damaged")

    def frames(self) -> Iterator[Frame]:
        """Every complete record in order, up to the end that the file has now."""
        position, number = _PREAMBLE.size, 0
        size = self._settled_size(position)
        while position < size:
            frame = self._next(position, number, size)
            if frame is None:
                self.torn = TornTail(position, size - position)
                return
            yield frame
            position, number = frame.end, number + 1

    def frame_at(self, position: int) -> Frame:
        """The record that begins at a position which is known to be one."""
        frame = self._next(position, None, os.fstat(self._file.fileno()).st_size)
        if frame is None:
            detail = f"the record at byte {position} is not there any more"
            raise ChecksumMismatch(path=self.path, detail=detail)
        return frame

    def _settled_size(self, position: int) -> int:
        """The size of the file. If its last record is incomplete, a writer gets a moment to complete it."""
        size = self._size()
        for _ in range(5):
            if self._ends_with_mark(size) or size <= position:
                break
            time.sleep(_STILL_WRITING_S)
            before, size = size, self._size()
            if before == size:
                break
        return size

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _ends_with_mark(self, size: int) -> bool:
        return self._read(max(0, size - len(_END)), len(_END)) == _END

    def _next(self, position: int, number: int | None, size: int) -> Frame | None:
        """The record at `position`. None if it is torn."""
        header = self._read(position, _HEADER.size)
        if position + _HEADER.size > size or len(header) < _HEADER.size:
            return None
        marker, length, found, previous, checksum, seal = _HEADER.unpack(header)
        name = f"the record at byte {position}"
        if number is not None:
            name = f"record {number} at byte {position}"
        if _header_checksum(header[:_SEALED]) != seal or marker != _MARKER:
            self._refuse_damage(name, "its header", position + _HEADER.size, size)
            return None
        if number is not None and found != number:
            detail = f"{name} has the number {found}: records are missing or were moved"
            raise ChecksumMismatch(path=self.path, detail=detail)
        end = position + _HEADER.size + length
        if end + len(_END) > size:
            return None
        body = self._read(position + _HEADER.size, length + len(_END))
        if len(body) < length + len(_END):
            return None
        payload = body[:length]
        if piecewise_checksum(payload).digest() != checksum or body[length:] != _END:
            self._refuse_damage(name, "its content", end, size)
            return None
        return Frame(found, position, previous, payload)

    def _refuse_damage(self, name: str, what: str, position: int, size: int) -> None:
        """A power cut can leave zeros where the last bytes should be. No complete record ends in zeros."""
        if size - position >= len(_END) and self._is_zero(position, size):
            return
        detail = f"{name}: {what} does not match its checksum"
        raise ChecksumMismatch(path=self.path, detail=detail)

    def _is_zero(self, start: int, end: int) -> bool:
        return not any(
            self._read(at, min(_BLOCK, end - at)).strip(b"\0") for at in range(start, end, _BLOCK)
        )

    def _read(self, position: int, count: int) -> bytes:
        try:
            return os.pread(self._file.fileno(), count, position)
        except ValueError as error:
            raise ConfigurationError(message=f"the journal {self.path} is closed") from error
        except OSError as error:
            raise StorageError(path=self.path, detail=f"cannot be read ({error})") from error


def open_for_reading(path: str | os.PathLike[str]) -> IO[bytes]:
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise _unreadable(str(path), error) from error


# ---------------------------------------------------------------------------------------- writing


class JournalWriter:
    """Appends records. Only one process at a time can have a writer of a file.

    The caller sees to it that only one thread is in `append` or `start`.
    """

    def __init__(self, path: str | os.PathLike[str], *, sync: bool) -> None:
        self.path = Path(path)
        self._sync = sync
        self._sync_lock = threading.Lock()
        self._process = os.getpid()
        self._problem: str | None = None
        self._end = self._number = self._synced = 0
        with write_errors(self.path):
            make_folders(self.path.absolute().parent)
        if not self.path.exists():
            # it gets its name when its first bytes are there; another process may have been faster
            with suppress(TargetExists), atomic_write(self.path, replace=False) as new:
                new.write(_PREAMBLE.pack(MAGIC, VERSION, 0))
        self.file = _opened_alone(self.path)
        self.reader = JournalReader(str(path), self.file)

    def start(self, *, end: int, number: int) -> None:
        """Append after `end`. What lies behind it is a torn record, which is cut off."""
        self._end, self._number = max(end, _PREAMBLE.size), number
        with write_errors(self.path):
            if os.fstat(self.file.fileno()).st_size > self._end:
                os.ftruncate(self.file.fileno(), self._end)
                os.fsync(self.file.fileno())

    def append(self, payloads: Sequence[bytes], previous: int = 0) -> int:
        """Write records that belong to one rollout, in one step. Returns the position of the last one."""
        self._check_usable()
        data, position = b"", self._end
        for offset, payload in enumerate(payloads):
            if len(payload) > _LARGEST_PAYLOAD:
                detail = f"a record of {len(payload)} bytes is too large"
                raise StorageError(path=str(self.path), detail=detail)
            position = self._end + len(data)
            data += _frame_bytes(self._number + offset, previous, payload)
            previous = position
        self._write(data)
        self._end += len(data)
        self._number += len(payloads)
        return position

    def _check_usable(self) -> None:
        if self.file.closed:
            raise ConfigurationError(message=f"the recorder of {self.path} is closed")
        if self._process != os.getpid():
            raise LeaseHeld(
                path=str(self.path),
                owner=f"process {self._process}, which this process was forked from",
                detail="record into a file of its own in each process",
            )
        if self._problem is not None:
            raise StorageError(path=str(self.path), detail=self._problem)

    def _write(self, data: bytes) -> None:
        descriptor = self.file.fileno()
        try:
            state = os.fstat(descriptor)
            size = state.st_size
            if size < self._end:
                self._problem = f"it was cut to {size} bytes by another program"
            elif not state.st_nlink:
                self._problem = (
                    "it was removed by another program: what is written is gone when it is closed"
                )
            if self._problem is not None:
                raise StorageError(path=str(self.path), detail=self._problem)
            if size > self._end:
                # an interrupt came between a write and its acknowledgement
                os.ftruncate(descriptor, self._end)
            left, at = memoryview(data), self._end
            while left:
                done = os.pwrite(descriptor, left, at)
                left, at = left[done:], at + done
        except OSError as error:
            self._take_back(descriptor)
            detail = f"cannot be written ({error.strerror or error})"
            raise StorageError(path=str(self.path), detail=detail) from error

    def _take_back(self, descriptor: int) -> None:
        """After a failed write, such as on a full disk: nothing of the record stays, and the next one can follow."""
        try:
            os.ftruncate(descriptor, self._end)
        except OSError as error:
            self._problem = f"an incomplete record cannot be removed ({error.strerror or error})"

    def sync(self) -> None:
        """Make everything durable that was appended so far, if the writer was made for that.

        Threads that wait here share one fsync: it covers everything that was written before it.
        """
        end = self._end
        if self._sync:
            with self._sync_lock:
                if self._synced < end and not self.file.closed:
                    self._fsync()

    def _fsync(self) -> None:
        reached = self._end
        try:
            os.fsync(self.file.fileno())
        except OSError as error:
            # the system may have dropped the data, and a second fsync would not say so
            self._problem = f"cannot be synced ({error.strerror or error})"
            raise StorageError(path=str(self.path), detail=self._problem) from error
        self._synced = reached

    def close(self) -> None:
        with self._sync_lock:
            if self.file.closed:
                return
            try:
                if self._sync and self._problem is None and self._synced < self._end:
                    self._fsync()
            finally:
                self.file.close()


def _opened_alone(path: Path) -> IO[bytes]:
    """Open the file and lock it. The lock ends with the process, however that ends. Readers need no lock."""
    try:
        file = open(path, "r+b", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise _unreadable(str(path), error) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if not isinstance(error, BlockingIOError):
            raise StorageError(path=str(path), detail=f"cannot be locked ({error})") from error
        raise LeaseHeld(
            path=str(path),
            owner="another recorder",
            detail="wait until it is closed, or record into another file",
        ) from error
    return file
