"""The lease of upkeep: of all processes on one database, on one machine or many, one does the work.

A holder renews its lease while it works. When it dies, the lease ends by itself and another process takes it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable

from rollbook.errors import RollbookError
from rollbook.server.context import ServerContext
from rollbook.server.db.columns import new_id
from rollbook.server.db.engine import NOBODY
from rollbook.server.queries import end_lease, renew_lease, take_lease

LEASE_S = 60.0
"""After the death of its holder the work is taken over this many seconds later."""
_RENEWALS = 4
"""How often a lease is renewed before it would end."""


async def once_in(
    context: ServerContext, name: str, every_s: float, work: Callable[[], Awaitable[bool]]
) -> float:
    """Does the work if it is due and nobody else does it. Returns the seconds until it is worth asking again.

    `work` returns whether it is done. Work that is not done, or that raises, may be begun again by anyone, at once.
    """
    # two tasks of one process are two holders
    holder = f"{socket.gethostname()}:{os.getpid()}:{new_id()}"
    began_us = context.clock()
    ask_again_us = await context.db.write(
        NOBODY,
        lambda connection: take_lease(
            connection, name, holder, now_us=began_us, until_us=began_us + int(LEASE_S * 1e6)
        ),
    )
    if ask_again_us is not None:
        context.log.debug(f"{name}_not_due", until_us=ask_again_us)
        return (ask_again_us - began_us) / 1e6
    renewing = asyncio.create_task(_keep(context, name, holder))
    done = False
    try:
        done = await work()
    finally:
        renewing.cancel()
        # `await renewing` would not tell its end from ours: a server that stops at this moment would go on
        await asyncio.gather(renewing, return_exceptions=True)
        due_us = began_us + int(every_s * 1e6) if done else context.clock()
        try:
            await context.db.write(
                NOBODY, lambda connection: end_lease(connection, name, holder, due_us=due_us)
            )
        except RollbookError as error:  # it ends by itself
            context.log.warning("lease_not_ended", lease=name, error=str(error))
    return max(0.0, (due_us - context.clock()) / 1e6) if done else every_s


async def _keep(context: ServerContext, name: str, holder: str) -> None:
    """A holder that is late may lose the lease to another. Then both work for a while, which does no harm."""
    while True:
        await asyncio.sleep(LEASE_S / _RENEWALS)
        until_us = context.clock() + int(LEASE_S * 1e6)
        try:
            await context.db.write(
                NOBODY,
                lambda connection: renew_lease(connection, name, holder, until_us=until_us),  # noqa: B023
            )
        except RollbookError as error:
            context.log.warning("lease_not_renewed", lease=name, error=str(error))
