"""An AsyncClient that can be used like a Client: every coroutine runs in an event loop of its own thread.

So one test holds for both clients.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any

from anyio.from_thread import BlockingPortal

from rollbook.client import AsyncClient, AsyncEpisode, AsyncRecordedEpisode


class Portaled:
    def __init__(self, inner: Any, portal: BlockingPortal) -> None:
        self._inner = inner
        self._portal = portal

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._call(found) if inspect.ismethod(found) else found

    def _call(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            async def inside() -> Any:
                result = method(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result

            return self._wrapped(self._portal.call(inside))

        return call

    def _wrapped(self, result: Any) -> Any:
        if isinstance(result, AsyncEpisode | AsyncRecordedEpisode):
            return Portaled(result, self._portal)
        if isinstance(result, AsyncIterator):
            return self._each(result)
        return result

    def _each(self, found: AsyncIterator[Any]) -> Iterator[Any]:
        while True:
            try:
                yield self._wrapped(self._portal.call(found.__anext__))
            except StopAsyncIteration:
                return

    def __enter__(self) -> Portaled:
        self._portal.call(self._inner.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._portal.call(partial(self._inner.__aexit__, kind, error, traceback))


def async_client(portal: BlockingPortal, **options: Any) -> Any:
    async def make() -> AsyncClient:
        return AsyncClient(**options)

    return Portaled(portal.call(make), portal)
