"""What killed workers left is found and removed; nothing that is needed, finished or alive ever is."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from rollbook.errors import GenerationFailed, StorageError
from rollbook.store.shards import leftovers
from rollbook.store.shards.entry import RolloutShardEntry
from rollbook.store.shards.lease_files import LeaseFolder
from rollbook.store.shards.lease_record import (
    LeaseRecord,
    LeaseWatch,
    Process,
    lease_path,
    read_leases,
)
from rollbook.store.shards.leftovers import Leftover, Leftovers
from rollbook.store.shards.shard_lease import ShardLease
from rollbook.store.shards.sidecars import failures_of, read_finished
from tests.store.shards.shard_plans import built, empty_store, names, planned

FINISHED, UNFINISHED = planned(0), planned(1)


def left_in(root: Path, *entries: RolloutShardEntry) -> Leftovers:
    return Leftovers(
        entries, final_root=root / "shards", work_root=root / "work", watch=LeaseWatch()
    )


def kinds(found: list[Leftover]) -> set[tuple[str, str]]:
    return {(each.shard_id, each.what) for each in found}


def killed(
    root: Path, entry: RolloutShardEntry, process: Process | None = None, *, token: int = 4
) -> None:
    """Leaves what a worker leaves that is killed at the worst moment, in every place."""
    shards = root / "shards"
    shards.mkdir(exist_ok=True)
    this = Process.this()
    gone = Process(host=this.host, pid=this.pid, started="1", machine=this.machine)
    record = LeaseRecord(
        shard_id=entry.shard_id, token=token, nonce="4" * 32, process=process or gone, lease_s=60.0
    )
    lease_path(shards, entry.shard_id, token).write_bytes(record.encode())
    (shards / f"._LEASE.{entry.shard_id}.000005.json.0123456789abcdef.tmp").touch()
    (shards / f".{entry.shard_id}.000004-01234567.incoming").mkdir()
    (shards / f"..{entry.shard_id}.000003-01234567.incoming.01234567.abandoned").mkdir()
    attempt = root / "work" / entry.shard_id / "000004-44444444"
    (attempt / ".store.rows").mkdir(parents=True)
    (attempt / ".store.rows" / "00000001.row").touch()
    (attempt.parent / ".000003-33333333.01234567.abandoned").mkdir()


def test_of_a_finished_shard_everything_but_the_shard_is_removed(tmp_path: Path) -> None:
    built(tmp_path, FINISHED, empty_store)
    killed(tmp_path, FINISHED)
    (tmp_path / "shards" / f"_FAILED.{FINISHED.shard_id}.2026-1.json").touch()
    left = left_in(tmp_path, FINISHED)
    before = sorted(tmp_path.rglob("*"))
    found = left.found()
    assert kinds(found) == {
        (FINISHED.shard_id, what)
        for what in (
            *("lease", "failure marker", "copy", "abandoned folder", "unnamed file"),
            "work folder",
        )
    }
    assert sorted(tmp_path.rglob("*")) == before
    assert left.remove(found) == found
    assert names(tmp_path) == {FINISHED.shard_id}
    assert not (tmp_path / "work").exists()
    read_finished(tmp_path / "shards" / FINISHED.shard_id, FINISHED)
    assert left.found() == []


def test_of_an_unfinished_shard_the_finished_rows_and_the_failures_stay(tmp_path: Path) -> None:
    def failing(folder: Path, progress: object) -> None:
        raise GenerationFailed(sample_index=1, sample_key="key", detail="the policy raised")

    with pytest.raises(GenerationFailed):
        built(tmp_path, UNFINISHED, failing)
    shutil.rmtree(tmp_path / "work")
    killed(tmp_path, UNFINISHED)
    left = left_in(tmp_path, UNFINISHED)
    left.remove(left.found())
    (marker,) = failures_of(tmp_path / "shards", UNFINISHED.shard_id)
    assert names(tmp_path) == {marker.name}
    kept = [each for each in (tmp_path / "work").rglob("*") if each.is_file()]
    assert [each.name for each in kept] == ["00000001.row"]
    assert built(tmp_path, UNFINISHED, empty_store, take_over=True).skipped is False


def test_nothing_of_a_worker_that_may_be_alive_is_removed(tmp_path: Path) -> None:
    elsewhere = Process(host="node-7", pid=1, started="1", machine="another machine")
    killed(tmp_path, UNFINISHED, elsewhere)
    killed(tmp_path, FINISHED, Process.this())
    assert left_in(tmp_path, FINISHED, UNFINISHED).found() == []


def test_a_shard_that_a_worker_takes_after_the_look_is_left_alone(tmp_path: Path) -> None:
    killed(tmp_path, UNFINISHED)
    left = left_in(tmp_path, UNFINISHED)
    found = left.found()
    lease = ShardLease.acquire(
        LeaseFolder(tmp_path / "shards"),
        UNFINISHED.shard_id,
        lease_s=60.0,
        take_over=True,
        watch=LeaseWatch(),
        work_root=tmp_path / "work",
    )
    with lease:
        assert left.remove(found) == []
        assert read_leases(tmp_path / "shards")[UNFINISHED.shard_id].token == lease.token


def test_a_lease_that_has_the_name_of_one_that_was_found_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens begin again when nobody has the shard, so the lease for tidying up can have a name that was found."""
    killed(tmp_path, UNFINISHED, token=1)
    left = left_in(tmp_path, UNFINISHED)
    shards, shard_id = tmp_path / "shards", UNFINISHED.shard_id
    found = left.found()
    lease_path(shards, shard_id, 1).unlink()
    held: list[bool] = []
    monkeypatch.setattr(leftovers, "abandon", lambda path: held.append(bool(read_leases(shards))))
    left.remove(found)
    assert held
    assert all(held)


def test_what_cannot_be_removed_stays_and_is_not_said_to_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the work folder of another user."""
    built(tmp_path, FINISHED, empty_store)
    killed(tmp_path, FINISHED)
    left = left_in(tmp_path, FINISHED)
    found = left.found()
    rename = os.rename

    def forbidden(source: Path, target: Path) -> None:
        if source == tmp_path / "work" / FINISHED.shard_id:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(source))
        rename(source, target)

    monkeypatch.setattr(os, "rename", forbidden)
    removed = left.remove(found)
    assert kinds(found) - kinds(removed) == {(FINISHED.shard_id, "work folder")}
    assert names(tmp_path) == {FINISHED.shard_id}
    assert (tmp_path / "work" / FINISHED.shard_id).is_dir()


def test_a_folder_of_finished_shards_is_never_taken_for_the_folder_of_work(tmp_path: Path) -> None:
    built(tmp_path, FINISHED, empty_store)
    (tmp_path / "alias").symlink_to(tmp_path / "shards")
    with pytest.raises(StorageError, match="must not contain each other"):
        Leftovers(
            [FINISHED],
            final_root=tmp_path / "shards",
            work_root=tmp_path / "alias",
            watch=LeaseWatch(),
        )


def test_files_of_others_and_folders_that_are_missing_are_no_leftovers(tmp_path: Path) -> None:
    assert left_in(tmp_path, FINISHED).found() == []
    (tmp_path / "work" / "mine").mkdir(parents=True)
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "notes.txt").touch()
    (tmp_path / "shards" / "_LEASE.shard-000009.000001.json").touch()  # a shard of another plan
    left = left_in(tmp_path, FINISHED)
    assert left.remove(left.found()) == []
    assert (tmp_path / "work" / "mine").is_dir()
    assert len(names(tmp_path)) == 2
