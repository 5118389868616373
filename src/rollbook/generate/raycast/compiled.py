"""`compiled`: functions turned into machine code by numba, kept on disk, run without the interpreter's lock.

No fast math: a sum comes out the same on every run, whatever the number of threads. Threads are Python threads over
independent work, so compiled code is never parallel inside.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from rollbook.errors import ConfigurationError

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """The same function, compiled when it is first called; later processes load what was compiled."""
    return cast(F, _numba().njit(cache=True, nogil=True, error_model="numpy")(function))


def inlined(function: F) -> F:
    """For a small function called from compiled ones: costs no call there."""
    return cast(
        F, _numba().njit(cache=True, nogil=True, error_model="numpy", inline="always")(function)
    )


@contextmanager
def telling(say: Callable[[str], None]) -> Iterator[None]:
    """Calls `say` with the name of every function that has to be compiled, so that a first run is not a silent one."""
    event = _numba().core.event

    class Told(event.Listener):  # type: ignore[name-defined, misc]
        def on_start(self, event: Any) -> None:
            function = event.data["dispatcher"].py_func
            if function.__module__.startswith("rollbook."):  # not what numba compiles for itself
                say(function.__name__.strip("_").replace("_", " "))

        def on_end(self, event: Any) -> None:
            pass

    with event.install_listener("numba:compile", Told()):
        yield


def _numba() -> Any:
    try:
        import numba
    except ImportError as error:
        message = f"generation needs numba: pip install 'rollbook[generate]' ({error})"
        raise ConfigurationError(message=message) from error
    settings: Any = numba.config
    if not os.access(os.path.dirname(__file__), os.W_OK) and not settings.CACHE_DIR:
        # installed where nobody may write: without a place of its own every process compiles again
        settings.CACHE_DIR = _cache_folder()
    return numba


def _cache_folder() -> str:
    """Compiled code is run as it is found, so only from a folder that nobody else can have put it in."""
    folder = os.path.join(tempfile.gettempdir(), f"rollbook-numba-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not ours or found.st_mode & 0o022:
        return tempfile.mkdtemp(prefix="rollbook-numba-")
    return folder
