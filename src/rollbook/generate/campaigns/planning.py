"""Planning: divides the source rows of a config into shards. Equal inputs give equal plans."""

from __future__ import annotations

import os
from pathlib import Path

from rollbook.generate.config_checks import invalid_setting
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.sources.documents import SourceEntry
from rollbook.generate.writer import RolloutDatasetWriter
from rollbook.store.shards.entry import RolloutShardEntry, RolloutShardRow, split_hash
from rollbook.store.shards.shard_manifest import write_rollout_shard_manifest


def plan_rollout_shards(
    config: RolloutDatasetWriterConfig, *, rows_per_shard: int
) -> list[RolloutShardEntry]:
    """The shards of all rows that the config selects. A shard has rows of one split, in the order of the source."""
    if rows_per_shard < 1:
        raise invalid_setting("rows_per_shard", rows_per_shard, "at least 1")
    source, rows = RolloutDatasetWriter(config).rows(one_split=False)
    by_split: dict[str, list[SourceEntry]] = {}
    for row in rows:
        by_split.setdefault(source.index[row].split, []).append(source.index[row])
    parts = [
        (split, entries[start : start + rows_per_shard])
        for split, entries in by_split.items()
        for start in range(0, len(entries), rows_per_shard)
    ]
    writer_config_hash, source_store_dir = config.config_hash, source.place
    plan = []
    for number, (split, entries) in enumerate(parts):
        planned = tuple(
            RolloutShardRow.from_index_record(entry, order=order)
            for order, entry in enumerate(entries)
        )
        plan.append(
            RolloutShardEntry(
                shard_id=f"shard-{number:06d}",
                split=split,
                rows=planned,
                writer_config_hash=writer_config_hash,
                source_manifest_hash=source.manifest_digest,
                source_cache_version=source.version,
                split_manifest_hash=split_hash(source.manifest_digest, split, planned),
                source_store_dir=source_store_dir,
            )
        )
    return plan


def write_rollout_shard_manifest_from_config(
    config: RolloutDatasetWriterConfig,
    *,
    manifest_path: str | os.PathLike[str],
    rows_per_shard: int,
) -> list[RolloutShardEntry]:
    """Plans the shards and writes the plan."""
    plan = plan_rollout_shards(config, rows_per_shard=rows_per_shard)
    write_rollout_shard_manifest(Path(manifest_path), plan)
    return plan
