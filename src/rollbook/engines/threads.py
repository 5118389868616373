"""Threads: workers inside this process. Inline: the caller's own thread is the only worker."""

from __future__ import annotations

import math
import queue
import threading
from contextlib import suppress
from typing import Any

from rollbook.engines.tasks import (
    CLOSE_S,
    LOOK_S,
    Abandoned,
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


class Inline(Pool):
    workers = 1

    def __init__(self, start: Start) -> None:
        self._start = start
        self._work: Work | None = None
        self._given: Task | None = None

    def give(self, task: Task) -> None:
        self._given = task

    def finished(self, timeout_s: float | None) -> list[Finished]:
        assert self._given is not None
        if self._work is None:
            self._work = started(self._start)
        try:
            return [(self._given, self._work(self._given.item), None)]
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
            return [(self._given, None, TaskFailure.of(error))]

    def close(self) -> None:
        work, self._work = self._work, None
        close_work(work)

    def kill(self) -> None:
        self.close()


class Threads(Pool):
    def __init__(self, start: Start, workers: int) -> None:
        self.workers = workers
        self._start = start
        self._idle: list[_Thread] = []
        self._busy: dict[_Thread, Task] = {}
        self._answers: queue.SimpleQueue[tuple[_Thread, Any, Any]] = queue.SimpleQueue()

    def give(self, task: Task) -> None:
        thread = self._idle.pop() if self._idle else _Thread(self._start, self._answers)
        self._busy[thread] = task
        thread.inbox.put(task)

    def finished(self, timeout_s: float | None) -> list[Finished]:
        found: list[Finished] = []
        with suppress(queue.Empty):
            thread, value, failure = self._answers.get(timeout=LOOK_S)
            if thread in self._busy:  # otherwise it was abandoned
                if isinstance(failure, BaseException):
                    raise failure
                found.append((self._busy.pop(thread), value, failure))
                self._idle.append(thread)
        for thread, task in list(self._busy.items()):
            late = too_late(task, thread.deadline.value, timeout_s)
            if late is not None:
                del self._busy[thread]
                thread.deadline.abandoned = True
                found.append((task, None, late))
        return found

    def close(self) -> None:
        for thread in self._idle:
            thread.inbox.put(None)
        for thread in self._idle:
            thread.join(CLOSE_S)
        self._idle.clear()

    def kill(self) -> None:
        for thread in self._busy:
            thread.deadline.abandoned = True
        for thread in (*self._busy, *self._idle):
            thread.inbox.put(None)
        self._busy.clear()
        self._idle.clear()


class _Thread(threading.Thread):
    def __init__(self, start: Start, answers: queue.SimpleQueue[tuple[_Thread, Any, Any]]) -> None:
        super().__init__(name="rollbook-worker", daemon=True)
        self.inbox: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.deadline = Deadline()
        self._make = start
        self._answers = answers
        self.start()

    def run(self) -> None:
        local_to_worker.deadline = self.deadline
        work: Work | None = None
        with suppress(Abandoned):
            while (task := self.inbox.get()) is not None:
                if work is None:
                    try:
                        work = started(self._make)
                    except BaseException as error:  # noqa: BLE001 - raised in the parent
                        self._answers.put((self, None, error))
                        return
                self._answers.put((self, *attempt(work, task.item)))
                self.deadline.value = math.inf
        close_work(work)
