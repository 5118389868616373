"""Tasks: what every engine knows of the items it works on, and what a task may say about itself."""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from rollbook.errors import ConfigurationError

Item = TypeVar("Item")
Result = TypeVar("Result")
Work: TypeAlias = Callable[[Any], Any]
Start: TypeAlias = Callable[[], Work]

LOOK_S = 0.05
"""How often deadlines are looked at."""
CLOSE_S = 10.0
_LONGEST_MESSAGE = 20_000


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """Why a task has no result, as text: exceptions of other people do not all survive the way out of a process."""

    kind: str
    message: str
    traceback: str = ""
    reason: Literal["raised", "timed_out", "lost"] = "raised"
    """`lost`: the worker died, by its own hand or because memory ran out."""

    @classmethod
    def of(cls, error: BaseException) -> TaskFailure:
        text = "".join(traceback.format_exception(error))
        return cls(type(error).__name__, str(error)[:_LONGEST_MESSAGE], text[-_LONGEST_MESSAGE:])

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Done(Generic[Item, Result]):
    """One item that is over with. `value` is the result unless there is a `failure`."""

    item: Item
    value: Result | None
    failure: TaskFailure | None
    attempts: int
    seconds: float
    """Of the last attempt."""


@dataclass(frozen=True, slots=True)
class Progress:
    done: int
    failed: int
    """Of those that are done."""
    retried: int
    running: int


@dataclass(slots=True)
class Task:
    item: Any
    attempts: int = 0
    began: float = 0.0


class Abandoned(BaseException):
    """Ends a thread that nobody waits for any more, at the first chance."""


class Clock(Protocol):
    value: float


@dataclass(slots=True)
class Deadline:
    """Until when the task of one worker has to go on."""

    value: float = math.inf
    abandoned: bool = False


local_to_worker = threading.local()


def expect(seconds: float | None) -> None:
    """Called by a task: stop me unless I call again within this time. None: I may take as long as I like."""
    deadline: Any = getattr(local_to_worker, "deadline", None)
    if deadline is not None:
        if getattr(deadline, "abandoned", False):
            raise Abandoned
        deadline.value = math.inf if seconds is None else time.monotonic() + seconds


Finished: TypeAlias = "tuple[Task, Any, TaskFailure | None]"


class Pool(Protocol):
    workers: int

    def give(self, task: Task) -> None:
        """To a free worker; there is one."""

    def finished(self, timeout_s: float | None) -> list[Finished]:
        """Waits for at least one, or for a short while."""

    def close(self) -> None:
        """All is done: workers may clear up."""

    def kill(self) -> None:
        """Ends what is left, at once."""


def too_late(task: Task, deadline: float, timeout_s: float | None) -> TaskFailure | None:
    now = time.monotonic()
    if timeout_s is not None and now - task.began > timeout_s:
        return TaskFailure("TimeoutError", f"not done after {timeout_s:g} s", reason="timed_out")
    if now > deadline:
        detail = "it did not go on within the time it had allowed itself"
        return TaskFailure("TimeoutError", detail, reason="timed_out")
    return None


def started(start: Start) -> Work:
    """A worker. One that calls sys.exit while it is made must not end the caller, and least of all with its 0."""
    try:
        return start()
    except SystemExit as error:
        message = f"a worker cannot be started: it called sys.exit({error.code!r})"
        raise ConfigurationError(message=message) from error


def close_work(work: Work | None) -> None:
    close = getattr(work, "close", None)
    if callable(close):
        with suppress(SystemExit):  # the work is done, and nobody else's to end
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
