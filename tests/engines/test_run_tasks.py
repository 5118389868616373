"""Engines: every item once, whatever becomes of the workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollbook import engines
from rollbook.engines import Cluster, Parallel, Progress, expect, run_tasks
from rollbook.errors import ConfigurationError
from tests.engines.test_in_order import alive

PARALLEL: tuple[Parallel, ...] = ("inline", "thread", "process")


def squares() -> Callable[[int], int]:
    return _square


def _square(number: int) -> int:
    if number == 13:
        raise ValueError("thirteen is not squared here")
    return number * number


@pytest.mark.parametrize("parallel", PARALLEL)
def test_every_item_comes_back_once_and_a_failing_one_holds_nobody_back(parallel: Parallel) -> None:
    found = list(run_tasks(squares, range(20), parallel=parallel, workers=2))
    assert sorted(done.item for done in found) == list(range(20))
    assert {done.item: done.value for done in found if done.failure is None} == {
        number: number * number for number in range(20) if number != 13
    }
    (failed,) = [done for done in found if done.failure is not None]
    assert str(failed.failure) == "ValueError: thirteen is not squared here"
    assert "in _square" in failed.failure.traceback  # type: ignore[union-attr]


def test_items_are_taken_when_a_worker_is_free_and_not_before() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = run_tasks(squares, items(), parallel="thread", workers=2)
    next(results)
    assert len(taken) <= 4
    results.close()


def test_progress_is_told_after_every_item() -> None:
    told: list[Progress] = []
    list(run_tasks(squares, [1, 13, 2], parallel="inline", retries=1, on_progress=told.append))
    assert [(each.done, each.failed) for each in told] == [(1, 0), (2, 1), (3, 1)]
    assert told[-1].retried == 1


def flaky(folder: str) -> Callable[[int], int]:
    def work(number: int) -> int:
        attempt = len(os.listdir(folder))
        Path(folder, str(attempt)).touch()
        if attempt < 2:
            raise OSError("not yet")
        return number

    return work


@pytest.mark.parametrize("parallel", ["inline", pytest.param("process", marks=pytest.mark.slow)])
def test_what_fails_is_tried_again_as_often_as_allowed(parallel: Parallel, tmp_path: Path) -> None:
    (done,) = run_tasks(partial(flaky, str(tmp_path)), [7], parallel=parallel, retries=2)
    assert (done.value, done.attempts, done.failure) == (7, 3, None)


def counting(created: str) -> Callable[[int], int]:
    Path(created, f"{os.getpid()}-{threading.get_ident()}").touch()
    return _square


@pytest.mark.parametrize("parallel", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_start_is_called_once_in_every_worker(parallel: Parallel, tmp_path: Path) -> None:
    list(run_tasks(partial(counting, str(tmp_path)), range(12), parallel=parallel, workers=2))
    assert 1 <= len(os.listdir(tmp_path)) <= 2


class Closing:
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self, number: int) -> int:
        return number

    def close(self) -> None:
        Path(self._folder, "closed").touch()


@pytest.mark.parametrize("parallel", PARALLEL)
def test_workers_are_closed_when_all_is_done(parallel: Parallel, tmp_path: Path) -> None:
    list(run_tasks(partial(Closing, str(tmp_path)), [1], parallel=parallel))
    assert os.listdir(tmp_path) == ["closed"]


# ----------------------------------------------------------------------------------- time limits


def sleepers(folder: str) -> Callable[[float], int]:
    def work(seconds: float) -> int:
        if seconds > 1:
            Path(folder, str(os.getpid())).touch()
        time.sleep(seconds)
        return os.getpid()

    return work


def test_a_process_that_takes_too_long_is_killed_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the test says that much time has passed, as long as the sleeping process lives."""

    def clock() -> float:
        return time.monotonic() + 10_000 * any(alive(int(name)) for name in os.listdir(tmp_path))

    monkeypatch.setattr("rollbook.engines.tasks.time", SimpleNamespace(monotonic=clock))
    work = partial(sleepers, str(tmp_path))
    found = list(run_tasks(work, [600.0, 0.0, 0.0], parallel="process", timeout_s=5_000))
    late = next(done for done in found if done.item == 600.0)
    assert late.failure is not None
    assert late.failure.reason == "timed_out"
    (pid,) = map(int, os.listdir(tmp_path))
    assert not alive(pid)
    assert [done.failure for done in found if done.item == 0.0] == [None, None]


def test_a_thread_that_takes_too_long_is_left_behind() -> None:
    """Its task ends only after the run has ended."""
    run_has_ended, task_has_ended = threading.Event(), threading.Event()

    def work(name: str) -> str:
        if name == "late":
            run_has_ended.wait()
            task_has_ended.set()
        return name

    found = list(run_tasks(lambda: work, ["late", "next"], parallel="thread", timeout_s=0.2))
    assert not task_has_ended.is_set()
    run_has_ended.set()
    assert [(done.item, done.value) for done in found] == [("late", None), ("next", "next")]
    assert found[0].failure is not None
    assert found[0].failure.reason == "timed_out"
    assert task_has_ended.wait(60)


def impatient() -> Callable[[float], str]:
    def work(seconds: float) -> str:
        for _ in range(3):
            expect(2.0)
            time.sleep(seconds)
        expect(None)
        time.sleep(2.1)
        return "done"

    return work


@pytest.mark.parametrize("parallel", ["thread", "process"])
def test_a_task_can_ask_to_be_stopped_when_it_does_not_go_on(parallel: Parallel) -> None:
    found = list(run_tasks(impatient, [0.7, 60.0], parallel=parallel, workers=2))
    by_item = {done.item: done for done in found}
    # three steps of 0.7 s are more than 2 s, and each was in time, also on a machine that is busy for a second
    assert by_item[0.7].value == "done"
    assert by_item[60.0].failure is not None
    assert by_item[60.0].failure.reason == "timed_out"


def test_an_abandoned_thread_ends_at_its_next_step() -> None:
    run_has_ended, went_on, has_ended = (threading.Event() for _ in range(3))

    def start() -> Callable[[int], None]:
        def work(_: int) -> None:
            try:
                expect(0.1)
                run_has_ended.wait()
                expect(0.1)
                went_on.set()
            finally:
                has_ended.set()

        return work

    list(run_tasks(start, [1], parallel="thread"))
    run_has_ended.set()
    assert has_ended.wait(60)
    assert not went_on.is_set()


# -------------------------------------------------------------------------------- lost and broken


def suicidal() -> Callable[[int], int]:
    def work(number: int) -> int:
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    return work


def test_a_worker_that_dies_costs_its_own_item_only() -> None:
    found = {
        done.item: done.failure
        for done in run_tasks(suicidal, range(6), parallel="process", workers=2)
    }
    assert sorted(found) == list(range(6))
    assert {item for item, failure in found.items() if failure is not None} == {3}
    assert found[3] is not None
    assert found[3].reason == "lost"
    assert "-9" in found[3].message


def unstartable() -> Callable[[int], int]:
    raise FileNotFoundError("weights.pt")


@pytest.mark.parametrize("parallel", PARALLEL)
def test_a_worker_that_cannot_start_ends_it_all(parallel: Parallel) -> None:
    with pytest.raises((FileNotFoundError, ConfigurationError), match=r"weights\.pt"):
        list(run_tasks(unstartable, range(5), parallel=parallel, workers=2))


def leaving() -> Callable[[int], Any]:
    return sys.exit


def unborn() -> Callable[[int], Any]:
    sys.exit(0)


class LeavesAtTheEnd:
    def __call__(self, number: int) -> int:
        return number

    def close(self) -> None:
        sys.exit(0)


@pytest.mark.parametrize("parallel", PARALLEL)
def test_exit_in_a_task_is_a_failure_like_any_other(parallel: Parallel) -> None:
    (done,) = run_tasks(leaving, [3], parallel=parallel)
    assert str(done.failure) == "SystemExit: 3"


@pytest.mark.parametrize("parallel", PARALLEL)
def test_exit_in_a_start_or_at_the_end_does_not_end_the_caller(parallel: Parallel) -> None:
    with pytest.raises(ConfigurationError, match="cannot be started"):
        list(run_tasks(unborn, [3], parallel=parallel))
    assert [done.value for done in run_tasks(LeavesAtTheEnd, [3], parallel=parallel)] == [3]


def test_what_cannot_be_sent_to_a_process_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigurationError, match="module:attr"):
        run_tasks(lambda: _square, [1], parallel="process")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"parallel": "gpu"}, "'inline', 'thread' or 'process'"),
        ({"engine": "slurm"}, "'local' or 'ray'"),
        ({"cluster": Cluster()}, "'local', which has no cluster"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        run_tasks(squares, [1], **options)


def test_without_ray_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'rollbook\[ray\]'"):
        run_tasks(squares, [1], engine="ray")


class _CannotBeSent:
    def __reduce__(self) -> Any:
        raise ValueError("this result cannot be sent")


class _CannotBeLoaded:
    def __reduce__(self) -> Any:
        return int, ("this result cannot be loaded",)


def results_of_odd_classes() -> Callable[[int], object]:
    return [0, _CannotBeSent(), _CannotBeLoaded(), 3].__getitem__


def test_a_result_that_cannot_cross_the_pipe_is_a_failure_of_its_item_only() -> None:
    found = run_tasks(results_of_odd_classes, range(4), workers=1, in_order=True)
    assert [(done.value, done.failure and str(done.failure)) for done in found] == [
        (0, None),
        (None, "ValueError: this result cannot be sent"),
        (
            None,
            "ValueError: invalid literal for int() with base 10: 'this result cannot be loaded'",
        ),
        (3, None),
    ]


_TURNS_ENGINE = """
from rollbook.engines.threads import Threads

def check():
    pass

def open_pool(start, workers, cluster):
    return Threads(start, workers)
"""


def test_an_engine_is_one_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "turns_engine.py").write_text(_TURNS_ENGINE)
    monkeypatch.setattr(engines, "__path__", [*engines.__path__, str(tmp_path)])
    engines.check_engine("turns")
    assert {each.value for each in run_tasks(squares, [1, 2, 3], engine="turns")} == {1, 4, 9}
    with pytest.raises(ConfigurationError, match="'local' or 'ray' or 'turns'"):
        engines.check_engine("turn")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_does_not_interrupt_the_start_of_a_worker(name: str) -> None:
    """Not even when another thread of the process receives the signal: the mask of this thread does not stop it."""
    code = """
import os, signal, sys, threading, time
from rollbook.engines.processes import _interrupts_blocked

number = signal.Signals[sys.argv[1]]
signal.signal(number, signal.default_int_handler)  # a shell that starts tests with & has SIGINT ignored
threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
started = False
try:
    with _interrupts_blocked():
        os.kill(os.getpid(), number)
        time.sleep(0.2)
        started = True
except KeyboardInterrupt:
    print("after" if started else "inside")
"""
    words = [sys.executable, "-c", code, name]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "after\n"
