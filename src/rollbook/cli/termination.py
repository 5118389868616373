"""SIGTERM and SIGHUP end a command like Ctrl-C does: half-written files and locks are removed."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """The exit code is 128 and the number of the signal, as in a shell. Signals that are ignored stay ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    taken = [each for each in _ENDING if signal.getsignal(each) is signal.SIG_DFL]
    for each in taken:
        signal.signal(each, end)
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if received:
            sys.exit(128 + received[0])
        raise
    finally:
        for each in taken:
            signal.signal(each, signal.SIG_DFL)


def left_to_the_server() -> None:
    """A server handles these signals itself, and tells by them how it ended."""
    for each in _ENDING:
        signal.signal(each, signal.SIG_DFL)
