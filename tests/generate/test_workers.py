"""Work in other processes: in order, and nobody is left behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from rollbook.errors import GenerationFailed, RowOutOfRange
from rollbook.generate.workers import in_order


def slow_first(item: int) -> int:
    time.sleep(0.3 if item == 0 else 0.0)
    return item * item


def lost(item: int) -> int:
    if item == 1:
        os._exit(9)
    return item


def refuses(item: int) -> int:
    raise RowOutOfRange(path="store", detail=f"no row {item}")


def tells_and_sleeps(folder: str) -> None:
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(600)


def key_of(item: int) -> tuple[int, str]:
    return item, f"scene/{item}"


def test_results_come_in_the_order_of_the_items() -> None:
    assert list(in_order(slow_first, range(7), 2, named=key_of)) == [n * n for n in range(7)]


def test_an_error_of_the_work_is_the_error_one_gets() -> None:
    with pytest.raises(RowOutOfRange, match="no row 3"):
        list(in_order(refuses, [3], 1, named=key_of))


def test_a_lost_worker_is_an_error_that_names_the_item() -> None:
    with pytest.raises(GenerationFailed, match="worker process was lost") as caught:
        list(in_order(lost, [1, 2], 1, named=key_of))
    assert (caught.value.sample_index, caught.value.sample_key) == (1, "scene/1")


def test_who_stops_listening_does_not_wait_for_the_rest() -> None:
    started = time.monotonic()
    with closing(in_order(slow_first, range(10_000), 1, named=key_of)) as results:
        assert next(results) == 0
    assert time.monotonic() - started < 20


@contextmanager
def a_run(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with two workers that are at work. It is the head of a group, as a terminal would have it."""
    program = (
        "from tests.generate.test_workers import *\n"
        # whoever runs the tests in the background of a script makes them ignore it
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"list(in_order(tells_and_sleeps, [{str(folder)!r}] * 4, 2, named=lambda _: (0, 'a')))\n"
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
