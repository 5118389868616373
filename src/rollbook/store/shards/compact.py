"""Compacting: writes one store with the rows of all shards, as if one run had written it.

Shards are read one after the other, chunk by chunk, and every byte is compared with its manifest on the way. Row ids
and codes become those of the new store. The derived views are computed again. Memory does not grow with the number of
shards, except for their words.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.policy import PolicyRevision
from rollbook.errors import ConfigurationError, IncompatibleStores, StorageError
from rollbook.files import AnyPath
from rollbook.store.collection import ROW_IDS
from rollbook.store.config import RolloutZarrStoreConfig, RolloutZarrWriteResult
from rollbook.store.derived_views import mapped_columns, write_derived_views
from rollbook.store.description import StoreDescription
from rollbook.store.growing_columns import GrowingColumns
from rollbook.store.listed_stores import ListedStores
from rollbook.store.manifest import (
    ROLLOUT_MANIFEST_FILENAME,
    RolloutStoreInvocation,
    RolloutStoreManifestContext,
    collect_runtime_provenance,
)
from rollbook.store.rasters import FrameWriter
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.schema import DICTIONARIES, ROW_COUNTS, TABLES, Column
from rollbook.store.shards.collection_file import FoundCollection, read_collection
from rollbook.store.staging import StagedStore
from rollbook.store.tables import Words, joined_revision, stated_index
from rollbook.store.urls.url_folder import Options, local_path
from rollbook.store.verified_array import VerifiedArray, array_paths

Array = NDArray[Any]
_CONFIG_ATTRS = {
    "target_eval_crop_max_points": "target_eval_crops_max_points",
    **{
        name: name
        for name in (
            *("return_semantics", "discount_gamma", "target_protocol_version"),
            *("reason_code_version", "field_retention_policy", "source_offline_store_version"),
            *("split_manifest_hash", "selected_depth_enabled", "selected_depth_width_px"),
            *("selected_depth_height_px", "selected_depth_chunk_steps", "selected_depth_renderer"),
            *("selected_depth_znear_m", "selected_depth_zfar_m"),
            *("selected_depth_source_resolution", "target_eval_crops_enabled"),
        )
    },
}
"""Field of the config of a store → the root attribute that has its value."""


def compact_shards(
    collection: AnyPath | FoundCollection,
    destination: AnyPath,
    *,
    split: str | None = None,
    replace: bool = False,
    invocation: RolloutStoreInvocation | None = None,
    on_store: Callable[[int, int], None] | None = None,
    cache_dir: AnyPath | None = None,
    storage_options: Options | None = None,
) -> RolloutZarrWriteResult:
    """Write all rows of a collection into one store. A store holds one split: of several, `split` names one.

    The store appears complete or not at all. It has the content that one run over all rows would have written. A file
    of a shard that is lost or damaged is refused by name. `on_store` is called with the number of finished shards and
    of all.
    """
    if not isinstance(collection, FoundCollection):
        collection = read_collection(collection, storage_options=storage_options)
    chosen = _of_split(collection, split)
    stores = chosen.stores(cache_dir=cache_dir, storage_options=storage_options)
    _refuse_inside(Path(destination), stores)
    with StagedStore(Path(destination), replace=replace) as stage:
        compact = _CompactStore(stage.folder, stores[0])
        for number, store in enumerate(stores, start=1):
            compact.append(store)
            if on_store is not None:
                on_store(number, len(stores))
        files = compact.close()
        description = StoreDescription(
            compact.config,
            compact.tables,
            compact.tables.rows["selected_depth"],
            compact.tables.rows["target_eval_crops"],
        )
        files |= stage.write_groups(description.groups())
        generation = stores[0].store_manifest.payload["generation"]
        context = RolloutStoreManifestContext(
            writer_config=generation["writer_config"],
            invocation=invocation or RolloutStoreInvocation.programmatic(),
            runtime=collect_runtime_provenance(),
            shard={
                "compacted_collection_sha256": collection.file.collection_sha256,
                "shard_ids": [shard.shard_id for shard in chosen.file.stores],
            },
        )
        manifest = stage.finish(description.manifest(context), files)
    return RolloutZarrWriteResult(
        store_dir=stage.final,
        num_rollouts=compact.tables.num_rollouts,
        num_steps=compact.tables.num_steps,
        num_candidates=compact.tables.num_candidates,
        manifest_path=stage.final / ROLLOUT_MANIFEST_FILENAME,
        manifest_sha256=manifest["manifest_sha256"],
        content_sha256=manifest["content_sha256"],
    )


def _of_split(collection: FoundCollection, split: str | None) -> FoundCollection:
    file, have = collection.file, ", ".join(collection.file.splits)
    if split is None and len(file.splits) > 1:
        message = f"the collection has the splits {have}, and a store holds one: name one (--split)"
        raise ConfigurationError(message=message)
    if split is not None and split not in file.splits:
        raise ConfigurationError(message=f"the collection has no split {split!r}; it has {have}")
    shards = tuple(shard for shard in file.stores if split in (None, shard.split))
    return FoundCollection(msgspec.structs.replace(file, shards=shards), collection.folder)


def _refuse_inside(destination: Path, stores: ListedStores) -> None:
    """A shard must not be replaced by the store that is made of it."""
    wanted = destination.resolve()
    for listed in stores.listed:
        folder = local_path(listed.place)
        if folder is not None and wanted.is_relative_to(folder.resolve()):
            detail = f"it is in the shard {listed.place}; write the store elsewhere"
            raise StorageError(path=str(destination), detail=detail)


class _CompactTables:
    """The sizes, words and policies of the new store, for its description."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.words = {name: Words() for name in DICTIONARIES}
        self.policy_revisions: dict[str, PolicyRevision] = {}
        self.stated_revisions: list[PolicyRevision] = []
        self.rows = dict.fromkeys(ROW_COUNTS, 0)
        self.horizon = 0
        self.widest = 0
        self.feature_count: int | None = None

    @property
    def num_rollouts(self) -> int:
        return self.rows["rollouts"]

    @property
    def num_steps(self) -> int:
        return self.rows["steps"]

    @property
    def num_candidates(self) -> int:
        return self.rows["candidates"]

    def count(self, table: str) -> int:
        return self.rows[table]

    def small(self, table: str) -> dict[str, Array]:
        """The columns of a table, once they are closed. Those that share an array are left out."""
        names = [name for name, column in TABLES[table].columns.items() if column.packed is None]
        there = [name for name in names if (self._folder / table / name).is_dir()]
        return mapped_columns(self._folder, table, there)


class _CompactStore:
    def __init__(self, folder: Path, first: RolloutZarrStoreReader) -> None:
        self.config = _config_of(first)
        self.tables = _CompactTables(folder)
        self._folder = folder
        self._first = str(first.store_dir)
        self._columns = GrowingColumns(folder)
        self._frames: dict[str, FrameWriter] = {}

    def append(self, store: RolloutZarrStoreReader) -> None:
        """Add all rows of one store. A remote store is fetched first."""
        store.local("")
        self._check_config(store)
        rows = _Renumbered(store, self.tables)
        for path in array_paths(store.files):
            table, _, name = path.partition("/")
            if table not in TABLES:
                raise StorageError(path=str(store.store_dir), detail=f"unknown table {table!r}")
            if TABLES[table].derived:
                continue
            array = VerifiedArray(store.files, path)
            if array.has_frames:
                self._append_frames(str(store.store_dir), array)
            else:
                self._append_rows(table, name, array, rows)
        self._count(store)

    def _append_rows(self, table: str, name: str, array: VerifiedArray, rows: _Renumbered) -> None:
        column = TABLES[table].columns.get(name)
        writer = self._columns.writer(table, name, array.shape[1:])
        for _, block in array.blocks():
            writer.append(block if column is None else rows.renumbered(column, block))
        if (table, name) == ("candidates", "actor_features"):
            self.tables.feature_count = array.shape[1]

    def _append_frames(self, place: str, array: VerifiedArray) -> None:
        """Images are copied as they are encoded."""
        table, _, name = array.path.partition("/")
        column = TABLES[table].columns[name]
        if array.path not in self._frames:
            per_shard = self.config.selected_depth_chunk_steps
            self._frames[array.path] = FrameWriter(
                self._folder / array.path, column.numpy, array.shape[1:], column.fill, per_shard
            )
        writer = self._frames[array.path]
        if array.metadata["codecs"] != writer.codecs:
            detail = f"{array.path} is encoded in another way than this release does it"
            raise StorageError(path=place, detail=detail)
        for frame in array.encoded_frames():
            writer.append_encoded(frame)

    def _count(self, store: RolloutZarrStoreReader) -> None:
        tables = self.tables
        for table, attr in ROW_COUNTS.items():
            tables.rows[table] += int(store.attrs[attr])
        tables.horizon = max(tables.horizon, int(store.attrs["q_h_horizon"]))
        tables.widest = max(tables.widest, int(store.attrs["q_h_max_candidates"]))

    def _check_config(self, store: RolloutZarrStoreReader) -> None:
        config = _config_of(store)
        for name in (*_CONFIG_ATTRS, "q_h_chunk_states"):
            mine, other = getattr(self.config, name), getattr(config, name)
            if mine != other:
                detail = f"{name} is {mine!r} in the first and {other!r} in the second"
                raise IncompatibleStores(
                    path=self._first, other=str(store.store_dir), detail=detail
                )

    def close(self) -> dict[str, tuple[int, str]]:
        """End all columns and write the derived views. Returns size and checksum of every file."""
        files = self._columns.close()
        for path, frames in self._frames.items():
            files |= {f"{path}/{name}": sums for name, sums in frames.close().items()}
        self._refuse_repeated_sources()
        return files | write_derived_views(self._folder, self.tables, self.config)

    def _refuse_repeated_sources(self) -> None:
        rows = self.tables.small("sources")["source_row_id"]
        found, counts = np.unique(rows, return_counts=True)
        if len(found) < len(rows):
            twice = int(found[counts > 1][0])
            detail = f"source row {twice} is in several shards, so they cannot become one store"
            raise StorageError(path=self._first, detail=detail)


class _Renumbered:
    """The row ids and codes of one store as those of the new store, to which its words and policies are added."""

    def __init__(self, store: RolloutZarrStoreReader, tables: _CompactTables) -> None:
        self._offsets = {table: tables.rows[table] for table in ROW_COUNTS}
        attributes = {
            group: json.loads(store.files.read(f"{group}/zarr.json"))["attributes"]
            for group in ("dictionaries", "metadata")
        }
        words = attributes["dictionaries"]["words"]
        known = len(tables.words["rollout"].codes)
        self._codes = {name: _codes(tables.words[name].code, words[name]) for name in DICTIONARIES}
        repeated = self._codes["rollout"][:-1] < known
        if repeated.any():
            name = words["rollout"][int(np.argmax(repeated))]
            detail = f"the rollout {name!r} is also in a shard before it"
            raise StorageError(path=str(store.store_dir), detail=detail)
        described = attributes["metadata"].get("stated_policy_revisions", [])
        stated = msgspec.convert(described, list[PolicyRevision])
        for revision in stated:
            joined = joined_revision(tables.policy_revisions.values(), revision)
            assert joined is not None
            tables.policy_revisions[joined.policy_digest] = joined
        self._revisions = _codes(
            lambda revision: stated_index(tables.stated_revisions, revision), stated
        )

    def renumbered(self, column: Column, values: Array) -> Array:
        if column.words is not None:
            return self._codes[column.words][values]
        if column.name == "policy_revision_index":
            return self._revisions[values]
        if column.name in ROW_IDS:
            offset = values.dtype.type(self._offsets[ROW_IDS[column.name]])
            return np.where(values < 0, values, values + offset)
        return values


def _codes(code: Callable[[Any], int], values: list[Any]) -> NDArray[np.int32]:
    """The new code of every old one. The last entry serves -1, which means "none"."""
    return np.array([*map(code, values), -1], np.int32)


def _config_of(store: RolloutZarrStoreReader) -> RolloutZarrStoreConfig:
    """The config that a store was written with."""
    views = json.loads(store.files.read("q_h/zarr.json"))["attributes"]
    return RolloutZarrStoreConfig(
        store_dir=store.store_dir,
        q_h_chunk_states=views["chunk_states"],
        **{name: store.attrs[attr] for name, attr in _CONFIG_ATTRS.items()},
    )
