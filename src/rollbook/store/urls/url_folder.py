"""UrlFolder: the files below one URL. FetchedFiles: those that were needed, in a cache folder of this machine."""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple

from rollbook.errors import ConfigurationError, StorageError
from rollbook.files import AnyPath, locked, write_files
from rollbook.lazy import needs

Options = Mapping[str, Any]
Progress = Callable[[int, int], None]
"""Called with the bytes done so far and the total."""

_BATCH_BYTES = 64 << 20
_BATCH_FILES = 64
"""Limits of what is in memory and in transfer at one time."""
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_LOCAL = ("file://", "local://")
_EXISTS = ("PreconditionFailed", "412")
_CONFLICTS = 5
_REMOVED_AT_ONCE = 16


def is_url(place: AnyPath) -> bool:
    return isinstance(place, str) and _URL.match(place) is not None


def local_path(place: AnyPath) -> Path | None:
    """The folder on this disk that a path or a file:// URL names; None for any other URL."""
    if not is_url(place):
        return Path(place)
    url = str(place).rstrip("/")
    return Path(url.partition("://")[2]) if url.startswith(_LOCAL) else None


def folder_at(place: str) -> Path:
    """The folder of something that may be at a URL. Refuses a URL."""
    folder = local_path(place)
    if folder is None:
        raise ConfigurationError(message=f"{place} is a URL: it has no folder; use `place`")
    return folder


class ListedFile(NamedTuple):
    """What a listing says about a file."""

    modified: float | None
    """Seconds since 1970, by the clock of the server; None if it does not say."""
    version: str
    """Another text for other bytes; empty if the server does not say."""


class UrlFolder:
    """The files under one URL, by their path in the store. Every error names the URL and says what to do."""

    def __init__(self, url: str, options: Options | None) -> None:
        self.url = url.rstrip("/")
        if not is_url(self.url):
            # otherwise the rest, `s3:`, would be the name of a folder in the current one
            raise ConfigurationError(
                message=f"{url!r} names no place; expected a URL like s3://bucket/prefix"
            )
        fsspec = _fsspec()
        scheme = self.url.partition("://")[0]
        if scheme not in fsspec.available_protocols():
            detail = (
                f"no kind of storage is known as {scheme}; expected a URL like s3://bucket/prefix"
            )
            raise StorageError(path=self.url, detail=detail)
        local = self.url.startswith(("file://", "local://"))
        with self.errors(""):
            self._fs, self._root = fsspec.url_to_fs(
                self.url, **({"auto_mkdir": True} if local else {}), **(options or {})
            )

    def _key(self, path: str) -> str:
        return f"{self._root}/{path}"

    def sizes(self) -> dict[str, int]:
        """Every file at the URL, with its size."""
        with self.errors(""):
            self._fs.invalidate_cache()
            try:
                found = self._fs.find(self._root, detail=True)
            except FileNotFoundError:
                return {}
        start = len(self._root.rstrip("/")) + 1
        return {name[start:]: int(entry["size"]) for name, entry in found.items()}

    def read(self, sizes: Mapping[str, int | None]) -> dict[str, bytes]:
        """Read files, at most as many bytes as given. A file that is shorter is returned as it is."""
        found = self._read(list(sizes), list(sizes.values()))
        return {path: self._bytes(path, data) for path, data in found.items()}

    def read_if_there(self, path: str) -> bytes | None:
        return self.read_those_there([path])[path]

    def read_those_there(self, paths: Sequence[str]) -> dict[str, bytes | None]:
        """Read files as a whole, all at the same time; None for one that does not exist."""
        return {
            path: None if isinstance(data, FileNotFoundError) else self._bytes(path, data)
            for path, data in self._read(paths, None).items()
        }

    def _read(self, paths: Sequence[str], ends: Sequence[int | None] | None) -> dict[str, Any]:
        """The bytes of each file, or the exception. Reads ranges, because otherwise fsspec first asks for every size,
        and because `cat` treats paths as patterns."""
        with self.errors(paths[0]):
            keys = [self._key(path) for path in paths]
            found = self._fs.cat_ranges(keys, 0, ends, on_error="return")
        return dict(zip(paths, found, strict=True))

    def _bytes(self, path: str, data: bytes | BaseException) -> bytes:
        with self.errors(path):
            if isinstance(data, BaseException):
                raise data
        return bytes(data)

    def write(self, contents: Mapping[str, bytes]) -> None:
        with self.errors(next(iter(contents))):
            self._fs.pipe({self._key(path): data for path, data in contents.items()})

    def create(self, path: str, data: bytes) -> bool:
        """Write a file that must not exist yet; False if it exists. The server of the files decides it."""
        with self.errors(path):
            for _ in range(_CONFLICTS):
                try:
                    self._fs.pipe_file(self._key(path), data, mode="create")
                except FileExistsError:
                    return False
                except OSError as error:
                    code = _s3_code(error)
                    if code in _EXISTS:
                        return False
                    if code != "ConditionalRequestConflict":
                        raise
                    # two creations at one moment: S3 asks both to try again
                else:
                    return True
        return False

    def names(self) -> set[str]:
        """The names of the files and folders directly below the URL."""
        return set(self.listed())

    def listed(self) -> dict[str, ListedFile]:
        """The files and folders directly below the URL."""
        with self.errors(""):
            self._fs.invalidate_cache()
            try:
                entries = self._fs.ls(self._root, detail=True)
            except FileNotFoundError:
                return {}
        start = len(self._root.rstrip("/")) + 1
        found = {entry["name"].rstrip("/")[start:]: _listed_file(entry) for entry in entries}
        found.pop("", None)
        return found

    def server_time(self) -> float:
        """Seconds since 1970 by the clock of the server, if it says so; else by that of this machine."""
        call = getattr(self._fs, "call_s3", None)
        with self.errors(""), suppress(KeyError, TypeError, ValueError):
            if call is not None:
                bucket, _, prefix = self._root.partition("/")
                answer = call("list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1)
                date = answer["ResponseMetadata"]["HTTPHeaders"]["date"]
                return parsedate_to_datetime(date).timestamp()
        return time.time()

    def remove_if_there(self, paths: Iterable[str]) -> None:
        """Remove files, those that are still there."""

        def remove(path: str) -> None:
            with self.errors(path), suppress(FileNotFoundError):
                self._fs.rm_file(self._key(path))

        with ThreadPoolExecutor(_REMOVED_AT_ONCE) as pool:
            list(pool.map(remove, paths))

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            with self.errors(path):
                self._fs.rm_file(self._key(path))

    @contextmanager
    def errors(self, path: str) -> Iterator[None]:
        """Turn any exception of the filesystem into StorageError or ConfigurationError."""
        place = f"{self.url}/{path}" if path else self.url
        try:
            yield
        except StorageError:
            raise
        except FileNotFoundError as error:
            detail = f"there is no such file or bucket ({error}); check the URL, or publish the store again"
            raise StorageError(path=place, detail=detail) from error
        except PermissionError as error:
            detail = (
                f"access was denied ({error}); check the credentials and the rights of their owner"
            )
            raise StorageError(path=place, detail=detail) from error
        except ImportError as error:
            raise ConfigurationError(
                message=f"{place} needs a package that is not installed ({error}): "
                "pip install 'rollbook[remote]', or the package fsspec names"
            ) from error
        except Exception as error:
            name = type(error).__name__
            detail = f"it cannot be reached ({name}: {error}); check the network and the endpoint, then try again"
            raise StorageError(path=place, detail=detail) from error


def _fsspec() -> Any:
    with needs("a store at a URL"):
        import fsspec
    return fsspec


def _listed_file(entry: Mapping[str, Any]) -> ListedFile:
    modified = entry.get("LastModified") or entry.get("created")
    stamp = modified.timestamp() if isinstance(modified, datetime) else modified
    return ListedFile(stamp, str(entry.get("ETag") or ""))


def _s3_code(error: OSError) -> str | None:
    """The code of S3 behind an error of s3fs; None for other filesystems."""
    response = getattr(error.__cause__, "response", None)
    return response["Error"].get("Code") if isinstance(response, dict) else None


def in_batches(files: Iterable[tuple[str, int | None]]) -> Iterator[list[str]]:
    """Paths in groups of limited size: many small files or few large ones. One of unknown size is alone."""
    batch: list[str] = []
    held = 0
    for path, known in files:
        size = _BATCH_BYTES if known is None else known
        if batch and (len(batch) == _BATCH_FILES or held + size > _BATCH_BYTES):
            yield batch
            batch, held = [], 0
        batch.append(path)
        held += size
    if batch:
        yield batch


# -------------------------------------------------------------------------------------------- cache


class FetchedFiles(ABC):
    """Fetches files below a URL into a cache folder. Each is checked before it gets its name there."""

    def __init__(self, folder: Path, url: str, storage_options: Options | None) -> None:
        self.folder = folder
        self.url = url
        self.storage_options = storage_options

    @abstractmethod
    def size(self, path: str) -> int | None:
        """The most bytes that the file can have; None if nobody knows."""

    @abstractmethod
    def is_cached(self, path: str) -> bool:
        """Whether the file is in the cache. It gets its name there only after its bytes were checked."""

    @abstractmethod
    def check(self, path: str, data: bytes) -> None:
        """Refuse bytes that are not those of the file."""

    def fetch(self, paths: Iterable[str]) -> None:
        """Fetch those of the files that are not in the cache."""
        missing = [path for path in paths if not self.is_cached(path)]
        if missing:
            with self._locked():
                self._fetch([path for path in missing if not self.is_cached(path)])

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """A lock, so that the workers of one machine do not all fetch the same file."""
        with locked(self.folder.with_name(f"{self.folder.name}.lock")):
            yield

    def _fetch(self, paths: list[str]) -> None:
        if not paths:
            return
        remote = UrlFolder(self.url, self.storage_options)
        for batch in in_batches((path, self.size(path)) for path in paths):
            read = remote.read({path: self.size(path) for path in batch})
            for path, data in read.items():
                self.check(path, data)
            write_to_cache({self.folder / path: data for path, data in read.items()})


def write_to_cache(contents: Mapping[Path, bytes]) -> None:
    for folder in {path.parent for path in contents}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            detail = f"the cache cannot be written ({error.strerror}); name another cache_dir"
            raise StorageError(path=str(folder), detail=detail) from error
    write_files(contents)


def default_cache_dir(kind: str = "stores") -> Path:
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        message = "this user has no home folder; set HOME or XDG_CACHE_HOME, or name a cache_dir"
        raise ConfigurationError(message=message) from error
    return Path(base) / "rollbook" / kind
