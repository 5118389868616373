"""Facades: public methods made from the coroutines of the core, with the same arguments and docstrings.

class Episode(Facade[Recording]):
    upload = blocking(Recording.upload)      # or awaiting(…) in the async twin
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from rollbook.client.runtime import finish

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Facade(Generic[C]):
    def __init__(self, core: C) -> None:
        self._core = core


def blocking(
    operation: Callable[Concatenate[C, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Facade[C], P], R]:
    @wraps(operation)
    def method(self: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return finish(operation(self._core, *args, **kwargs))

    return method


def blocking_into(
    operation: Callable[Concatenate[C, P], Coroutine[Any, Any, R]], facade: Callable[[R], T]
) -> Callable[Concatenate[Facade[C], P], T]:
    """Like `blocking`, for an operation whose result is a core too and is wrapped in its own facade."""

    @wraps(operation)
    def method(self: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return facade(finish(operation(self._core, *args, **kwargs)))

    return _returning(facade, method)


def awaiting(
    operation: Callable[Concatenate[C, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Facade[C], P], Coroutine[Any, Any, R]]:
    @wraps(operation)
    async def method(self: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await operation(self._core, *args, **kwargs)

    return method


def awaiting_into(
    operation: Callable[Concatenate[C, P], Coroutine[Any, Any, R]], facade: Callable[[R], T]
) -> Callable[Concatenate[Facade[C], P], Coroutine[Any, Any, T]]:
    @wraps(operation)
    async def method(self: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return facade(await operation(self._core, *args, **kwargs))

    return _returning(facade, method)


def _returning(facade: object, method: Callable[P, T]) -> Callable[P, T]:
    """Makes `help` show the returned facade instead of the core inside it."""
    shown = inspect.signature(method).replace(return_annotation=facade)
    method.__signature__ = shown  # type: ignore[attr-defined]
    return method
