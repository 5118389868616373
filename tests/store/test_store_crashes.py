"""Killing writers: whatever the moment, there is the old store, the new one, or none."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollbook.digest import checksum
from rollbook.errors import LeaseHeld, StorageError
from rollbook.store.manifest import read_manifest
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.synthetic import make_records

_NURSERY = """
import itertools, os, shutil, sys
from pathlib import Path
from tests.store.synthetic import make_records
from rollbook.store.manifest import RolloutStoreManifestContext
from rollbook.store.writer import write_rollout_zarr_store

path, replace = Path(sys.argv[1]), sys.argv[2] == "replace"
kept = [list(make_records(6, seed=seed, horizon=2, candidates=9)) for seed in (1, 2)]


def write_forever():
    for number in itertools.count():
        write_rollout_zarr_store(
            path,
            kept[number % 2],
            selected_depth_enabled=False,
            replace=replace,
            manifest_context=RolloutStoreManifestContext(),
        )
        if not replace:
            path.rename(path.with_name("done"))
            shutil.rmtree(path.with_name("done"))


print("ready", flush=True)
for line in sys.stdin:
    writer = os.fork()
    if not writer:
        write_forever()
    print(writer, flush=True)
    os.waitpid(writer, 0)
    print("dead", flush=True)
"""
"""Writers by the dozen: a fork takes milliseconds, where a fresh interpreter takes a second."""

_HOLD = """
import sys
from tests.store.synthetic import make_records
from rollbook.store.writer import RolloutStoreWriter
from rollbook.store.config import RolloutZarrStoreConfig

with RolloutStoreWriter(RolloutZarrStoreConfig(store_dir=sys.argv[1], selected_depth_enabled=False)) as writer:
    writer.append(next(make_records(1)))
    writer._flush()
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def child(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Runs until the block ends, which kills it."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def is_whole(store: Path) -> bool:
    """Whether it opens; if so, every file it lists is the one that was written."""
    try:
        manifest = read_manifest(store)
    except StorageError:
        return False
    for name, (size, digest) in manifest.files.items():
        data = (store / name).read_bytes()
        assert (len(data), checksum(data)) == (size, digest), name
    stored = {str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()}
    assert stored == {*manifest.files, "manifest.json", "zarr.json"}
    assert RolloutZarrStoreReader(store).num_rollouts == 6
    return True


def killed_writers(store: Path, mode: str, times: int) -> Iterator[None]:
    """Lets a writer write over and over, kills it at a random moment, and again."""
    luck = random.Random(mode)
    with child(_NURSERY, str(store), mode) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        for _ in range(times):
            nursery.stdin.write("another\n")
            nursery.stdin.flush()
            writer = int(nursery.stdout.readline())
            try:
                time.sleep(luck.uniform(0, 0.3))
            finally:
                os.kill(writer, signal.SIGKILL)
            assert nursery.stdout.readline() == "dead\n"
            yield


KILLS = pytest.mark.parametrize("kills", [10, pytest.param(60, marks=pytest.mark.slow)])


@KILLS
def test_writers_killed_while_they_replace_leave_a_whole_store(tmp_path: Path, kills: int) -> None:
    store = tmp_path / "s"
    write_rollout_zarr_store(store, make_records(6), selected_depth_enabled=False)
    for _ in killed_writers(store, "replace", kills):
        assert is_whole(store)
    _check_recovery(tmp_path)


@KILLS
def test_writers_killed_while_they_write_anew_leave_a_whole_store_or_none(
    tmp_path: Path, kills: int
) -> None:
    store, seen = tmp_path / "s", set()
    for _ in killed_writers(store, "anew", kills):
        seen.add(is_whole(store))
        for left in (store, tmp_path / "done"):
            if left.exists():
                shutil.rmtree(left)
    assert False in seen
    _check_recovery(tmp_path)


def _check_recovery(folder: Path) -> None:
    """The next writer finds the lock free and clears up after all the dead ones."""
    store = folder / "s"
    write_rollout_zarr_store(store, make_records(6), selected_depth_enabled=False, replace=True)
    assert is_whole(store)
    assert sorted(path.name for path in folder.iterdir()) == ["s"]


def test_the_lock_of_a_killed_writer_is_free_and_its_rests_are_swept(tmp_path: Path) -> None:
    store, records = tmp_path / "s", list(make_records(6))
    with child(_HOLD, str(store)):
        assert any(path.name.startswith(".s.stage-") for path in tmp_path.iterdir())
        with pytest.raises(LeaseHeld):
            write_rollout_zarr_store(store, records, selected_depth_enabled=False)
    assert not store.exists()
    write_rollout_zarr_store(store, records, selected_depth_enabled=False)
    assert is_whole(store)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]


def test_a_store_without_its_last_files_does_not_open(tmp_path: Path) -> None:
    """What a crash before the end would look like, if a stage had the final name."""
    store = tmp_path / "s"
    write_rollout_zarr_store(store, make_records(6), selected_depth_enabled=False)
    assert is_whole(store)
    root = json.loads((store / "zarr.json").read_bytes())
    for name in ("manifest.json", "zarr.json"):
        data = (store / name).read_bytes()
        (store / name).unlink()
        assert not is_whole(store)
        (store / name).write_bytes(data)
    del root["attributes"]["manifest_sha256"]
    (store / "zarr.json").write_text(json.dumps(root))
    assert not is_whole(store)
