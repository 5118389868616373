"""Planned shards, for tests that need a plan and no source."""

from __future__ import annotations

from collections.abc import Sequence

from rollbook.store.shards.entry import RolloutShardEntry, RolloutShardRow, split_hash

SOURCE = "5" * 64


def row(index: int, *, order: int, split: str = "train") -> RolloutShardRow:
    return RolloutShardRow(
        order=order,
        sample_index=index,
        sample_key=f"flat-{index // 4:03d}/{index % 4:03d}",
        scene_id=f"flat-{index // 4:03d}",
        snippet_id=f"{index % 4:03d}",
        split=split,
        source_shard_id=f"shard-{index // 64:06d}",
        source_shard_row=index % 64,
    )


def entry(
    number: int, indices: Sequence[int], *, split: str = "train", config: str = "c" * 64
) -> RolloutShardEntry:
    rows = tuple(row(index, order=order, split=split) for order, index in enumerate(indices))
    return RolloutShardEntry(
        shard_id=f"shard-{number:06d}",
        split=split,
        rows=rows,
        writer_config_hash=config,
        source_manifest_hash=SOURCE,
        source_cache_version="1",
        split_manifest_hash=split_hash(SOURCE, split, rows),
        source_store_dir="/data/source",
    )


def plan(shards: int, rows_per_shard: int = 2) -> list[RolloutShardEntry]:
    return [
        entry(number, range(number * rows_per_shard, (number + 1) * rows_per_shard))
        for number in range(shards)
    ]
