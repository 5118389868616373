"""Cache: downloaded artifacts, each stored under its SHA-256, so that no artifact is downloaded twice."""

from __future__ import annotations

import hashlib
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from rollbook.client.credentials import home
from rollbook.client.file_slice import sha256_of
from rollbook.client.http import Answer
from rollbook.errors import ChecksumMismatch, ServerError, StorageError

CACHE_BYTES = 20 << 30
_DIGEST = re.compile("[0-9a-f]{64}")
_LEFTOVER_S = 86_400.0


class Cache:
    """A folder of at most `limit_bytes`. The files that were used longest ago are removed first.

    Processes may share it. A later download may remove a file that it returned: copy a file that you want to keep.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, limit_bytes: int = CACHE_BYTES
    ) -> None:
        self.folder = Path(folder) if folder is not None else home() / "cache"
        self._limit_bytes = limit_bytes
        self._room_bytes = 0
        """Bytes that may still be added before the size of the folder has to be measured again."""

    def find(self, sha256: str) -> Path | None:
        """The file, after comparing its SHA-256. A damaged file is removed."""
        path = self.folder / _checked(sha256)
        try:
            if sha256_of(path) == sha256:
                os.utime(path)
                return path
            path.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StorageError(path=str(path), detail=str(error)) from error
        return None

    def incoming(self, what: str, size: int | None) -> IncomingFile:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return IncomingFile(self.folder / f".{os.urandom(8).hex()}.part", what, size)
        except OSError as error:
            detail = f"the cache cannot be written: {error.strerror}"
            raise StorageError(path=str(self.folder), detail=detail) from error

    def has(self, sha256: str | None) -> bool:
        """Whether there is such a file. Its digest is compared when it is used."""
        return sha256 is not None and (self.folder / _checked(sha256)).exists()

    def add(self, data: bytes, what: str) -> Path:
        """Stores bytes that are in memory."""
        incoming = self.incoming(what, len(data))
        incoming.write(data)
        return self.keep(incoming, None)

    def keep(self, file: IncomingFile, sha256: str | None) -> Path:
        """Stores a complete download under its digest. Raises ChecksumMismatch if it is not `sha256`."""
        found = file.finish()
        if sha256 is not None and found != sha256:
            file.discard()
            detail = f"{file.what} should have SHA-256 {sha256} and has {found}; download it again"
            raise ChecksumMismatch(path=str(self.folder), detail=detail)
        path = self.folder / found
        os.replace(file.path, path)
        self._room_bytes -= file.size
        if self._room_bytes < 0:
            self._make_room(path)
        return path

    def _make_room(self, newest: Path) -> None:
        """Other processes may do the same at the same time, so a file may be gone already."""
        files: list[tuple[float, int, Path]] = []
        for each in self.folder.iterdir():
            with suppress(FileNotFoundError):
                found = each.stat()
                if _DIGEST.fullmatch(each.name):
                    files.append((found.st_mtime, found.st_size, each))
                elif time.time() - found.st_mtime > _LEFTOVER_S and each.suffix == ".part":
                    each.unlink()
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._limit_bytes:
                break
            if path != newest:
                with suppress(FileNotFoundError):
                    path.unlink()
                total -= size
        # other processes add files too, so only a part of what is left is used before measuring again
        self._room_bytes = max(self._limit_bytes - total, 0) // 16


class IncomingFile:
    """The sink of a download. When the connection breaks it keeps its bytes, so that the download can be resumed."""

    def __init__(self, path: Path, what: str, expected: int | None) -> None:
        self.path = path
        self.what = what
        self.size = 0
        self._expected = expected
        self._hasher = hashlib.sha256()
        self._file = open(path, "xb")  # noqa: SIM115 - closed by finish or discard

    @property
    def is_whole(self) -> bool:
        return self._expected is not None and self.size == self._expected

    def begin(self, answer: Answer) -> None:
        """A 206 continues at the current size. Any other success starts from the beginning."""
        goes_on = answer.headers.get("content-range", "").startswith(f"bytes {self.size}-")
        if answer.status != 206 or not goes_on:
            if answer.status == 206:
                message = (
                    f"cannot download {self.what}: the server sent another part than requested"
                )
                raise ServerError(status_code=206, message=message)
            self._file.seek(0)
            self._file.truncate()
            self._hasher = hashlib.sha256()
            self.size = 0

    def write(self, piece: bytes) -> None:
        self.size += len(piece)
        if self._expected is not None and self.size > self._expected:
            detail = f"{self.what} should have {self._expected} bytes and has more"
            raise ChecksumMismatch(path=str(self.path), detail=detail)
        self._hasher.update(piece)
        try:
            self._file.write(piece)
        except OSError as error:
            detail = f"{self.what} cannot be written: {error.strerror}"
            raise StorageError(path=str(self.path), detail=detail) from error

    def finish(self) -> str:
        """Closes the file and returns its SHA-256. No fsync: `find` compares every byte before a file is used."""
        self._file.close()
        return self._hasher.hexdigest()

    def discard(self) -> None:
        with suppress(OSError):
            self._file.close()
        self.path.unlink(missing_ok=True)


def _checked(sha256: str) -> str:
    """The digest comes from a server and becomes a file name, so it is checked."""
    if not _DIGEST.fullmatch(sha256):
        raise StorageError(path="cache", detail=f"{sha256!r} is not a SHA-256")
    return sha256
