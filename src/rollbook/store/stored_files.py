"""StoredFiles: the files of a finished store, compared with the list in its manifest.

A file that the manifest lists and the disk lacks must never be read as fill values, which is what Zarr does with a
chunk that is not there. Reading checks names and sizes, once per column. What copies or converts a store also compares
every byte, so that damage cannot get a new, valid checksum.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from rollbook.digest import checksum
from rollbook.errors import ChecksumMismatch, StorageError, TruncatedFile
from rollbook.store.manifest import FileSums, StoreManifest, refuse_outside_paths

_LARGE = 1 << 20
_THREADS = 4


class StoredFiles:
    """Every error names the file and says what to do."""

    def __init__(self, manifest: StoreManifest, remedy: str = "copy the store again") -> None:
        self._manifest = manifest
        self._folder = manifest.store_dir
        self._remedy = remedy
        self._complete: set[str] = set()

    @cached_property
    def listed(self) -> FileSums:
        try:
            files = self._manifest.files
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            detail = f"manifest.json has no valid list of files ({error}); {self._remedy}"
            raise StorageError(path=str(self._folder), detail=detail) from error
        refuse_outside_paths(str(self._folder), files)
        return files

    def below(self, path: str) -> list[str]:
        """The file `path`, or every file of the folder `path`."""
        return [path] if path in self.listed else self._by_folder.get(path, [])

    @cached_property
    def _by_folder(self) -> Mapping[str, list[str]]:
        folders: dict[str, list[str]] = {"": list(self.listed)}
        for path in self.listed:
            end = path.rfind("/")
            while end > 0:
                folders.setdefault(path[:end], []).append(path)
                end = path.rfind("/", 0, end)
        return folders

    def check(self, path: str) -> None:
        """Refuse a file or folder from which something is lost or cut off. Looks at the disk once per path."""
        if path in self._complete:
            return
        for each in self.below(path):
            self._check_size(each, self._size_of(each))
        self._complete.add(path)

    def _size_of(self, path: str) -> int:
        try:
            return (self._folder / path).stat().st_size
        except OSError as error:
            raise self._unreadable(path, error) from error

    def _check_size(self, path: str, size: int) -> None:
        expected = self.listed[path][0]
        if size != expected:
            detail = f"the file has {size} bytes, the manifest says {expected}; {self._remedy}"
            raise TruncatedFile(path=str(self._folder / path), detail=detail)

    def _unreadable(self, path: str, error: OSError) -> StorageError:
        place = str(self._folder / path)
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            detail = f"the file is missing, the manifest lists it; {self._remedy}"
            return TruncatedFile(path=place, detail=detail)
        return StorageError(path=place, detail=f"cannot be read ({error.strerror or error})")

    def read(self, path: str) -> bytes:
        """The bytes of a file, which are those that the manifest lists."""
        try:
            data = (self._folder / path).read_bytes()
        except OSError as error:
            raise self._unreadable(path, error) from error
        self._check_size(path, len(data))
        if checksum(data) != self.listed[path][1]:
            raise self._changed(path)
        return data

    def verify(self, path: str) -> None:
        """Compare every byte of a file, or of all files of a folder, with the manifest."""
        self.check(path)
        paths = self.below(path)
        sums = file_checksums(self._folder, {each: self.listed[each][0] for each in paths})
        for each in paths:
            if sums[each] != self.listed[each][1]:
                raise self._changed(each)

    def _changed(self, path: str) -> ChecksumMismatch:
        detail = f"its bytes are not those that the manifest lists; {self._remedy}"
        return ChecksumMismatch(path=str(self._folder / path), detail=detail)


def file_checksums(folder: Path, sizes: Mapping[str, int]) -> dict[str, str | None]:
    """The checksum of every file; None if it is missing. Large files are read by several threads; for small files that
    would be slower."""
    large = [path for path, size in sizes.items() if size >= _LARGE]
    with ThreadPoolExecutor(_THREADS) as threads:
        sums = _paired(large, threads.map(lambda path: _checksum_of(f"{folder}/{path}"), large))
    small = [path for path, size in sizes.items() if size < _LARGE]
    return sums | _paired(small, (_checksum_of(f"{folder}/{path}") for path in small))


def _paired(paths: list[str], sums: Iterable[str | None]) -> dict[str, str | None]:
    return dict(zip(paths, sums, strict=True))


def _checksum_of(path: str) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError:
        return "unreadable"
    try:
        return _checksum_of_open(descriptor, os.fstat(descriptor).st_size)
    except OSError:
        return "unreadable"
    finally:
        os.close(descriptor)


def _checksum_of_open(descriptor: int, size: int) -> str:
    if size < _LARGE:
        return checksum(os.read(descriptor, size))
    with (
        mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as pages,
        memoryview(pages) as data,
    ):
        return checksum(data)
