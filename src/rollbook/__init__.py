"""Rollbook: the book of record for policy rollouts.

Rooms are the namespaces (`from rollbook import contracts`); importing this package loads none of them. The functions
that record an episode are also here, and are loaded when they are first used: `rollbook.init()`, then
`rollbook.log_episode(…)`. So are `rollbook.evals`, which compares a policy with recorded episodes, and
`rollbook.verify`, the regression gate.
"""

from typing import TYPE_CHECKING

from rollbook.lazy import lazy_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rollbook import evals as evals
    from rollbook.client import (
        AsyncClient as AsyncClient,
        Client as Client,
        close as close,
        init as init,
        log_episode as log_episode,
        start_episode as start_episode,
    )
    from rollbook.evals import verify as verify
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "rollbook.client": (
                "AsyncClient",
                "Client",
                "close",
                "init",
                "log_episode",
                "start_episode",
            ),
            "rollbook.evals": (),
            "rollbook.evals.verify": (),
        },
        extra="client",
    )
    __all__ += ["__version__"]
