"""A merged campaign at a URL: it is there completely or not at all, goes on after any crash, and is read as one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import fsspec
import msgspec
import pytest

from rollbook.errors import ConfigurationError, StorageError, TargetExists
from rollbook.store.collection import RolloutCollection
from rollbook.store.shards.collect_stores import collect_stores
from rollbook.store.shards.collection_file import open_collection, read_collection
from rollbook.store.shards.compact import compact_shards
from rollbook.store.shards.merge import merge_shards, shards_at
from rollbook.store.shards.publish_collection import publish_collection
from rollbook.store.urls.url_folder import UrlFolder
from tests.store.s3_server import Server, memory, server
from tests.store.shards.small_campaigns import Campaign, campaign
from tests.store.test_reader import assert_same_columns

__all__ = ["memory", "server"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """Three shards, and one without rollouts."""
    folder = tmp_path_factory.mktemp("publish") / "campaign"
    made = campaign(folder, ((0,), (1,), (2,), (3,)), empty=(1,), horizon=1).build()
    made.merge()
    return made


def at(url: str) -> set[str]:
    """The names at the top of a URL."""
    return UrlFolder(url, None).names()


COMPLETE = {"collection.json", "shard-000000", "shard-000002", "shard-000003"}


def assert_published(url: str, made: Campaign, cache: Path) -> None:
    assert at(url) == COMPLETE
    there = open_collection(url, cache_dir=cache)
    assert there.validate(deep=True).ok
    here = open_collection(made.folder)
    assert_same_columns(there.table("candidates"), here.table("candidates"))


# ---------------------------------------------------------------------------------------- publishing


@pytest.mark.slow
def test_a_published_collection_reads_as_the_campaign_does(
    server: Server, finished: Campaign, tmp_path: Path
) -> None:
    url, options = "s3://bucket/published", server.options
    seen: list[tuple[int, int]] = []
    done = publish_collection(
        finished.folder,
        url,
        storage_options=options,
        progress=lambda bytes_done, total: seen.append((bytes_done, total)),
    )
    assert (done.url, done.stores, done.uploaded_stores) == (url, 3, 3)
    assert done.collection_sha256 == finished.merge().collection_sha256
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {done.bytes}
    again = publish_collection(finished.folder, url, storage_options=options)
    assert again.uploaded_stores == 0
    del server.requests[:]
    there = open_collection(url, cache_dir=tmp_path, storage_options=options)
    assert there.num_candidates > 0
    assert [path for _, path in server.requests] == ["bucket/published/collection.json"]
    here = open_collection(finished.folder)
    for one, other in zip(there.batches(2, seed=1), here.batches(2, seed=1), strict=True):
        assert_same_columns(one, other)
    assert there.to_arrow("rollouts").equals(here.to_arrow("rollouts"))
    assert not any(path.endswith("_owner.json") for path in UrlFolder(url, options).sizes())
    compact = compact_shards(url, tmp_path / "one", cache_dir=tmp_path, storage_options=options)
    assert compact.num_candidates == here.num_candidates


def test_the_collection_file_is_the_last_one(memory: str, finished: Campaign) -> None:
    order: list[str] = []
    write = UrlFolder.write

    def noted(self: UrlFolder, contents: Mapping[str, bytes]) -> None:
        order.extend(f"{self.url}/{path}" for path in contents)
        write(self, contents)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UrlFolder, "write", noted)
        publish_collection(finished.folder, memory)
    assert order[0] == f"{memory}/_publishing.json"
    assert order[-1] == f"{memory}/collection.json"


PUBLISHER = """
import json, sys, time
from rollbook.store.shards.publish_collection import publish_collection
def progress(done, total):
    print(done, flush=True)
    time.sleep(0.1)
publish_collection(sys.argv[1], sys.argv[2], storage_options=json.loads(sys.argv[3]), progress=progress)
"""


@pytest.mark.slow
def test_a_killed_publisher_is_continued(
    server: Server, finished: Campaign, tmp_path: Path
) -> None:
    """It is killed while the second store is uploaded."""
    url, options = "s3://bucket/killed", server.options
    arguments = [str(finished.folder), url, json.dumps(options)]
    with subprocess.Popen(
        [sys.executable, "-c", PUBLISHER, *arguments], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for _ in range(9):
            assert child.stdout.readline()
        child.kill()
    assert child.returncode == -signal.SIGKILL
    with pytest.raises(StorageError):
        open_collection(url, cache_dir=tmp_path, storage_options=options)
    done = publish_collection(finished.folder, url, storage_options=options)
    assert done.uploaded_stores == 2
    there = open_collection(url, cache_dir=tmp_path, storage_options=options)
    assert there.validate(deep=True).ok


# -------------------------------------------------------------------------------------------- refusals


def test_files_of_others_are_never_touched(memory: str, finished: Campaign) -> None:
    files = fsspec.filesystem("memory")
    files.pipe_file(f"{memory}/shard-000000/notes.txt", b"mine")
    for replace in (False, True):
        with pytest.raises(StorageError, match="'shard-000000' is there, which does not belong"):
            publish_collection(finished.folder, memory, replace=replace)
    assert files.cat_file(f"{memory}/shard-000000/notes.txt") == b"mine"
    assert at(memory) == {"shard-000000"}


def test_another_collection_is_replaced_only_on_request(
    memory: str, finished: Campaign, tmp_path: Path
) -> None:
    publish_collection(finished.folder, memory)
    other = finished.copy(tmp_path / "other")
    other.records[2] = other.records[2][:2]
    other.rebuild(2).merge()
    with pytest.raises(TargetExists, match="another collection is published there"):
        publish_collection(other.folder, memory)
    done = publish_collection(other.folder, memory, replace=True)
    assert done.uploaded_stores == 1
    assert_published(memory, other, tmp_path / "cache")


def test_shards_of_a_larger_collection_are_not_left_behind(
    memory: str, finished: Campaign, tmp_path: Path
) -> None:
    publish_collection(finished.folder, memory)
    merge_shards(
        finished.entries[:3], shards_at(finished.folder / "shards"), tmp_path / "collection.json"
    )
    with pytest.raises(StorageError, match="'shard-000003' is there, which does not belong"):
        publish_collection(tmp_path, memory, replace=True)
    assert_published(memory, finished, tmp_path / "cache")


def test_a_second_publisher_of_something_else_is_noticed(memory: str, finished: Campaign) -> None:
    write = UrlFolder.write

    def interrupted(self: UrlFolder, contents: Mapping[str, bytes]) -> None:
        write(self, contents)
        if self.url.endswith("shard-000003") and "zarr.json" in contents:
            write(UrlFolder(memory, None), {"_publishing.json": b'{"collection_sha256": "other"}'})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UrlFolder, "write", interrupted)
        with pytest.raises(StorageError, match="someone else published to this URL meanwhile"):
            publish_collection(finished.folder, memory)
    assert "collection.json" not in at(memory)
    with pytest.raises(TargetExists, match="another collection was being published there"):
        publish_collection(finished.folder, memory)


def test_two_publishers_of_the_same_collection_do_not_disturb_each_other(
    memory: str, finished: Campaign, tmp_path: Path
) -> None:
    """The second one comes when the first one has uploaded half, and is done first."""
    write = UrlFolder.write
    rivals = iter([publish_collection])

    def joined(self: UrlFolder, contents: Mapping[str, bytes]) -> None:
        write(self, contents)
        if self.url.endswith("shard-000002") and "manifest.json" in contents:
            for rival in rivals:
                assert rival(finished.folder, memory).uploaded_stores == 2

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UrlFolder, "write", joined)
        publish_collection(finished.folder, memory)
    assert next(rivals, None) is None
    assert_published(memory, finished, tmp_path)


def test_a_shard_that_was_changed_since_the_merge_is_not_published(
    memory: str, finished: Campaign, tmp_path: Path
) -> None:
    other = finished.copy(tmp_path / "other")
    other.records[2] = other.records[2][:2]
    other.rebuild(2)
    with pytest.raises(StorageError, match=r"shard-000002 was changed .* merge the campaign again"):
        publish_collection(other.folder, memory)
    assert "collection.json" not in at(memory)
    other.merge()
    publish_collection(other.folder, memory, replace=True)
    assert_published(memory, other, tmp_path / "cache")


def test_a_store_that_was_lost_at_the_url_is_uploaded_again(
    memory: str, finished: Campaign, tmp_path: Path
) -> None:
    """The collection file alone does not prove that all stores are there."""
    publish_collection(finished.folder, memory)
    fsspec.filesystem("memory").rm(f"{memory}/shard-000002", recursive=True)
    assert publish_collection(finished.folder, memory).uploaded_stores == 1
    assert_published(memory, finished, tmp_path / "cache")
    assert publish_collection(finished.folder, memory).uploaded_stores == 0


@pytest.mark.parametrize(
    "name", ["../other", "a/b", "", ".", "collection.json", "_publishing.json"]
)
def test_a_name_that_cannot_be_a_folder_is_not_published(
    memory: str, finished: Campaign, tmp_path: Path, name: str
) -> None:
    """Stores that are no shards of a plan have names that somebody chose."""
    digests = {"writer_config_hash": "c" * 64, "source_manifest_hash": "5" * 64}
    collect_stores({name: finished.shards[0]}, tmp_path / "collection.json", **digests)
    with pytest.raises(ConfigurationError, match="cannot be the name of a folder"):
        publish_collection(tmp_path, memory)
    assert not at(memory)


def test_a_path_is_no_url(
    finished: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match="is not a URL"):
        publish_collection(finished.folder, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="names no place"):
        publish_collection(finished.folder, "s3://")
    with pytest.raises(
        StorageError, match="no kind of storage is known as s33; expected a URL like s3://"
    ):
        publish_collection(finished.folder, "s33://bucket/prefix")
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------- shards that are at a URL


def test_shards_at_a_url_are_merged_and_read_from_there(
    memory: str, finished: Campaign, tmp_path: Path
) -> None:
    remote = Campaign(tmp_path, finished.entries, finished.records, finished.config)
    for number in range(4):
        remote.build_shard(number, f"{memory}/{finished.entries[number].shard_id}")
    find = shards_at(memory)
    merged = merge_shards(finished.entries, find, tmp_path / "collection.json", verify=True)
    assert merged.collection_sha256 == finished.merge().collection_sha256
    assert all(str(shard.path).startswith(f"{memory}/shard-") for shard in merged.stores)
    here = open_collection(finished.folder)
    there = open_collection(tmp_path, cache_dir=tmp_path / "cache")
    assert_same_columns(there.table("candidates"), here.table("candidates"))
    fsspec.filesystem("memory").rm_file(f"{memory}/shard-000002/_SUCCESS.json")
    with pytest.raises(StorageError, match=r"1 of 4 shards are not finished: shard-000002"):
        merge_shards(finished.entries, find, tmp_path / "collection.json")
    fsspec.filesystem("memory").rm(f"{memory}/shard-000000", recursive=True)
    many = open_collection(tmp_path, cache_dir=tmp_path / "other-cache")
    assert [each.ok for each in many.validate().stores] == [False, True, True]


def test_a_reader_that_may_not_list_can_still_open_a_store(
    memory: str, finished: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 denies access to a file that does not exist, instead of saying so, to who may not list the bucket."""
    publish_collection(finished.folder, memory)
    read = UrlFolder.read_if_there

    def denied(self: UrlFolder, path: str) -> bytes | None:
        found = read(self, path)
        if found is None:
            raise StorageError(path=f"{self.url}/{path}", detail="access was denied")
        return found

    monkeypatch.setattr(UrlFolder, "read_if_there", denied)
    assert open_collection(f"{memory}/shard-000000", cache_dir=tmp_path).num_rollouts == 3
    assert open_collection(memory, cache_dir=tmp_path).num_rollouts == 9
    with pytest.raises(StorageError, match="access was denied"):
        open_collection(f"{memory}/nothing", cache_dir=tmp_path)


def test_a_published_file_is_read_by_its_own_url(memory: str, finished: Campaign) -> None:
    publish_collection(finished.folder, memory)
    found = read_collection(f"{memory}/collection.json")
    assert found.folder == memory
    assert [shard.path for shard in found.file.shards] == [
        "shard-000000",
        None,
        "shard-000002",
        "shard-000003",
    ]
    local = read_collection(finished.folder).file
    assert msgspec.structs.replace(local, shards=()) == msgspec.structs.replace(
        found.file, shards=()
    )
    assert isinstance(open_collection(memory), RolloutCollection)
