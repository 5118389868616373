"""run_tasks and run_in_order: every engine takes items, retries them and returns results in the same way."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from itertools import count
from pkgutil import iter_modules
from typing import Any, Literal, TypeAlias

from rollbook import engines
from rollbook.engines.processes import Processes
from rollbook.engines.tasks import Done, Item, Pool, Progress, Result, Start, Task, TaskFailure
from rollbook.engines.threads import Inline, Threads
from rollbook.errors import ConfigurationError

Engine: TypeAlias = str
"""`local`, or a name `x` for which there is a module `x_engine.py`. Such a module has two functions: `check()` and
`open_pool(start, workers)`."""
Parallel: TypeAlias = Literal["inline", "thread", "process"]

LOST_ATTEMPTS = 3
"""Workers that one item of `run_in_order` may lose before it fails."""


def run_tasks(
    start: Callable[[], Callable[[Item], Result]],
    items: Iterable[Item],
    *,
    engine: Engine = "local",
    parallel: Parallel = "process",
    workers: int = 1,
    retries: int = 0,
    lost_retries: int | None = None,
    timeout_s: float | None = None,
    in_order: bool = False,
    on_progress: Callable[[Progress], object] | None = None,
) -> Generator[Done[Item, Result], None, None]:
    """Yields one `Done` per item. An item is taken only when a worker is free.

    Results come in the order in which they finish. With `in_order` they come in the order of the items; workers then
    run at most `2 * workers` items ahead of the caller, so that few large results wait in memory.

    `retries` is how often an item that failed is tried again. `lost_retries` replaces it for an item whose worker was
    lost: the item may not be the reason.

    `inline` works in the caller's own thread, one item after the other, without time limits. `timeout_s` limits one
    attempt. An error that prevents a worker from starting is raised, because every other item would meet it too.
    """
    pool = _pool(start, engine, parallel, workers)
    if lost_retries is None:
        lost_retries = retries
    return _results(pool, iter(items), retries, lost_retries, timeout_s, in_order, on_progress)


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


def _results(
    pool: Pool,
    source: Iterator[Any],
    retries: int,
    lost_retries: int,
    timeout_s: float | None,
    in_order: bool,
    on_progress: Callable[[Progress], object] | None,
) -> Generator[Done[Any, Any], None, None]:
    tasks = map(Task, source, count())
    again: deque[Task] = deque()
    waiting: dict[int, Done[Any, Any]] = {}
    taken = yielded = done = failed = retried = running = 0
    more = True
    try:
        while more or again or running or waiting:
            while running < pool.workers and (
                again or (more and (not in_order or taken - yielded <= 2 * pool.workers))
            ):
                task = again.popleft() if again else next(tasks, None)
                if task is None:
                    more = False
                    break
                taken += task.attempts == 0
                task.attempts += 1
                task.began = time.monotonic()
                pool.give(task)
                running += 1
            while yielded in waiting:
                yield waiting.pop(yielded)
                yielded += 1
            for task, value, failure in pool.finished(timeout_s) if running else ():
                running -= 1
                if failure is not None:
                    allowed = lost_retries if failure.reason == "lost" else retries
                    if task.attempts <= allowed:
                        again.append(task)
                        retried += 1
                        continue
                done += 1
                failed += failure is not None
                if on_progress is not None:
                    on_progress(Progress(done, failed, retried, running + len(again)))
                seconds = time.monotonic() - task.began
                result = Done(task.item, value, failure, task.attempts, seconds)
                if in_order:
                    waiting[task.number] = result
                else:
                    yield result
        pool.close()
    finally:
        pool.kill()


def check_engine(name: str) -> None:
    """Raises ConfigurationError for an unknown engine, and for one that needs what is not installed."""
    if name != "local":
        _engine_module(name).check()


def _pool(start: Start, engine: str, parallel: str, workers: int) -> Pool:
    if workers < 1:
        raise ConfigurationError(message=f"workers is {workers}, expected 1 or more")
    if engine != "local":
        pool: Pool = _engine_module(engine).open_pool(start, workers)
        return pool
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
