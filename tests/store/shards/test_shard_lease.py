"""A lease: one holder at a time, taken over only from the dead, and nobody can promote who has lost it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rollbook.errors import LeaseHeld, LeaseLost, UnfinishedRun
from rollbook.store.shards.lease_files import LeaseFolder
from rollbook.store.shards.lease_record import (
    LeaseRecord,
    LeaseWatch,
    Process,
    lease_files,
    lease_path,
    read_lease,
    read_leases,
)
from rollbook.store.shards.shard_lease import ShardLease

SHARD = "shard-000007"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def taken(folder: Path, *, take_over: bool = True, watch: LeaseWatch | None = None) -> ShardLease:
    return ShardLease.acquire(
        LeaseFolder(folder),
        SHARD,
        lease_s=60.0,
        take_over=take_over,
        watch=watch or LeaseWatch(),
        work_root=folder / "work",
    )


def left_behind(folder: Path, process: Process, token: int = 1) -> LeaseRecord:
    record = LeaseRecord(shard_id=SHARD, token=token, nonce="n", process=process, lease_s=60.0)
    lease_path(folder, SHARD, token).write_bytes(record.encode())
    return record


def another_machine() -> Process:
    return Process(host="node-7", pid=1, started="1", machine="another machine")


def ended_process() -> Process:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    this = Process.this()
    return msgspec.structs.replace(this, pid=child.pid)


def test_a_lease_is_held_until_its_block_ends_and_leaves_no_file(tmp_path: Path) -> None:
    with taken(tmp_path) as lease:
        with pytest.raises(LeaseHeld, match=f"process {os.getpid()} on "):
            taken(tmp_path)
        assert lease.token == 1
        lease.check()
    assert not list(tmp_path.iterdir())
    with taken(tmp_path) as lease:
        assert lease.token == 1


def test_a_process_that_has_ended_on_this_machine_holds_nothing(tmp_path: Path) -> None:
    left_behind(tmp_path, ended_process())
    with pytest.raises(UnfinishedRun, match="--take-over"):
        taken(tmp_path, take_over=False)
    with taken(tmp_path) as lease:
        assert lease.token == 2
        assert [*lease_files(tmp_path)] == [(SHARD, 2)]


def test_a_process_id_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    left_behind(tmp_path, msgspec.structs.replace(Process.this(), started="1"))
    with taken(tmp_path) as lease:
        assert lease.token == 2


def test_a_process_of_another_user_that_cannot_be_seen_has_not_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where /proc shows only one's own processes, which a test cannot mount."""

    def refused(pid: int, number: int) -> None:
        assert number == 0
        raise PermissionError

    hidden = ended_process()
    assert hidden.is_gone()
    monkeypatch.setattr(os, "kill", refused)
    assert not hidden.is_gone()


def test_a_process_that_was_not_waited_for_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    stat = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    process = msgspec.structs.replace(Process.this(), pid=child.pid, started=stat[19])
    assert not process.is_gone()
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process.is_gone()
    child.wait()


def test_a_lease_of_another_machine_is_over_when_its_beat_stood_still(tmp_path: Path) -> None:
    record = left_behind(tmp_path, another_machine())
    clock = Clock()
    watch = LeaseWatch(clock=clock)
    with pytest.raises(LeaseHeld, match="node-7"):
        taken(tmp_path, watch=watch)
    clock.now = 59.0
    assert not watch.is_over(record)
    beating = msgspec.structs.replace(record, beat=1)
    lease_path(tmp_path, SHARD, 1).write_bytes(beating.encode())
    clock.now = 61.0
    with pytest.raises(LeaseHeld):
        taken(tmp_path, watch=watch)
    clock.now = 121.0
    with taken(tmp_path, watch=watch) as lease:
        assert lease.token == 2
        assert lease.former == beating


def test_what_one_watch_saw_run_out_another_takes_over_at_once(tmp_path: Path) -> None:
    record = left_behind(tmp_path, another_machine())
    clock = Clock()
    watch = LeaseWatch(clock=clock)
    watch.is_over(record)
    clock.now = 60.0
    assert watch.is_over(record)
    with taken(tmp_path, watch=LeaseWatch(watch.over)):
        pass


@pytest.mark.parametrize("shift", [-1e9, 1e9])
def test_wall_clocks_decide_nothing(
    tmp_path: Path, shift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_behind(tmp_path, another_machine())
    now = 1.8e9 + shift
    monkeypatch.setattr("time.time", lambda: now)
    os.utime(lease_path(tmp_path, SHARD, 1), (now, now))
    watch = LeaseWatch()
    for _ in range(2):
        with pytest.raises(LeaseHeld):
            taken(tmp_path, watch=watch)


@pytest.mark.parametrize("damaged", [b"\0" * 200, '{"nonce": "ü"}'.encode("latin-1")])
def test_a_damaged_lease_file_is_held_until_it_stood_still(tmp_path: Path, damaged: bytes) -> None:
    lease_path(tmp_path, SHARD, 3).write_bytes(damaged)
    clock = Clock()
    watch = LeaseWatch(clock=clock)
    with pytest.raises(LeaseHeld, match="unknown"):
        taken(tmp_path, watch=watch)
    clock.now = 1e6
    with taken(tmp_path, watch=watch) as lease:
        assert lease.token == 4


@pytest.mark.parametrize("edit", [{"token": 1}, {"shard_id": "shard-000001"}])
def test_a_lease_file_that_names_another_shard_or_token_is_not_believed(
    tmp_path: Path, edit: dict[str, Any]
) -> None:
    """The next token follows from the name of the file, which only grows."""
    clock = Clock()
    watch = LeaseWatch(clock=clock)
    record = left_behind(tmp_path, ended_process(), token=5)
    edited = msgspec.structs.replace(record, **edit)
    lease_path(tmp_path, SHARD, 5).write_bytes(edited.encode())
    assert read_leases(tmp_path).keys() == {SHARD}
    with pytest.raises(LeaseHeld):
        taken(tmp_path, watch=watch)
    clock.now = 120
    with taken(tmp_path, watch=watch) as lease:
        assert lease.token == 6
        assert list(lease_files(tmp_path)) == [(SHARD, 6)]


def test_a_worker_that_was_paused_before_its_token_does_not_have_the_shard_beside_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saw no lease. When it creates the first token, another worker has already given that one up for its second."""
    create = LeaseFolder.create
    with ExitStack() as others:

        def paused(files: LeaseFolder, record: LeaseRecord) -> bool:
            monkeypatch.undo()
            others.enter_context(taken(tmp_path)).claim_promotion()
            return create(files, record)

        monkeypatch.setattr(LeaseFolder, "create", paused)
        with pytest.raises(LeaseHeld):
            taken(tmp_path)
        assert list(lease_files(tmp_path)) == [(SHARD, 2)]
    assert not list(lease_files(tmp_path))


def test_a_worker_that_wakes_after_a_take_over_cannot_promote(tmp_path: Path) -> None:
    with taken(tmp_path) as sleeper:
        held = read_lease(tmp_path, SHARD, 1)
        assert held is not None
        watch = LeaseWatch(frozenset({(held.nonce, held.token, held.beat)}))
        with taken(tmp_path, watch=watch) as other:
            assert other.token == 2
            with pytest.raises(LeaseLost, match="taken the shard over"):
                sleeper.claim_promotion()
            with pytest.raises(LeaseLost):
                sleeper.progress(1)
            other.claim_promotion()
    assert not list(tmp_path.iterdir())


def test_a_worker_that_wakes_after_the_other_has_finished_cannot_promote(tmp_path: Path) -> None:
    with taken(tmp_path) as sleeper:
        held = read_lease(tmp_path, SHARD, 1)
        assert held is not None
        watch = LeaseWatch(frozenset({(held.nonce, held.token, held.beat)}))
        with taken(tmp_path, watch=watch) as other:
            other.claim_promotion()
        with pytest.raises(LeaseLost, match="taken the shard over"):
            sleeper.claim_promotion()
    assert not list(tmp_path.iterdir())


def test_a_heartbeat_shows_the_progress_and_never_brings_a_removed_file_back(
    tmp_path: Path,
) -> None:
    lease = ShardLease.acquire(
        LeaseFolder(tmp_path),
        SHARD,
        lease_s=0.06,
        take_over=False,
        watch=LeaseWatch(),
        rows_total=9,
        work_root=tmp_path,
    )
    with lease:
        lease.progress(5)
        found = read_leases(tmp_path)[SHARD]
        while found.beat < 3 or found.rows_done != 5:
            found = read_leases(tmp_path).get(SHARD, found)
        assert (found.rows_done, found.rows_total) == (5, 9)
        lease_path(tmp_path, SHARD, 1).unlink()
        with pytest.raises(LeaseLost):
            _work_until_it_is_noticed(lease)
        assert not list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def _work_until_it_is_noticed(lease: ShardLease) -> None:
    while True:
        lease.progress(6)
        time.sleep(0.002)


def _take(folder: Path, ready: object, won: object) -> None:
    ready.wait()  # type: ignore[attr-defined]
    try:
        lease = taken(folder)
    except LeaseHeld:
        return
    won.put(lease.token)  # type: ignore[attr-defined]
    os._exit(0)


def test_of_many_processes_that_want_a_shard_at_once_one_gets_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(6)
    won = context.SimpleQueue()
    workers = [context.Process(target=_take, args=(tmp_path, ready, won)) for _ in range(6)]
    for each in workers:
        each.start()
    tokens = []
    for each in workers:
        each.join()
    while not won.empty():
        tokens.append(won.get())
    # a winner ends at once, so a slower process may take the shard over from it; no token is given twice
    assert tokens
    assert sorted(tokens) == [*range(1, len(tokens) + 1)]
