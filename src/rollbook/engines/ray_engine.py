"""RayActors: workers as Ray actors on the cluster that `RAY_ADDRESS` names, or on a local Ray that is started here."""

from __future__ import annotations

import importlib
import math
import time
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from rollbook.engines.processes import check_sendable
from rollbook.engines.tasks import (
    CLOSE_S,
    Deadline,
    Finished,
    Pool,
    Start,
    Task,
    TaskFailure,
    Work,
    attempt,
    close_work,
    local_to_worker,
    started,
    too_late,
)
from rollbook.errors import ConfigurationError


class _RayWorker:
    """The actor has two threads: one works, the other answers how much time is left."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._work: Work | None = None
        self._deadline = Deadline()

    def run(self, item: Any) -> tuple[str, Any, TaskFailure | None]:
        local_to_worker.deadline = self._deadline
        if self._work is None:
            try:
                self._work = started(self._start)
            except Exception as error:  # noqa: BLE001 - raised in the parent
                return "not started", None, TaskFailure.of(error)
        return ("done", *attempt(self._work, item))

    def seconds_left(self) -> float:
        return self._deadline.value - time.monotonic()

    def close(self) -> None:
        close_work(self._work)


def check() -> None:
    """Raises ConfigurationError when this engine cannot run here."""
    if find_spec("ray") is None:
        message = "engine='ray' needs Ray, which is not installed: pip install 'rollbook[ray]'"
        raise ConfigurationError(message=message)


def open_pool(start: Start, workers: int) -> Pool:
    return RayActors(start, workers)


class RayActors:
    def __init__(self, start: Start, workers: int) -> None:
        check()
        check_sendable(start)
        self.workers = workers
        self._ray: Any = importlib.import_module("ray")
        ray = self._ray
        self._started_here = not ray.is_initialized()
        if self._started_here:
            ray.init(configure_logging=False, log_to_driver=True, include_dashboard=False)
        self._start = ray.put(start)
        self._kind = ray.remote(max_concurrency=2)(_RayWorker)
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, Task]] = {}
        self._last_check = time.monotonic()

    def give(self, task: Task) -> None:
        actor = self._idle.pop() if self._idle else self._kind.remote(self._start)
        self._busy[actor.run.remote(task.item)] = (actor, task)

    def finished(self, timeout_s: float | None) -> list[Finished]:
        found: list[Finished] = []
        ready, _ = self._ray.wait(list(self._busy), timeout=1.0)
        for reference in ready:
            actor, task = self._busy.pop(reference)
            try:
                kind, value, failure = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                detail = f"the Ray actor was lost ({type(error).__name__})"
                found.append((task, None, TaskFailure("WorkerLost", detail, reason="lost")))
                continue
            if kind == "not started":
                raise ConfigurationError(message=f"a worker cannot be started: {failure}")
            found.append((task, value, failure))
            self._idle.append(actor)
        if time.monotonic() - self._last_check > 1.0:
            found += self._late(timeout_s)
            self._last_check = time.monotonic()
        return found

    def _late(self, timeout_s: float | None) -> list[Finished]:
        asked = {reference: each[0].seconds_left.remote() for reference, each in self._busy.items()}
        answered = set(self._ray.wait(list(asked.values()), num_returns=len(asked), timeout=1.0)[0])
        found: list[Finished] = []
        for reference, question in asked.items():
            actor, task = self._busy[reference]
            left = math.inf
            if question in answered:
                with suppress(self._ray.exceptions.RayError):
                    left = self._ray.get(question)
            late = too_late(task, time.monotonic() + left, timeout_s)
            if late is not None:
                del self._busy[reference]
                self._ray.kill(actor)
                found.append((task, None, late))
        return found

    def close(self) -> None:
        self._ray.wait([actor.close.remote() for actor in self._idle], timeout=CLOSE_S)

    def kill(self) -> None:
        for actor in (*self._idle, *(actor for actor, _ in self._busy.values())):
            self._ray.kill(actor)
        self._idle, self._busy = [], {}
        if self._started_here and self._ray.is_initialized():
            self._ray.shutdown()
