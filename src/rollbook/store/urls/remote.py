"""Stores at a URL: publishing a finished store, and reading one by fetching the files that are needed.

A published store has the same files as a local one. Its root zarr.json is uploaded last: without it the URL cannot be
opened. Fetched files go into a cache that is named by the content of the store. Each is compared with the manifest
before it gets its name, and is then mapped like a file of any store.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.digest import checksum, sha256
from rollbook.errors import ChecksumMismatch, StorageError, TruncatedFile
from rollbook.files import AnyPath
from rollbook.store.manifest import (
    ROLLOUT_MANIFEST_FILENAME,
    FileSums,
    content_sha256,
    refuse_outside_paths,
)
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.urls.publication import SIDECAR, Publishable, publish
from rollbook.store.urls.url_folder import (
    FetchedFiles,
    Options,
    Progress,
    UrlFolder,
    default_cache_dir,
    local_path,
    write_to_cache,
)

ROOT = "zarr.json"
_HEX = re.compile(r"[0-9a-f]{64}")


def open_store(
    place: AnyPath, *, cache_dir: AnyPath | None = None, storage_options: Options | None = None
) -> RolloutZarrStoreReader:
    """Open a store on this disk, or at a URL that fsspec supports.

    From a URL only the root and the manifest are read at once. Columns are fetched when they are first used, into
    `cache_dir` (default `~/.cache/rollbook/stores`), and stay there. `storage_options` are passed to the filesystem.
    They are part of a pickle of the reader, including any keys in them.
    """
    folder = local_path(place)
    if folder is not None:
        return RolloutZarrStoreReader(folder)
    url = str(place).rstrip("/")
    files = RemoteFiles(_cached_store(url, cache_dir, storage_options), url, storage_options)
    return RolloutZarrStoreReader(files.folder, fetch=files)


# ------------------------------------------------------------------------------------------- reading


class RemoteFiles(FetchedFiles):
    """Fetches files of a published store into its cache folder. It can be pickled, and works in forked processes."""

    def __init__(self, folder: Path, url: str, storage_options: Options | None) -> None:
        super().__init__(folder, url, storage_options)
        self._files = _manifest_files(url, (folder / ROLLOUT_MANIFEST_FILENAME).read_bytes())[1]
        self._there: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder, self.url, self.storage_options)

    def __call__(self, path: str) -> None:
        """Fetch a file, or every file below a folder. Files that are already in the cache are not fetched again."""
        if path in self._there:
            return
        below = f"{path}/" if path else ""
        self.fetch(each for each in self._files if each == path or each.startswith(below))
        self._there.add(path)

    def size(self, path: str) -> int:
        return self._files[path][0]

    def is_cached(self, path: str) -> bool:
        """Another size means that the file was damaged later."""
        try:
            return (self.folder / path).stat().st_size == self.size(path)
        except OSError:
            return False

    def check(self, path: str, data: bytes) -> None:
        size, digest = self._files[path]
        place = f"{self.url}/{path}"
        if len(data) != size:
            detail = f"{len(data)} bytes came, the manifest says {size}; publish the store again"
            raise TruncatedFile(path=place, detail=detail)
        if checksum(data) != digest:
            detail = (
                "its checksum is not the manifest's; open the store again, then publish it again"
            )
            raise ChecksumMismatch(path=place, detail=detail)


def _cached_store(url: str, cache_dir: AnyPath | None, options: Options | None) -> Path:
    """The cache folder of the store that is at the URL now. The digest of its manifest is part of its name, because two
    stores with the same content can have different manifests."""
    remote = UrlFolder(url, options)
    root, manifest = _complete_store(remote)
    digest = sha256(manifest).hexdigest()
    if digest != named_manifest(url, root):
        detail = "manifest.json is not the one the store was finished with; publish it again"
        raise ChecksumMismatch(path=url, detail=detail)
    content, _ = _manifest_files(url, manifest)
    folder = (default_cache_dir() if cache_dir is None else Path(cache_dir)) / content / digest
    for name, data in ((ROLLOUT_MANIFEST_FILENAME, manifest), (ROOT, root)):
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            write_to_cache({path: data})
    return folder.resolve()


def _complete_store(remote: UrlFolder) -> tuple[bytes, bytes]:
    root = remote.read_if_there(ROOT)
    if root is None:
        raise _not_there(remote)
    manifest = remote.read_if_there(ROLLOUT_MANIFEST_FILENAME)
    if manifest is None:
        detail = "it is not complete: there is no manifest.json; publish it again"
        raise StorageError(path=remote.url, detail=detail)
    return root, manifest


def _not_there(remote: UrlFolder) -> StorageError:
    """The error for a URL without a root: publishing was not finished, or there never was a store."""
    there = remote.sizes()
    if SIDECAR in there or ROLLOUT_MANIFEST_FILENAME in there:
        detail = "it is not complete: publishing it was not finished; publish it again"
    else:
        detail = (
            f"it is not a rollout store: there is no {ROOT} at this URL; check bucket and prefix"
        )
    return StorageError(path=remote.url, detail=detail)


def named_manifest(url: str, root: bytes) -> str:
    """The digest of the manifest that a store was finished with, from its root zarr.json."""
    try:
        return str(json.loads(root)["attributes"]["manifest_sha256"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        detail = "it is not a rollout store: no manifest is named in its zarr.json"
        raise StorageError(path=url, detail=detail) from error


def _manifest_files(place: str, manifest: bytes) -> tuple[str, FileSums]:
    """The content address and the files. Both become local paths, so both are checked."""
    try:
        payload = json.loads(manifest)
        files = {
            str(path): (int(size), str(sums)) for path, (size, sums) in payload["files"].items()
        }
        content = str(payload["content_sha256"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StorageError(path=place, detail=f"manifest.json cannot be read: {error}") from error
    refuse_outside_paths(place, files)
    if not _HEX.fullmatch(content) or content != content_sha256(files):
        detail = "content_sha256 in manifest.json is not that of the files it lists"
        raise ChecksumMismatch(path=place, detail=detail)
    return content, files


# ---------------------------------------------------------------------------------------- publishing


@dataclass(frozen=True, slots=True)
class PublishedStore:
    """What was published, and where."""

    url: str
    content_sha256: str
    manifest_sha256: str
    files: int
    """Number of files in the store, including its manifest and root."""
    bytes: int
    uploaded_files: int
    """Files that this call uploaded. An earlier call that did not finish uploaded the others."""


def publish_store(
    store_dir: AnyPath,
    url: str,
    *,
    replace: bool = False,
    storage_options: Options | None = None,
    progress: Progress | None = None,
) -> PublishedStore:
    """Upload a finished store to a URL that has no other files below it.

    Every file is compared with the manifest before it is uploaded. After a failure the same call continues where it
    stopped. `replace` removes a store, or the rest of one, that was published there before. Other files are never
    removed: if there are any, publishing is refused, because Zarr would read them as part of the store.
    """
    store = _PublishableStore(RolloutZarrStoreReader(store_dir))
    uploaded = publish(
        store, url, replace=replace, storage_options=storage_options, progress=progress
    )
    return PublishedStore(
        url=url.rstrip("/"),
        content_sha256=store.content,
        manifest_sha256=sha256(store.last[ROLLOUT_MANIFEST_FILENAME]).hexdigest(),
        files=len(store.sizes) + len(store.last),
        bytes=sum(store.sizes.values()) + sum(map(len, store.last.values())),
        uploaded_files=uploaded,
    )


class _PublishableStore(Publishable):
    complete = ROOT

    def __init__(self, reader: RolloutZarrStoreReader) -> None:
        self._stored = reader.files
        folder = reader.store_dir
        self.last = {
            name: (folder / name).read_bytes() for name in (ROLLOUT_MANIFEST_FILENAME, ROOT)
        }
        manifest = self.last[ROLLOUT_MANIFEST_FILENAME]
        self.content, files = _manifest_files(str(folder), manifest)
        self.sizes = {path: size for path, (size, _) in files.items()}

    def read(self, path: str) -> bytes:
        return self._stored.read(path)

    def published_files(self, remote: UrlFolder, found: set[str], begun: bool) -> set[str]:
        owned: set[str] = set()
        if ROOT in found:
            root = remote.read_if_there(ROOT) or b""
            named_manifest(remote.url, root)  # refuses a Zarr hierarchy that is no rollout store
            owned.add(ROOT)
        if (ROOT in found or begun) and ROLLOUT_MANIFEST_FILENAME in found:
            manifest = remote.read_if_there(ROLLOUT_MANIFEST_FILENAME) or b""
            owned |= {ROLLOUT_MANIFEST_FILENAME, *_manifest_files(remote.url, manifest)[1]}
        return owned
