"""Rollbook: the book of record for policy rollouts.

Rooms are the namespaces (`from rollbook import contracts`); importing this package loads none of them. What records an
episode stands here as well, and is loaded when it is first used: `rollbook.init()`, then `rollbook.log_episode(…)`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollbook.client import AsyncClient, Client, close, init, log_episode, start_episode

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "__version__", "close", "init", "log_episode", "start_episode"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("rollbook.client"), name)
