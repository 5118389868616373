"""Source stores at a URL: published whole or not at all, read file by file, never on trust."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from rollbook.errors import (
    ChecksumMismatch,
    ConfigurationError,
    NotASourceStore,
    RollbookError,
    StorageError,
    TargetExists,
    TruncatedFile,
)
from rollbook.generate.sources.layout import TREES
from rollbook.generate.sources.reader import SourceStore
from rollbook.generate.sources.remote_source import publish_source_store
from rollbook.generate.sources.validation import validate_source_store
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.urls.publication import SIDECAR
from rollbook.store.urls.remote import publish_store
from tests.generate.source_rows import write_store
from tests.generate.tiny_source import tiny_config, tiny_source
from tests.store.s3_server import Server, memory, server
from tests.store.test_collection import write_store as write_rollout_store
from tests.store.urls.test_remote import Crash, at, crash_at

__all__ = ["memory", "server"]

POINTS = "actor/shard-000001/points/xyz.npy"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten rows of five scenes, three rows in a shard."""
    path = tmp_path_factory.mktemp("sources") / "good"
    write_store(path, scenes=5, rows=2, rows_per_shard=3)
    return path


@pytest.fixture(scope="module")
def published(server: Server, good: Path) -> str:
    publish_source_store(good, "s3://bucket/sources/good", storage_options=server.options)
    return "s3://bucket/sources/good"


def names_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def assert_same_rows(one: SourceStore, other: SourceStore) -> None:
    assert one.index == other.index
    assert one.splits == other.splits
    for row in range(len(one)):
        for tree in TREES:
            found, expected = one.tables(row, tree), other.tables(row, tree)
            assert found.keys() == expected.keys()
            for table, columns in expected.items():
                for name, values in columns.items():
                    np.testing.assert_array_equal(found[table][name], values)
    for scene in one.scenes:
        assert one.mesh(scene).sha256 == other.mesh(scene).sha256


# ------------------------------------------------------------------------------------------ reading


def test_a_published_source_is_the_source(
    server: Server, good: Path, published: str, tmp_path: Path
) -> None:
    store = SourceStore.open(published, cache_dir=tmp_path, storage_options=server.options)
    original = SourceStore.open(good)
    assert store.place == published
    assert store.manifest == original.manifest
    assert store.geometry_facts == original.geometry_facts
    assert_same_rows(store, original)
    assert_same_rows(pickle.loads(pickle.dumps(store)), original)
    found = server.files.find("bucket/sources/good")
    assert {key.removeprefix("bucket/sources/good/") for key in found} == names_of(good)
    # what was fetched is a source store of its own
    assert store.path == tmp_path / original.manifest_digest
    assert names_of(store.path) == names_of(good)
    assert validate_source_store(store.path, deep=True).ok


def test_a_row_brings_its_shard_and_its_mesh_only(
    server: Server, good: Path, published: str, tmp_path: Path
) -> None:
    server.requests.clear()
    store = SourceStore.open(published, cache_dir=tmp_path, storage_options=server.options)
    asked = [path.removeprefix("bucket/sources/good/") for _, path in server.requests]
    assert sorted(asked) == ["arrays.jsonl", "index.jsonl", "manifest.json", "splits.json"]
    server.requests.clear()
    row = store.row(4)
    assert row.oracle is not None
    assert len(row.oracle.mesh)
    asked = [path.removeprefix("bucket/sources/good/") for _, path in server.requests]
    mesh = store.manifest.scenes[2].mesh_sha256
    below = [f"{tree}/shard-000001/" for tree in TREES]
    expected = {
        name for name in names_of(good) if name.startswith((*below, f"oracle/meshes/{mesh}"))
    }
    assert sorted(asked) == sorted(expected)
    server.requests.clear()
    again = SourceStore.open(published, cache_dir=tmp_path, storage_options=server.options)
    again.row(3)
    assert [path for _, path in server.requests] == ["bucket/sources/good/manifest.json"]


def test_an_actor_only_source_asks_for_nothing_of_the_oracle(
    server: Server, published: str, tmp_path: Path
) -> None:
    server.requests.clear()
    store = SourceStore.open(
        published, actor_only=True, cache_dir=tmp_path, storage_options=server.options
    )
    for row in range(len(store)):
        assert store.row(row).oracle is None
    assert server.requests
    assert not [path for _, path in server.requests if "/oracle/" in path]


def read_everything(store: SourceStore) -> None:
    for row in range(len(store)):
        found = store.row(row)
        assert found.oracle is not None
        assert len(found.oracle.mesh)


def test_workers_of_one_machine_fetch_a_file_once(
    server: Server, published: str, tmp_path: Path
) -> None:
    store = SourceStore.open(published, cache_dir=tmp_path, storage_options=server.options)
    server.requests.clear()
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=read_everything, args=(store,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    arrays = [path for _, path in server.requests if path.endswith(".npy")]
    assert len(arrays) == len(set(arrays)) == store.manifest.counts["arrays"]


def test_all_of_a_source_can_be_fetched_and_validated(
    memory: str, good: Path, tmp_path: Path
) -> None:
    publish_source_store(good, memory)
    store = SourceStore.open(memory, cache_dir=tmp_path)
    assert store.size_bytes() == SourceStore.open(good).size_bytes()
    assert names_of(store.local()) == names_of(good)
    assert validate_source_store(store.local(), deep=True).ok
    assert SourceStore.open(good).local() == good


def test_a_damaged_cache_is_fetched_again(memory: str, good: Path, tmp_path: Path) -> None:
    publish_source_store(good, memory)
    store = SourceStore.open(memory, cache_dir=tmp_path)
    store.row(3)
    for name in (POINTS, "index.jsonl"):
        (store.path / name).write_bytes(b"\x93NUMPY")
    assert_same_rows(SourceStore.open(memory, cache_dir=tmp_path), SourceStore.open(good))


# --------------------------------------------------------------------------- what can be wrong with it


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (flipped, ChecksumMismatch),
        (lambda data: data[:-1], TruncatedFile),
        (lambda data: data + b"more", ChecksumMismatch),
        (lambda data: b"PK\x03\x04" + data, TruncatedFile),
        (lambda data: b"", TruncatedFile),
        (lambda data: None, StorageError),
    ],
    ids=["flipped", "cut", "longer", "an archive", "empty", "gone"],
)
def test_an_array_that_was_changed_at_the_url_gets_no_name_here(
    memory: str, good: Path, tmp_path: Path, change: Any, refusal: type[RollbookError]
) -> None:
    publish_source_store(good, memory)
    files = fsspec.filesystem("memory")
    data = change(files.cat_file(f"{memory}/{POINTS}"))
    if data is None:
        files.rm_file(f"{memory}/{POINTS}")
    else:
        files.pipe_file(f"{memory}/{POINTS}", data)
    store = SourceStore.open(memory, cache_dir=tmp_path)
    assert store.row(0).oracle is not None
    with pytest.raises(refusal, match=f"{memory}/{POINTS}"):
        store.row(3)
    assert not (store.path / POINTS).exists()


@pytest.mark.parametrize("name", ["index.jsonl", "splits.json", "arrays.jsonl", "manifest.json"])
def test_an_edited_document_is_refused(memory: str, good: Path, tmp_path: Path, name: str) -> None:
    publish_source_store(good, memory)
    text = (good / name).read_text().replace("shard-000001", "shard-000009").replace("0.8", "0.7")
    fsspec.filesystem("memory").pipe_file(f"{memory}/{name}", text.encode() + b" ")
    if name == "manifest.json":
        expected = "manifest.json is not the one the store was finished with"
    else:
        expected = f"{name} is not the one the store was finished with"
    with pytest.raises(ChecksumMismatch, match=expected):
        SourceStore.open(memory, cache_dir=tmp_path)


def test_another_source_at_the_url_is_noticed(memory: str, good: Path, tmp_path: Path) -> None:
    publish_source_store(good, memory)
    before = SourceStore.open(memory, cache_dir=tmp_path / "cache")
    pickled = pickle.dumps(before)
    write_store(tmp_path / "other", scenes=5, rows=2, rows_per_shard=3, seed=9)
    publish_source_store(tmp_path / "other", memory, replace=True)
    with pytest.raises(ChecksumMismatch, match="publish the source again"):
        before.row(0)
    with pytest.raises(ChecksumMismatch, match="took its place"):
        pickle.loads(pickled)
    now = SourceStore.open(memory, cache_dir=tmp_path / "cache")
    assert now.manifest_digest != before.manifest_digest
    assert now.path != before.path
    assert_same_rows(now, SourceStore.open(tmp_path / "other"))


def test_a_local_source_that_was_replaced_is_noticed_too(good: Path, tmp_path: Path) -> None:
    store = Path(shutil.copytree(good, tmp_path / "store"))
    pickled = pickle.dumps(SourceStore.open(store))
    shutil.rmtree(store)
    write_store(store, scenes=1, rows=1)
    with pytest.raises(ChecksumMismatch, match="took its place"):
        pickle.loads(pickled)


def test_places_without_a_source_are_named(server: Server, memory: str, tmp_path: Path) -> None:
    with pytest.raises(NotASourceStore, match="check bucket and prefix"):
        SourceStore.open(memory, cache_dir=tmp_path)
    for url in ("s3://bucket/nothing", "s3://nowhere/source"):
        with pytest.raises(StorageError, match=f"{url}.*check"):
            SourceStore.open(url, cache_dir=tmp_path, storage_options=server.options)
    publish_store(write_rollout_store(tmp_path, "rollouts", 1, seed=1), memory)
    with pytest.raises(NotASourceStore, match=r"expected 'rollbook\.source_store'"):
        SourceStore.open(memory, cache_dir=tmp_path)


# ---------------------------------------------------------------------------------------- publishing


def test_a_source_is_not_replaced_unless_asked(memory: str, good: Path, tmp_path: Path) -> None:
    publish_source_store(good, memory)
    write_store(tmp_path / "small", scenes=1, rows=1)
    with pytest.raises(TargetExists, match="pass replace=True"):
        publish_source_store(tmp_path / "small", memory)
    done = publish_source_store(tmp_path / "small", memory, replace=True)
    assert done.uploaded_files == done.files == len(names_of(tmp_path / "small"))
    assert at(memory) == names_of(tmp_path / "small")


def test_files_of_others_stay(memory: str, good: Path, tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    publish_source_store(good, memory)
    files.pipe_file(f"{memory}/notes.txt", b"mine")
    with pytest.raises(StorageError, match=r"belong to no published store, 'notes\.txt'"):
        publish_source_store(good, memory, replace=True)
    assert at(memory) == {*names_of(good), "notes.txt"}
    publish_store(write_rollout_store(tmp_path, "rollouts", 1, seed=1), "memory://other/place")
    with pytest.raises(NotASourceStore, match="its schema is"):
        publish_source_store(good, "memory://other/place", replace=True)


def test_damage_is_not_published(memory: str, good: Path, tmp_path: Path) -> None:
    store = Path(shutil.copytree(good, tmp_path / "store"))
    (store / POINTS).write_bytes(flipped((store / POINTS).read_bytes()))
    with pytest.raises(ChecksumMismatch, match=POINTS):
        publish_source_store(store, memory)
    (store / POINTS).unlink()
    with pytest.raises(StorageError, match=POINTS):
        publish_source_store(store, memory)
    assert "manifest.json" not in at(memory)


def test_a_crash_at_any_moment_leaves_a_whole_source_or_none(
    memory: str, good: Path, tmp_path: Path
) -> None:
    """And publishing again finishes it, with what is there already."""
    everything = names_of(good)
    for moment in [0, 1, 2, 30, len(everything) - 1, len(everything), len(everything) + 1]:
        fsspec.filesystem("memory").store.clear()
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, moment)
            with suppress(Crash):
                publish_source_store(good, memory)
        left = at(memory)
        if "manifest.json" in left:
            assert_same_rows(
                SourceStore.open(memory, cache_dir=tmp_path / "whole"), SourceStore.open(good)
            )
            continue
        with pytest.raises(StorageError, match=r"not complete|no manifest"):
            SourceStore.open(memory, cache_dir=tmp_path / "none")
        done = publish_source_store(good, memory)
        assert done.uploaded_files == len(everything) - len(left - {SIDECAR})
        assert at(memory) == everything


FETCH = """
import sys, json
from rollbook.generate.sources.reader import SourceStore
store = SourceStore.open(sys.argv[1], cache_dir=sys.argv[2], storage_options=json.loads(sys.argv[3]))
for row in range(len(store)):
    store.row(row)
    print(row, flush=True)
"""


def test_a_killed_reader_leaves_only_whole_files_and_the_next_one_goes_on(
    server: Server, good: Path, published: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", FETCH, published, str(tmp_path), json.dumps(server.options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "0\n"
        child.kill()
    server.requests.clear()
    store = SourceStore.open(published, cache_dir=tmp_path, storage_options=server.options)
    there = {name for name in names_of(store.path) if not Path(name).name.startswith(".")}
    for name in there:
        assert (store.path / name).read_bytes() == (good / name).read_bytes()
    assert_same_rows(store, SourceStore.open(good))
    asked = {path.removeprefix("bucket/sources/good/") for _, path in server.requests}
    assert not asked & {name for name in there if name.endswith(".npy")}


# ------------------------------------------------------------------------------------------ generating


@pytest.mark.slow  # generates two stores
def test_rollouts_from_a_source_at_a_url_are_the_same_rollouts(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    publish_source_store(tiny_source(), memory)
    at_url = tiny_config(
        tmp_path / "one", source={"store_dir": memory, "split": "train"}, max_samples=1
    )
    on_disk = tiny_config(tmp_path / "two", max_samples=1)
    assert at_url.source.store_dir == memory
    assert at_url.config_hash == on_disk.config_hash
    sums = []
    for config in (at_url, on_disk):
        config.setup_target().run()
        reader = RolloutZarrStoreReader(config.store.store_dir)
        sums.append(json.loads((reader.store_dir / "manifest.json").read_bytes())["files"])
    assert sums[0] == sums[1]
    assert list((tmp_path / "cache/rollbook/sources").iterdir())


def test_a_store_cannot_be_generated_at_a_url() -> None:
    with pytest.raises(ConfigurationError, match=r"store_dir is a URL.*rollbook store publish"):
        tiny_config("s3://bucket/store")  # type: ignore[arg-type]
