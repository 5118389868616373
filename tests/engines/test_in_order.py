"""run_in_order: results come in the order of the items, and no worker outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rollbook.engines import TaskFailure, run_in_order, run_tasks
from rollbook.errors import GenerationFailed, RowOutOfRange


def slow_first(item: int) -> int:
    time.sleep(0.3 if item == 0 else 0.0)
    return item * item


def lost(item: int) -> int:
    if item == 1:
        os._exit(9)
    return item


def refuses(item: int) -> int:
    if item < 5:
        raise RowOutOfRange(path="store", detail=f"no row {item}")
    raise KeyError(item)


def tells_and_sleeps(folder: str) -> None:
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(600)


class Start:
    """Starts workers that all call `work`."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self.work = work

    def __call__(self) -> Callable[[Any], Any]:
        return self.work


def failed(item: int, failure: TaskFailure) -> GenerationFailed:
    return GenerationFailed(sample_index=item, sample_key=f"scene/{item}", detail=str(failure))


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_items(workers: int) -> None:
    results = run_in_order(Start(slow_first), range(7), workers=workers, failed=failed)
    assert list(results) == [n * n for n in range(7)]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_rollbook_is_raised_as_it_is(workers: int) -> None:
    with pytest.raises(RowOutOfRange, match="no row 3") as caught:
        list(run_in_order(Start(refuses), [3], workers=workers, failed=failed))
    where = "".join(traceback.format_exception(caught.value))
    assert "in refuses" in where  # also when it was raised in another process


@pytest.mark.parametrize("workers", [1, 2])
def test_any_other_error_names_the_item(workers: int) -> None:
    with pytest.raises(GenerationFailed, match="KeyError: 7") as caught:
        list(run_in_order(Start(refuses), [7], workers=workers, failed=failed))
    assert caught.value.sample_key == "scene/7"


def test_a_lost_worker_is_an_error_that_names_the_item() -> None:
    with pytest.raises(GenerationFailed, match="worker process was lost") as caught:
        list(run_in_order(Start(lost), [1, 2], workers=2, failed=failed))
    assert (caught.value.sample_index, caught.value.sample_key) == (1, "scene/1")


@pytest.mark.parametrize("workers", [1, 2])
def test_who_stops_listening_does_not_wait_for_the_rest(workers: int) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(10_000):
            taken.append(number)
            yield number

    results = run_in_order(Start(slow_first), items(), workers=workers, failed=failed)
    with closing(results):
        assert next(results) == 0
    assert len(taken) <= 1 + 2 * workers + 1


def test_workers_run_ahead_of_the_caller_but_not_far() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = run_tasks(Start(slow_first), items(), parallel="thread", workers=2, in_order=True)
    with closing(results):
        assert next(results).value == 0  # the others were done long before it
        assert len(taken) == 5


def test_an_item_that_is_tried_again_keeps_its_place(tmp_path: Path) -> None:
    def once(item: int) -> int:
        if item == 1 and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise OSError("not yet")
        return item

    results = run_tasks(
        Start(once), range(5), parallel="thread", workers=2, retries=1, in_order=True
    )
    assert [(done.value, done.attempts) for done in results] == [
        (0, 1),
        (1, 2),
        (2, 1),
        (3, 1),
        (4, 1),
    ]


@contextmanager
def a_run(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with two busy workers. It leads a process group, as a command in a terminal does."""
    program = (
        "from tests.engines.test_in_order import *\n"
        # a test run in the background of a script ignores SIGINT
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"items = [{str(folder)!r}] * 4\n"
        "list(run_in_order(Start(tells_and_sleeps), items, workers=2, failed=failed))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as run:
        try:
            wait_until(lambda: len(list(folder.iterdir())) == 2)
            yield run
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)


def wait_until(holds: object, seconds: float = 60) -> None:
    assert callable(holds)
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def alive(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().split()[2]
    except FileNotFoundError:
        return False


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@needs_proc
def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    with a_run(tmp_path) as run:
        workers = [int(each.name) for each in tmp_path.iterdir()]
        os.kill(run.pid, signal.SIGKILL)
        wait_until(lambda: not any(alive(each) for each in workers))


@needs_proc
def test_on_an_interrupt_only_the_parent_speaks(tmp_path: Path) -> None:
    with a_run(tmp_path) as run:
        workers = [int(each.name) for each in tmp_path.iterdir()]
        os.killpg(run.pid, signal.SIGINT)
        said = run.communicate(timeout=60)[1]
        assert said.count("Traceback") == 1
        assert said.strip().endswith("KeyboardInterrupt")
        wait_until(lambda: not any(alive(each) for each in workers))
