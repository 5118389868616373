"""The status of a campaign says about every shard what is true, from its names and small files alone."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rollbook.errors import GenerationFailed, MalformedJson, StorageError
from rollbook.store.checks.validate import validate_rollout_zarr_store
from rollbook.store.shards import campaign_status
from rollbook.store.shards.build_shard import BuiltStore
from rollbook.store.shards.campaign_status import CampaignWatch, summarize_rollout_shard_campaign
from rollbook.store.shards.lease_files import LeaseFolder
from rollbook.store.shards.lease_record import (
    LeaseRecord,
    LeaseWatch,
    lease_files,
    lease_path,
    read_lease,
)
from rollbook.store.shards.planned_shard import read_planned_shards
from rollbook.store.shards.shard_lease import ShardLease
from rollbook.store.shards.shard_manifest import write_rollout_shard_manifest
from rollbook.store.shards.shard_status import (
    STATES,
    BuiltShard,
    RolloutShardCampaignStatus,
    RolloutShardStatus,
    ShardWorker,
)
from rollbook.store.shards.sidecars import ShardCounts, failure_name, read_finished
from tests.store.shards.shard_plans import SmallBuilder, built, planned, unreadable

PLAN = [planned(number) for number in range(5)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign whose first shard is finished. Tests work on copies."""
    root = tmp_path_factory.mktemp("campaign")
    write_rollout_shard_manifest(root / "shards.jsonl", PLAN)
    built(root, PLAN[0])
    return root


@pytest.fixture
def root(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "campaign")


def status(root: Path) -> RolloutShardCampaignStatus:
    return summarize_rollout_shard_campaign(
        root / "shards.jsonl", final_root=root / "shards", work_root=root / "work"
    )


def watch_of(root: Path) -> CampaignWatch:
    manifest = root / "shards.jsonl"
    planned = read_planned_shards(manifest)
    return CampaignWatch(manifest, planned, final_root=root / "shards", work_root=root / "work")


def shard(root: Path, number: int) -> RolloutShardStatus:
    return status(root).shards[number]


def leased(root: Path, number: int, **options: Any) -> ShardLease:
    entry = PLAN[number]
    return ShardLease.acquire(
        LeaseFolder(root / "shards"),
        entry.shard_id,
        lease_s=options.pop("lease_s", 60.0),
        take_over=False,
        watch=LeaseWatch(),
        rows_total=len(entry.rows),
        work_root=root / "work" / entry.shard_id,
    )


def in_a_killed_process(run: Callable[[], object]) -> None:
    pid = os.fork()
    if not pid:
        try:
            run()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def fails(row: int) -> None:
    raise GenerationFailed(sample_index=7, sample_key="flat-3", detail="the policy raised")


def failed_attempt(root: Path, number: int, **options: Any) -> None:
    with pytest.raises(GenerationFailed):
        built(root, PLAN[number], SmallBuilder(PLAN[number], before_row=fails), **options)


def edit_lease(root: Path, number: int, **changes: Any) -> Path:
    shard_id = PLAN[number].shard_id
    ((_, token),) = [each for each in lease_files(root / "shards") if each[0] == shard_id]
    record = read_lease(root / "shards", shard_id, token)
    assert record is not None
    path = lease_path(root / "shards", shard_id, token)
    path.write_bytes(msgspec.structs.replace(record, **changes).encode())
    return path


# ------------------------------------------------------------------------------------------- states


def test_every_state_is_told_with_what_is_known_about_it(root: Path) -> None:
    failed_attempt(root, 2)
    in_a_killed_process(lambda: leased(root, 3).__enter__())
    with leased(root, 1) as lease:
        lease.progress(1)
        lease._beat()
        found = status(root)
    assert [each.status for each in found.shards] == [
        "succeeded",
        "running",
        "failed",
        "incomplete",
        "missing",
    ]
    assert found.counts == dict.fromkeys(STATES, 1)
    succeeded, running, failed, incomplete, missing = found.shards
    assert succeeded.built is not None
    assert succeeded.built.counts == ShardCounts(rollouts=1, steps=1, candidates=4)
    assert succeeded.success_path.is_file()
    assert succeeded.owner_path.is_file()
    assert running.worker is not None
    assert (running.worker.pid, running.rows_done, running.worker.rows_total) == (os.getpid(), 1, 2)
    assert running.worker.silent_s < 60
    (error,) = failed.errors
    assert f"GenerationFailed on {failed.failures[0].host} at" in error
    assert "'flat-3' (index 7): the policy raised" in error
    assert [each.sample_index for each in failed.failures] == [7]
    assert failed.failed_markers[0].is_file()
    (error,) = incomplete.errors
    assert "has ended; `rollbook campaign run` goes on with it" in error
    assert missing.errors == ()
    assert (found.rows, found.rows_done) == (10, 3)
    assert not found.is_complete
    assert [each.status for each in found.problems()] == ["failed", "incomplete", "missing"]
    assert found.skipped_reasons == {"no_target": 1}
    assert found.totals.candidates == 4


def test_a_status_is_plain_json_with_every_state_counted(root: Path) -> None:
    document = json.loads(json.dumps(status(root).to_jsonable()))
    assert document["counts"] == {
        "succeeded": 1,
        "failed": 0,
        "incomplete": 0,
        "missing": 4,
        "running": 0,
    }
    assert document["num_shards"] == 5
    assert document["shards"][0]["built"]["counts"]["candidates"] == 4
    assert document["shards"][4]["status"] == "missing"


def test_a_campaign_that_nobody_has_begun_is_missing_and_one_without_shards_is_complete(
    tmp_path: Path,
) -> None:
    write_rollout_shard_manifest(tmp_path / "shards.jsonl", PLAN)
    assert status(tmp_path).counts["missing"] == 5
    assert not (tmp_path / "shards").exists()
    (tmp_path / "shards.jsonl").write_bytes(b"")
    empty = status(tmp_path)
    assert empty.is_complete
    assert empty.counts == dict.fromkeys(STATES, 0)
    assert empty.pace.eta_s is None


def test_a_shard_without_rollouts_has_succeeded_and_is_counted_as_empty(root: Path) -> None:
    built(
        root, PLAN[1], lambda folder, progress: BuiltStore(None, {"skipped_reasons": {"dark": 2}})
    )
    found = status(root)
    assert found.counts["succeeded"] == 2
    assert found.totals.empty_shards == 1
    assert found.skipped_reasons == {"dark": 2, "no_target": 1}


def test_other_files_are_no_shards_and_a_shard_of_another_plan_is_named(root: Path) -> None:
    shards = root / "shards"
    for name in ("notes.txt", "shard-1", "_FAILED.txt", "_LEASE.shard-000001.json", ".x.tmp"):
        (shards / name).write_text("{}")
    (shards / "shard-000099").mkdir()
    found = status(root)
    assert found.counts["missing"] == 4
    assert found.unplanned == ("shard-000099",)


# ------------------------------------------------------------------------- files that are not as written


def edited(name: str, **changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        value = json.loads((folder / name).read_bytes())
        (folder / name).write_text(json.dumps(value | changes))

    return edit


def folder_instead(name: str) -> Callable[[Path], None]:
    def replace(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return replace


def file_instead(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("mine")


def empty_instead(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (edited("_owner.json", split_manifest_hash="other"), "split_manifest_hash other"),
    (edited("_owner.json", seconds=0.5), "belongs to the owner file"),
    (edited("_SUCCESS.json", owner_sha256="0"), "belongs to the owner file"),
    (edited("manifest.json", store_kind="x"), "manifest.json is not the one"),
    (lambda folder: (folder / "_SUCCESS.json").unlink(), "there is no _SUCCESS.json"),
    (lambda folder: (folder / "_owner.json").unlink(), "there is no _owner.json"),
    (lambda folder: (folder / "manifest.json").unlink(), "there is no manifest.json"),
    (lambda folder: (folder / "_owner.json").write_bytes(b"{"), "_owner.json cannot be read"),
    (lambda folder: (folder / "_owner.json").write_bytes(b'{"shard_id": "\xff"}'), "'utf-8'"),
    (lambda folder: (folder / "_owner.json").write_bytes(b'{"x": ' + b"[" * 9999), "recursion"),
    (folder_instead("_SUCCESS.json"), "_SUCCESS.json cannot be read (Is a directory)"),
    (folder_instead("manifest.json"), "manifest.json cannot be read (Is a directory)"),
    (file_instead, "_SUCCESS.json cannot be read (Not a directory)"),
    (empty_instead, "there is no _SUCCESS.json"),
]


def test_a_final_folder_that_is_not_as_it_was_finished_is_incomplete(root: Path) -> None:
    final = root / "shards" / PLAN[0].shard_id
    for each in final.iterdir():  # no array is read
        if each.is_dir():
            shutil.rmtree(each)
    kept = shutil.copytree(final, root / "kept")
    watch = watch_of(root)
    for damage, says in DAMAGE:
        assert watch.look().shards[0].status == "succeeded"
        damage(final)
        for found in (shard(root, 0), watch.look().shards[0]):
            assert found.status == "incomplete", says
            assert says in found.errors[0]
            assert "`rollbook campaign run`" in found.errors[0]
            assert found.built is None
        shutil.rmtree(final) if final.is_dir() else final.unlink()
        assert watch.look().shards[0].status == "missing"
        shutil.copytree(kept, final)


def test_of_a_shard_that_cannot_be_read_here_nothing_is_known(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody should remove it for that."""
    with monkeypatch.context() as patch:
        unreadable(patch, "_SUCCESS.json")
        found = shard(root, 0)
    assert found.status == "incomplete"
    (told,) = found.errors
    assert told == (
        "_SUCCESS.json: it cannot be read (Stale file handle), so nobody can say whether the shard is finished"
    )
    assert shard(root, 0).status == "succeeded"


def test_a_watch_reads_only_finished_shards_that_have_changed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []

    def counted(folder: Path, planned: Any) -> Any:
        reads.append(folder)
        return read_finished(folder, planned)

    monkeypatch.setattr(campaign_status, "read_finished", counted)
    watch = watch_of(root)
    assert watch.look() == watch.look()
    assert len(reads) == 1
    owner = root / "shards" / PLAN[0].shard_id / "_owner.json"
    os.utime(owner, ns=(0, owner.stat().st_mtime_ns + 1))
    watch.look()
    assert len(reads) == 2


def test_threads_find_the_same(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for entry in PLAN[1:4]:
        built(root, entry, lambda folder, progress: BuiltStore(None))
    (root / "shards" / PLAN[2].shard_id / "_owner.json").unlink()
    found = status(root)
    assert found.counts["succeeded"] == 3
    monkeypatch.setattr(campaign_status, "_AT_ONCE", 1)
    monkeypatch.setattr(campaign_status, "_SLOW_S", 0.0)
    assert status(root) == found


def test_leases_and_markers_that_cannot_be_read_hide_nothing(root: Path) -> None:
    shards = root / "shards"
    (shards / f"_LEASE.{PLAN[1].shard_id}.000001.json").write_text("{")
    (shards / f"_LEASE.{PLAN[2].shard_id}.000001.json").mkdir()
    (shards / f"_FAILED.{PLAN[3].shard_id}.2026-1.json").mkdir()
    (shards / f"_LEASE.{PLAN[4].shard_id}.000001.json").write_bytes(b'{"nonce": "\xff"}')
    (shards / f"_FAILED.{PLAN[4].shard_id}.2026-1.json").write_bytes(b'{"error": "\xff"}')
    found = status(root)
    assert [each.status for each in found.shards[1:]] == ["running", "running", "failed", "running"]
    assert found.shards[1].worker is not None
    assert found.shards[1].worker.host == "unknown"
    assert "2026-1.json cannot be read" in found.shards[3].errors[0]


def test_a_plan_or_a_folder_that_cannot_be_read_is_an_error_with_its_place(root: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        summarize_rollout_shard_campaign(root / "lost.jsonl", final_root=root / "shards")
    with pytest.raises(StorageError, match="Not a directory"):
        summarize_rollout_shard_campaign(root / "shards.jsonl", final_root=root / "shards.jsonl")
    lines = (root / "shards.jsonl").read_text().splitlines()
    (root / "shards.jsonl").write_text("\n".join([*lines[:2], "{", *lines[2:]]))
    with pytest.raises(MalformedJson, match="line 3"):
        status(root)
    (root / "shards.jsonl").write_text("\n".join([*lines, lines[0]]))
    with pytest.raises(ValueError, match="shard-000000 twice"):
        status(root)
    outside = lines[0].replace('"shard_id": "', '"shard_id": "../shards/')
    (root / "shards.jsonl").write_text(outside)
    with pytest.raises(ValueError, match=r"\.\./shards/shard-000000"):
        status(root)


# ------------------------------------------------------------------------------------------ workers


def test_a_worker_on_another_machine_is_silent_when_its_heartbeat_is_older_than_its_lease(
    root: Path,
) -> None:
    with leased(root, 1) as lease:
        elsewhere = msgspec.structs.replace(
            lease._record.process, machine="another", host="node-7", pid=12
        )
        path = edit_lease(root, 1, process=elsewhere)
        assert shard(root, 1).status == "running"
        os.utime(path, (time.time(), time.time() - 300))
        found = shard(root, 1)
        assert found.status == "incomplete"
        assert "process 12 on node-7" in found.errors[0]
        assert "silent for 30" in found.errors[0]
        # the clock of the file server was set back
        os.utime(path, (time.time(), time.time() + 3600))
        found = shard(root, 1)
        assert found.status == "running"
        assert found.worker is not None
        assert found.worker.silent_s == 0


def test_a_watch_finds_a_silent_worker_although_the_clock_was_set_back(root: Path) -> None:
    with leased(root, 1) as lease:
        elsewhere = msgspec.structs.replace(lease._record.process, machine="another")
        path = edit_lease(root, 1, process=elsewhere, lease_s=0.1)
        os.utime(path, (time.time(), time.time() + 3600))
        watch = watch_of(root)
        assert watch.look().shards[1].status == "running"
        while watch.look().shards[1].status == "running":
            time.sleep(0.01)
        found = watch.look().shards[1]
        assert found.status == "incomplete"
        assert "silent for longer than its lease of 0.1 s" in found.errors[0]


def test_a_copy_that_a_killed_worker_left_beside_the_final_folder_is_incomplete(root: Path) -> None:
    (root / "shards" / ".shard-000001.000001-01234567.incoming").mkdir()
    assert status(root).shards[1].status == "incomplete"


def test_a_worker_that_was_killed_between_rename_and_success_file_leaves_an_incomplete_shard(
    root: Path,
) -> None:
    final = root / "shards" / PLAN[0].shard_id
    (final / "_SUCCESS.json").unlink()
    with leased(root, 0):
        assert shard(root, 0).status == "running"
    found = shard(root, 0)
    assert found.status == "incomplete"
    assert "`rollbook campaign run` checks it and finishes it" in found.errors[0]
    built(root, PLAN[0], take_over=True)
    assert shard(root, 0).status == "succeeded"


def test_a_lease_that_stayed_behind_does_not_hide_a_finished_shard(root: Path) -> None:
    in_a_killed_process(lambda: leased(root, 0).__enter__())
    assert list(lease_files(root / "shards"))
    assert shard(root, 0).status == "succeeded"


def test_work_of_an_attempt_that_was_stopped_is_incomplete(root: Path) -> None:
    def stopped(row: int) -> None:
        raise KeyboardInterrupt

    (root / "work" / PLAN[2].shard_id).mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt):
        built(root, PLAN[1], SmallBuilder(PLAN[1], before_row=stopped))
    found = status(root)
    assert [each.status for each in found.shards[1:3]] == ["incomplete", "missing"]
    assert "stopped before its end" in found.shards[1].errors[0]


def test_the_newest_of_a_failure_and_a_killed_worker_is_told(root: Path) -> None:
    failed_attempt(root, 1)
    failed_attempt(root, 1, take_over=True)
    assert len(shard(root, 1).failures) == 2
    in_a_killed_process(lambda: leased(root, 1).__enter__())
    assert shard(root, 1).status == "incomplete"
    # whoever started the killed worker notes its end
    marker = shard(root, 1).failed_markers[-1]
    os.utime(marker, (time.time(), time.time() + 10))
    assert shard(root, 1).status == "failed"
    with pytest.raises(KeyboardInterrupt):
        built(root, PLAN[1], SmallBuilder(PLAN[1], before_row=interrupted), take_over=True)
    built(root, PLAN[1], take_over=True)
    found = shard(root, 1)
    assert found.status == "succeeded"
    assert len(found.failures) == 2
    assert found.failed_markers == ()


def interrupted(row: int) -> None:
    raise KeyboardInterrupt


def test_a_shard_that_is_finished_during_the_look_is_not_called_incomplete(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker ends exactly when its lease is read."""
    lease = leased(root, 1).__enter__()

    def finished_meanwhile(folder: Path, shard_id: str, token: int) -> LeaseRecord | None:
        monkeypatch.setattr(campaign_status, "read_lease", read_lease)
        lease.__exit__(None, None, None)
        built(root, PLAN[1])
        return read_lease(folder, shard_id, token)

    monkeypatch.setattr(campaign_status, "read_lease", finished_meanwhile)
    assert shard(root, 1).status == "succeeded"


def test_a_success_file_that_is_written_during_the_look_counts(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker writes its last file after the folder was read, and is killed before it removes its lease."""
    success = root / "shards" / PLAN[0].shard_id / "_SUCCESS.json"
    content = success.read_bytes()
    success.unlink()
    in_a_killed_process(lambda: leased(root, 0).__enter__())

    def written_meanwhile(folder: Path, shard_id: str, token: int) -> LeaseRecord | None:
        success.write_bytes(content)
        return read_lease(folder, shard_id, token)

    monkeypatch.setattr(campaign_status, "read_lease", written_meanwhile)
    assert shard(root, 0).status == "succeeded"


# --------------------------------------------------------------------------------------------- pace


def built_shard(number: int, seconds: float, **changes: Any) -> RolloutShardStatus:
    facts: dict[str, Any] = {
        "counts": ShardCounts(rollouts=1, steps=1, candidates=40),
        "bytes": 10,
        "seconds": seconds,
        "first_attempt": True,
        "built_at": f"2026-11-16T{number // 60:02d}:{number % 60:02d}:00Z",
        "host": "node-1",
        "skipped_reasons": {},
    }
    return RolloutShardStatus(
        shard_id=f"shard-{number:06d}",
        split="train",
        place=f"shards/shard-{number:06d}",
        status="succeeded",
        num_source_rows=4,
        built=BuiltShard(**(facts | changes)),
    )


def running_shard(number: int, rows_done: int, seconds: int) -> RolloutShardStatus:
    worker = ShardWorker(
        host="node-1",
        pid=1,
        role="building",
        rows_done=rows_done,
        rows_total=4,
        started_at="2026-11-16T06:00:00Z",
        beat_at=f"2026-11-16T06:00:{seconds:02d}Z",
        silent_s=1.0,
    )
    return msgspec.structs.replace(
        built_shard(number, 1.0), status="running", built=None, worker=worker
    )


def campaign(*shards: RolloutShardStatus) -> RolloutShardCampaignStatus:
    return RolloutShardCampaignStatus(
        manifest_path=Path("shards.jsonl"), final_root=Path("shards"), shards=shards
    )


def test_the_pace_is_that_of_the_shards_finished_last_times_the_workers() -> None:
    old = [built_shard(number, 100.0) for number in range(50)]
    recent = [built_shard(number, 2.0) for number in range(100, 200)]
    resumed = built_shard(300, 0.001, first_attempt=False)
    pace = campaign(*old, *recent, resumed, running_shard(301, 2, 9), running_shard(302, 0, 9)).pace
    assert pace.workers == 2
    assert pace.rows_per_s_per_worker == pytest.approx(2.0)
    assert pace.rows_per_s == pytest.approx(4.0)
    assert pace.candidates_per_s == pytest.approx(40.0)
    assert pace.eta_s == pytest.approx(6 / 4)


def test_before_the_first_shard_is_finished_the_pace_is_that_of_the_rows() -> None:
    assert campaign(running_shard(0, 2, 8), running_shard(1, 1, 4)).pace.eta_s == pytest.approx(10)
    nothing = campaign(running_shard(0, 0, 0)).pace
    assert (nothing.rows_per_s, nothing.eta_s) == (None, None)


def test_without_workers_there_is_a_pace_of_one_worker_and_no_time_left() -> None:
    pace = campaign(built_shard(0, 2.0)).pace
    assert pace.rows_per_s_per_worker == pytest.approx(2.0)
    assert (pace.workers, pace.rows_per_s, pace.eta_s) == (0, None, None)


# ------------------------------------------------------------------------------------------- killed


@pytest.mark.slow  # processes that are killed at random
def test_a_status_taken_while_workers_are_killed_tells_only_what_is_true(tmp_path: Path) -> None:
    plan = [planned(number, 3) for number in range(3)]
    write_rollout_shard_manifest(tmp_path / "shards.jsonl", plan)
    watch = watch_of(tmp_path)
    chance = random.Random(3)
    started: set[int] = set()
    begun: set[str] = set()
    succeeded: set[str] = set()
    seen: set[str] = set()

    def check(alive: set[int]) -> None:
        begun_before = set(begun)
        for found in (watch.look(), status(tmp_path)):
            for each in found.shards:
                seen.add(each.status)
                if each.status == "succeeded":
                    succeeded.add(each.shard_id)
                assert (each.status == "succeeded") == (each.shard_id in succeeded), each
                if each.status == "running":
                    assert each.worker is not None
                    assert each.worker.pid in started
                    if not alive:
                        raise AssertionError("nobody is alive")
                if each.status == "missing":
                    assert each.shard_id not in begun_before, each
                assert each.status != "failed"
                for error in each.errors:
                    assert "look at it" not in error
        begun.update(each.shard_id for each in found.shards if each.status != "missing")

    longest = 0.3  # grows, so that also a machine with other work gets there
    while len(succeeded) < len(plan):
        longest *= 1.2
        pids = [
            worker(
                lambda entry=entry: built(  # type: ignore[misc]
                    tmp_path,
                    entry,
                    SmallBuilder(entry, seconds_per_row=0.03),
                    take_over=True,
                )
            )
            for entry in plan
        ]
        started |= {*pids}
        until = time.monotonic() + chance.uniform(0.0, longest)
        while time.monotonic() < until:
            check({*pids})
            time.sleep(0.01)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        check(set())
    assert {"running", "succeeded"} < seen
    assert status(tmp_path).is_complete
    for each in status(tmp_path).shards:
        assert validate_rollout_zarr_store(each.final_dir, deep=True).ok


def worker(run: Callable[[], object]) -> int:
    pid = os.fork()
    if not pid:
        try:
            run()
        finally:
            os._exit(0)
    return pid


def test_failures_of_one_second_are_listed_in_their_order() -> None:
    made = []
    for _ in range(20):
        made.append(failure_name("shard-000001"))
        time.sleep(1e-5)
    assert made == sorted(made)
