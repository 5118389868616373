"""Collection files over stores that are no shards of one plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.errors import IncompatibleStores, StorageError
from rollbook.store.shards.collect_stores import collect_stores
from rollbook.store.shards.collection_file import open_collection, read_collection
from tests.store.test_collection import write_store

DIGESTS = {"writer_config_hash": "1" * 64, "source_manifest_hash": "2" * 64}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("rounds"), "first", 6)


def test_stores_of_the_same_rows_are_read_as_one_in_their_order(
    first: Path, tmp_path: Path
) -> None:
    second = write_store(tmp_path, "second", 4)
    file = collect_stores(
        {"first": first, "second": second}, tmp_path / "collection.json", **DIGESTS
    )
    assert [shard.shard_id for shard in file.shards] == ["first", "second"]
    assert [shard.path for shard in file.shards] == [str(first), "second"]
    opened = open_collection(tmp_path)
    assert [store.num_rollouts for store in opened.stores] == [6, 4]
    assert opened.num_rollouts == file.totals["rollouts"] == 10
    assert opened.validate(deep=True).ok
    assert read_collection(tmp_path).file == file


def test_a_store_can_be_appended(first: Path, tmp_path: Path) -> None:
    file = tmp_path / "collection.json"
    before = collect_stores({"first": first}, file, **DIGESTS)
    second = write_store(tmp_path, "second")
    after = collect_stores({"first": first, "second": second}, file, **DIGESTS)
    assert after.shards[:1] == before.shards
    assert after.collection_sha256 != before.collection_sha256


def test_the_same_rollouts_twice_are_refused(first: Path, tmp_path: Path) -> None:
    with pytest.raises(IncompatibleStores, match="both hold the rollout"):
        collect_stores({"one": first, "again": first}, tmp_path / "collection.json", **DIGESTS)
    assert not (tmp_path / "collection.json").exists()


def test_stores_whose_rows_differ_in_meaning_are_refused(first: Path, tmp_path: Path) -> None:
    other = write_store(tmp_path, "other", features=5)
    with pytest.raises(IncompatibleStores, match="actor feature count is 2 in the first and 5"):
        collect_stores({"one": first, "other": other}, tmp_path / "collection.json", **DIGESTS)


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        collect_stores({"one": tmp_path}, tmp_path / "collection.json", **DIGESTS)
