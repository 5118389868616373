"""Ctrl-C at every moment at which Python can raise KeyboardInterrupt, one after the other."""

from __future__ import annotations

import gc
import itertools
import shutil
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


def interrupted_everywhere(action: Callable[[], object]) -> Iterator[str]:
    """Runs the action again and again. Each run is interrupted one moment later than the one before.

    Yields the function that was interrupted. The first and the last run are whole: after the first one, caches are
    filled and every run has the same moments. A moment is the beginning of a Python function or the return of a C
    function: there, and in loops, Python looks whether a signal has arrived. Moments inside `shutil.rmtree` are left
    out: it closes a descriptor twice if it is interrupted between two of its lines.
    """
    action()
    for number in itertools.count(1):
        where = _interrupted(action, number)
        gc.collect()
        if where is None:
            return
        yield where


def _interrupted(action: Callable[[], object], number: int) -> str | None:
    moments = 0
    where: str | None = None

    def look(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal moments, where
        if frame.f_code.co_filename == shutil.__file__:
            return
        if event in ("call", "c_return") and where is None:
            moments += 1
            if moments == number:
                where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        action()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(before)
    return where
