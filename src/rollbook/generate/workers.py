"""Workers: independent work in processes of its own, handed back in the order it was asked for."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import TypeVar

from rollbook.errors import GenerationFailed

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    workers: int,
    *,
    named: Callable[[Item], tuple[int, str]],
) -> Generator[Result, None, None]:
    """`work(item)` for every item. Workers run a little ahead, never all the way: results are large.

    `named` gives an item's number and key, for the error when its worker is lost.
    """
    # started anew and not forked: ray casters have threads of their own, which a fork would cut off
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_begin
    )
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    try:
        for item in items:
            with _interrupts_held_back():
                waiting.append((item, pool.submit(work, item)))
            if len(waiting) > 2 * workers:
                yield _result(*waiting.popleft(), named)
        while waiting:
            yield _result(*waiting.popleft(), named)
    finally:
        pool.shutdown(cancel_futures=True)


def _result(item: Item, future: Future[Result], named: Callable[[Item], tuple[int, str]]) -> Result:
    try:
        return future.result()
    except BrokenProcessPool as error:
        number, key = named(item)
        detail = (
            "a worker process was lost here or a little later; it may have run out of memory: "
            "take fewer workers"
        )
        raise GenerationFailed(sample_index=number, sample_key=key, detail=detail) from error


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """A worker that is started in here is born deaf to Ctrl-C. Until it has imported everything it could only answer
    with a traceback; and the parent gets its own Ctrl-C as soon as this is over."""
    resource_tracker.ensure_running()  # first, as it would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    """In a worker, before anything else: ends without a word on Ctrl-C, and with its parent however that ends. Where
    the parent was started to ignore Ctrl-C, as `nohup` does in a script, so does the worker."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
