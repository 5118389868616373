"""Rollouts to look at step by step: a store whose rollouts were made in a real source store, which lies beside it."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rollbook.generate.sources.reader import SourceStore
from rollbook.store.manifest import RolloutStoreManifestContext
from rollbook.store.records import RolloutZarrRecord
from rollbook.store.writer import write_rollout_zarr_store
from tests.generate.tiny_source import tiny_source
from tests.store.synthetic import make_records

DEPTH = (24, 32)
HOSTILE = "\"'><svg onload=alert(1)>"


def source_beside(root: Path) -> SourceStore:
    place = root / "sources"
    if not place.exists():
        shutil.copytree(tiny_source(), place)
    return SourceStore.open(place)


def rollouts_in(
    place: Path,
    source: SourceStore,
    *,
    stated: str | None = None,
    depth: bool = True,
    lineage: dict[str, Any] | None = None,
    **plan: Any,
) -> Path:
    """A store of three rollouts of three steps. `stated` is where it says that its source store is; by itself, where
    it really is. `lineage` changes fields of what the rollouts say about themselves."""
    wanted = {"horizon": 3, "candidates": 16, "unlabelled_fraction": 0.1, "seed": 4, **plan}
    if depth:
        wanted["depth"] = DEPTH
    settings = {"source": {"store_dir": stated or str(source.path)}}
    write_rollout_zarr_store(
        place,
        _made_in(source, make_records(3, **wanted), lineage or {}),
        selected_depth_enabled=depth,
        selected_depth_height_px=DEPTH[0],
        selected_depth_width_px=DEPTH[1],
        manifest_context=RolloutStoreManifestContext.programmatic(writer_config=settings),
    )
    return place


def _made_in(
    source: SourceStore, records: Iterator[RolloutZarrRecord], changes: dict[str, Any]
) -> Iterator[RolloutZarrRecord]:
    entry = source.entry(0)
    facts: dict[str, Any] = {
        "source_row_id": 0,
        "source_sample_index": 0,
        "source_sample_key": entry.sample_key,
        "scene_id": entry.scene_id,
        "snippet_id": entry.snippet_id,
        "source_offline_store_manifest_hash": source.manifest_digest,
        "source_shard_id": entry.shard_id,
        "source_shard_row": entry.row,
        **changes,
    }
    for record in records:
        lineage = msgspec.structs.replace(record.lineage, **facts)
        yield dataclasses.replace(record, lineage=lineage)
