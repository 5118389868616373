"""run_tasks and run_in_order: every engine takes items, retries them and returns results in the same way."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Literal, TypeAlias

from rollbook import engines
from rollbook.engines.cluster import Cluster
from rollbook.engines.processes import Processes
from rollbook.engines.tasks import (
    LATER,
    LOOK_S,
    Done,
    Item,
    Pool,
    Progress,
    Result,
    Start,
    Task,
    TaskFailure,
)
from rollbook.engines.threads import Inline, Threads
from rollbook.errors import ConfigurationError

Engine: TypeAlias = str
"""`local`, or a name `x` for which there is a module `x_engine.py`. Such a module has two functions: `check()` and
`open_pool(start, workers, cluster)`."""
Parallel: TypeAlias = Literal["inline", "thread", "process"]

LOST_ATTEMPTS = 3
"""Workers that one item of `run_in_order` may lose before it fails."""


def run_tasks(
    start: Callable[[], Callable[[Item], Result]],
    items: Iterable[Item],
    *,
    engine: Engine = "local",
    cluster: Cluster | None = None,
    parallel: Parallel = "process",
    workers: int = 1,
    retries: int = 0,
    lost_retries: int | None = None,
    timeout_s: float | None = None,
    in_order: bool = False,
    stop: Callable[[], bool] | None = None,
    renew: Callable[[TaskFailure], bool] | None = None,
    on_retry: Callable[[Item, TaskFailure], object] | None = None,
    on_progress: Callable[[Progress], object] | None = None,
) -> Generator[Done[Item, Result], None, None]:
    """Yields one `Done` per item. An item is taken only when a worker is free.

    Results come in the order in which they finish. With `in_order` they come in the order of the items; workers then
    run at most `2 * workers` items ahead of the caller, so that few large results wait in memory.

    `retries` is how often an item that failed is tried again. `lost_retries` replaces it for an item whose worker was
    lost: the item may not be the reason.

    `stop` is called again and again. As soon as it returns True, no item is taken or tried again. Attempts that have
    begun go on to their end, and their items are yielded.

    An item may be `LATER`: there is none at the moment. The items are then asked again a little later, so a caller can
    decide about the next item when it has seen a result.

    `renew` is asked after every failed attempt. If it returns True, idle workers end and new ones take their place,
    because what made the attempt fail may still be in the memory of its worker. Threads cannot be renewed.

    `on_retry` is called with an item and its last failure before the item is tried again.

    `cluster` says which workers another engine than `local` uses: its address and the resources of a worker.

    `inline` works in the caller's own thread, one item after the other, without time limits. `timeout_s` limits one
    attempt. An error that prevents a worker from starting is raised, because every other item would meet it too.
    """
    pool = _pool(start, engine, cluster, parallel, workers)
    if lost_retries is None:
        lost_retries = retries
    rules = _Rules(retries, lost_retries, timeout_s, in_order, stop, renew, on_retry, on_progress)
    return _Run(pool, iter(items), rules).results()


def run_in_order(
    start: Callable[[], Callable[[Item], Result]],
    items: Iterable[Item],
    *,
    workers: int,
    failed: Callable[[Item, TaskFailure], Exception],
) -> Generator[Result, None, None]:
    """Yields the result of every item, in the order of the items. The first failure ends the run.

    An item whose worker was lost, for example because memory ran out, is given to another worker. It fails when it has
    lost three workers.

    One worker is this process itself; more workers are processes. An error of Rollbook that a task raises is raised
    here. For every other failure `failed` makes the error to raise.
    """
    parallel: Parallel = "inline" if workers == 1 else "process"
    tasks = run_tasks(
        start,
        items,
        parallel=parallel,
        workers=workers,
        lost_retries=LOST_ATTEMPTS - 1,
        in_order=True,
    )
    with closing(tasks):
        for done in tasks:
            if done.failure is not None:
                failure = done.failure
                if failure.reason == "lost":
                    failure = replace(
                        failure, message=f"{failure.message} ({done.attempts} attempts)"
                    )
                error = failure.error or failed(done.item, failure)
                if error.__traceback__ is None:  # it was raised in another process
                    error.add_note(failure.traceback)
                raise error
            yield done.value  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class _Rules:
    """The arguments of `run_tasks` that decide what becomes of an item."""

    retries: int
    lost_retries: int
    timeout_s: float | None
    in_order: bool
    stop: Callable[[], bool] | None
    renew: Callable[[TaskFailure], bool] | None
    on_retry: Callable[[Any, TaskFailure], object] | None
    on_progress: Callable[[Progress], object] | None

    def allow_another(self, task: Task) -> bool:
        allowed = self.lost_retries if task.failures[-1].reason == "lost" else self.retries
        return len(task.failures) <= allowed


class _Run:
    """One call of `run_tasks`. Its caller gets a result before another item is taken, and so can stop the run."""

    def __init__(self, pool: Pool, source: Iterator[Any], rules: _Rules) -> None:
        self._pool = pool
        self._rules = rules
        self._source = source
        self._more = True
        self._stopped = False
        self._again: deque[Task] = deque()
        self._finished: dict[int, Done[Any, Any]] = {}
        """Results that the caller has not got yet, by the position of their item."""
        self._taken = self._yielded = self._running = 0
        self._done = self._failed = self._retried = 0

    def results(self) -> Generator[Done[Any, Any], None, None]:
        try:
            while self._more or self._again or self._running:
                self._look_whether_to_stop()
                self._give()
                if self._running:
                    self._collect()
                elif self._more:  # the next item comes later
                    time.sleep(LOOK_S)
                while (number := self._next_result()) is not None:
                    self._yielded += 1
                    yield self._finished.pop(number)
            self._pool.close()
        finally:
            self._pool.kill()

    def _look_whether_to_stop(self) -> None:
        if self._rules.stop is None or not self._rules.stop() or self._stopped:
            return
        self._stopped, self._more = True, False
        for task in self._pool.withdraw():
            self._running -= 1
            if task.failures:
                self._again.append(task)
        while self._again:
            task = self._again.popleft()
            self._finish(task, None, task.failures.pop())

    def _give(self) -> None:
        while self._running < self._pool.workers and (self._again or self._may_take()):
            task = self._again.popleft() if self._again else self._next_task()
            if task is None:
                return
            if task.failures:
                self._retried += 1
                if self._rules.on_retry is not None:
                    self._rules.on_retry(task.item, task.failures[-1])
            else:
                self._taken += 1
            task.began = time.monotonic()
            self._pool.give(task)
            self._running += 1

    def _next_task(self) -> Task | None:
        try:
            item = next(self._source)
        except StopIteration:
            self._more = False
            return None
        return None if item is LATER else Task(item, self._taken)

    def _may_take(self) -> bool:
        ahead = self._taken - self._yielded
        return self._more and not (self._rules.in_order and ahead > 2 * self._pool.workers)

    def _collect(self) -> None:
        for task, value, failure in self._pool.finished(self._rules.timeout_s):
            self._running -= 1
            task.seconds = time.monotonic() - task.began
            if failure is None:
                self._finish(task, value, None)
                continue
            if self._rules.renew is not None and self._rules.renew(failure):
                self._pool.renew()
            task.failures.append(failure)
            if self._rules.allow_another(task):
                self._again.append(task)
            else:
                self._finish(task, None, task.failures.pop())

    def _finish(self, task: Task, value: Any, failure: TaskFailure | None) -> None:
        self._done += 1
        self._failed += failure is not None
        if self._rules.on_progress is not None:
            running = self._running + len(self._again)
            self._rules.on_progress(Progress(self._done, self._failed, self._retried, running))
        earlier = tuple(task.failures)
        self._finished[task.number] = Done(
            task.item, value, failure, len(earlier) + 1, task.seconds, earlier
        )

    def _next_result(self) -> int | None:
        if self._rules.in_order:
            return self._yielded if self._yielded in self._finished else None
        return next(iter(self._finished), None)


def check_engine(name: str) -> None:
    """Raises ConfigurationError for an unknown engine, and for one that needs what is not installed."""
    if name != "local":
        _engine_module(name).check()


def _pool(start: Start, engine: str, cluster: Cluster | None, parallel: str, workers: int) -> Pool:
    if workers < 1:
        raise ConfigurationError(message=f"workers is {workers}, expected 1 or more")
    if engine != "local":
        pool: Pool = _engine_module(engine).open_pool(start, workers, cluster)
        return pool
    if cluster is not None:
        message = (
            "engine is 'local', which has no cluster: leave cluster out, or name another engine"
        )
        raise ConfigurationError(message=message)
    kinds: dict[str, Callable[[], Pool]] = {
        "inline": lambda: Inline(start),
        "thread": lambda: Threads(start, workers),
        "process": lambda: Processes(start, workers),
    }
    if parallel not in kinds:
        message = f"parallel is {parallel!r}, expected 'inline', 'thread' or 'process'"
        raise ConfigurationError(message=message)
    return kinds[parallel]()


def _engine_module(name: str) -> Any:
    modules = [each.name for each in iter_modules(engines.__path__)]
    others = [each.removesuffix("_engine") for each in modules if each.endswith("_engine")]
    if name not in others:
        expected = " or ".join(map(repr, ["local", *others]))
        raise ConfigurationError(message=f"engine is {name!r}, expected {expected}")
    return import_module(f"rollbook.engines.{name}_engine")
