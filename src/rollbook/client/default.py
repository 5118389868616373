"""The default client of `rollbook.log_episode` and `rollbook.start_episode`, made when it is first used."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from rollbook.client.client import Client, Folder
from rollbook.client.core import ClientCore
from rollbook.client.facade import Facade

P = ParamSpec("P")
T = TypeVar("T")

_lock = threading.Lock()
_client: Client | None = None


def init(
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    timeout: float | None = None,
    spool: Folder | None = None,
) -> None:
    """Makes a new default client. Settings that are not given come from the environment or from `rollbook login`."""
    global _client
    made = Client(api_key=api_key, base_url=base_url, timeout=timeout, spool=spool)
    with _lock:
        before, _client = _client, made
    if before is not None:
        before.close()


def close() -> None:
    """Closes the default client. The next call makes a new one."""
    global _client
    with _lock:
        before, _client = _client, None
    if before is not None:
        before.close()


def default_client() -> Client:
    global _client
    with _lock:
        if _client is None:
            _client = Client()
        return _client


def _of_default_client(
    method: Callable[Concatenate[Facade[ClientCore], P], T],
) -> Callable[P, T]:
    @wraps(method)
    def function(*args: P.args, **kwargs: P.kwargs) -> T:
        return method(default_client(), *args, **kwargs)

    known = inspect.signature(method)
    unbound = known.replace(parameters=list(known.parameters.values())[1:])
    function.__signature__ = unbound  # type: ignore[attr-defined]
    return function


start_episode = _of_default_client(Client.start_episode)
log_episode = _of_default_client(Client.log_episode)
