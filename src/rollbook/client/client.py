"""Client and AsyncClient: the SDK for programs without and with an event loop. Both have the same methods."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeAlias

import httpx

from rollbook.client.cache import CACHE_BYTES, Cache
from rollbook.client.connection import FIRST_CONTACT_S, Connection, Retries
from rollbook.client.core import ClientCore
from rollbook.client.credentials import is_quiet, resolve_access
from rollbook.client.delivery import Courier
from rollbook.client.episode import AsyncEpisode, Episode
from rollbook.client.facade import Facade, awaiting, awaiting_into, blocking, blocking_into
from rollbook.client.http import JSON_TIMEOUT
from rollbook.client.listing import Listing
from rollbook.client.recorded import AsyncRecordedEpisode, RecordedEpisode
from rollbook.client.runtime import AsyncRuntime, BlockingRuntime, Runtime, finish
from rollbook.client.spool import Spool
from rollbook.client.uploads import MULTIPART_ABOVE

Folder: TypeAlias = "str | os.PathLike[str]"
P = ParamSpec("P")


class ClientBase(Facade[ClientCore]):
    """One server and one key. Make it once and use it for many episodes. Threads may share a Client.

    `api_key` and `base_url`: if not given, ROLLBOOK_API_KEY and ROLLBOOK_BASE_URL are used, then the profile that
    `rollbook login` wrote. `spool`: a folder in which every episode is noted before it is sent, so that a killed
    program loses none, and which keeps episodes while there is no network; they are delivered when the network is back.
    `cache`: the folder of downloaded artifacts, at most `cache_bytes` in all. Files above `multipart_above` bytes are
    sent in parts. `timeout`: seconds to wait for an answer; by default 30, and 3 for a connection. A server that has
    never answered is given up after 2 s, or with a spool after the first attempt. `verbose` prints the URL of each new
    episode; the default is True on a terminal, unless ROLLBOOK_QUIET is set.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        profile: str | None = None,
        timeout: float | httpx.Timeout | None = None,
        retries: Retries | None = None,
        verbose: bool | None = None,
        spool: Folder | Spool | None = None,
        cache: Folder | None = None,
        cache_bytes: int = CACHE_BYTES,
        multipart_above: int = MULTIPART_ABOVE,
    ) -> None:
        access = resolve_access(api_key, base_url, profile)
        self._made_with: dict[str, Any] = {
            "api_key": access.api_key,
            "base_url": access.base_url,
            "timeout": timeout,
            "retries": retries,
            "verbose": verbose,
            "cache": cache,
            "cache_bytes": cache_bytes,
            "multipart_above": multipart_above,
        }
        folder = spool if spool is None or isinstance(spool, Spool) else Spool(spool)
        connect = partial(
            Connection,
            api_key=access.api_key,
            base_url=access.base_url,
            timeout=JSON_TIMEOUT if timeout is None else httpx.Timeout(timeout),
            retries=retries,
            first_contact_s=FIRST_CONTACT_S if folder is None else 0,  # the spool takes it at once
        )
        core = ClientCore(
            connect(self._new_runtime()),
            Cache(cache, cache_bytes),
            spool=folder,
            courier=None if folder is None else Courier(folder, connect, multipart_above),
            multipart_above=multipart_above,
            verbose=sys.stdout.isatty() and not is_quiet() if verbose is None else verbose,
        )
        super().__init__(core)

    def _new_runtime(self) -> Runtime:
        raise NotImplementedError

    @property
    def base_url(self) -> str:
        return self._core.connection.base_url

    @property
    def connection(self) -> Connection:
        """For other rooms of Rollbook, which send requests that have no method here."""
        return self._core.connection

    @property
    def cache(self) -> Cache:
        return self._core.cache

    @property
    def spool(self) -> Spool | None:
        return self._core.spool

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the arguments, without the spool: the copy in another process opens its own connections."""
        return partial(type(self), **self._made_with), ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(base_url={self.base_url!r})"


def _iterating(
    listing: Callable[Concatenate[ClientCore, P], Listing],
) -> Callable[Concatenate[Facade[ClientCore], P], Iterator[RecordedEpisode]]:
    def pages(found: Listing) -> Iterator[RecordedEpisode]:
        while page := finish(found.more()):
            yield from map(RecordedEpisode, page)

    @wraps(listing)
    def method(
        self: Facade[ClientCore], /, *args: P.args, **kwargs: P.kwargs
    ) -> Iterator[RecordedEpisode]:
        return pages(listing(self._core, *args, **kwargs))

    return method


def _async_iterating(
    listing: Callable[Concatenate[ClientCore, P], Listing],
) -> Callable[Concatenate[Facade[ClientCore], P], AsyncIterator[AsyncRecordedEpisode]]:
    async def pages(found: Listing) -> AsyncIterator[AsyncRecordedEpisode]:
        while page := await found.more():
            for each in page:
                yield AsyncRecordedEpisode(each)

    @wraps(listing)
    def method(
        self: Facade[ClientCore], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[AsyncRecordedEpisode]:
        return pages(listing(self._core, *args, **kwargs))

    return method


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
    record_revision = blocking(ClientCore.record_revision)
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


class AsyncClient(ClientBase):
    __doc__ = ClientBase.__doc__

    start_episode = awaiting_into(ClientCore.start_episode, AsyncEpisode)
    log_episode = awaiting_into(ClientCore.log_episode, AsyncEpisode)
    deliver = awaiting(ClientCore.deliver)
    episode = awaiting_into(ClientCore.episode, AsyncRecordedEpisode)
    episodes = _async_iterating(ClientCore.listing)
    delete_episode = awaiting(ClientCore.delete_episode)
    archive_episode = awaiting(ClientCore.archive_episode)
    restore_episode = awaiting(ClientCore.restore_episode)
    record_revision = awaiting(ClientCore.record_revision)
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
