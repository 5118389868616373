"""The parent of worker processes: replaces workers that die, and ends when it is asked to and not before."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import time

from uvicorn import Config, Server
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from rollbook.server.logs import Log
from rollbook.server.shutdown import PunctualServer

_SHORT_LIFE_S = 10.0
_LONGEST_PAUSE_S = 30.0
_LATE_S = 1.0
"""A worker ends itself after the grace period; this is for one that cannot."""


class Worker(Process):
    """uvicorn's worker, with a server that ends in time."""

    def __init__(self, config: Config, sockets: list[socket.socket], grace_s: float) -> None:
        super().__init__(config, sockets)
        self._grace_s = grace_s

    @property
    def server(self) -> Server:
        if self._server is None:
            self._server = PunctualServer(self.config, self._grace_s)
        return self._server


class Supervisor(Multiprocess):
    """uvicorn's parent, except that it never gives up: a worker that cannot start now, because the database is away,
    can start later."""

    def __init__(
        self, config: Config, sockets: list[socket.socket], *, log: Log, grace_s: float
    ) -> None:
        super().__init__(config, sockets=sockets)
        self._log = log
        self._grace_s = grace_s
        self._started_at: dict[Process, float] = {}
        self._replaced_at: dict[Process, float] = {}
        """When each dead worker is replaced."""
        self._short_lives = 0

    def init_processes(self) -> None:
        self.processes = [self._start() for _ in range(self.processes_num)]

    def keep_subprocess_alive(self) -> None:
        for index, process in enumerate(self.processes):
            if self.should_exit.is_set():
                return
            if process in self._replaced_at:
                if time.monotonic() >= self._replaced_at[process]:
                    del self._replaced_at[process]
                    self.processes[index] = self._start()
            elif not process.is_alive(self.config.timeout_worker_healthcheck):
                self._bury(process)

    def _start(self) -> Process:
        process = Worker(self.config, self.sockets, self._grace_s)
        process.start()
        self._started_at[process] = time.monotonic()
        self._log.info("worker_started", pid=process.pid)
        return process

    def _bury(self, process: Process) -> None:
        """Also ends a worker that lives and does not answer."""
        hung = process.process.is_alive()
        process.kill()
        process.process.join()
        now = time.monotonic()
        lived_s = now - self._started_at.pop(process, now)
        self._short_lives = self._short_lives + 1 if lived_s < _SHORT_LIFE_S else 0
        pause_s = min(_LONGEST_PAUSE_S, 2.0 ** (self._short_lives - 1)) if self._short_lives else 0
        self._replaced_at[process] = now + pause_s
        values = {"why": "it did not answer"} if hung else _ending(process.exitcode)
        self._log.error("worker_died", pid=process.pid, **values, replaced_in_s=pause_s)

    def join_all(self) -> None:
        """Workers that have not ended after the grace period are killed."""
        deadline = time.monotonic() + self._grace_s + _LATE_S
        for process in self.processes:
            process.process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                self._log.error("worker_killed", pid=process.pid, why="it did not end in time")
                process.kill()
                process.process.join()


def _ending(exitcode: int | None) -> dict[str, object]:
    if exitcode is not None and exitcode < 0:
        return {"signal": signal.Signals(-exitcode).name}
    return {"status": exitcode}


def stop_with_parent() -> None:
    """In a worker: stop as if asked to when the parent is gone, however it ended. Nobody else would stop the worker."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="parent", daemon=True).start()
