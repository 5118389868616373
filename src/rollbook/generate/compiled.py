"""`compiled`: functions turned into machine code by numba, kept on disk, run without the interpreter's lock.

No fast math: a sum comes out the same on every run, whatever the number of threads. Threads are Python threads over
independent work, so compiled code is never parallel inside.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
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


def _numba() -> Any:
    try:
        import numba
    except ImportError as error:
        message = "generation needs numba: pip install 'rollbook[generate]'"
        raise ConfigurationError(message=message) from error
    settings: Any = numba.config
    if not os.access(os.path.dirname(__file__), os.W_OK) and not settings.CACHE_DIR:
        # installed where nobody may write: without a place of its own every process compiles again
        settings.CACHE_DIR = os.path.join(tempfile.gettempdir(), f"rollbook-numba-{os.getuid()}")
    return numba
