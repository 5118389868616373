"""Processes: workers that can be killed. Each has its own pipe, so that killing one does not harm the others."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import connection, resource_tracker
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

from rollbook.engines.tasks import (
    CLOSE_S,
    LOOK_S,
    Clock,
    Finished,
    Pool,
    Start,
    Task,
    TaskFailure,
    Work,
    attempt,
    close_work,
    local_to_worker,
    too_late,
)
from rollbook.errors import ConfigurationError

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SILENT_TRACKER = "ignore::UserWarning:multiprocessing.resource_tracker"


@dataclass(slots=True, eq=False)
class _Process:
    process: Any
    pipe: connection.Connection
    deadline: Clock
    task: Task | None = field(default=None)
    ready: bool = False
    """Whether the process has got as far as receiving `start`."""


class Processes(Pool):
    def __init__(self, start: Start, workers: int) -> None:
        self.workers = workers
        self._start = start
        # spawn: a forked process would lack the threads that ray casters and other libraries have started
        self._context = multiprocessing.get_context("spawn")
        self._all: list[_Process] = []
        check_sendable(start)

    def give(self, task: Task) -> None:
        free = (each for each in self._all if each.task is None and each.process.is_alive())
        worker = next(free, None) or self._new()
        worker.task = task
        with suppress(OSError):  # the worker ended before it got its task: `finished` reports it
            worker.pipe.send(task.item)

    def finished(self, timeout_s: float | None) -> list[Finished]:
        busy = {each.pipe: each for each in self._all if each.task is not None}
        ready = [busy[pipe] for pipe in connection.wait(list(busy), LOOK_S)]  # type: ignore[index]
        found = [each for each in map(self._received, ready) if each is not None]
        for worker in self._all:
            if worker.task is not None:
                late = too_late(worker.task, worker.deadline.value, timeout_s)
                if late is not None:
                    found.append((worker.task, None, late))
                    self._end(worker)
        self._drop_lost()
        return found

    def _drop_lost(self) -> None:
        """Ends the processes that an idle worker had started before it was lost."""
        for worker in self._all:
            if worker.task is None and not worker.process.is_alive():
                self._end(worker)
        self._all = [each for each in self._all if each.task or each.process.is_alive()]

    def _received(self, worker: _Process) -> Finished | None:
        """The answer of a worker to its task; None for the message that says that it is ready."""
        task = worker.task
        assert task is not None
        try:
            data = worker.pipe.recv_bytes()
        except (EOFError, OSError):  # an OSError if it ended in the middle of an answer
            return task, None, self._lost(worker)
        try:
            kind, value, failure = ForkingPickler.loads(data)
        except Exception as error:  # noqa: BLE001 - a result whose class cannot be loaded raises anything
            worker.task = None
            return task, None, TaskFailure.of(error)
        if kind == "ready":
            worker.ready = True
            return None
        if kind == "not started":
            sys.stderr.write(failure.traceback)
            raise ConfigurationError(message=f"a worker cannot be started: {failure}")
        worker.task = None
        return task, value, failure

    def _lost(self, worker: _Process) -> TaskFailure:
        worker.process.join(CLOSE_S)
        status = worker.process.exitcode
        self._end(worker)
        if not worker.ready and status is not None and status > 0:
            # no signal ended it, so every other worker would end in the same way
            message = (
                f"a worker cannot be started: its process ended with exit status {status}; what it "
                "printed is above"
            )
            raise ConfigurationError(message=message)
        detail = f"the worker process was lost with exit status {status}"
        if status == -signal.SIGKILL:
            detail += "; it may have run out of memory: use fewer workers"
        return TaskFailure("WorkerLost", detail, reason="lost")

    def _new(self) -> _Process:
        ours, theirs = self._context.Pipe()
        deadline: Any = self._context.RawValue("d", math.inf)
        process = self._context.Process(target=_process_main, args=(theirs, deadline), daemon=False)
        with _interrupts_blocked():
            process.start()
            worker = _Process(process, ours, deadline)
            self._all.append(worker)
        theirs.close()
        # not as an argument of the process: those are written to a pipe that this process can also read, so that
        # writing a large `start` would never end if the new process were killed at once
        with suppress(OSError):
            ours.send(self._start)
        return worker

    def _end(self, worker: _Process) -> None:
        """Kills the worker and the processes that it started: it leads its own process group."""
        worker.task = None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()

    def renew(self) -> None:
        for worker in self._all:
            if worker.task is None:
                self._end(worker)
        self._all = [each for each in self._all if each.task is not None]

    def close(self) -> None:
        for worker in self._all:
            with suppress(OSError):
                worker.pipe.send(None)
        for worker in self._all:
            worker.process.join(CLOSE_S)
        self.kill()

    def kill(self) -> None:
        for worker in self._all:
            self._end(worker)
        self._all = []


def check_sendable(start: Start) -> None:
    try:
        pickle.dumps(start)
    except Exception as error:
        message = (
            f"this cannot be sent to another process ({error}); name it as 'module:attr', or use "
            "threads"
        )
        raise ConfigurationError(message=message) from error


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Defers signals that raise in this process to the end of the block. A worker that is started has SIGINT blocked.

    The mask alone is not enough: another thread of this process can receive the signal, and Python then raises
    KeyboardInterrupt in the main thread, in the middle of starting a worker.
    """
    _start_resource_tracker()  # before blocking, because it unblocks SIGINT when it starts
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    handlers: dict[signal.Signals, Any] = {}
    deferred: list[int] = []
    if threading.current_thread() is threading.main_thread():
        current = {each: signal.getsignal(each) for each in _INTERRUPTS}
        handlers = {each: handler for each, handler in current.items() if callable(handler)}
    for each in handlers:
        signal.signal(each, lambda number, frame: deferred.append(number))
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number in deferred[:1]:
            signal.raise_signal(number)


def _start_resource_tracker() -> None:
    """Starts the process that removes the semaphores of killed workers. Without this it also prints a warning of them.

    Such semaphores come from libraries, as the lock of Blosc does, and cannot be avoided.
    """
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (before, _SILENT_TRACKER)))
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = before


def _process_main(pipe: connection.Connection, deadline: Any) -> None:
    with suppress(OSError):
        os.setpgrp()  # Ctrl-C in a terminal reaches the group of the parent only
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    local_to_worker.deadline = deadline
    try:
        start: Start = _next_message(pipe)
        _send(pipe, "ready")
        item = _next_message(pipe)
        work: Work | None = None if item is None else start()
    except BaseException as error:  # noqa: BLE001 - raised in the parent
        _send(pipe, "not started", failure=TaskFailure.of(error))
        return
    while item is not None:
        assert work is not None
        value, failure = attempt(work, item)
        try:
            _send(pipe, "done", value, failure)
        except Exception as error:  # noqa: BLE001 - a result that cannot be pickled raises anything
            _send(pipe, "done", failure=TaskFailure.of(error))
        item = _next_message(pipe)
    close_work(work)


def _next_message(pipe: connection.Connection) -> Any:
    try:
        data = pipe.recv_bytes()
    except (EOFError, OSError):  # the parent has ended
        _end_group()
    return ForkingPickler.loads(data)


def _send(
    pipe: connection.Connection, kind: str, value: Any = None, failure: TaskFailure | None = None
) -> None:
    data = ForkingPickler.dumps((kind, value, failure))
    try:
        pipe.send_bytes(data)
    except OSError:  # the parent has ended
        _end_group()


def _end_with_parent() -> None:
    """Waits for the end of the parent, however it ends, and then ends this worker."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        _end_group()


def _end_group() -> NoReturn:
    """Ends this worker and the processes that it started. Nobody is left who could end them later."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
