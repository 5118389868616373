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
from typing import Any, NoReturn

from rollbook.engines.tasks import (
    CLOSE_S,
    LOOK_S,
    Clock,
    Finished,
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


@dataclass(slots=True, eq=False)
class _Process:
    process: Any
    pipe: connection.Connection
    deadline: Clock
    task: Task | None = field(default=None)


class Processes:
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
        with suppress(BrokenPipeError):  # the worker ended while it was idle: `finished` reports it
            worker.pipe.send(task.item)

    def finished(self, timeout_s: float | None) -> list[Finished]:
        busy = {each.pipe: each for each in self._all if each.task is not None}
        found = [self._received(busy[pipe]) for pipe in connection.wait(list(busy), LOOK_S)]  # type: ignore[index]
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

    def _received(self, worker: _Process) -> Finished:
        task = worker.task
        assert task is not None
        try:
            kind, value, failure = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join(CLOSE_S)
            status = worker.process.exitcode
            detail = f"the worker process was lost with exit status {status}"
            if status == -signal.SIGKILL:
                detail += "; it may have run out of memory: use fewer workers"
            self._end(worker)
            return task, None, TaskFailure("WorkerLost", detail, reason="lost")
        except Exception as error:  # noqa: BLE001 - a result whose class cannot be loaded raises anything
            worker.task = None
            return task, None, TaskFailure.of(error)
        if kind == "not started":
            sys.stderr.write(failure.traceback)
            raise ConfigurationError(message=f"a worker cannot be started: {failure}")
        worker.task = None
        return task, value, failure

    def _new(self) -> _Process:
        ours, theirs = self._context.Pipe()
        deadline: Any = self._context.RawValue("d", math.inf)
        process = self._context.Process(
            target=_process_main, args=(theirs, self._start, deadline), daemon=False
        )
        with _interrupts_blocked():
            process.start()
            worker = _Process(process, ours, deadline)
            self._all.append(worker)
        theirs.close()
        return worker

    def _end(self, worker: _Process) -> None:
        """Kills the worker and the processes that it started: it leads its own process group."""
        worker.task = None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()

    def close(self) -> None:
        for worker in self._all:
            with suppress(BrokenPipeError):
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
    """Defers SIGINT to the end of the block, and blocks it in a worker that is started meanwhile.

    The mask alone is not enough: another thread of this process can receive the signal, and Python then raises
    KeyboardInterrupt in the main thread, in the middle of starting a worker.
    """
    resource_tracker.ensure_running()  # before blocking, because it unblocks SIGINT when it starts
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    handler = signal.getsignal(signal.SIGINT)
    deferred: list[int] = []
    defers = callable(handler) and threading.current_thread() is threading.main_thread()
    if defers:
        signal.signal(signal.SIGINT, lambda number, frame: deferred.append(number))
    try:
        yield
    finally:
        if defers:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if deferred:
            signal.raise_signal(signal.SIGINT)


def _process_main(pipe: connection.Connection, start: Start, deadline: Any) -> None:
    with suppress(OSError):
        os.setpgrp()  # Ctrl-C in a terminal reaches the group of the parent only
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    local_to_worker.deadline = deadline
    work: Work | None = None
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            _end_group()
        if item is None:
            break
        if work is None:
            try:
                work = start()
            except BaseException as error:  # noqa: BLE001 - raised in the parent
                pipe.send(("not started", None, TaskFailure.of(error)))
                return
        _answer(pipe, *attempt(work, item))
    close_work(work)


def _answer(pipe: connection.Connection, value: Any, failure: TaskFailure | None) -> None:
    try:
        pipe.send(("done", value, failure))
    except BrokenPipeError:
        return  # the parent has ended, and this worker ends with it
    except Exception as error:  # noqa: BLE001 - a result that cannot be pickled raises anything
        pipe.send(("done", None, TaskFailure.of(error)))


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
