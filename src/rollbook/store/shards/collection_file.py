"""collection.json: the finished shards of a campaign as one data set, with a digest over all of them.

It names every store with its digests and sizes, in the order of the plan, and copies nothing. Where it is written,
every shard was complete; a published collection has it as its last file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from rollbook.digest import digest_of
from rollbook.errors import ChecksumMismatch, StorageError, UnsupportedVersion
from rollbook.files import AnyPath, write_bytes
from rollbook.store.collection import RolloutCollection
from rollbook.store.listed_stores import SIZE_ATTRS, ListedStore, ListedStores
from rollbook.store.urls.remote import ROOT, open_store
from rollbook.store.urls.url_folder import Options, UrlFolder, is_url, local_path

COLLECTION_FILENAME = "collection.json"
COLLECTION_VERSION = "rollout-collection-v1"
_DOMAIN = "rollbook.rollout_collection.v1"


class CollectedShard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One shard of a collection. Without a path it is empty: none of its source rows gave a rollout."""

    shard_id: str
    split: str
    source_rows: int
    """Rows that were planned. Those that gave rollouts are counted in `counts`."""
    path: str | None
    """Folder of the store, relative to the collection file; or an absolute path, or a URL."""
    content_sha256: str | None
    manifest_sha256: str | None
    counts: dict[str, int]
    """Rows of every table, as in the manifest of the store."""
    bytes: int


class CollectionFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of collection.json. Equal shards give equal bytes."""

    collection_version: str
    collection_sha256: str
    """Digest of the ids and content digests of the shards, in their order. It does not depend on where they are."""
    writer_config_hash: str
    source_manifest_hash: str
    store_attrs: dict[str, Any]
    """Attributes that all stores share, which give rows their meaning."""
    sizes: dict[str, int]
    """The largest size of every letter that the schema uses in the shape of a row."""
    totals: dict[str, int]
    shards: tuple[CollectedShard, ...]

    @property
    def stores(self) -> tuple[CollectedShard, ...]:
        """The shards that have a store."""
        return tuple(shard for shard in self.shards if shard.path is not None)

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(shard.split for shard in self.stores))

    def to_bytes(self) -> bytes:
        # json writes ASCII, and msgspec indents a hundred times faster than json does
        plain = json.dumps(msgspec.to_builtins(self), sort_keys=True, allow_nan=False)
        return msgspec.json.format(plain.encode("ascii"), indent=1) + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, place: str) -> CollectionFile:
        """Refuses what is not a collection of this version, and one whose shards were edited."""
        try:
            version = msgspec.json.decode(data, type=_Version).collection_version
            if version != COLLECTION_VERSION:
                advice = "merge the campaign again"
                raise UnsupportedVersion.of(place, version, COLLECTION_VERSION, advice)
            read = msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            detail = f"it is not a collection file ({error}); merge the campaign again"
            raise StorageError(path=place, detail=detail) from error
        if read.collection_sha256 != collection_sha256(read.shards):
            detail = "its shards do not have the digest that it names; merge the campaign again"
            raise ChecksumMismatch(path=place, detail=detail)
        missing = {*SIZE_ATTRS, "F"} - read.sizes.keys()
        if missing:
            detail = f"sizes has no {min(missing)}; merge the campaign again"
            raise StorageError(path=place, detail=detail)
        return read

    def listed(self, folder: str) -> tuple[ListedStore, ...]:
        """The stores of a collection file in this folder, which may be a URL."""
        return tuple(_listed(shard, folder) for shard in self.stores)


class _Version(msgspec.Struct):
    collection_version: str


def collection_sha256(shards: Sequence[CollectedShard]) -> str:
    return digest_of(_DOMAIN, [[shard.shard_id, shard.content_sha256] for shard in shards])


def _listed(shard: CollectedShard, folder: str) -> ListedStore:
    path = str(shard.path)
    if not is_url(folder):
        place = path if is_url(path) else os.path.join(folder, path)
    elif is_url(path) or path.startswith("/") or ".." in path.split("/"):
        # the file came from elsewhere, so it may not name other places
        detail = f"{shard.shard_id} is at {path!r}, which is not below the URL of the collection"
        raise StorageError(path=folder, detail=detail)
    else:
        place = f"{folder}/{path}"
    return ListedStore(place, str(shard.content_sha256), str(shard.manifest_sha256), shard.counts)


# ------------------------------------------------------------------------------ reading and writing


def write_collection_file(path: Path, collection: CollectionFile) -> None:
    write_bytes(path, collection.to_bytes())


class FoundCollection(msgspec.Struct, frozen=True):
    """A collection file, and the folder or URL that its paths start from."""

    file: CollectionFile
    folder: str

    def stores(
        self, *, cache_dir: AnyPath | None = None, storage_options: Options | None = None
    ) -> ListedStores:
        return ListedStores(
            self.file.listed(self.folder),
            self.file.sizes,
            cache_dir=cache_dir,
            storage_options=storage_options,
        )


def find_collection(
    place: AnyPath, *, storage_options: Options | None = None
) -> FoundCollection | None:
    """The collection file at a path or URL, or in the folder there; None if there is none."""
    path = local_path(place)
    if path is None:
        folder = str(place).rstrip("/").removesuffix(f"/{COLLECTION_FILENAME}")
        file = f"{folder}/{COLLECTION_FILENAME}"
        data = _fetched_if_there(UrlFolder(folder, storage_options))
    else:
        path = path.absolute()
        path = path if path.is_file() else path / COLLECTION_FILENAME
        file, folder = str(path), str(path.parent)
        data = _read_if_there(path)
    return None if data is None else FoundCollection(CollectionFile.from_bytes(data, file), folder)


def _fetched_if_there(remote: UrlFolder) -> bytes | None:
    try:
        return remote.read_if_there(COLLECTION_FILENAME)
    except StorageError:
        # who may not list files is refused a file that does not exist; a store can be read all the same
        if remote.read_if_there(ROOT) is None:
            raise
        return None


def _read_if_there(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        detail = f"cannot be read ({error.strerror or error})"
        raise StorageError(path=str(path), detail=detail) from error


def read_collection(place: AnyPath, *, storage_options: Options | None = None) -> FoundCollection:
    """The collection file at a path or URL, or in the folder there."""
    found = find_collection(place, storage_options=storage_options)
    if found is None:
        detail = f"there is no {COLLECTION_FILENAME}; `rollbook campaign merge` writes it"
        raise StorageError(path=str(place), detail=detail)
    return found


def open_collection(
    place: AnyPath, *, cache_dir: AnyPath | None = None, storage_options: Options | None = None
) -> RolloutCollection:
    """Open a collection: a collection file, the folder of one (such as a campaign), or a URL. A store is one too.

    Stores are opened when they are used. Each must be the one that was merged. `cache_dir` and `storage_options` are
    those of `open_store`.
    """
    found = find_collection(place, storage_options=storage_options)
    if found is not None:
        return RolloutCollection(found.stores(cache_dir=cache_dir, storage_options=storage_options))
    folder = local_path(place)
    if folder is not None and not (folder / "zarr.json").exists():
        detail = (
            f"it is neither a store nor a collection: there is no zarr.json and no {COLLECTION_FILENAME}; "
            "`rollbook campaign merge` makes a collection of a campaign"
        )
        raise StorageError(path=str(place), detail=detail)
    return RolloutCollection(
        [open_store(place, cache_dir=cache_dir, storage_options=storage_options)]
    )
