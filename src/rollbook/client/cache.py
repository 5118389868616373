"""Cache: artifacts that were downloaded, each under its own SHA-256, so that nothing is fetched twice or mixed up."""

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
    """A folder of at most `limit_bytes`, of which the files used longest ago go first. Processes may share it.

    What it returns may be removed when something else is fetched: copy what is to stay.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, limit_bytes: int = CACHE_BYTES
    ) -> None:
        self.folder = Path(folder) if folder is not None else home() / "cache"
        self._limit_bytes = limit_bytes
        self._room_bytes = 0
        """That may still be filled before anybody has to look at the whole folder again."""

    def find(self, sha256: str) -> Path | None:
        """The file, if its bytes are what they should be. A damaged one is removed."""
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
        """There is such a file. Whether it is whole shows when it is used."""
        return sha256 is not None and (self.folder / _checked(sha256)).exists()

    def add(self, data: bytes, what: str) -> Path:
        """Bytes that are here already."""
        incoming = self.incoming(what, len(data))
        incoming.write(data)
        return self.keep(incoming, None)

    def keep(self, file: IncomingFile, sha256: str | None) -> Path:
        """Under its digest, which has to be the promised one, if one was promised."""
        found = file.finish()
        if sha256 is not None and found != sha256:
            file.discard()
            detail = f"{file.what} was to be {sha256} and is {found}; download it again"
            raise ChecksumMismatch(path=str(self.folder), detail=detail)
        path = self.folder / found
        os.replace(file.path, path)
        self._room_bytes -= file.size
        if self._room_bytes < 0:
            self._make_room(path)
        return path

    def _make_room(self, newest: Path) -> None:
        """Others may be at it as well, so a file that is gone already is no surprise."""
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
        # others fill it too: so not all that is left, but enough that looking costs little
        self._room_bytes = max(self._limit_bytes - total, 0) // 16


class IncomingFile:
    """The sink of a download. It keeps what has come when the connection breaks, so that the rest can follow."""

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
        """206 goes on where it broke off; anything else starts from the beginning."""
        goes_on = answer.headers.get("content-range", "").startswith(f"bytes {self.size}-")
        if answer.status != 206 or not goes_on:
            if answer.status == 206:
                message = f"cannot download {self.what}: another part came than was asked for"
                raise ServerError(status_code=206, message=message)
            self._file.seek(0)
            self._file.truncate()
            self._hasher = hashlib.sha256()
            self.size = 0

    def write(self, piece: bytes) -> None:
        self.size += len(piece)
        if self._expected is not None and self.size > self._expected:
            detail = f"{self.what} was to have {self._expected} bytes and has more"
            raise ChecksumMismatch(path=str(self.path), detail=detail)
        self._hasher.update(piece)
        try:
            self._file.write(piece)
        except OSError as error:
            detail = f"{self.what} cannot be written: {error.strerror}"
            raise StorageError(path=str(self.path), detail=detail) from error

    def finish(self) -> str:
        """Its SHA-256. It need not last: whoever finds it in the cache looks at every byte."""
        self._file.close()
        return self._hasher.hexdigest()

    def discard(self) -> None:
        with suppress(OSError):
            self._file.close()
        self.path.unlink(missing_ok=True)


def _checked(sha256: str) -> str:
    """It becomes the name of a file, and comes from elsewhere."""
    if not _DIGEST.fullmatch(sha256):
        raise StorageError(path="cache", detail=f"{sha256!r} is not a SHA-256")
    return sha256
