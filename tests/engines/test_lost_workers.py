"""A worker that is lost costs one attempt of its item, whatever it was doing. A third lost worker fails the item."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from rollbook.engines import run_in_order, run_tasks
from rollbook.errors import ConfigurationError, GenerationFailed
from tests.engines.test_in_order import alive, failed, needs_proc, wait_until

pytestmark = needs_proc


def end_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def end_in_the_middle_of_an_answer() -> None:
    def half(self: Any, data: Any, write: Any = os.write) -> None:
        write(self._handle, data[: len(data) // 2])
        end_this_process()

    Connection._send = half  # type: ignore[attr-defined]


def fragile(folder: str, end: Callable[[], None], times: int) -> Callable[[int], int]:
    """Item 3 ends its worker in its first attempts. Every attempt leaves a file."""

    def work(item: int) -> int:
        if item == 3:
            attempt = len(os.listdir(folder))
            Path(folder, str(attempt)).touch()
            if attempt < times:
                end()
        return item

    return work


@pytest.mark.parametrize("end", [end_this_process, end_in_the_middle_of_an_answer])
def test_a_worker_that_is_killed_at_work_costs_one_attempt(
    tmp_path: Path, end: Callable[[], None]
) -> None:
    start = partial(fragile, str(tmp_path), end, 1)
    assert list(run_in_order(start, range(6), workers=2, failed=failed)) == list(range(6))
    assert len(os.listdir(tmp_path)) == 2


def test_an_item_that_loses_three_workers_fails_with_its_number(tmp_path: Path) -> None:
    start = partial(fragile, str(tmp_path), end_this_process, 9)
    results: list[int] = []
    with pytest.raises(GenerationFailed, match=r"exit status -9.*\(3 attempts\)") as caught:
        results.extend(run_in_order(start, range(6), workers=2, failed=failed))
    assert caught.value.sample_index == 3
    assert len(os.listdir(tmp_path)) == 3


def own_process() -> Callable[[int], int]:
    return lambda item: os.getpid()


def test_a_worker_that_is_killed_while_it_is_idle_costs_no_item() -> None:
    results = run_tasks(own_process, range(4), parallel="process", lost_retries=1)
    first = next(results).value
    assert isinstance(first, int)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not alive(first))
    others = [(done.failure, done.value) for done in results]
    assert [failure for failure, _ in others] == [None] * 3
    assert first not in {value for _, value in others}


@pytest.fixture
def at_interpreter_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Code that every worker runs before it loads anything of ours: Python imports sitecustomize first."""
    folder = tmp_path / "site"
    folder.mkdir()

    def run(code: str) -> None:
        program = (
            f"import os, signal, sys\nfrom pathlib import Path\nfolder = Path({str(tmp_path)!r})\n"
        )
        guarded = f"if '--multiprocessing-fork' in sys.orig_argv:\n    {code}\n"
        (folder / "sitecustomize.py").write_text(program + guarded)
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)

    return run


_END_ONCE = """mark = folder / "ended"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)"""


class Large:
    """A start of a megabyte, as a policy with its weights is."""

    def __init__(self) -> None:
        self.weights = bytes(1 << 20)

    def __call__(self) -> Callable[[int], int]:
        return lambda item: item + len(self.weights)


def test_a_worker_that_is_killed_while_it_starts_costs_one_attempt(
    tmp_path: Path, at_interpreter_start: Callable[[str], None]
) -> None:
    """Also when there is more to send to it than a pipe takes, of which the worker has read nothing."""
    at_interpreter_start(_END_ONCE)
    (done,) = run_tasks(Large(), [1], parallel="process", lost_retries=2)
    assert (done.value, done.attempts) == (1 + (1 << 20), 2)


def test_workers_whose_interpreter_cannot_start_are_not_tried_again(
    tmp_path: Path, at_interpreter_start: Callable[[str], None]
) -> None:
    """As with a script without `if __name__ == "__main__"`: each attempt would print the same traceback."""
    at_interpreter_start("(folder / str(os.getpid())).touch(); os._exit(1)")
    with pytest.raises(ConfigurationError, match=r"cannot be started: .* exit status 1"):
        list(run_tasks(own_process, range(9), parallel="process", lost_retries=2))
    assert len([each for each in tmp_path.iterdir() if each.is_file()]) == 1


class OfAModuleThatWorkersLack:
    def __reduce__(self) -> Any:
        return partial(__import__, "no_such_module_here"), ()

    def __call__(self) -> Callable[[int], int]:
        raise AssertionError


def test_a_start_that_cannot_be_loaded_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be started.*no_such_module_here"):
        list(run_tasks(OfAModuleThatWorkersLack(), range(3), parallel="process", lost_retries=2))
    assert capfd.readouterr().err.count("Traceback") == 1


def keep_a_semaphore() -> Callable[[int], int]:
    """As the library does that compresses depth images."""
    kept: list[Any] = []

    def work(item: int) -> int:
        kept.append(multiprocessing.get_context("spawn").Lock())
        if item == 1:
            end_this_process()
        return item

    return work


_ENDS_A_WORKER_WITH_A_SEMAPHORE = """
from tests.engines.test_lost_workers import keep_a_semaphore, run_tasks
if __name__ == "__main__":
    print([done.value for done in run_tasks(keep_a_semaphore, range(3), parallel="process")])
"""


def test_the_semaphores_of_a_killed_worker_are_not_talked_about(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_ENDS_A_WORKER_WITH_A_SEMAPHORE)
    paths = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2])]
    ended = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (ended.stdout, ended.stderr) == ("[0, None, 2]\n", "")


_INTERRUPTED_AT_START = """
import os, signal, time
from pathlib import Path
from tests.engines.test_lost_workers import own_process, run_tasks
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background ignores it
    try:
        list(run_tasks(own_process, range(9), parallel="process", workers=2))
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_ctrl_c_reaches_a_worker_whose_interpreter_is_still_starting_and_prints_nothing(
    tmp_path: Path, at_interpreter_start: Callable[[str], None]
) -> None:
    """The worker waits in `sitecustomize`, long before it can ignore a signal, and is interrupted there itself."""
    at_interpreter_start("(folder / f'at-{os.getpid()}').touch(); import time; time.sleep(600)")
    program = tmp_path / "program.py"
    program.write_text(_INTERRUPTED_AT_START)
    environment = dict(os.environ)
    environment["PYTHONPATH"] += f"{os.pathsep}{Path(__file__).parents[2]}"
    with subprocess.Popen(
        [sys.executable, str(program)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as run:
        wait_until(lambda: len(list(tmp_path.glob("at-*"))) == 2)
        workers = [int(each.name.partition("-")[2]) for each in tmp_path.glob("at-*")]
        for worker in workers:
            os.kill(worker, signal.SIGINT)
        wait_until(lambda: all(map(interrupt_has_arrived, workers)))
        os.killpg(run.pid, signal.SIGINT)
        said = run.communicate()[0]
    assert said == "interrupted\n"
    assert not any(map(alive, workers))


def interrupt_has_arrived(process: int) -> bool:
    """It waits for the process to take it, or the process has ended of it."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return True
    pending = next(line for line in status.splitlines() if line.startswith("ShdPnd"))
    return bool(int(pending.split()[1], 16) >> (signal.SIGINT - 1) & 1) or not alive(process)
