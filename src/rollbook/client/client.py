"""Client: the SDK for programs without an event loop. Threads may share one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from types import TracebackType
from typing import Concatenate, ParamSpec

from rollbook.client.client_base import ClientBase
from rollbook.client.core import ClientCore
from rollbook.client.episode import Episode
from rollbook.client.facade import Facade, blocking, blocking_into
from rollbook.client.listing import Listing
from rollbook.client.recorded import RecordedEpisode
from rollbook.client.runtime import BlockingRuntime, finish

P = ParamSpec("P")


def _iterating(
    listing: Callable[Concatenate[ClientCore, P], Listing],
) -> Callable[Concatenate[Facade[ClientCore], P], Iterator[RecordedEpisode]]:
    @wraps(listing)
    def method(
        self: Facade[ClientCore], /, *args: P.args, **kwargs: P.kwargs
    ) -> Iterator[RecordedEpisode]:
        return _all(listing(self._core, *args, **kwargs))

    return method


def _all(listing: Listing) -> Iterator[RecordedEpisode]:
    while found := finish(listing.more()):
        yield from map(RecordedEpisode, found)


class Client(ClientBase):
    __doc__ = ClientBase.__doc__

    start_episode = blocking_into(ClientCore.start_episode, Episode)
    log_episode = blocking_into(ClientCore.log_episode, Episode)
    deliver = blocking(ClientCore.deliver)
    episode = blocking_into(ClientCore.episode, RecordedEpisode)
    episodes = _iterating(ClientCore.listing)
    delete_episode = blocking(ClientCore.delete_episode)
    archive_episode = blocking(ClientCore.archive_episode)
    restore_episode = blocking(ClientCore.restore_episode)
    call = blocking(ClientCore.call)
    close = blocking(ClientCore.close)

    def _new_runtime(self) -> BlockingRuntime:
        return BlockingRuntime()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
