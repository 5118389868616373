"""ChunkFiles: the files of a Zarr store in a folder or in a zip file, by their name in the store.

Nothing is unpacked to disk. A name in a zip file that could leave a folder is refused all the same: no honest tool
writes one.
"""

from __future__ import annotations

import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeAlias

from rollbook.errors import DamagedRecording, RollbookError
from rollbook.files import unreadable

_MOST_MEMBERS = 20_000_000
FileState: TypeAlias = "tuple[int, int]"


class ChunkFiles(Protocol):
    path: Path

    def has(self, name: str) -> bool: ...

    def state(self, name: str) -> FileState | None:
        """Size and time of the last change of the file with these bytes; None if there is no such file."""
        ...

    def read(self, name: str, most: int) -> bytes:
        """The bytes of a file. One of more than `most` bytes is refused before it is read."""
        ...

    def children(self, name: str) -> list[str]:
        """Names of the folders in a folder, sorted."""
        ...

    def count(self, name: str) -> int:
        """Number of all files below a folder."""
        ...

    def paths(self) -> tuple[Path, ...]:
        """The files whose digest identifies the recording."""
        ...

    def close(self) -> None: ...


class FolderFiles:
    def __init__(self, path: Path) -> None:
        self.path = path

    def has(self, name: str) -> bool:
        return self.state(name) is not None

    def state(self, name: str) -> FileState | None:
        path = os.path.join(self.path, name)
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unreadable(path, error) from error
        return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None

    def read(self, name: str, most: int) -> bytes:
        path = self.path / name
        try:
            with open(path, "rb") as file:
                data = file.read(most + 1)
        except OSError as error:
            raise unreadable(path, error) from error
        return _checked_size(data, most, path)

    def children(self, name: str) -> list[str]:
        folder = self.path / name
        if not folder.is_dir():
            return []
        return sorted(each.name for each in folder.iterdir() if each.is_dir())

    def count(self, name: str) -> int:
        return sum(len(files) for _, _, files in os.walk(self.path / name))

    def paths(self) -> tuple[Path, ...]:
        return tuple(sorted(each for each in self.path.rglob("*") if each.is_file()))

    def close(self) -> None:
        pass


class ZipFiles:
    def __init__(self, path: Path) -> None:
        self.path = path
        with self._errors("its table of contents"):
            self._archive = zipfile.ZipFile(path)
        try:
            members = self._archive.infolist()
            if len(members) > _MOST_MEMBERS:
                detail = f"it has {len(members)} members, more than {_MOST_MEMBERS}"
                raise DamagedRecording(path=str(path), detail=detail)
            for member in members:
                _check_name(member.orig_filename, path)
            # a name that is there twice means the last one: so Zarr updates a file in a zip
            self._members = {each.filename: each for each in members if not each.is_dir()}
            found = path.stat()
            self._state = found.st_size, found.st_mtime_ns
        except BaseException:
            self._archive.close()
            raise

    def has(self, name: str) -> bool:
        return name in self._members

    def state(self, name: str) -> FileState | None:
        return self._state if name in self._members else None

    def read(self, name: str, most: int) -> bytes:
        member = self._members[name]
        if member.file_size > most:
            detail = f"{name} has {member.file_size} bytes unpacked, more than {most}"
            raise DamagedRecording(path=str(self.path), detail=detail)
        with self._errors(name), self._archive.open(member) as file:
            data = file.read(most + 1)
        return _checked_size(data, most, self.path / name)

    def children(self, name: str) -> list[str]:
        inside = [each[len(name) + 1 :] for each in self._members if each.startswith(f"{name}/")]
        return sorted({each.split("/")[0] for each in inside if "/" in each})

    def count(self, name: str) -> int:
        return sum(each.startswith(f"{name}/") for each in self._members)

    def paths(self) -> tuple[Path, ...]:
        return (self.path,)

    def close(self) -> None:
        self._archive.close()

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except RollbookError:
            raise
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            NotImplementedError,
            RuntimeError,
            ValueError,
            OverflowError,
            OSError,
        ) as error:
            detail = f"{name} cannot be read: {error}"
            raise DamagedRecording(path=str(self.path), detail=detail) from error


class OpenChunkFiles:
    """The files of a folder or zip, open for a `with` block."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> ChunkFiles:
        self._files: ChunkFiles = (
            FolderFiles(self._path) if self._path.is_dir() else ZipFiles(self._path)
        )
        return self._files

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._files.close()


def _checked_size(data: bytes, most: int, path: Path) -> bytes:
    if len(data) > most:
        detail = f"it has more than the {most} bytes that its array allows"
        raise DamagedRecording(path=str(path), detail=detail)
    return data


def _check_name(name: str, path: Path) -> None:
    parts = name.split("/")
    if name.startswith("/") or "\\" in name or ".." in parts or not name.isprintable():
        detail = f"it has a member {name[:80]!r}, which is no name in a Zarr store"
        raise DamagedRecording(path=str(path), detail=detail)
