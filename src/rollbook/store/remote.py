"""Stores at a URL: publishing a finished store, and reading one by fetching the files that are needed.

A published store has the same files as a local one. Its root zarr.json is uploaded last: without it the URL cannot be
opened. Fetched files go into a cache that is named by the content of the store. Each is compared with the manifest
before it gets its name, and is then mapped like a file of any store.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.digest import checksum, sha256
from rollbook.errors import (
    ChecksumMismatch,
    ConfigurationError,
    StorageError,
    TargetExists,
    TruncatedFile,
)
from rollbook.files import AnyPath, locked, write_files
from rollbook.lazy import needs
from rollbook.store.manifest import (
    ROLLOUT_MANIFEST_FILENAME,
    FileSums,
    content_sha256,
    refuse_outside_paths,
)
from rollbook.store.reader import RolloutZarrStoreReader

Options = Mapping[str, Any]
Progress = Callable[[int, int], None]
"""Called with the bytes done so far and the total."""

ROOT = "zarr.json"
SIDECAR = "_publishing.json"
"""Names the owner of the files at a URL while the store there is not complete."""
_BATCH_BYTES = 64 << 20
_BATCH_FILES = 64
"""Limits of what is in memory and in transfer at one time."""
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HEX = re.compile(r"[0-9a-f]{64}")


def is_url(place: AnyPath) -> bool:
    return isinstance(place, str) and _URL.match(place) is not None


def open_store(
    place: AnyPath, *, cache_dir: AnyPath | None = None, storage_options: Options | None = None
) -> RolloutZarrStoreReader:
    """Open a store on this disk, or at a URL that fsspec supports.

    From a URL only the root and the manifest are read at once. Columns are fetched when they are first used, into
    `cache_dir` (default `~/.cache/rollbook/stores`), and stay there. `storage_options` are passed to the filesystem.
    They are part of a pickle of the reader, including any keys in them.
    """
    if not is_url(place):
        return RolloutZarrStoreReader(place)
    url = str(place).rstrip("/")
    if url.startswith(("file://", "local://")):
        return RolloutZarrStoreReader(url.partition("://")[2])
    files = RemoteFiles(_cached_store(url, cache_dir, storage_options), url, storage_options)
    return RolloutZarrStoreReader(files.folder, fetch=files)


# --------------------------------------------------------------------------------- files at a URL


class _Remote:
    """The files under one URL, by their path in the store. Every error names the URL and says what to do."""

    def __init__(self, url: str, options: Options | None) -> None:
        self.url = url.rstrip("/")
        fsspec = _fsspec()
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

    def read(self, sizes: Mapping[str, int]) -> dict[str, bytes]:
        """Read files, at most as many bytes as given. A file that is shorter is returned as it is."""
        found = self._read(list(sizes), list(sizes.values()))
        return {path: self._bytes(path, data) for path, data in found.items()}

    def read_if_there(self, path: str) -> bytes | None:
        data = self._read([path], None)[path]
        return None if isinstance(data, FileNotFoundError) else self._bytes(path, data)

    def _read(self, paths: Sequence[str], ends: list[int] | None) -> dict[str, Any]:
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


def _batches(files: Iterable[tuple[str, int]]) -> Iterator[list[str]]:
    """Paths in groups of limited size: many small files or few large ones."""
    batch: list[str] = []
    held = 0
    for path, size in files:
        if batch and (len(batch) == _BATCH_FILES or held + size > _BATCH_BYTES):
            yield batch
            batch, held = [], 0
        batch.append(path)
        held += size
    if batch:
        yield batch


# ------------------------------------------------------------------------------------------- reading


class RemoteFiles:
    """Fetches files of a published store into its cache folder. It can be pickled, and works in forked processes."""

    def __init__(self, folder: Path, url: str, storage_options: Options | None) -> None:
        self.folder = folder
        self.url = url
        self._options = storage_options
        self._files = _manifest_files(url, (folder / ROLLOUT_MANIFEST_FILENAME).read_bytes())[1]
        self._there: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder, self.url, self._options)

    def __call__(self, path: str) -> None:
        """Fetch a file, or every file below a folder. Files that are already in the cache are not fetched again."""
        if path in self._there:
            return
        missing = self._missing(path)
        if missing:
            with self._locked():
                self._fetch([each for each in missing if not self._is_cached(each)])
        self._there.add(path)

    def _missing(self, path: str) -> list[str]:
        below = f"{path}/" if path else ""
        return [
            each
            for each in self._files
            if (each == path or each.startswith(below)) and not self._is_cached(each)
        ]

    def _is_cached(self, path: str) -> bool:
        """A file gets its name only after its bytes were checked. Another size means that it was damaged later."""
        try:
            return (self.folder / path).stat().st_size == self._files[path][0]
        except OSError:
            return False

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """A lock, so that the workers of one training run do not all fetch the same file."""
        with locked(self.folder.with_name(f"{self.folder.name}.lock")):
            yield

    def _fetch(self, paths: list[str]) -> None:
        if not paths:
            return
        remote = _Remote(self.url, self._options)
        for batch in _batches((path, self._files[path][0]) for path in paths):
            read = remote.read({path: self._files[path][0] for path in batch})
            for path, data in read.items():
                _check_bytes(f"{self.url}/{path}", data, self._files[path])
            _write_to_cache({self.folder / path: data for path, data in read.items()})


def _check_bytes(place: str, data: bytes, expected: tuple[int, str]) -> None:
    size, digest = expected
    if len(data) != size:
        detail = f"{len(data)} bytes came, the manifest says {size}; publish the store again"
        raise TruncatedFile(path=place, detail=detail)
    if checksum(data) != digest:
        detail = "its checksum is not the manifest's; open the store again, then publish it again"
        raise ChecksumMismatch(path=place, detail=detail)


def _write_to_cache(contents: Mapping[Path, bytes]) -> None:
    for folder in {path.parent for path in contents}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            detail = f"the cache cannot be written ({error.strerror}); name another cache_dir"
            raise StorageError(path=str(folder), detail=detail) from error
    write_files(contents)


def default_cache_dir() -> Path:
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        message = "this user has no home folder; set HOME or XDG_CACHE_HOME, or name a cache_dir"
        raise ConfigurationError(message=message) from error
    return Path(base) / "rollbook" / "stores"


def _cached_store(url: str, cache_dir: AnyPath | None, options: Options | None) -> Path:
    """The cache folder of the store that is at the URL now. The digest of its manifest is part of its name, because two
    stores with the same content can have different manifests."""
    remote = _Remote(url, options)
    root, manifest = _complete_store(remote)
    digest = sha256(manifest).hexdigest()
    if digest != _named_manifest(url, root):
        detail = "manifest.json is not the one the store was finished with; publish it again"
        raise ChecksumMismatch(path=url, detail=detail)
    content, _ = _manifest_files(url, manifest)
    folder = (default_cache_dir() if cache_dir is None else Path(cache_dir)) / content / digest
    for name, data in ((ROLLOUT_MANIFEST_FILENAME, manifest), (ROOT, root)):
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            _write_to_cache({path: data})
    return folder.resolve()


def _complete_store(remote: _Remote) -> tuple[bytes, bytes]:
    root = remote.read_if_there(ROOT)
    if root is None:
        raise _not_there(remote)
    manifest = remote.read_if_there(ROLLOUT_MANIFEST_FILENAME)
    if manifest is None:
        detail = "it is not complete: there is no manifest.json; publish it again"
        raise StorageError(path=remote.url, detail=detail)
    return root, manifest


def _not_there(remote: _Remote) -> StorageError:
    """The error for a URL without a root: publishing was not finished, or there never was a store."""
    there = remote.sizes()
    if SIDECAR in there or ROLLOUT_MANIFEST_FILENAME in there:
        detail = "it is not complete: publishing it was not finished; publish it again"
    else:
        detail = (
            f"it is not a rollout store: there is no {ROOT} at this URL; check bucket and prefix"
        )
    return StorageError(path=remote.url, detail=detail)


def _named_manifest(url: str, root: bytes) -> str:
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
    if not is_url(url):
        raise ConfigurationError(
            message=f"{url!r} is not a URL; expected one like s3://bucket/prefix"
        )
    reader = RolloutZarrStoreReader(store_dir)
    publication = _Publication(reader, _Remote(url, storage_options), progress)
    publication.make_room(replace)
    return publication.upload()


class _Publication:
    def __init__(
        self, reader: RolloutZarrStoreReader, remote: _Remote, progress: Progress | None
    ) -> None:
        self._folder = reader.store_dir
        self._stored = reader.files
        self._remote = remote
        self._progress = progress
        self._manifest = (self._folder / ROLLOUT_MANIFEST_FILENAME).read_bytes()
        self._root = (self._folder / ROOT).read_bytes()
        self._content, self._files = _manifest_files(str(self._folder), self._manifest)

    # ------------------------------------------------------------------------------- before

    def make_room(self, replace: bool) -> None:
        """Make the URL empty, except for files of this same store that an earlier call uploaded."""
        there = self._remote.sizes()
        left = self._left_behind(there)
        if left is not None and left.uploading(self._content) and ROOT not in there:
            return
        found = set(there)
        if found and not replace:
            raise TargetExists(path=self._remote.url, detail=self._describe_found(found, left))
        owned = self._owned(found, left)
        self._refuse_foreign(found - owned)
        if owned - {SIDECAR}:
            # after a crash at this point, the next call must know whose files these are
            self._mark("clearing", owned - {SIDECAR})
            self._remote.remove([ROOT] if ROOT in found else [])
            self._remote.remove(sorted((owned & found) - {ROOT, SIDECAR}))
        self._mark("uploading", set(self._files))

    def _left_behind(self, there: Mapping[str, int]) -> _Sidecar | None:
        data = self._remote.read_if_there(SIDECAR) if SIDECAR in there else None
        return None if data is None else _Sidecar.parse(f"{self._remote.url}/{SIDECAR}", data)

    def _describe_found(self, found: set[str], left: _Sidecar | None) -> str:
        if ROOT in found:
            return "a store is published there; pass replace=True to replace it"
        if left is not None:
            return "another store was being published there; pass replace=True to drop what is there of it"
        return f"{len(found)} files are there; publish to a place of its own"

    def _owned(self, found: set[str], left: _Sidecar | None) -> set[str]:
        """The files of the store that is published there, completely or in part."""
        owned = {SIDECAR, *(left.files if left is not None else ())}
        if ROOT in found:
            root = self._remote.read_if_there(ROOT)
            _named_manifest(
                self._remote.url, root or b""
            )  # refuses a Zarr hierarchy that is not a rollout store
            owned.add(ROOT)
        if (ROOT in found or left is not None) and ROLLOUT_MANIFEST_FILENAME in found:
            manifest = self._remote.read_if_there(ROLLOUT_MANIFEST_FILENAME)
            listed = _manifest_files(self._remote.url, manifest or b"")[1]
            owned |= {ROLLOUT_MANIFEST_FILENAME, *listed}
        return owned

    def _refuse_foreign(self, foreign: set[str]) -> None:
        if foreign:
            detail = (
                f"{len(foreign)} files are there that belong to no published store, {min(foreign)!r} first; "
                "publish to a place of its own"
            )
            raise StorageError(path=self._remote.url, detail=detail)

    def _mark(self, phase: str, files: set[str]) -> None:
        self._remote.write({SIDECAR: _Sidecar(self._content, phase, sorted(files)).to_bytes()})

    # --------------------------------------------------------------------------------- the files

    def upload(self) -> PublishedStore:
        """Upload the files, check them all, then upload the manifest and last the root, which completes the store."""
        there = self._remote.sizes()
        missing = [path for path, (size, _) in self._files.items() if there.get(path) != size]
        total = sum(size for size, _ in self._files.values())
        done = total - sum(self._files[path][0] for path in missing)
        self._report(done, total)
        for batch in _batches((path, self._files[path][0]) for path in missing):
            self._remote.write({path: self._stored.read(path) for path in batch})
            done += sum(self._files[path][0] for path in batch)
            self._report(done, total)
        self._check_arrived()
        self._remote.write({ROLLOUT_MANIFEST_FILENAME: self._manifest})
        self._check_still_ours()
        self._remote.write({ROOT: self._root})
        with suppress(
            StorageError
        ):  # not everybody who may write may delete; the store is complete anyway
            self._remote.remove([SIDECAR])
        return PublishedStore(
            url=self._remote.url,
            content_sha256=self._content,
            manifest_sha256=sha256(self._manifest).hexdigest(),
            files=len(self._files) + 2,
            bytes=total + len(self._manifest) + len(self._root),
            uploaded_files=len(missing) + 2,
        )

    def _report(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)

    def _check_arrived(self) -> None:
        there = self._remote.sizes()
        for path, (size, _) in self._files.items():
            if there.get(path) != size:
                detail = f"{there.get(path, 'no')} bytes arrived, {size} were sent; publish the store again"
                raise TruncatedFile(path=f"{self._remote.url}/{path}", detail=detail)
        extra = set(there) - set(self._files) - {SIDECAR, ROLLOUT_MANIFEST_FILENAME}
        self._refuse_foreign(extra)

    def _check_still_ours(self) -> None:
        """Check that nobody else published to the URL meanwhile: the files would be a mixture of two stores."""
        data = self._remote.read_if_there(SIDECAR)
        left = None if data is None else _Sidecar.parse(self._remote.url, data)
        if left is None or not left.uploading(self._content):
            detail = "someone else published to this URL meanwhile; publish the store again"
            raise StorageError(path=self._remote.url, detail=detail)


@dataclass(frozen=True, slots=True)
class _Sidecar:
    """The content that the files at a URL belong to. Objects there are complete or absent."""

    content_sha256: str
    phase: str
    """clearing: old files are being removed. uploading: those of `files` that exist belong to this content."""
    files: Sequence[str]

    @classmethod
    def parse(cls, place: str, data: bytes) -> _Sidecar:
        try:
            fields = json.loads(data)
            files = [str(path) for path in fields["files"]]
            return cls(str(fields["content_sha256"]), str(fields["phase"]), files)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            detail = f"not written by a publisher ({error}); look at it, then remove it"
            raise StorageError(path=place, detail=detail) from error

    def to_bytes(self) -> bytes:
        fields = {
            "content_sha256": self.content_sha256,
            "phase": self.phase,
            "files": list(self.files),
        }
        return json.dumps(fields, indent=1).encode()

    def uploading(self, content: str) -> bool:
        return self.phase == "uploading" and self.content_sha256 == content
