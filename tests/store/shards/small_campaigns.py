"""Finished campaigns for tests: synthetic records, divided into shards by source row, each built as a campaign does."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rollbook.store.manifest import RolloutStoreManifestContext
from rollbook.store.records import RolloutZarrRecord
from rollbook.store.shards.build_shard import BuiltStore, build_shard
from rollbook.store.shards.collection_file import CollectionFile
from rollbook.store.shards.entry import RolloutShardEntry
from rollbook.store.shards.merge import merge_shards, shards_at
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.shards.planned import entry
from tests.store.synthetic import make_records

SMALL = {"horizon": 2, "candidates": (3, 5), "features": 2, "targets_per_source": 1}
"""Three records per source row: one per policy."""


@dataclass
class Campaign:
    folder: Path
    entries: list[RolloutShardEntry]
    records: list[list[RolloutZarrRecord]]
    """Those of every shard."""
    config: dict[str, Any]

    @property
    def shards(self) -> list[Path]:
        return [self.folder / "shards" / each.shard_id for each in self.entries]

    def build(self, numbers: Iterable[int] | None = None) -> Campaign:
        for number in range(len(self.entries)) if numbers is None else numbers:
            self.build_shard(number)
        return self

    def build_shard(self, number: int, final: str | Path | None = None) -> None:
        shard_entry, records = self.entries[number], self.records[number]

        def build(folder: Path, progress: Callable[[int], None]) -> BuiltStore:
            if not records:
                return BuiltStore(None)
            context = RolloutStoreManifestContext(shard=shard_entry.to_jsonable())
            return BuiltStore(
                write_rollout_zarr_store(folder, records, manifest_context=context, **self.config)
            )

        build_shard(
            shard_entry,
            build,
            output_tmp=self.folder / "work" / shard_entry.shard_id,
            output_final=final or self.folder / "shards" / shard_entry.shard_id,
        )

    def copy(self, folder: Path, own: Sequence[int] = ()) -> Campaign:
        """The same campaign for a test that changes these shards. The others are links, so they must not be changed."""
        (folder / "shards").mkdir(parents=True)
        for number, shard in enumerate(self.shards):
            copied = folder / "shards" / shard.name
            if number in own:
                shutil.copytree(shard, copied)
            else:
                copied.symlink_to(shard)
        if (self.folder / "collection.json").exists():
            shutil.copy(self.folder / "collection.json", folder)
        return Campaign(folder, list(self.entries), list(self.records), dict(self.config))

    def rebuild(self, number: int) -> Campaign:
        """Builds one shard again, from other records or settings."""
        (self.folder / "shards" / self.entries[number].shard_id).unlink()
        return self.build([number])

    def merge(self, **options: Any) -> CollectionFile:
        return merge_shards(
            self.entries,
            shards_at(self.folder / "shards"),
            self.folder / "collection.json",
            **options,
        )

    def one_run(self, folder: Path, split: str = "train") -> Path:
        """The store that a single run over the rows of all shards writes."""
        records = [
            record
            for each, records in zip(self.entries, self.records, strict=True)
            for record in records
            if each.split == split
        ]
        write_rollout_zarr_store(folder, records, **self.config)
        return folder


def campaign(
    folder: Path,
    rows: Sequence[Sequence[int]] = ((0, 1), (2,), (3, 4)),
    *,
    splits: Sequence[str] = (),
    empty: Sequence[int] = (),
    config: dict[str, Any] | None = None,
    **options: Any,
) -> Campaign:
    """Source rows per shard. `options` are those of `make_records`; `empty` shards have no rollouts."""
    chosen = {**SMALL, **options}
    per_row = chosen["targets_per_source"] * 3
    made = list(make_records(per_row * (max(map(max, rows)) + 1), **chosen))
    splits = splits or ["train"] * len(rows)
    entries, records = [], []
    for number, (indices, split) in enumerate(zip(rows, splits, strict=True)):
        entries.append(entry(number, indices, split=split))
        own = [each for i in indices for each in made[i * per_row : (i + 1) * per_row]]
        records.append([] if number in empty else [_of_split(each, split) for each in own])
    return Campaign(folder, entries, records, {"selected_depth_enabled": False, **(config or {})})


def _of_split(record: RolloutZarrRecord, split: str) -> RolloutZarrRecord:
    return RolloutZarrRecord(
        result=record.result,
        lineage=msgspec.structs.replace(record.lineage, split=split),
        rollout_id_prefix=record.rollout_id_prefix,
    )
