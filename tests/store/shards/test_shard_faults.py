"""Killed, paused and starved workers, and power cuts: a shard is finished once, whole, and nothing is left behind."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rollbook.errors import LeaseHeld, LeaseLost, StorageError
from rollbook.store.checks.validate import validate_rollout_zarr_store
from rollbook.store.shards import build_shard as build_shard_module
from rollbook.store.shards import final_place as final_place_module
from rollbook.store.shards.lease_record import LeaseWatch, lease_files, mark_of, read_leases
from rollbook.store.shards.sidecars import failures_of, read_finished
from tests.store.shards.shard_plans import SmallBuilder, built, names, planned
from tests.watched_files import WatchedFiles

ENTRY = planned()
SHARD = ENTRY.shard_id
LOST = 17
"""Exit status of a worker that was told that it has lost its shard."""


@contextmanager
def worker(run: Callable[[], object]) -> Iterator[int]:
    """Another process that calls `run`. It is killed when the block ends, if it is still there."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            run()
            status = 0
        except LeaseLost:
            status = LOST
        finally:
            os._exit(status)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def finished_store(root: Path) -> int:
    """Checks every byte of the finished shard. Returns the token under which it was built."""
    final = root / "shards" / SHARD
    assert validate_rollout_zarr_store(final, deep=True).ok
    return read_finished(final, ENTRY).token


def wait_for(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.002)


# ------------------------------------------------------------------------------------------ killed


@pytest.mark.slow  # 60 workers
def test_a_worker_that_is_killed_at_any_moment_costs_one_attempt(tmp_path: Path) -> None:
    built(tmp_path / "warm", ENTRY)
    started = time.monotonic()
    built(tmp_path / "timed", ENTRY)
    whole = time.monotonic() - started
    chance = random.Random(4)
    moments: dict[str, int] = {}
    for number in range(60):
        root = tmp_path / str(number)
        with worker(lambda root=root: built(root, ENTRY)) as pid:  # type: ignore[misc]
            time.sleep(chance.uniform(0.0, 1.2 * whole))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        final = root / "shards" / SHARD
        there = final.exists()
        complete = (final / "_SUCCESS.json").exists()
        if there:  # a final folder is whole, with or without its success file
            assert validate_rollout_zarr_store(final, deep=True).ok
        before = final.stat().st_ino if there else None
        result = built(root, ENTRY, take_over=True)
        assert result.skipped == there
        assert before in (None, final.stat().st_ino), "nothing is built twice into its final place"
        finished_store(root)
        assert names(root) == {SHARD}
        assert not (root / "work" / SHARD).exists()
        moment = "complete" if complete else "renamed" if there else "before"
        moments[moment] = moments.get(moment, 0) + 1
        shutil.rmtree(root)
    assert moments["before"] > 10, moments


def stopping(monkeypatch: pytest.MonkeyPatch, name: str, *, after: bool) -> None:
    """The process pauses itself before or after this step of promotion."""
    module = build_shard_module if name == "validate_rollout_zarr_store" else final_place_module
    step: Callable[..., Any] = getattr(module, name)

    def paused(*arguments: Any, **options: Any) -> Any:
        if not after:
            os.kill(os.getpid(), signal.SIGSTOP)
        done = step(*arguments, **options)
        if after:
            os.kill(os.getpid(), signal.SIGSTOP)
        return done

    monkeypatch.setattr(module, name, paused)


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def take_over(root: Path, watch: LeaseWatch) -> bool:
    try:
        built(root, ENTRY, take_over=True, watch=watch)
    except LeaseHeld:
        return False
    return True


def woken(pid: int) -> int:
    os.kill(pid, signal.SIGCONT)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(
    ("step", "after"),
    [("validate_rollout_zarr_store", True), ("promote_folder", False)],
    ids=["before it claims", "after it has claimed"],
)
def test_a_worker_that_sleeps_through_its_lease_cannot_promote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    def sleeps() -> None:
        stopping(monkeypatch, step, after=after)
        built(tmp_path, ENTRY, lease_s=0.2)

    with worker(sleeps) as pid:
        wait_for(lambda: stopped(pid))
        watch = LeaseWatch()
        wait_for(lambda: take_over(tmp_path, watch))
        token = finished_store(tmp_path)
        assert token > 1
        assert woken(pid) == LOST
    assert finished_store(tmp_path) == token
    assert names(tmp_path) == {SHARD}


def test_a_worker_that_sleeps_between_rename_and_success_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleeps() -> None:
        stopping(monkeypatch, "promote_folder", after=True)
        built(tmp_path, ENTRY, lease_s=0.2)

    with worker(sleeps) as pid:
        wait_for(lambda: stopped(pid))
        watch = LeaseWatch()
        wait_for(lambda: take_over(tmp_path, watch))
        success = (tmp_path / "shards" / SHARD / "_SUCCESS.json").read_bytes()
        assert woken(pid) == 0  # it was finished by this worker, and the success file says the same
    assert (tmp_path / "shards" / SHARD / "_SUCCESS.json").read_bytes() == success
    assert finished_store(tmp_path) == 1
    assert names(tmp_path) == {SHARD}


def test_many_workers_at_once_build_a_shard_once(tmp_path: Path) -> None:
    built(tmp_path / "warm", ENTRY)
    log = tmp_path / "log"
    log.touch()

    def builds(folder: Path, progress: Any) -> Any:
        done = SmallBuilder(ENTRY, seconds_per_row=0.05)(folder, progress)
        with log.open("a") as file:
            file.write("built\n")
        return done

    def wants() -> None:
        while True:
            with suppress(LeaseHeld):
                built(tmp_path, ENTRY, builds, take_over=True)
                return
            time.sleep(0.01)

    with worker(wants) as a, worker(wants) as b, worker(wants) as c:
        assert [os.waitpid(pid, 0)[1] for pid in (a, b, c)] == [0, 0, 0]
    assert log.read_text() == "built\n"
    finished_store(tmp_path)
    assert names(tmp_path) == {SHARD}


# ------------------------------------------------------------------------------- full disk, power cut


def test_a_full_disk_fails_the_attempt_and_the_next_one_succeeds(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(row: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))

    try:
        with pytest.raises(StorageError, match="File too large"):
            built(tmp_path, ENTRY, SmallBuilder(ENTRY, before_row=fill))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "shards" / SHARD).exists()
    assert not list(lease_files(tmp_path / "shards"))
    built(tmp_path, ENTRY, take_over=True)
    finished_store(tmp_path)
    assert not failures_of(tmp_path / "shards", SHARD)


def after_power_cut(watched: WatchedFiles, path: Path, left: Path) -> None:
    found = watched.after_power_cut(path)
    if path.is_dir():
        left.mkdir()
        for name in () if isinstance(found, bytes | None) else found:  # b"" if it was never synced
            after_power_cut(watched, path / name, left / name)
    elif isinstance(found, bytes):
        left.write_bytes(found)


def test_a_power_cut_leaves_a_shard_that_is_finished_or_can_be_finished(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    moments: list[tuple[object, object]] = []
    states: list[str] = []

    def look(watched: WatchedFiles) -> None:
        final = disk / "shards" / SHARD
        now = (
            watched.after_power_cut(final / "_owner.json"),
            watched.after_power_cut(final / "_SUCCESS.json"),
        )
        if moments[-1:] == [now]:
            return
        moments.append(now)
        left = tmp_path / f"left-{len(moments)}"
        after_power_cut(watched, disk, left)
        states.append(resumed(left))

    def resumed(left: Path) -> str:
        final = left / "shards" / SHARD
        complete = (final / "_SUCCESS.json").exists()
        there = final.exists()
        if complete:
            finished_store(left)
        # the lease is one of this very process: for the test it ended with the power
        dead = frozenset(map(mark_of, read_leases(left / "shards").values()))
        built(left, ENTRY, take_over=True, watch=LeaseWatch(dead))
        finished_store(left)
        return "finished" if complete else "renamed" if there else "nothing"

    with WatchedFiles(disk, at_each_step=look) as watched:
        built(disk, ENTRY)
        assert watched.is_durable(disk / "shards" / SHARD)
    assert states == ["nothing", "renamed", "finished"]
