"""Rollbook: the book of record for policy rollouts.

Rooms are the namespaces (`from rollbook import contracts`); importing this package loads none of them. What records an
episode stands here as well, and is loaded when it is first used: `rollbook.init()`, then `rollbook.log_episode(…)`. So
do `rollbook.evals`, which holds a policy against recorded episodes, and `rollbook.verify`, the regression gate.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollbook import evals
    from rollbook.client import AsyncClient, Client, close, init, log_episode, start_episode
    from rollbook.evals import verify

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "Client",
    "__version__",
    "close",
    "evals",
    "init",
    "log_episode",
    "start_episode",
    "verify",
]
_MODULES = {"evals": "rollbook.evals", "verify": "rollbook.evals.verify"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    return getattr(importlib.import_module("rollbook.client"), name)
