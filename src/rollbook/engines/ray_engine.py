"""RayActors: workers as Ray actors, on a cluster or on a local Ray that is started here."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rollbook import __version__
from rollbook.engines.cluster import Cluster
from rollbook.engines.ray_connection import RayConnection, check_installed
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

_ASK_S = 1.0
"""Seconds between two questions to a worker whether its task has missed a deadline."""
_TELL_S = 30.0
"""Seconds without any worker after which a message says what is being waited for."""
_STARTS = 3
"""Actors in a row that may be lost before they are ready."""


class _RayWorker:
    """The actor. One of its threads works, the other one answers questions.

    Items and answers are bytes: what cannot be packed or unpacked is then a failure of its item, and not of the actor.
    """

    def __init__(self, start: bytes) -> None:
        self._start = start
        self._work: Work | None = None
        self._deadline = Deadline()

    def describe(self) -> tuple[str, str]:
        return __version__, f"{socket.gethostname()}, process {os.getpid()}"

    def run(self, item: bytes) -> bytes:
        from ray import cloudpickle

        local_to_worker.deadline = self._deadline
        if self._work is None:
            try:
                self._work = started(cloudpickle.loads(self._start))
            except Exception as error:  # noqa: BLE001 - raised in the parent
                return _packed(cloudpickle, "not started", None, TaskFailure.of(error))
        try:
            unpacked = cloudpickle.loads(item)
        except Exception as error:  # noqa: BLE001 - an item whose class cannot be loaded raises anything
            return _packed(cloudpickle, "done", None, TaskFailure.of(error))
        return _packed(cloudpickle, "done", *attempt(self._work, unpacked))

    def is_late(self) -> bool:
        return time.monotonic() > self._deadline.value

    def close(self) -> None:
        close_work(self._work)


def _packed(cloudpickle: Any, kind: str, value: Any, failure: TaskFailure | None) -> bytes:
    try:
        packed: bytes = cloudpickle.dumps((kind, value, failure))
    except Exception as error:  # noqa: BLE001 - a result that cannot be pickled raises anything
        packed = cloudpickle.dumps((kind, None, TaskFailure.of(error)))
    return packed


def check() -> None:
    """Raises ConfigurationError when this engine cannot run here."""
    check_installed()


def open_pool(start: Start, workers: int, cluster: Cluster | None) -> Pool:
    return RayActors(start, workers, cluster or Cluster())


@dataclass(slots=True, eq=False)
class _Actor:
    handle: Any
    where: str = "a node"
    task: Task | None = None
    late: bool = False
    """It has answered that its task missed a deadline."""


class RayActors(Pool):
    """Tasks wait here until an actor is ready. An actor for which the cluster has no room holds back no task."""

    def __init__(self, start: Start, workers: int, cluster: Cluster) -> None:
        self.workers = workers
        self._cluster = cluster
        self._connection = RayConnection(cluster.address)
        self._ray = ray = self._connection.ray
        try:
            self._start: Any = ray.put(self._sendable(start))
            self._check_resources()
        except BaseException:
            self._connection.close()
            raise
        self._kind = ray.remote(
            max_concurrency=2,
            num_cpus=cluster.cpus,
            num_gpus=cluster.gpus,
            memory=None if cluster.memory_mb is None else cluster.memory_mb * 2**20,
        )(_RayWorker)
        self._waiting: deque[Task] = deque()
        self._starting: dict[Any, _Actor] = {}
        self._idle: list[_Actor] = []
        self._busy: dict[Any, _Actor] = {}
        self._asked: dict[Any, tuple[_Actor, Task]] = {}
        self._asked_at = self._alone_since = time.monotonic()
        self._lost_starts = 0
        self._told = False

    # ------------------------------------------------------------------------------------- tasks

    def give(self, task: Task) -> None:
        self._waiting.append(task)
        self._assign()

    def withdraw(self) -> list[Task]:
        withdrawn, self._waiting = list(self._waiting), deque()
        for actor in self._starting.values():
            self._end(actor)
        self._starting = {}
        return withdrawn

    def finished(self, timeout_s: float | None) -> list[Finished]:
        # now, and not when an actor becomes free: the caller may decide to renew it first
        self._assign()
        known = [*self._starting, *self._busy, *self._asked]
        ready, _ = self._ray.wait(known, timeout=_ASK_S)
        if ready:
            ready, _ = self._ray.wait(known, num_returns=len(known), timeout=0)
        found: list[Finished] = []
        for reference in ready:
            if reference in self._starting:
                self._take_started(reference)
            elif reference in self._busy:
                found.append(self._answer(reference))
            elif reference in self._asked:
                self._take_lateness(reference)
        self._ask()
        found += self._end_late(timeout_s)
        self._look_whether_nodes_come()
        return found

    def _assign(self) -> None:
        while self._waiting and self._idle:
            actor, task = self._idle.pop(), self._waiting.popleft()
            actor.task, actor.late = task, False
            task.began = time.monotonic()
            packed = self._ray.cloudpickle.dumps(task.item)
            self._busy[actor.handle.run.remote(packed)] = actor
        actors = len(self._starting) + len(self._idle) + len(self._busy)
        for _ in range(min(len(self._waiting) - len(self._starting), self.workers - actors)):
            actor = _Actor(self._kind.remote(self._start))
            self._starting[actor.handle.describe.remote()] = actor

    def _answer(self, reference: Any) -> Finished:
        actor = self._busy.pop(reference)
        task, actor.task = actor.task, None
        assert task is not None
        errors = self._ray.exceptions
        try:
            packed = self._ray.get(reference)
        except errors.RayTaskError as error:
            self._idle.append(actor)
            return task, None, TaskFailure.of(error)
        except errors.RayError as error:
            self._end(actor)
            detail = f"the Ray worker was lost ({actor.where}): {_reason(error)}"
            return task, None, TaskFailure("WorkerLost", detail, reason="lost")
        self._idle.append(actor)
        try:
            kind, value, failure = self._ray.cloudpickle.loads(packed)
        except Exception as error:  # noqa: BLE001 - a result whose class cannot be loaded raises anything
            return task, None, TaskFailure.of(error)
        if kind == "not started":
            sys.stderr.write(failure.traceback)
            raise ConfigurationError(message=f"a worker cannot be started: {failure}")
        return task, value, failure

    # --------------------------------------------------------------------------------- deadlines

    def _ask(self) -> None:
        if time.monotonic() - self._asked_at < _ASK_S:
            return
        self._asked_at = time.monotonic()
        waited_for = {actor for actor, _ in self._asked.values()}
        for actor in self._busy.values():
            if actor not in waited_for:
                assert actor.task is not None
                self._asked[actor.handle.is_late.remote()] = (actor, actor.task)

    def _take_lateness(self, reference: Any) -> None:
        actor, task = self._asked.pop(reference)
        with suppress(self._ray.exceptions.RayError):  # a lost actor is noticed by its task
            actor.late = self._ray.get(reference) and actor.task is task

    def _end_late(self, timeout_s: float | None) -> list[Finished]:
        found: list[Finished] = []
        for reference, actor in list(self._busy.items()):
            assert actor.task is not None
            deadline = 0.0 if actor.late else float("inf")
            late = too_late(actor.task, deadline, timeout_s)
            if late is not None:
                del self._busy[reference]
                self._end(actor)
                found.append((actor.task, None, late))
        return found

    # ------------------------------------------------------------------------------------ actors

    def _take_started(self, reference: Any) -> None:
        actor = self._starting.pop(reference)
        errors = self._ray.exceptions
        try:
            version, actor.where = self._ray.get(reference)
        except errors.RayError as error:
            self._end(actor)
            self._lost_starts += 1
            if getattr(error, "actor_init_failed", False) or self._lost_starts == _STARTS:
                message = f"a worker cannot be started on the Ray cluster: {error}"
                raise ConfigurationError(message=message) from error
            return
        if version != __version__:
            message = (
                f"the Ray worker at {actor.where} has Rollbook {version}, and this process has {__version__}; "
                "install the same version on every node"
            )
            raise ConfigurationError(message=message)
        self._lost_starts = 0
        self._idle.append(actor)

    def _check_resources(self) -> None:
        """A local cluster never grows: what it lacks now it will always lack."""
        if not self._connection.grows and not self._some_node_fits():
            raise ConfigurationError(message=self._no_node())

    def _look_whether_nodes_come(self) -> None:
        now = time.monotonic()
        if not self._starting or self._idle or self._busy:
            self._alone_since = now
            return
        waited = now - self._alone_since
        if waited > _TELL_S and not self._told:
            self._told = True
            free = "free node" if self._some_node_fits() else "node"
            needed = self._cluster.describe_needed()
            sys.stderr.write(f"waiting for a {free} of the Ray cluster with {needed}\n")
        if waited > self._cluster.node_wait_s and not self._some_node_fits():
            raise ConfigurationError(message=self._no_node())

    def _some_node_fits(self) -> bool:
        return any(map(self._cluster.fits, self._connection.nodes()))

    def _no_node(self) -> str:
        has = [
            ", ".join(f"{node.get(name, 0):g} {name}" for name in ("CPU", "GPU", "memory"))
            for node in self._connection.nodes()
        ]
        return (
            f"no node of the Ray cluster has {self._cluster.describe_needed()}, which one worker needs; the nodes "
            f"have: {'; '.join(sorted(set(has)))} (MB); ask for less, or add a node"
        )

    def _sendable(self, start: Start) -> bytes:
        try:
            packed: bytes = self._ray.cloudpickle.dumps(start)
        except Exception as error:
            message = f"this cannot be sent to a Ray worker ({error}); name it as 'module:attr'"
            raise ConfigurationError(message=message) from error
        return packed

    def _end(self, actor: _Actor) -> None:
        with suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(actor.handle)

    def renew(self) -> None:
        for actor in self._idle:
            self._end(actor)
        self._idle = []

    def close(self) -> None:
        closing = [actor.handle.close.remote() for actor in self._idle]
        if closing:
            self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)

    def kill(self) -> None:
        for actor in (*self._idle, *self._starting.values(), *self._busy.values()):
            self._end(actor)
        self._idle, self._starting, self._busy, self._asked = [], {}, {}, {}
        self._start = None  # references must go before the connection does
        self._connection.close()


def _reason(error: Exception) -> str:
    """Ray explains the loss of an actor in many lines, of which the last one says what has happened."""
    last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
    return last[0].rpartition("Worker exit detail: ")[2].partition(" Some common causes")[0].strip()
