"""The status of shards at a URL says what is true of every one of them, and asks little of the object store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import pytest

from rollbook.errors import ConfigurationError, GenerationFailed, StorageError
from rollbook.store.shards.build_shard import BuiltStore, build_shard
from rollbook.store.shards.campaign_status import CampaignWatch, summarize_rollout_shard_campaign
from rollbook.store.shards.lease_record import LeaseRecord, Process, lease_name
from rollbook.store.shards.planned_shard import read_planned_shards
from rollbook.store.shards.shard_manifest import write_rollout_shard_manifest
from rollbook.store.shards.shard_status import RolloutShardCampaignStatus
from rollbook.store.urls.url_folder import UrlFolder
from tests.store.s3_server import Server, away, memory, server
from tests.store.shards.shard_plans import planned

__all__ = ["memory", "server"]

PLAN = [planned(number) for number in range(6)]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    write_rollout_shard_manifest(tmp_path / "shards.jsonl", PLAN)
    return tmp_path / "shards.jsonl"


def nothing(folder: Path, progress: Callable[[int], None]) -> BuiltStore:
    progress(1)
    return BuiltStore(None, {"skipped_reasons": {"no_target": 2}})


def fails(folder: Path, progress: Callable[[int], None]) -> BuiltStore:
    raise GenerationFailed(sample_index=7, sample_key="flat-3", detail="the policy raised")


def built(root: str, plan: Path, number: int, build: Any = nothing, **options: Any) -> None:
    entry = PLAN[number]
    with suppress(GenerationFailed):
        build_shard(
            entry,
            build,
            output_tmp=plan.parent / "work" / entry.shard_id,
            output_final=f"{root}/{entry.shard_id}",
            **options,
        )


def left_lease(root: str, number: int, process: Process, **changes: Any) -> str:
    """A lease object that somebody else has; returns its URL."""
    shard_id = PLAN[number].shard_id
    record = LeaseRecord(
        shard_id=shard_id, token=1, nonce=shard_id, process=process, lease_s=60.0, **changes
    )
    UrlFolder(f"{root}/{shard_id}", None).write({lease_name(shard_id, 1): record.encode()})
    return f"{root}/{shard_id}/{lease_name(shard_id, 1)}"


ELSEWHERE = Process(host="node-7", pid=1, started="1", machine="another machine")


def status(root: str, plan: Path) -> RolloutShardCampaignStatus:
    return summarize_rollout_shard_campaign(plan, final_root=root, work_root=plan.parent / "work")


def age(url: str, seconds: float) -> None:
    """The object was written so long ago."""
    files = fsspec.filesystem("memory")
    written = datetime.now(UTC).timestamp() - seconds
    files.store[files._strip_protocol(url)].created = datetime.fromtimestamp(written, UTC)


def test_every_state_of_a_shard_is_told(memory: str, plan: Path) -> None:
    built(memory, plan, 0)
    left_lease(memory, 1, ELSEWHERE, rows_done=1)
    built(memory, plan, 2, fails)
    age(left_lease(memory, 3, ELSEWHERE), 3600)
    built(memory, plan, 5)
    success = f"{memory}/shard-000005/_SUCCESS.json"
    fsspec.filesystem("memory").pipe_file(success, b"{}")
    UrlFolder(f"{memory}/shard-000099", None).write({"_SUCCESS.json": b"{}"})
    found = status(memory, plan)
    states = [each.status for each in found.shards]
    assert states == ["succeeded", "running", "failed", "incomplete", "missing", "incomplete"]
    finished, running, failed, left, missing, edited = found.shards
    assert finished.built is not None
    assert found.skipped_reasons == {"no_target": 2}
    assert running.worker is not None
    assert (running.worker.host, running.worker.rows_done) == ("node-7", 1)
    assert running.worker.silent_s < 60
    assert "the policy raised" in failed.errors[0]
    assert failed.marker_places[0].startswith(f"{memory}/shard-000002/_FAILED.")
    assert "has been silent for 3600 s" in left.errors[0]
    assert not missing.errors
    assert "_SUCCESS.json cannot be read" in edited.errors[0]
    assert "remove what is below this URL" in edited.errors[0]
    assert found.unplanned == ("shard-000099",)


def test_files_of_something_else_at_the_place_of_a_shard_are_told(memory: str, plan: Path) -> None:
    """No worker begins such a shard, so it is not just missing."""
    UrlFolder(f"{memory}/shard-000001", None).write({"notes.txt": b"mine"})
    with pytest.raises(StorageError, match="belong to no shard") as refused:
        built(memory, plan, 1)
    (told,) = [each for each in status(memory, plan).shards if each.status != "missing"]
    assert (told.shard_id, told.status) == ("shard-000001", "incomplete")
    assert "'notes.txt'" in told.errors[0]
    assert "'notes.txt'" in str(refused.value)


def test_nothing_is_told_while_the_object_store_is_away(
    memory: str, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(memory, plan, 0)
    with monkeypatch.context() as patch:
        away(patch)
        with pytest.raises(StorageError, match="it cannot be reached") as error:
            status(memory, plan)
    assert "remove" not in str(error.value)
    assert status(memory, plan).shards[0].status == "succeeded"


def test_what_is_told_as_json_has_urls_and_folders_are_refused(memory: str, plan: Path) -> None:
    built(memory, plan, 2, fails)
    found = status(memory, plan)
    plain = json.loads(json.dumps(found.to_jsonable()))
    assert plain["final_root"] == memory
    assert plain["shards"][2]["final_dir"] == f"{memory}/shard-000002"
    assert plain["shards"][2]["failed_markers"] == list(found.shards[2].marker_places)
    for ask in ("final_dir", "success_path", "owner_path", "failed_markers"):
        with pytest.raises(ConfigurationError, match="is a URL: it has no folder"):
            getattr(found.shards[2], ask)


def test_a_worker_that_has_ended_on_this_machine_is_known_at_once(memory: str, plan: Path) -> None:
    gone = Process(host="here", pid=2**22 - 1, started="1", machine=Process.this().machine)
    left_lease(memory, 0, gone)
    shard = status(memory, plan).shards[0]
    assert shard.status == "incomplete"
    assert "has ended; `rollbook campaign run` goes on with it" in shard.errors[0]


def test_a_shard_that_is_finished_while_it_is_looked_at_has_succeeded(
    memory: str, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_lease(memory, 0, ELSEWHERE)
    read = UrlFolder.read_if_there
    done: list[str] = []

    def finished_meanwhile(self: UrlFolder, path: str) -> bytes | None:
        if path.startswith("_LEASE") and not done:
            done.append(path)
            self.remove([path])
            built(memory, plan, 0)
        return read(self, path)

    monkeypatch.setattr(UrlFolder, "read_if_there", finished_meanwhile)
    assert status(memory, plan).shards[0].status == "succeeded"
    assert done


@pytest.fixture
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    yield "s3://bucket/campaign"
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def test_a_watch_reads_a_finished_shard_once_and_a_changed_one_again(
    server: Server, bucket: str, plan: Path
) -> None:
    built(bucket, plan, 0)
    built(bucket, plan, 1, fails)
    left_lease(bucket, 2, ELSEWHERE)
    watch = CampaignWatch(plan, read_planned_shards(plan), final_root=bucket)

    def states() -> list[str]:
        return [each.status for each in watch.look().shards]

    expected = ["succeeded", "failed", "running", "missing", "missing", "missing"]
    assert states() == expected
    server.requests.clear()
    assert states() == expected
    assert "bucket/campaign/shard-000000/_SUCCESS.json" not in {path for _, path in server.requests}
    assert not [path for method, path in server.requests if method != "GET"]
    success = f"{bucket}/shard-000000/_SUCCESS.json"
    server.files.pipe_file(success, server.files.cat_file(success).replace(b"a", b"b"))
    assert states() == ["incomplete", *expected[1:]]
