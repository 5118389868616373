"""What killed workers left at a URL is removed; nothing that is finished, or that a worker could still use."""

from __future__ import annotations

from pathlib import Path

from rollbook.store.shards.build_shard import build_shard
from rollbook.store.shards.lease_record import LeaseRecord, LeaseWatch, Process, lease_name
from rollbook.store.shards.object_leftovers import ObjectLeftovers
from rollbook.store.shards.object_shards import ShardNames
from rollbook.store.urls.url_folder import UrlFolder
from tests.store.s3_server import memory
from tests.store.shards.shard_plans import SmallBuilder, empty_store, planned

__all__ = ["memory"]

FINISHED, UNFINISHED, ALIVE = (planned(number) for number in range(3))
GONE = Process(host="here", pid=2**22 - 1, started="1", machine=Process.this().machine)
ELSEWHERE = Process(host="node-7", pid=1, started="1", machine="another machine")


def left(root: str, shard_id: str, process: Process) -> None:
    """What a worker leaves that was killed while it uploaded."""
    record = LeaseRecord(shard_id=shard_id, token=4, nonce=shard_id, process=process, lease_s=60.0)
    UrlFolder(f"{root}/{shard_id}", None).write(
        {
            lease_name(shard_id, 4): record.encode(),
            "000004-0123abcd/_publishing.json": b"{}",
            "000004-0123abcd/steps/zarr.json": b"{}",
            f"_FAILED.{shard_id}.2026-1.json": b"{}",
        }
    )


def names(root: str, shard_id: str) -> ShardNames:
    return ShardNames.among(UrlFolder(f"{root}/{shard_id}", None).names(), shard_id)


def test_leftovers_at_a_url_are_shown_and_removed(memory: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    for entry, build in ((FINISHED, SmallBuilder(FINISHED)), (ALIVE, empty_store)):
        build_shard(
            entry,
            build,
            output_tmp=work / entry.shard_id,
            output_final=f"{memory}/{entry.shard_id}",
        )
    (store,) = names(memory, FINISHED.shard_id).attempts
    left(memory, FINISHED.shard_id, GONE)
    left(memory, UNFINISHED.shard_id, GONE)
    left(memory, ALIVE.shard_id, ELSEWHERE)
    for entry in (FINISHED, UNFINISHED, ALIVE):
        (work / entry.shard_id / "000004-0123abcd").mkdir(parents=True)
    plan = [FINISHED, UNFINISHED, ALIVE]
    leftovers = ObjectLeftovers(plan, final_root=memory, work_root=work, watch=LeaseWatch())
    found = leftovers.found()
    assert [(each.shard_id, each.what) for each in found] == [
        (FINISHED.shard_id, "lease"),
        (FINISHED.shard_id, "failure marker"),
        (FINISHED.shard_id, "copy"),
        (FINISHED.shard_id, "work folder"),
        (UNFINISHED.shard_id, "lease"),
    ]
    assert found[2].path == f"{memory}/{FINISHED.shard_id}/000004-0123abcd"
    assert leftovers.remove(found) == found
    assert names(memory, FINISHED.shard_id) == ShardNames(True, [], [], {store}, set())
    assert UrlFolder(f"{memory}/{FINISHED.shard_id}/{store}", None).names() >= {"zarr.json"}
    kept = names(memory, UNFINISHED.shard_id)
    assert kept.attempts == {"000004-0123abcd"}, "a worker that was paused could still use it"
    assert len(kept.failures) == 1
    assert not kept.tokens
    assert names(memory, ALIVE.shard_id).tokens == [4]
    assert sorted(each.name for each in work.iterdir()) == [UNFINISHED.shard_id, ALIVE.shard_id]
    assert leftovers.found() == []
