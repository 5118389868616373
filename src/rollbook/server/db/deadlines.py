"""Deadlines of transactions. A database that is frozen, or behind a network that swallows everything, answers nothing:
not the query and not the request to cancel it. So its connection is cut from this side, which frees the thread."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

_LOOK_EVERY_S = 0.25
_LINE = "line"


@dataclass(slots=True, eq=False)
class Deadline:
    at: float
    line: socket.socket | None = None
    """What is cut."""
    is_over: bool = False

    def move(self, seconds: float) -> None:
        """That many seconds from now."""
        self.at = time.monotonic() + seconds

    def cuts(self, connection: sa.Connection) -> None:
        self.line = connection.info[_LINE]


class Deadlines:
    """One thread looks after all transactions of an engine."""

    def __init__(self, engine: sa.Engine) -> None:
        self._lock = threading.Lock()
        self._running: set[Deadline] = set()
        self._closed = threading.Event()
        sa.event.listen(engine, "connect", _keep_line)
        sa.event.listen(engine, "close", _drop_line)
        threading.Thread(target=self._watch, name="db-deadlines", daemon=True).start()

    @contextmanager
    def limit(self, seconds: float) -> Iterator[Deadline]:
        deadline = Deadline(time.monotonic() + seconds)
        with self._lock:
            self._running.add(deadline)
        try:
            yield deadline
        finally:
            with self._lock:
                self._running.discard(deadline)

    def hurry(self, seconds: float) -> None:
        """No transaction that is running now takes longer than this."""
        latest = time.monotonic() + seconds
        with self._lock:
            for deadline in self._running:
                deadline.at = min(deadline.at, latest)

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(_LOOK_EVERY_S):
            now = time.monotonic()
            with self._lock:
                for deadline in self._running:
                    if deadline.at < now and deadline.line is not None:
                        deadline.is_over = True
                        with suppress(OSError):
                            deadline.line.shutdown(socket.SHUT_RDWR)


def _keep_line(driver: Any, record: Any) -> None:
    """A descriptor of our own for the same connection: the driver may close its own at any time, and its number may
    then belong to another file."""
    record.info[_LINE] = socket.socket(fileno=os.dup(driver.fileno()))


def _drop_line(_driver: Any, record: Any) -> None:
    line: socket.socket | None = record.info.pop(_LINE, None)
    if line is not None:
        line.close()
