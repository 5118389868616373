"""Running tasks: whichever engine does the work, items are taken, tried again and handed back in the same way."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeAlias

from rollbook.engines.processes import Processes
from rollbook.engines.ray_actors import RayActors
from rollbook.engines.tasks import Done, Item, Pool, Progress, Result, Start, Task
from rollbook.engines.threads import Inline, Threads
from rollbook.errors import ConfigurationError

Engine: TypeAlias = Literal["local", "ray"]
Parallel: TypeAlias = Literal["inline", "thread", "process"]


def run_tasks(
    start: Callable[[], Callable[[Item], Result]],
    items: Iterable[Item],
    *,
    engine: Engine = "local",
    parallel: Parallel = "process",
    workers: int = 1,
    retries: int = 0,
    timeout_s: float | None = None,
    on_progress: Callable[[Progress], object] | None = None,
) -> Iterator[Done[Item, Result]]:
    """Every item once, in the order in which they are done. Items are taken when a worker is free, never all at once.

    `inline` is the caller's own thread: one after the other, without time limits. `timeout_s` is for one attempt. What
    keeps a worker from starting is raised, as no item would fare better.
    """
    pool = _pool(start, engine, parallel, workers)
    return _results(pool, iter(items), retries, timeout_s, on_progress)


def _results(
    pool: Pool,
    source: Iterator[Any],
    retries: int,
    timeout_s: float | None,
    on_progress: Callable[[Progress], object] | None,
) -> Iterator[Done[Any, Any]]:
    again: deque[Task] = deque()
    done = failed = retried = running = 0
    more = True
    try:
        while more or again or running:
            while (more or again) and running < pool.workers:
                task = again.popleft() if again else _next(source)
                if task is None:
                    more = False
                    break
                task.attempts += 1
                task.began = time.monotonic()
                pool.give(task)
                running += 1
            for task, value, failure in pool.finished(timeout_s) if running else ():
                running -= 1
                if failure is not None and task.attempts <= retries:
                    again.append(task)
                    retried += 1
                    continue
                done += 1
                failed += failure is not None
                if on_progress is not None:
                    on_progress(Progress(done, failed, retried, running + len(again)))
                yield Done(task.item, value, failure, task.attempts, time.monotonic() - task.began)
        pool.close()
    finally:
        pool.kill()


def _next(source: Iterator[Any]) -> Task | None:
    for item in source:
        return Task(item)
    return None


def _pool(start: Start, engine: str, parallel: str, workers: int) -> Pool:
    if workers < 1:
        raise ConfigurationError(message=f"workers is {workers}, expected 1 or more")
    if engine == "ray":
        return RayActors(start, workers)
    kinds: dict[str, Callable[[], Pool]] = {
        "inline": lambda: Inline(start),
        "thread": lambda: Threads(start, workers),
        "process": lambda: Processes(start, workers),
    }
    if engine == "local" and parallel in kinds:
        return kinds[parallel]()
    if engine != "local":
        raise ConfigurationError(message=f"engine is {engine!r}, expected 'local' or 'ray'")
    message = f"parallel is {parallel!r}, expected 'inline', 'thread' or 'process'"
    raise ConfigurationError(message=message)
