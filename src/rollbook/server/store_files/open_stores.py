"""OpenStores: the stores that this process has open, a few at a time, each as it is on disk now."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.errors import ChecksumMismatch, RollbookError, StorageError
from rollbook.server.settings import Settings
from rollbook.server.store_files.confined_reader import open_confined
from rollbook.server.store_files.roots import StorePlace, StoreRoot, place_within, store_roots
from rollbook.store.manifest import ROLLOUT_MANIFEST_FILENAME, content_sha256
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.urls.remote import open_store

MOST_OPEN = 16
"""An open store maps its columns; those of a compressed store are in memory once they were read."""
_LOOK_AGAIN_S = 15.0
"""A store at a URL is compared with what is there now at most this often."""
_NOT_UNDERSTOOD = (OSError, KeyError, TypeError, AttributeError, ValueError, IndexError)


@dataclass(frozen=True, slots=True, eq=False)
class ReadStore:
    """An open store and the digests of what it holds."""

    place: StorePlace
    reader: RolloutZarrStoreReader
    manifest_sha256: str
    content_sha256: str
    looked_at: float
    """When it was last compared with what is there, by the monotonic clock."""
    identity: object
    """Another value means that the store was replaced."""

    @property
    def size(self) -> int:
        return sum(size for size, _ in self.reader.files.listed.values())


class OpenStores:
    """Safe to use from several threads. Reading a column that is already open needs no lock."""

    def __init__(self, settings: Settings) -> None:
        self.roots = store_roots(settings.store_roots, settings.data_dir)
        self._cache_dir = settings.data_dir / "store-cache"
        self._s3_endpoint = settings.s3_endpoint
        self._open: OrderedDict[tuple[str, str], ReadStore] = OrderedDict()
        self._lock = threading.Lock()

    def place(self, org_id: str, first_org_id: str, text: str) -> StorePlace | None:
        """The place in a root of this organisation; None if there is none, or the root is another's."""
        return place_within(self.roots_of(org_id, first_org_id), text)

    def roots_of(self, org_id: str, first_org_id: str) -> tuple[StoreRoot, ...]:
        return tuple(root for root in self.roots if (root.org_id or first_org_id) == org_id)

    def read(self, org_id: str, place: StorePlace) -> ReadStore:
        """The store at this place, as it is there now. Blocks: call it in a thread. Raises StorageError."""
        key = (org_id, place.text)
        with self._lock:
            known = self._open.get(key)
            if known is not None:
                self._open.move_to_end(key)
        if known is not None and _is_current(known):
            return known
        opened = self._opened(org_id, place)
        if (
            known is not None
            and known.manifest_sha256 == opened.manifest_sha256
            and place.root.is_url
        ):
            opened = ReadStore(
                place,
                known.reader,
                known.manifest_sha256,
                known.content_sha256,
                opened.looked_at,
                known.identity,
            )
        with self._lock:
            self._open[key] = opened
            self._open.move_to_end(key)
            while len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
        return opened

    def forget(self, org_id: str, place_text: str) -> None:
        with self._lock:
            self._open.pop((org_id, place_text), None)

    def words_of(self, error: Exception | str, place: StorePlace) -> str:
        """What an error says, with the place that was registered instead of a folder of the server."""
        if not place.root.is_url:
            return str(error).replace(str(place.folder), place.text)
        cached = rf"{re.escape(str(self._cache_dir))}/[^/]+/[0-9a-f]{{64}}/[0-9a-f]{{64}}"
        return re.sub(cached, lambda _: place.text, str(error))

    def _opened(self, org_id: str, place: StorePlace) -> ReadStore:
        identity = None if place.root.is_url else _identity(place.folder)
        try:
            reader = self._reader(org_id, place)
            manifest = str(reader.attrs["manifest_sha256"])
            content = content_sha256(reader.files.listed)
        except RollbookError:
            raise
        except _NOT_UNDERSTOOD as error:
            # a manifest can match its digest and still have wrong content
            detail = f"its metadata cannot be understood ({error!r})"
            raise StorageError(path=place.text, detail=detail) from error
        if content != reader.store_manifest.payload.get("content_sha256"):
            detail = "content_sha256 in manifest.json is not that of the files it lists"
            raise ChecksumMismatch(path=place.text, detail=detail)
        return ReadStore(place, reader, manifest, content, time.monotonic(), identity)

    def _reader(self, org_id: str, place: StorePlace) -> RolloutZarrStoreReader:
        if not place.root.is_url:
            return open_confined(place)
        options: dict[str, Any] = {}
        if self._s3_endpoint is not None:
            options["client_kwargs"] = {"endpoint_url": self._s3_endpoint}
        return open_store(place.text, cache_dir=self._cache_dir / org_id, storage_options=options)


def _is_current(store: ReadStore) -> bool:
    if store.place.root.is_url:
        return time.monotonic() - store.looked_at < _LOOK_AGAIN_S
    return store.identity is not None and store.identity == _identity(store.place.folder)


def _identity(folder: Path) -> object:
    """Of the two files that every writer of a store replaces; None if one is missing."""
    try:
        found = [os.lstat(folder / name) for name in ("zarr.json", ROLLOUT_MANIFEST_FILENAME)]
    except OSError:
        return None
    return tuple((each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns) for each in found)
