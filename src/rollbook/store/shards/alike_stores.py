"""AlikeStores: what the stores of one collection have in common. Their manifests say it; no array is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from rollbook.errors import IncompatibleStores, StorageError
from rollbook.store.collection import SHARED_ATTRS
from rollbook.store.listed_stores import SIZE_ATTRS
from rollbook.store.manifest import ROLLOUT_MANIFEST_FILENAME
from rollbook.store.shards.collection_file import (
    COLLECTION_VERSION,
    CollectedShard,
    CollectionFile,
    collection_sha256,
)
from rollbook.store.urls.url_folder import is_url

FEATURES_FILE = "q_h/actor_features/zarr.json"

ReadFile = Callable[[str], bytes]
"""Reads a file of a store, by its path in it."""


class _SourceRow(msgspec.Struct):
    source_sample_index: int | None


class _Coverage(msgspec.Struct):
    sources: list[_SourceRow]


class StoreManifest(msgspec.Struct):
    """What a collection needs of the manifest of a store."""

    content_sha256: str
    counts: dict[str, int]
    root_attrs: dict[str, Any]
    files: dict[str, msgspec.Raw]
    source_coverage: _Coverage


_MANIFEST = msgspec.json.Decoder(StoreManifest)


class _ArrayShape(msgspec.Struct):
    shape: list[int]


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all stores have in common, with the store that it was taken from."""

    place: str
    facts: dict[str, object]
    files: frozenset[str]


def file_reader(store: Path) -> ReadFile:
    """Reads files of a store in a folder."""
    return partial(_read_file, str(store))


def _read_file(folder: str, path: str) -> bytes:
    with open(f"{folder}/{path}", "rb", buffering=0) as file:
        return file.readall()


def read_manifest(place: str, read: ReadFile) -> StoreManifest:
    try:
        return _MANIFEST.decode(read(ROLLOUT_MANIFEST_FILENAME))
    except (OSError, ValueError) as error:  # also text that is not UTF-8
        detail = f"{ROLLOUT_MANIFEST_FILENAME} cannot be read ({error})"
        raise StorageError(path=place, detail=detail) from error


def relative_place(place: str, folder: Path) -> str:
    """Relative to the collection file if the store is below its folder, so that both can be moved together."""
    if is_url(place) or not Path(place).is_relative_to(folder):
        return place
    return os.path.relpath(place, folder)


class AlikeStores:
    """Rows of all stores must mean the same, and all must have the same columns."""

    def __init__(self) -> None:
        self._shared: _Shared | None = None
        self._sizes = dict.fromkeys((*SIZE_ATTRS, "F"), 0)

    @property
    def empty(self) -> bool:
        return self._shared is None

    def add(self, place: str, read: ReadFile, manifest: StoreManifest) -> None:
        """Raises IncompatibleStores with the first difference from the first store."""
        attrs = manifest.root_attrs
        for letter, attr in SIZE_ATTRS.items():
            self._sizes[letter] = max(self._sizes[letter], int(attrs.get(attr, 0)))
        facts: dict[str, object] = {name: attrs.get(name) for name in SHARED_ATTRS}
        facts["actor feature count"] = self._sizes["F"] = _features(place, read, manifest)
        files = manifest.files.keys()
        shared = self._shared = self._shared or _Shared(place, facts, frozenset(files))
        for name, value in facts.items():
            if value != shared.facts[name]:
                detail = (
                    f"{name} is {shared.facts[name]!r} in the first and {value!r} in the second"
                )
                raise IncompatibleStores(path=shared.place, other=place, detail=detail)
        if files == shared.files:
            return
        # stores of different sizes have different numbers of chunks, but the same arrays
        different = sorted(path for path in files ^ shared.files if path.endswith("/zarr.json"))
        if different:
            detail = f"only one of them has {different[0].removesuffix('/zarr.json')}"
            raise IncompatibleStores(path=shared.place, other=place, detail=detail)

    def collection(
        self,
        shards: Sequence[CollectedShard],
        *,
        writer_config_hash: str,
        source_manifest_hash: str,
    ) -> CollectionFile:
        """The collection of these stores. At least one was added."""
        assert self._shared is not None
        return CollectionFile(
            collection_version=COLLECTION_VERSION,
            collection_sha256=collection_sha256(shards),
            writer_config_hash=writer_config_hash,
            source_manifest_hash=source_manifest_hash,
            store_attrs={name: self._shared.facts[name] for name in SHARED_ATTRS},
            sizes=self._sizes,
            totals=_totals(shards),
            shards=tuple(shards),
        )


def _features(place: str, read: ReadFile, manifest: StoreManifest) -> int:
    if FEATURES_FILE not in manifest.files:
        return 0
    try:
        return msgspec.json.decode(read(FEATURES_FILE), type=_ArrayShape).shape[-1]
    except (OSError, ValueError) as error:  # also text that is not UTF-8
        detail = f"{FEATURES_FILE} cannot be read ({error})"
        raise StorageError(path=place, detail=detail) from error


def _totals(shards: Iterable[CollectedShard]) -> dict[str, int]:
    totals = {"shards": 0, "empty_shards": 0, "source_rows": 0, "bytes": 0}
    for shard in shards:
        totals["shards"] += 1
        totals["empty_shards"] += shard.path is None
        totals["source_rows"] += shard.source_rows
        totals["bytes"] += shard.bytes
        for name, count in shard.counts.items():
            if name != "q_h_max_candidates":
                totals[name] = totals.get(name, 0) + count
    return totals
