"""The server context: what a request can reach (settings, database, blobs), and the caller it runs for.

An API key is looked up once to learn its organisation, and again inside the transaction that does the work. So a
request costs one transaction, and a key that was revoked a moment ago can do nothing any more.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import sqlalchemy as sa
from starlette.requests import Request

from rollbook.errors import KeyRevoked
from rollbook.server.blobs.interface import BlobStore
from rollbook.server.db.columns import now_us
from rollbook.server.db.engine import Database, Tenant
from rollbook.server.http.limits import AttemptLimits, RateLimits
from rollbook.server.http.responses import Problem
from rollbook.server.kept_values import KeptValues
from rollbook.server.logs import Log
from rollbook.server.metrics import Metrics
from rollbook.server.queries import KeyRow, Scope
from rollbook.server.settings import Settings
from rollbook.server.store_files.open_stores import OpenStores

T = TypeVar("T")
ScopedWork: TypeAlias = "Callable[[Scope], T]"

_MOST_KEYS = 10_000
_MOST_KEPT_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends the request: an API key of an organisation, or a person signed in there."""

    org_id: str
    key_id: str | None = None
    user_id: str | None = None
    role: str = "member"
    """The role of the person, or the scope of the key."""
    may_write: bool = True
    sees_only_own: bool = False
    """Episodes that others recorded do not exist for this caller."""

    @property
    def tenant(self) -> Tenant:
        return Tenant(org_id=self.org_id, user_id=self.user_id, key_id=self.key_id)

    @property
    def name(self) -> str:
        """The name for `created_by` and the audit log."""
        return f"key:{self.key_id}" if self.key_id is not None else f"user:{self.user_id}"


@dataclass(slots=True)
class ServerContext:
    settings: Settings
    db: Database
    blobs: BlobStore
    log: Log
    metrics: Metrics
    clock: Callable[[], int] = now_us
    """Microseconds since 1970."""
    video_turns: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(os.cpu_count() or 1)
    )
    """Inspecting a video is a process of its own; more processes than cores would not finish sooner."""
    recording_turns: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(max(2, os.cpu_count() or 1))
    )
    """Held while the arrays of a recording are read, so that many readers do not fill the memory."""
    kept: KeptValues = field(default_factory=lambda: KeptValues(_MOST_KEPT_BYTES))
    """What was read from recordings, for the next request. Keys begin with the object key, which names the tenant."""
    large_bodies: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Held by a request with a large body, from decoding it until it is answered."""
    renditions_wanted: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    """Organisations with a new video to transcode."""
    deliveries_wanted: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    """Organisations with a webhook delivery that is due."""
    store_tasks: dict[tuple[str, str], asyncio.Task[Any]] = field(default_factory=dict)
    """Work on registered stores that is under way in this process: its kind, and what it is about."""
    store_turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Held by work that reads a whole store."""
    known_keys: KnownKeys = field(default_factory=lambda: KnownKeys(_MOST_KEYS))
    known_hosts: frozenset[str] = field(init=False)
    stores: OpenStores = field(init=False)
    """Rollout stores that are registered here and open now."""
    limits: RateLimits = field(init=False)
    attempts: AttemptLimits = field(init=False)

    def __post_init__(self) -> None:
        self.known_hosts = self.settings.known_hosts
        self.stores = OpenStores(self.settings)
        self.limits = RateLimits(self.settings)
        self.attempts = AttemptLimits(self.settings.sign_ins_per_minute)

    async def read(self, caller: Caller, work: ScopedWork[T]) -> T:
        with self._refused_without_key():
            return await self.db.read(caller.tenant, self._scoped_for(caller, work))

    async def write(self, caller: Caller, work: ScopedWork[T]) -> T:
        """A second guard: the route has asked for the permission already."""
        if not caller.may_write:
            raise _may_not_write()
        with self._refused_without_key():
            return await self.db.write(caller.tenant, self._scoped_for(caller, work))

    async def read_for(self, org_id: str, work: ScopedWork[T]) -> T:
        """On the server's own behalf, for upkeep and background work."""
        return await self.db.read(Tenant(org_id=org_id), self._scoped(org_id, work))

    async def write_for(self, org_id: str, work: ScopedWork[T]) -> T:
        return await self.db.write(Tenant(org_id=org_id), self._scoped(org_id, work))

    def _scoped(self, org_id: str, work: ScopedWork[T]) -> Callable[[sa.Connection], T]:
        return lambda connection: work(Scope(connection, org_id, self.clock))

    def _scoped_for(self, caller: Caller, work: ScopedWork[T]) -> Callable[[sa.Connection], T]:
        only = caller.name if caller.sees_only_own else None
        return lambda connection: work(Scope(connection, caller.org_id, self.clock, only))

    @contextmanager
    def _refused_without_key(self) -> Iterator[None]:
        try:
            yield
        except KeyRevoked as error:
            self.known_keys.forget(error.key_id)
            raise unauthorized() from error


class KnownKeys:
    """The organisation of a key never changes, so it is remembered. Whether it was revoked is checked every time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys: OrderedDict[str, KeyRow] = OrderedDict()

    def get(self, key_id: str) -> KeyRow | None:
        return self._keys.get(key_id)

    def remember(self, key: KeyRow) -> None:
        self._keys[key.key_id] = key
        while len(self._keys) > self._most:
            self._keys.popitem(last=False)

    def forget(self, key_id: str) -> None:
        self._keys.pop(key_id, None)


def context_of(request: Request) -> ServerContext:
    context: ServerContext = request.app.state.context
    return context


# ----------------------------------------------------------------------------------------- callers


def unauthorized() -> Problem:
    """One answer for every cause: missing, malformed, unknown and revoked keys look the same."""
    text = "the API key is missing, wrong or revoked; send Authorization: Bearer <key>"
    return Problem(401, "unauthorized", text, headers={"WWW-Authenticate": "Bearer"})


def _may_not_write() -> Problem:
    text = (
        "viewers and read-only keys may not change anything; ask an admin for another role or key"
    )
    return Problem(403, "forbidden", text)


# ---------------------------------------------------------------------------------------- addresses


def base_url_of(request: Request) -> str:
    """The base of URLs that we hand out. A foreign Host header must not lead clients to another server."""
    context = context_of(request)
    if context.settings.public_url is not None:
        return context.settings.public_url
    host = request.headers.get("host", "").lower()
    if host not in context.known_hosts and host != _own_address(request):
        text = f"this server is not known as {host[:100]!r}; start it with --public-url to say where clients reach it"
        raise Problem(400, "host_not_allowed", text)
    return f"{request.url.scheme}://{host}"


def _own_address(request: Request) -> str | None:
    """The address on which the connection arrived; no header can change it."""
    server = request.scope.get("server")
    if server is None or server[1] is None:
        return None
    host, port = server
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
