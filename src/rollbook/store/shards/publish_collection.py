"""Publishing a collection: every store goes below one URL, and collection.json last, which completes it.

An upload that was interrupted goes on where it stopped: stores that are complete at the URL are not uploaded again.
The sidecars of the shards stay at home. They say which machine built a shard, and collection.json takes their place.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from rollbook.errors import ConfigurationError, StorageError, TargetExists
from rollbook.files import AnyPath
from rollbook.store.shards.collection_file import (
    COLLECTION_FILENAME,
    CollectedShard,
    CollectionFile,
    read_collection,
)
from rollbook.store.urls.publication import SIDECAR
from rollbook.store.urls.remote import ROOT, named_manifest, publish_store
from rollbook.store.urls.url_folder import Options, Progress, UrlFolder, in_batches, is_url

_FOLDER = re.compile(r"(?!collection\.json$)[^\W_][\w.-]*")
"""Names of stores that become folders: no slash, and neither hidden nor the name of a file of the publisher."""


@dataclass(frozen=True, slots=True)
class PublishedCollection:
    """What was published, and where."""

    url: str
    collection_sha256: str
    stores: int
    bytes: int
    uploaded_stores: int
    """Stores that this call uploaded. An earlier call that did not finish uploaded the others."""


def publish_collection(
    collection: AnyPath,
    url: str,
    *,
    replace: bool = False,
    cache_dir: AnyPath | None = None,
    storage_options: Options | None = None,
    progress: Progress | None = None,
) -> PublishedCollection:
    """Upload a merged campaign to a URL that has no other files below it.

    Every file is compared with its manifest before it is uploaded. `replace` replaces a collection of the same shards
    that was published there before. Files that belong to no published collection are never touched.
    """
    if not is_url(url):
        raise ConfigurationError(
            message=f"{url!r} is not a URL; expected one like s3://bucket/prefix"
        )
    found = read_collection(collection, storage_options=storage_options)
    published = _published(found.file)
    remote = UrlFolder(url, storage_options)
    done = PublishedCollection(
        url=remote.url,
        collection_sha256=published.collection_sha256,
        stores=len(published.stores),
        bytes=published.totals["bytes"],
        uploaded_stores=0,
    )
    there = _Place(remote, published)
    if there.is_complete() and not there.missing():
        return done
    there.prepare(replace)
    stores = found.stores(cache_dir=cache_dir, storage_options=storage_options)
    missing = there.missing()
    sent = done.bytes - sum(shard.bytes for _, shard in missing)
    for index, shard in missing:
        folder = stores[index].local("")  # compared with the collection
        try:
            uploaded = publish_store(
                folder,
                f"{remote.url}/{shard.shard_id}",
                replace=replace,
                storage_options=storage_options,
                progress=_shifted(progress, sent, done.bytes),
            )
        except StorageError:
            if not there.has(shard):  # by a second publisher of the same collection
                raise
        else:
            if uploaded.manifest_sha256 != shard.manifest_sha256:
                detail = "the store was replaced while it was uploaded; merge the campaign again"
                raise StorageError(path=str(folder), detail=detail)
        sent += shard.bytes
    there.complete()
    return dataclasses.replace(done, uploaded_stores=len(missing))


def _published(file: CollectionFile) -> CollectionFile:
    """The collection file as it is at the URL: every store is in a folder with the name of its shard."""
    for shard in file.stores:
        if not _FOLDER.fullmatch(shard.shard_id):
            detail = (
                "which cannot be the name of a folder at a URL; merge the stores under plain names"
            )
            raise ConfigurationError(message=f"a store is named {shard.shard_id!r}, {detail}")
    shards = tuple(
        shard if shard.path is None else msgspec.structs.replace(shard, path=shard.shard_id)
        for shard in file.shards
    )
    return msgspec.structs.replace(file, shards=shards)


def _shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Reports the bytes of one store as a part of all bytes."""
    if progress is None:
        return None
    return lambda done, _: progress(min(before + done, total), total)


class _Place:
    """The URL of a collection while it is published. A marker there names the collection that is being uploaded."""

    def __init__(self, remote: UrlFolder, collection: CollectionFile) -> None:
        self._remote = remote
        self._collection = collection
        self._data = collection.to_bytes()
        self._names = remote.names()

    def is_complete(self) -> bool:
        return self._read(COLLECTION_FILENAME) == self._data

    def _read(self, name: str) -> bytes | None:
        return self._remote.read_if_there(name) if name in self._names else None

    def prepare(self, replace: bool) -> None:
        """Refuse a URL with other files, then mark it as ours."""
        before = self._read(COLLECTION_FILENAME)
        mark = self._read(SIDECAR)
        self._refuse_foreign(begun=before is not None or mark is not None)
        if not replace and before not in (None, self._data):
            raise self._taken("another collection is published there")
        if not replace and mark is not None and mark != self._mark:
            raise self._taken("another collection was being published there")
        self._remote.write({SIDECAR: self._mark})
        if before is not None:
            # from here on nobody takes the mixture of old and new stores for a collection
            self._remote.remove([COLLECTION_FILENAME])

    def _taken(self, detail: str) -> TargetExists:
        return TargetExists(
            path=self._remote.url, detail=f"{detail}; pass replace=True to replace it"
        )

    @property
    def _mark(self) -> bytes:
        fields = {"collection_sha256": self._collection.collection_sha256}
        return json.dumps(fields, indent=1).encode()

    def _refuse_foreign(self, begun: bool) -> None:
        own = {shard.shard_id for shard in self._collection.stores} if begun else set()
        foreign = self._names - own - {COLLECTION_FILENAME, SIDECAR}
        if foreign:
            detail = f"{min(foreign)!r} is there, which does not belong to this collection"
            raise StorageError(
                path=self._remote.url, detail=f"{detail}; publish to a place of its own"
            )

    def missing(self) -> list[tuple[int, CollectedShard]]:
        """The stores that are not complete at the URL, with their numbers in the collection."""
        roots = dict(self._roots())
        return [
            (index, shard)
            for index, shard in enumerate(self._collection.stores)
            if not self._is_there(shard, roots.get(shard.shard_id))
        ]

    def has(self, shard: CollectedShard) -> bool:
        """Whether a store is complete at the URL now."""
        return self._is_there(shard, self._remote.read_if_there(f"{shard.shard_id}/{ROOT}"))

    def _is_there(self, shard: CollectedShard, root: bytes | None) -> bool:
        with suppress(
            StorageError
        ):  # what is no root of a store is dealt with when the store is published
            return (
                root is not None and named_manifest(self._remote.url, root) == shard.manifest_sha256
            )
        return False

    def _roots(self) -> Iterator[tuple[str, bytes | None]]:
        there = [each.shard_id for each in self._collection.stores if each.shard_id in self._names]
        for batch in in_batches((shard_id, 0) for shard_id in there):
            read = self._remote.read_those_there([f"{shard_id}/{ROOT}" for shard_id in batch])
            yield from zip(batch, read.values(), strict=True)

    def complete(self) -> None:
        """Write the collection file. A second publisher of something else may have come meanwhile."""
        if self._remote.read_if_there(SIDECAR) != self._mark:
            if self._remote.read_if_there(COLLECTION_FILENAME) == self._data:
                return
            detail = "someone else published to this URL meanwhile; publish the collection again"
            raise StorageError(path=self._remote.url, detail=detail)
        self._remote.write({COLLECTION_FILENAME: self._data})
        with suppress(StorageError):  # not everybody who may write may delete
            self._remote.remove([SIDECAR])
