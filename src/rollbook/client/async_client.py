"""AsyncClient: the SDK for programs with an event loop. Every method of Client, as a coroutine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import wraps
from types import TracebackType
from typing import Concatenate, ParamSpec

from rollbook.client.client_base import ClientBase
from rollbook.client.core import ClientCore
from rollbook.client.episode import AsyncEpisode
from rollbook.client.facade import Facade, awaiting, awaiting_into
from rollbook.client.listing import Listing
from rollbook.client.recorded import AsyncRecordedEpisode
from rollbook.client.runtime import AsyncRuntime

P = ParamSpec("P")


def _iterating(
    listing: Callable[Concatenate[ClientCore, P], Listing],
) -> Callable[Concatenate[Facade[ClientCore], P], AsyncIterator[AsyncRecordedEpisode]]:
    @wraps(listing)
    def method(
        self: Facade[ClientCore], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[AsyncRecordedEpisode]:
        return _all(listing(self._core, *args, **kwargs))

    return method


async def _all(listing: Listing) -> AsyncIterator[AsyncRecordedEpisode]:
    while found := await listing.more():
        for each in found:
            yield AsyncRecordedEpisode(each)


class AsyncClient(ClientBase):
    __doc__ = ClientBase.__doc__

    start_episode = awaiting_into(ClientCore.start_episode, AsyncEpisode)
    log_episode = awaiting_into(ClientCore.log_episode, AsyncEpisode)
    deliver = awaiting(ClientCore.deliver)
    episode = awaiting_into(ClientCore.episode, AsyncRecordedEpisode)
    episodes = _iterating(ClientCore.listing)
    delete_episode = awaiting(ClientCore.delete_episode)
    archive_episode = awaiting(ClientCore.archive_episode)
    restore_episode = awaiting(ClientCore.restore_episode)
    call = awaiting(ClientCore.call)
    close = awaiting(ClientCore.close)

    def _new_runtime(self) -> AsyncRuntime:
        return AsyncRuntime()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
