"""Shards for tests: entries of a plan, and builders that write small stores for them."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollbook.store.manifest import RolloutStoreManifestContext
from rollbook.store.shards.build_shard import BuiltStore, RolloutShardRunResult, build_shard
from rollbook.store.shards.entry import RolloutShardEntry, RolloutShardRow, split_hash
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.synthetic import make_records

SOURCE = "5" * 64


def planned(number: int = 0, rows: int = 2, split: str = "train") -> RolloutShardEntry:
    """The entry of a shard; shards with different numbers have different rows."""
    listed = tuple(
        RolloutShardRow(
            order=order,
            sample_index=number * rows + order,
            sample_key=f"flat-{number}-{order}",
            scene_id=f"flat-{number}",
            snippet_id="walk",
            split=split,
            source_shard_id="shard-000000",
            source_shard_row=number * rows + order,
        )
        for order in range(rows)
    )
    return RolloutShardEntry(
        shard_id=f"shard-{number:06d}",
        split=split,
        rows=listed,
        writer_config_hash="c" * 64,
        source_manifest_hash=SOURCE,
        source_cache_version="1",
        split_manifest_hash=split_hash(SOURCE, split, listed),
        source_store_dir="source",
    )


class SmallBuilder:
    """Writes one record per row. A test can make it slow, or make it call something before each row."""

    def __init__(
        self,
        entry: RolloutShardEntry,
        *,
        seconds_per_row: float = 0.0,
        before_row: Callable[[int], None] | None = None,
        after: Callable[[Path], None] | None = None,
    ) -> None:
        self.entry = entry
        self.calls = 0
        self._seconds = seconds_per_row
        self._before_row = before_row
        self._after = after

    def __call__(self, folder: Path, progress: Callable[[int], None]) -> BuiltStore:
        self.calls += 1
        for done in range(len(self.entry.rows)):
            if self._before_row is not None:
                self._before_row(done)
            time.sleep(self._seconds)
            progress(done + 1)
        number = self.entry.rows[0].sample_index
        result = write_rollout_zarr_store(
            folder,
            make_records(1, seed=number, horizon=1, candidates=4),
            manifest_context=RolloutStoreManifestContext(shard=self.entry.to_jsonable()),
            selected_depth_enabled=False,
        )
        if self._after is not None:
            self._after(folder)
        return BuiltStore(result, {"skipped_reasons": {"no_target": 1}})


def empty_store(folder: Path, progress: Callable[[int], None]) -> BuiltStore:
    """Builds a shard whose rows gave no rollout, which costs little."""
    return BuiltStore(None, {"skipped_reasons": {"no_target": 2}})


def built(
    root: Path, entry: RolloutShardEntry, builder: Any = None, **options: Any
) -> RolloutShardRunResult:
    """Builds a shard in `root`, laid out as a campaign is."""
    return build_shard(
        entry,
        SmallBuilder(entry) if builder is None else builder,
        output_tmp=root / "work" / entry.shard_id,
        output_final=root / "shards" / entry.shard_id,
        **options,
    )


def names(root: Path) -> set[str]:
    """What is in the folder of the shards."""
    return {each.name for each in (root / "shards").iterdir()}


def unreadable(patch: pytest.MonkeyPatch, name: str) -> None:
    """Files of this name cannot be read, and are there."""
    opened = os.open

    def stale(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith(f"/{name}"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return opened(path, *arguments, **options)

    patch.setattr(os, "open", stale)
