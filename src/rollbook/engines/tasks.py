"""Tasks: one item and its attempts, the result or failure of a task, and the deadline that a task sets itself."""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar

from rollbook.errors import ConfigurationError, RollbookError

Item = TypeVar("Item")
Result = TypeVar("Result")
Work: TypeAlias = Callable[[Any], Any]
Start: TypeAlias = Callable[[], Work]

LATER: Final[Any] = object()
"""In the place of an item: there is none at the moment, ask again."""

LOOK_S = 0.05
"""Seconds between two checks of the deadlines."""
CLOSE_S = 10.0
"""Seconds that a worker has to close before it is killed."""
_LONGEST_MESSAGE = 20_000


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """Why a task has no result, as text: not every exception of user code can be sent to another process."""

    kind: str
    message: str
    traceback: str = ""
    reason: Literal["raised", "timed_out", "lost"] = "raised"
    """`lost`: the worker process ended before it returned a result, for example because memory ran out."""
    error: RollbookError | None = None
    """The exception itself, where its class is in `rollbook.errors`: those can be sent to another process."""

    @classmethod
    def of(cls, error: BaseException) -> TaskFailure:
        text = "".join(traceback.format_exception(error))
        own = (
            isinstance(error, RollbookError) and type(error).__module__ == RollbookError.__module__
        )
        return cls(
            type(error).__name__,
            str(error)[:_LONGEST_MESSAGE],
            text[-_LONGEST_MESSAGE:],
            error=error if own else None,  # type: ignore[arg-type]
        )

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Done(Generic[Item, Result]):
    """One item that has finished. `value` is the result unless there is a `failure`."""

    item: Item
    value: Result | None
    failure: TaskFailure | None
    attempts: int
    seconds: float
    """Duration of the last attempt."""
    earlier_failures: tuple[TaskFailure, ...] = ()
    """Why the item was tried again, the oldest first."""


@dataclass(frozen=True, slots=True)
class Progress:
    done: int
    """Items that have finished, the failed ones included."""
    failed: int
    retried: int
    running: int


@dataclass(slots=True)
class Task:
    item: Any
    number: int
    """Position of the item among all items."""
    began: float = 0.0
    """When its last attempt began, by `time.monotonic`."""
    seconds: float = 0.0
    failures: list[TaskFailure] = field(default_factory=list)


class Abandoned(BaseException):
    """Raised in an abandoned thread by its next call of `expect`, to end it."""


class Clock(Protocol):
    value: float


@dataclass(slots=True)
class Deadline:
    """The time by which the task of one worker must call `expect` again."""

    value: float = math.inf
    abandoned: bool = False


local_to_worker = threading.local()


def expect(seconds: float | None) -> None:
    """Called by a task: it is stopped unless it calls `expect` again within this time. None removes the limit."""
    deadline: Any = getattr(local_to_worker, "deadline", None)
    if deadline is not None:
        if getattr(deadline, "abandoned", False):
            raise Abandoned
        deadline.value = math.inf if seconds is None else time.monotonic() + seconds


Finished: TypeAlias = "tuple[Task, Any, TaskFailure | None]"


class Pool(Protocol):
    workers: int

    def give(self, task: Task) -> None:
        """Gives the task to a free worker. The caller knows that there is one."""

    def finished(self, timeout_s: float | None) -> list[Finished]:
        """Waits a short time for tasks to finish, and returns those that did."""

    def withdraw(self) -> list[Task]:
        """Takes back the tasks that no worker has begun, because none is ready."""
        return []

    def renew(self) -> None:
        """Ends idle workers, so that the next tasks get new ones. Does nothing where workers cannot be ended."""
        return

    def close(self) -> None:
        """Closes idle workers after the last task."""

    def kill(self) -> None:
        """Ends all remaining workers at once."""


def too_late(task: Task, deadline: float, timeout_s: float | None) -> TaskFailure | None:
    now = time.monotonic()
    if timeout_s is not None and now - task.began > timeout_s:
        return TaskFailure("TimeoutError", f"not done after {timeout_s:g} s", reason="timed_out")
    if now > deadline:
        detail = "the task missed the deadline that it had set itself"
        return TaskFailure("TimeoutError", detail, reason="timed_out")
    return None


def started(start: Start) -> Work:
    """Starts a worker in this process. A `sys.exit` in `start` must not end the caller, perhaps even with status 0."""
    try:
        return start()
    except SystemExit as error:
        message = f"a worker cannot be started: it called sys.exit({error.code!r})"
        raise ConfigurationError(message=message) from error


def close_work(work: Work | None) -> None:
    close = getattr(work, "close", None)
    if callable(close):
        with suppress(SystemExit):  # all results are there; the caller must go on
            close()


def attempt(work: Work, item: Any) -> tuple[Any, TaskFailure | None]:
    try:
        return work(item), None
    except Abandoned:
        raise
    except BaseException as error:  # noqa: BLE001 - sys.exit in a policy is a failure like any other
        return None, TaskFailure.of(error)
    finally:
        with suppress(Abandoned):
            expect(None)
