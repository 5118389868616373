"""A store that was promoted survives a power cut, no moment of its writing leaves half a store, and nothing is synced
twice."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.repack import repack_store
from rollbook.store.urls.remote import open_store, publish_store
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.synthetic import make_records, spec_fixture_records
from tests.watched_files import Step, WatchedFiles


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


def write_small_store(store: Path) -> Any:
    """48 candidates."""
    records = make_records(2, horizon=2, candidates=12)
    return write_rollout_zarr_store(store, records, selected_depth_enabled=False)


def repack_small_store(store: Path) -> Any:
    source = store.parent.with_name("source")
    write_small_store(source)
    return repack_store(source, store, "archive")


@pytest.mark.parametrize("make", [write_small_store, repack_small_store])
def test_files_then_folders_are_synced_once_each_before_the_store_gets_its_name(
    tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with WatchedFiles(disk) as watched:
        make(disk / "store")
    named = watched.steps.index(Step("name", disk / "store"))
    assert watched.steps[named + 1 :] == [Step("sync", disk)]
    before = [step.path for step in watched.steps[:named] if step.call == "sync"]
    stage = min(before)
    kept = [path.relative_to(disk / "store") for path in (disk / "store").rglob("*")]
    files = {stage / path for path in kept if (disk / "store" / path).is_file()}
    folders = {stage} | {stage / path for path in kept} - files
    assert Counter(before[: len(files)]) == Counter(files)
    assert Counter(before[len(files) :]) == Counter(folders)


def test_files_that_are_fetched_are_synced_together_before_they_get_their_names(
    tmp_path: Path,
) -> None:
    cache, url = tmp_path / "cache", "memory://syncs/store"
    cache.mkdir()
    stored = RolloutZarrStoreReader(write_small_store(tmp_path / "store").store_dir)
    publish_store(stored.store_dir, url)
    reader = open_store(url, cache_dir=cache)
    with WatchedFiles(cache) as watched:
        reader.local("q_h")
    files = stored.files.below("q_h")
    folders = {(reader.store_dir / path).parent for path in files}
    calls = [step.call for step in watched.steps]
    assert calls == ["sync"] * len(files) + ["name"] * len(files) + ["sync"] * len(folders)
    assert {step.path for step in watched.steps[-len(folders) :]} == folders
    assert watched.named_before_sync == []
