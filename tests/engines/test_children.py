"""Processes that a worker started end with it, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollbook.engines import run_tasks
from tests.engines.test_in_order import alive, needs_proc, wait_until

pytestmark = needs_proc


class Parents:
    """Each task starts a process that would outlive it, says its own and the process's number, and goes on as told."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def __call__(self, then: str) -> str:
        child = subprocess.Popen(["sleep", "600"])
        self._say("child", child.pid)
        if then == "hang":
            time.sleep(600)
        elif then == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif then == "leave":
            os._exit(0)
        elif then == "die when idle":
            threading.Thread(target=self._die_when_told, daemon=True).start()
            return "waiting for its end"
        elif then == "see to it":
            (self._folder / "die").touch()
            victim = int(next(self._folder.glob("worker-*")).name.partition("-")[2])
            wait_until(lambda: not alive(victim))
        return then

    def _say(self, what: str, number: int) -> None:
        (self._folder / f"{what}-{number}").touch()

    def _die_when_told(self) -> None:
        self._say("worker", os.getpid())
        wait_until((self._folder / "die").exists)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(autouse=True)
def _nothing_stays(tmp_path: Path) -> Iterator[None]:
    yield
    for child in [*children(tmp_path), *children(tmp_path / "run")]:
        if alive(child):
            os.kill(child, signal.SIGKILL)


def children(folder: Path) -> list[int]:
    return [int(each.name.partition("-")[2]) for each in folder.glob("child-*")]


def run(folder: Path, *then: str, **options: Any) -> list[str]:
    done = run_tasks(partial(Parents, str(folder)), then, parallel="process", **options)
    return [each.failure.reason if each.failure else str(each.value) for each in done]


def all_ended(folder: Path, count: int) -> None:
    found = children(folder)
    assert len(found) == count
    wait_until(lambda: not any(map(alive, found)))


def test_when_everything_is_done(tmp_path: Path) -> None:
    assert run(tmp_path, "return", "return") == ["return", "return"]
    all_ended(tmp_path, 2)


@pytest.mark.parametrize("way", ["die", "leave"])
def test_when_the_worker_dies_at_work(tmp_path: Path, way: str) -> None:
    assert run(tmp_path, way) == ["lost"]
    all_ended(tmp_path, 1)


def test_when_the_worker_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the test says that much time has passed once the child is there."""

    def clock() -> float:
        return time.monotonic() + 10_000 * bool(children(tmp_path))

    monkeypatch.setattr("rollbook.engines.tasks.time", SimpleNamespace(monotonic=clock))
    assert run(tmp_path, "hang", timeout_s=5_000) == ["timed_out"]
    all_ended(tmp_path, 1)


def test_when_the_worker_dies_while_it_is_idle(tmp_path: Path) -> None:
    """One worker waits for its end without a task; the task of the other one ends it."""

    def items() -> Any:
        yield "die when idle"
        wait_until(lambda: bool(list(tmp_path.glob("worker-*"))))
        yield "see to it"

    done = run_tasks(partial(Parents, str(tmp_path)), items(), parallel="process", workers=2)
    values = [each.value for each in done]
    assert values == ["waiting for its end", "see to it"]
    all_ended(tmp_path, 2)


def test_when_nobody_wants_the_results_any_more(tmp_path: Path) -> None:
    work = partial(Parents, str(tmp_path))
    with closing(run_tasks(work, ["return", "hang"], parallel="process", workers=2)) as results:
        next(results)
        wait_until(lambda: len(children(tmp_path)) == 2)
    all_ended(tmp_path, 2)


_RUN = """
import sys
from functools import partial
from rollbook.engines import run_tasks
from tests.engines.test_children import Parents
if __name__ == "__main__":
    list(run_tasks(partial(Parents, sys.argv[1]), sys.argv[2:], parallel="process", workers=2))
"""


def killed_run(folder: Path, *then: str, until: Callable[[], bool]) -> None:
    folder.mkdir()
    program = folder.with_suffix(".py")
    program.write_text(_RUN)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(program), str(folder), *then]
    with subprocess.Popen(command, env=environment, start_new_session=True) as parent:
        wait_until(until)
        parent.kill()


def test_when_the_parent_of_busy_workers_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    killed_run(folder, "hang", "hang", until=lambda: len(children(folder)) == 2)
    all_ended(folder, 2)


def test_when_the_parent_of_an_idle_worker_is_killed(tmp_path: Path) -> None:
    """The idle worker notices twice: its pipe is closed, and its parent is gone."""
    folder = tmp_path / "run"
    killed_run(
        folder,
        *("die when idle", "hang"),
        until=lambda: len(children(folder)) == 2 and bool(list(folder.glob("worker-*"))),
    )
    all_ended(folder, 2)
