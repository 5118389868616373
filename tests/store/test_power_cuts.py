"""A store that was promoted survives a power cut, and no moment of its writing leaves half a store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.synthetic import spec_fixture_records
from tests.watched_files import WatchedFiles


def after_power_cut(watched: WatchedFiles, path: Path, left: Path) -> Path:
    """A copy of what would be left at `path`."""
    found = watched.after_power_cut(path)
    if isinstance(found, bytes):
        left.write_bytes(found)
    elif found is not None:
        left.mkdir()
        for name in found:
            after_power_cut(watched, path / name, left / name)
    return left


@pytest.mark.parametrize("replace", [False, True])
def test_a_store_is_there_whole_or_not_at_all(tmp_path: Path, replace: bool) -> None:
    disk = tmp_path / "disk"
    store, left = disk / "new" / "folder" / "rollouts.zarr", tmp_path / "left"
    disk.mkdir()
    old, new = spec_fixture_records(depth=False)[:1], spec_fixture_records(depth=False)
    if replace:
        write_rollout_zarr_store(store, old, selected_depth_enabled=False)
    roots: list[object] = []
    rollouts: list[int | None] = []

    def look(watched: WatchedFiles) -> None:
        root = watched.after_power_cut(store / "zarr.json")
        if roots[-1:] != [root]:  # another store, or one at last
            roots.append(root)
            kept = after_power_cut(watched, store, left)
            rollouts.append(RolloutZarrStoreReader(kept).num_rollouts if kept.exists() else None)
            shutil.rmtree(kept, ignore_errors=True)

    with WatchedFiles(disk, at_each_step=look) as watched:
        write_rollout_zarr_store(store, new, selected_depth_enabled=False, replace=replace)
        assert watched.is_durable(store)
    assert watched.named_before_sync == []
    before = len(old) if replace else None
    assert rollouts == [before, RolloutZarrStoreReader(store).num_rollouts]
