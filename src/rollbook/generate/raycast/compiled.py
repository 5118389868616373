"""Decorators that compile functions with numba, cache the machine code on disk and release the interpreter lock.

Fast math is off, so a sum is the same on every run and for every number of threads. Parallel work runs on Python
threads over independent parts; a compiled function itself never starts threads.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from rollbook.lazy import needs

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compiles the function at its first call. Later processes load the machine code from disk."""
    return cast(F, _numba().njit(cache=True, nogil=True, error_model="numpy")(function))


def inlined(function: F) -> F:
    """For a small function that compiled functions call: its code is inserted there."""
    return cast(
        F, _numba().njit(cache=True, nogil=True, error_model="numpy", inline="always")(function)
    )


@contextmanager
def report_compilation(report: Callable[[bool], None]) -> Iterator[None]:
    """Calls `report` with True when a function begins to be compiled, and with False when none is left.

    A function that needs another one compiles it first, so there can be several True in a row.
    """
    event = _numba().core.event
    open_ones = 0

    class Reporter(event.Listener):  # type: ignore[name-defined, misc]
        def on_start(self, event: Any) -> None:
            nonlocal open_ones
            if _is_ours(event):
                open_ones += 1
                report(True)

        def on_end(self, event: Any) -> None:
            nonlocal open_ones
            if _is_ours(event):
                open_ones -= 1
                if not open_ones:
                    report(False)

    with event.install_listener("numba:compile", Reporter()):
        yield


def _is_ours(event: Any) -> bool:
    """numba also compiles functions of its own."""
    return str(event.data["dispatcher"].py_func.__module__).startswith("rollbook.")


def _numba() -> Any:
    with needs("generation"):
        import numba
    settings: Any = numba.config
    if not os.access(os.path.dirname(__file__), os.W_OK) and not settings.CACHE_DIR:
        # the package folder is read-only: without a cache folder every process would compile again
        settings.CACHE_DIR = _cache_folder()
    return numba


def _cache_folder() -> str:
    """Cached machine code is executed unchecked, so the folder must be one that only this user can write to."""
    folder = os.path.join(tempfile.gettempdir(), f"rollbook-numba-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not ours or found.st_mode & 0o022:
        return tempfile.mkdtemp(prefix="rollbook-numba-")
    return folder
