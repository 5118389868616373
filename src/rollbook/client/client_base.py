"""What Client and AsyncClient have in common: how they are made."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any, TypeAlias

import httpx

from rollbook.client.cache import CACHE_BYTES, Cache
from rollbook.client.connection import Connection
from rollbook.client.core import ClientCore
from rollbook.client.credentials import is_quiet, resolve_access
from rollbook.client.delivery import Courier
from rollbook.client.facade import Facade
from rollbook.client.http import JSON_TIMEOUT
from rollbook.client.retries import Retries
from rollbook.client.runtime import Runtime
from rollbook.client.spool import Spool
from rollbook.client.uploads import MULTIPART_ABOVE

Folder: TypeAlias = "str | os.PathLike[str]"


class ClientBase(Facade[ClientCore]):
    """One server, one key. Make it once and use it for many episodes.

    `api_key` and `base_url`: as given, else ROLLBOOK_API_KEY and ROLLBOOK_BASE_URL, else from the profile that
    `rollbook login` wrote. `spool`: a folder in which episodes wait when there is no network; they are delivered once
    there is. `cache`: where downloads are kept, at most `cache_bytes` of them. Files above `multipart_above` bytes are
    sent in parts. `verbose` prints the address of each new episode; by default on a terminal, unless ROLLBOOK_QUIET.
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
        connect = partial(
            Connection,
            api_key=access.api_key,
            base_url=access.base_url,
            timeout=JSON_TIMEOUT if timeout is None else httpx.Timeout(timeout),
            retries=retries,
        )
        folder = spool if spool is None or isinstance(spool, Spool) else Spool(spool)
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
        """For other rooms of ours, which move bytes in ways that have no method here."""
        return self._core.connection

    @property
    def cache(self) -> Cache:
        return self._core.cache

    @property
    def spool(self) -> Spool | None:
        return self._core.spool

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process it goes as what it was made with, without its spool: it connects there anew."""
        return partial(type(self), **self._made_with), ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(base_url={self.base_url!r})"
