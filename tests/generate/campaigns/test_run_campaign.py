"""A campaign builds every shard once, whatever its workers and other drivers do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollbook.errors import ShardDrift, StorageError
from rollbook.generate.campaigns.run_campaign import CampaignProgress, ShardEvent, ShardWork
from rollbook.store.shards.lease_files import LeaseFolder
from rollbook.store.shards.lease_record import LeaseRecord, LeaseWatch, Process, lease_path
from rollbook.store.shards.object_shards import FinalUrl
from rollbook.store.shards.shard_lease import ShardLease
from rollbook.store.shards.sidecars import failures_of, read_failure, read_finished
from rollbook.store.urls.url_folder import ListedFile, UrlFolder
from tests.generate.campaigns.scripted_shards import attempts, plan, run
from tests.store.s3_server import memory
from tests.store.shards import planned
from tests.store.shards.shard_plans import names

__all__ = ["memory"]

SHARDS = [f"shard-{number:06d}" for number in range(9)]


def refuse_to_start() -> ShardWork:
    raise AssertionError("a worker was started")


def test_all_shards_are_built_and_a_second_run_starts_no_worker(tmp_path: Path) -> None:
    entries = plan(4)
    first = run(tmp_path, entries, workers=2)
    assert sorted(first.succeeded) == SHARDS[:4]
    assert first.complete
    assert names(tmp_path) == set(SHARDS[:4])
    assert not (tmp_path / "work").exists()
    for entry in entries:
        read_finished(tmp_path / "shards" / entry.shard_id, entry)
    again = run(tmp_path, entries, start=refuse_to_start)
    assert again.skipped == SHARDS[:4]
    assert again.complete
    assert [attempts(tmp_path, number) for number in range(4)] == [1, 1, 1, 1]


def test_a_shard_that_fails_is_tried_again_and_its_failure_is_remembered(tmp_path: Path) -> None:
    events: list[ShardEvent] = []
    ended = run(tmp_path, plan(2), {1: ["raise", "raise"]}, on_event=events.append, max_retries=2)
    assert sorted(ended.succeeded) == SHARDS[:2]
    assert ended.retries == 2
    assert [event.what for event in events if event.shard_id == SHARDS[1]] == [
        *("tried again", "tried again", "built")
    ]
    owner = read_finished(tmp_path / "shards" / SHARDS[1], plan(2)[1])
    assert [each.error_type for each in owner.failures] == ["GenerationFailed"] * 2
    assert names(tmp_path) == set(SHARDS[:2])


@pytest.mark.parametrize("action", ["raise", "damage"])
def test_a_shard_that_always_fails_costs_its_attempts_and_no_other_shard(
    tmp_path: Path, action: str
) -> None:
    ended = run(tmp_path, plan(3), {1: [action] * 9}, max_retries=1)
    assert sorted(ended.succeeded) == [SHARDS[0], SHARDS[2]]
    assert list(ended.failed) == [SHARDS[1]]
    assert not ended.complete
    assert attempts(tmp_path, 1) == 2
    assert len(failures_of(tmp_path / "shards", SHARDS[1])) == 2
    assert not (tmp_path / "shards" / SHARDS[1]).exists()
    assert run(tmp_path, plan(3)).succeeded == [SHARDS[1]]


def test_fail_fast_begins_no_shard_after_the_first_that_failed_for_good(tmp_path: Path) -> None:
    ended = run(tmp_path, plan(4), {1: ["raise"] * 9}, max_retries=0, fail_fast=True)
    assert ended.succeeded == [SHARDS[0]]
    assert list(ended.failed) == [SHARDS[1]]
    assert ended.left == SHARDS[2:4]


def test_a_source_that_changed_stops_the_run_without_retries(tmp_path: Path) -> None:
    ended = run(tmp_path, plan(3), {0: ["drift"]}, max_retries=5)
    assert list(ended.failed) == [SHARDS[0]]
    assert ended.left == SHARDS[1:3]
    assert attempts(tmp_path, 0) == 1


def test_a_plan_of_another_config_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    with pytest.raises(ShardDrift, match="planned with the config"):
        run(tmp_path, [planned.entry(0, [0, 1])])
    assert not list(tmp_path.iterdir())


def test_a_final_folder_of_something_else_is_not_touched_and_not_tried_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "shards" / SHARDS[0]).mkdir(parents=True)
    (tmp_path / "shards" / SHARDS[0] / "notes.txt").write_text("mine")
    ended = run(tmp_path, plan(2), max_retries=5)
    assert "remove the folder" in ended.failed[SHARDS[0]]
    assert ended.retries == 0
    assert ended.succeeded == [SHARDS[1]]
    assert (tmp_path / "shards" / SHARDS[0] / "notes.txt").read_text() == "mine"


def test_a_stopped_run_finishes_what_is_in_work_and_begins_nothing(tmp_path: Path) -> None:
    def stop() -> bool:
        if not attempts(tmp_path, 0):
            return False
        (tmp_path / "go").touch()
        return True

    ended = run(tmp_path, plan(3), {0: ["wait"]}, stop=stop)
    assert ended.succeeded == [SHARDS[0]]
    assert ended.left == SHARDS[1:3]
    assert run(tmp_path, plan(3)).complete


def test_a_file_server_that_does_not_answer_for_a_moment_costs_no_shard(tmp_path: Path) -> None:
    shards, away = tmp_path / "shards", tmp_path / "away"

    def update(progress: CampaignProgress) -> None:
        if attempts(tmp_path, 0) and not away.exists() and not (tmp_path / "go").exists():
            shards.rename(away)
            shards.touch()  # cannot be listed
        elif away.exists():
            shards.unlink()
            away.rename(shards)
            (tmp_path / "go").touch()

    ended = run(tmp_path, plan(2), {0: ["wait"]}, on_update=update)
    assert ended.succeeded == SHARDS[:2]
    assert ended.retries == 0


def test_an_object_store_that_cannot_be_reached_ends_a_run_before_it_begins(
    tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(self: UrlFolder) -> dict[str, ListedFile]:
        raise StorageError(path=self.url, detail="it cannot be reached")

    monkeypatch.setattr(UrlFolder, "listed", unreachable)
    with pytest.raises(StorageError, match="it cannot be reached"):
        run(tmp_path, plan(3), start=refuse_to_start, final_root=memory)


def test_an_object_store_that_is_away_for_a_moment_costs_one_attempt(
    tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the place of the shard, as the error about something else in that place does."""
    prepare = FinalUrl.prepare
    away = iter([SHARDS[0]])

    def unreachable(self: FinalUrl) -> None:
        if self.entry.shard_id == next(away, None):
            raise StorageError(path=self.place, detail="it cannot be reached")
        prepare(self)

    monkeypatch.setattr(FinalUrl, "prepare", unreachable)
    ended = run(tmp_path, plan(2), final_root=memory)
    assert sorted(ended.succeeded) == SHARDS[:2]
    assert ended.retries == 1


def test_shards_cannot_go_where_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "shards").touch()
    with pytest.raises(StorageError, match=r"cannot be read \(Not a directory\)"):
        run(tmp_path, plan(1))


# ------------------------------------------------------------------------------- other workers


def hold(root: Path) -> ShardLease:
    (root / "shards").mkdir(exist_ok=True)
    return ShardLease.acquire(
        LeaseFolder(root / "shards"),
        SHARDS[0],
        lease_s=60.0,
        take_over=False,
        watch=LeaseWatch(),
        work_root=root / "work" / SHARDS[0],
    )


def test_a_shard_that_another_worker_has_is_waited_for_and_built_when_it_is_free(
    tmp_path: Path,
) -> None:
    lease = hold(tmp_path)
    lease.__enter__()
    seen: list[CampaignProgress] = []

    def update(progress: CampaignProgress) -> None:
        if progress.shards_done == 2 and not seen:
            seen.append(progress)
            assert attempts(tmp_path, 0) == 0
            lease.__exit__(None, None, None)

    ended = run(tmp_path, plan(3), on_update=update)
    assert [each.shard_id for each in seen[0].running] == [SHARDS[0]]
    assert ended.succeeded == [SHARDS[1], SHARDS[2], SHARDS[0]]
    assert not ended.failed
    assert ended.retries == 0


def test_a_shard_that_another_worker_finishes_is_done(tmp_path: Path) -> None:
    lease = hold(tmp_path)
    lease.__enter__()

    def update(progress: CampaignProgress) -> None:
        if progress.shards_done == 1 and not (tmp_path / "shards" / SHARDS[0]).exists():
            lease.__exit__(None, None, None)
            run(tmp_path, plan(1))

    ended = run(tmp_path, plan(2), on_update=update)
    assert (ended.succeeded, ended.skipped) == ([SHARDS[1]], [SHARDS[0]])
    assert attempts(tmp_path, 0) == 1


def test_a_run_that_is_stopped_while_it_waits_says_who_has_the_shard(tmp_path: Path) -> None:
    done: list[int] = []
    with hold(tmp_path):
        ended = run(
            tmp_path,
            plan(2),
            on_update=lambda progress: done.append(progress.shards_done),
            stop=lambda: done[-1:] == [1],
        )
    assert (ended.succeeded, ended.held) == ([SHARDS[1]], [SHARDS[0]])
    assert not ended.complete


def left_lease(root: Path, process: Process, lease_s: float) -> None:
    (root / "shards").mkdir()
    record = LeaseRecord(shard_id=SHARDS[0], token=3, nonce="n", process=process, lease_s=lease_s)
    lease_path(root / "shards", SHARDS[0], 3).write_bytes(record.encode())


def test_the_shard_of_a_worker_that_was_killed_is_taken_over_at_once(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    about = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    me = Process.this()
    left_lease(
        tmp_path,
        Process(host=me.host, pid=child.pid, started=about[19], machine=me.machine),
        lease_s=10_000.0,
    )
    child.kill()
    child.wait()
    assert child.stdin is not None
    child.stdin.close()
    assert run(tmp_path, plan(1)).succeeded == [SHARDS[0]]
    assert names(tmp_path) == {SHARDS[0]}


def test_the_shard_of_a_silent_worker_elsewhere_is_taken_over_when_its_lease_is_over(
    tmp_path: Path,
) -> None:
    node = Process(host="node-7", pid=1, started="1", machine="another machine")
    left_lease(tmp_path, node, lease_s=1.5)
    held: list[int] = []
    ended = run(tmp_path, plan(1), on_update=lambda progress: held.append(len(progress.running)))
    assert ended.succeeded == [SHARDS[0]]
    assert held[0] == 1
    assert read_finished(tmp_path / "shards" / SHARDS[0], plan(1)[0]).token > 3


# ------------------------------------------------------------------------------------- progress


def test_progress_counts_finished_shards_and_the_rows_of_shards_in_work(tmp_path: Path) -> None:
    run(tmp_path, plan(1))
    seen: list[CampaignProgress] = []
    run(tmp_path, plan(4), {2: ["raise"] * 9}, on_update=seen.append, max_retries=0)
    assert (seen[0].shards, seen[0].shards_done, seen[0].rows, seen[0].rows_done) == (4, 1, 8, 2)
    assert seen[0].eta_s is None
    last = seen[-1]
    assert (last.shards_done, last.shards_failed, last.rows_done) == (3, 1, 6)
    assert last.rows_per_s is not None
    assert last.eta_s == pytest.approx(2 / last.rows_per_s)
    assert last.candidates_per_s == pytest.approx(8 / last.seconds)


# ------------------------------------------------------------------------------------ processes


def test_a_worker_that_is_killed_costs_one_attempt_and_the_driver_notes_why(
    tmp_path: Path,
) -> None:
    markers: list[Any] = []

    def tell(event: ShardEvent) -> None:
        if event.shard_id == SHARDS[0] and event.what == "tried again":
            (path,) = failures_of(tmp_path / "shards", SHARDS[0])
            markers.append(read_failure(path))

    ended = run(tmp_path, plan(3), {0: ["die"], 2: ["raise"]}, parallel="process", on_event=tell)
    assert sorted(ended.succeeded) == SHARDS[:3]
    assert ended.retries == 2
    assert attempts(tmp_path, 0) == 2
    assert markers[0].error_type == "WorkerLost"
    assert "exit status -9" in markers[0].error
    assert names(tmp_path) == set(SHARDS[:3])
    # a worker goes on with the next shard, and no shard begins in a worker in which another one failed
    pids = [
        read_finished(tmp_path / "shards" / entry.shard_id, entry).built_by.pid for entry in plan(3)
    ]
    assert pids[0] == pids[2] != pids[1]
