"""Source stores at a URL: publishing a finished one, and reading one by fetching the files that are needed.

A published source store has the same files as a local one; manifest.json is uploaded last. Fetched files go into a
cache that is named by the digest of the manifest. Each is compared with its digest before it gets its name there.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rollbook.errors import ChecksumMismatch, NotASourceStore, StorageError, TruncatedFile
from rollbook.files import AnyPath
from rollbook.generate.sources.documents import (
    SourceManifest,
    check_document,
    decoded_lines,
    decoded_manifest,
    read_document,
    read_manifest,
    sealed_bytes,
)
from rollbook.generate.sources.layout import (
    ARRAYS_FILE,
    INDEX_FILE,
    MANIFEST_FILE,
    SEALED_FILES,
    SPLITS_FILE,
    ArrayEntry,
    array_sha256,
)
from rollbook.store.urls.publication import SIDECAR, Publishable, publish
from rollbook.store.urls.url_folder import (
    FetchedFiles,
    Options,
    Progress,
    UrlFolder,
    default_cache_dir,
    write_to_cache,
)

_MOST_HEADER = 1 << 16
"""Most bytes of the header of an array's file: version 1 of the format counts them in 16 bits."""


class _ListedFiles:
    """The files of a source store, as its manifest and arrays.jsonl describe them."""

    def __init__(self, place: str, manifest: SourceManifest, arrays: bytes) -> None:
        self._place = place
        self._manifest = manifest
        lines = decoded_lines(ArrayEntry, arrays, place, ARRAYS_FILE)
        self._arrays = {each.path: each for each in lines}
        if self._arrays.keys() != manifest.arrays().keys():
            detail = f"{ARRAYS_FILE} does not list the arrays of the manifest; make it again"
            raise NotASourceStore(path=place, detail=detail)
        try:
            self._bytes = {each.path: _value_bytes(each) for each in lines}
        except (TypeError, ValueError) as error:
            raise NotASourceStore(path=place, detail=f"{ARRAYS_FILE}: {error}") from error

    def paths(self) -> list[str]:
        return [*self._arrays, *SEALED_FILES]

    def fits(self, path: str, size: int) -> bool:
        """Whether a file of this size can be the array."""
        return self._bytes[path] < size <= self.most_bytes(path)

    def most_bytes(self, path: str) -> int:
        return self._bytes[path] + _MOST_HEADER

    def check(self, path: str, data: bytes) -> None:
        """Refuse bytes that are not those of the file: neither header nor values may differ, nor may more follow."""
        entry = self._arrays.get(path)
        if entry is None:
            check_document(self._manifest, path, data, self._place)
            return
        stream = io.BytesIO(data)
        try:
            values = np.lib.format.read_array(stream, allow_pickle=False)
        except (OSError, ValueError, EOFError, SyntaxError) as error:
            raise TruncatedFile(path=f"{self._place}/{path}", detail=str(error)) from error
        if (
            stream.tell() != len(data)
            or [values.dtype.str, list(values.shape)] != [entry.dtype, entry.shape]
            or array_sha256(values) != entry.sha256
        ):
            detail = f"its values are not those that {ARRAYS_FILE} lists; publish the source again"
            raise ChecksumMismatch(path=f"{self._place}/{path}", detail=detail)


def _value_bytes(entry: ArrayEntry) -> int:
    if any(length < 0 for length in entry.shape):
        raise ValueError(f"the shape of {entry.path} is {entry.shape}")
    return math.prod(entry.shape) * np.dtype(entry.dtype).itemsize


# ------------------------------------------------------------------------------------------- reading


class RemoteSource(FetchedFiles):
    """Fetches files of a published source store into its cache folder."""

    def __init__(
        self,
        folder: Path,
        url: str,
        manifest: SourceManifest,
        cache_dir: AnyPath | None,
        storage_options: Options | None,
    ) -> None:
        super().__init__(folder, url, storage_options)
        self._manifest = manifest
        self.open_options: dict[str, Any] = {
            "cache_dir": cache_dir,
            "storage_options": storage_options,
        }

    @classmethod
    def open(
        cls, url: str, cache_dir: AnyPath | None, storage_options: Options | None
    ) -> RemoteSource:
        """Fetch the documents of the store that is at the URL now, except those that only labels may use."""
        remote = UrlFolder(url, storage_options)
        data = remote.read_if_there(MANIFEST_FILE)
        if data is None:
            raise _not_there(remote)
        manifest = decoded_manifest(data, remote.url)
        base = default_cache_dir("sources") if cache_dir is None else Path(cache_dir)
        folder = base / manifest.manifest_digest
        path = folder / MANIFEST_FILE
        if not path.is_file() or path.read_bytes() != data:
            write_to_cache({path: data})
        source = cls(folder, remote.url, manifest, cache_dir, storage_options)
        source.fetch([SPLITS_FILE, INDEX_FILE, ARRAYS_FILE])
        return source

    def fetch_all(self) -> None:
        self.fetch(self._listed.paths())

    def size_bytes(self) -> int:
        """The size of all files at the URL."""
        return sum(UrlFolder(self.url, self.storage_options).sizes().values())

    @cached_property
    def _listed(self) -> _ListedFiles:
        arrays = sealed_bytes(self.folder, self._manifest, ARRAYS_FILE)
        return _ListedFiles(self.url, self._manifest, arrays)

    def size(self, path: str) -> int | None:
        return None if path in SEALED_FILES else self._listed.most_bytes(path)

    def is_cached(self, path: str) -> bool:
        file = self.folder / path
        try:
            if path in SEALED_FILES:
                digest = hashlib.sha256(file.read_bytes()).hexdigest()
                return digest == self._manifest.files.get(path)
            return self._listed.fits(path, file.stat().st_size)
        except OSError:
            return False

    def check(self, path: str, data: bytes) -> None:
        if path in SEALED_FILES:
            check_document(self._manifest, path, data, self.url)
        else:
            self._listed.check(path, data)


def _not_there(remote: UrlFolder) -> StorageError:
    if SIDECAR in remote.sizes():
        detail = "it is not complete: publishing it was not finished; publish it again"
        return StorageError(path=remote.url, detail=detail)
    detail = f"there is no {MANIFEST_FILE} at this URL; check bucket and prefix"
    return NotASourceStore(path=remote.url, detail=detail)


# ---------------------------------------------------------------------------------------- publishing


@dataclass(frozen=True, slots=True)
class PublishedSource:
    """What was published, and where."""

    url: str
    manifest_digest: str
    files: int
    bytes: int
    uploaded_files: int
    """Files that this call uploaded. An earlier call that did not finish uploaded the others."""


def publish_source_store(
    store_dir: AnyPath,
    url: str,
    *,
    replace: bool = False,
    storage_options: Options | None = None,
    progress: Progress | None = None,
) -> PublishedSource:
    """Upload a finished source store to a URL that has no other files below it.

    Every file is compared with its digest before it is uploaded. After a failure the same call continues where it
    stopped. `replace` removes a source store, or the rest of one, that was published there before. Other files are
    never removed: if there are any, publishing is refused.
    """
    source = _PublishableSource(Path(store_dir).absolute())
    uploaded = publish(
        source, url, replace=replace, storage_options=storage_options, progress=progress
    )
    return PublishedSource(
        url=url.rstrip("/"),
        manifest_digest=source.content,
        files=len(source.sizes) + len(source.last),
        bytes=sum(source.sizes.values()) + sum(map(len, source.last.values())),
        uploaded_files=uploaded,
    )


class _PublishableSource(Publishable):
    complete = MANIFEST_FILE

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        manifest = read_manifest(folder)
        arrays = sealed_bytes(folder, manifest, ARRAYS_FILE)
        self._listed = _ListedFiles(str(folder), manifest, arrays)
        self.content = manifest.manifest_digest
        self.sizes = {path: self._size_of(path) for path in self._listed.paths()}
        self.last: Mapping[str, bytes] = {MANIFEST_FILE: read_document(folder, MANIFEST_FILE)}

    def _size_of(self, path: str) -> int:
        try:
            return (self._folder / path).stat().st_size
        except OSError as error:
            detail = f"{path} cannot be read ({error.strerror or error}); copy the store again"
            raise StorageError(path=str(self._folder), detail=detail) from error

    def read(self, path: str) -> bytes:
        data = read_document(self._folder, path)
        self._listed.check(path, data)
        return data

    def published_files(self, remote: UrlFolder, found: set[str], begun: bool) -> set[str]:
        if MANIFEST_FILE not in found:
            return set()
        data = remote.read_if_there(MANIFEST_FILE) or b""
        manifest = decoded_manifest(data, remote.url)
        return {MANIFEST_FILE, *SEALED_FILES, *manifest.arrays()}
