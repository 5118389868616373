"""What a request can reach: settings, database, blobs; and on whose behalf it runs.

An API key is looked up once to learn whose it is, and asked for again inside the very transaction that does the work.
So a request costs one transaction, and a key that was revoked a moment ago does nothing any more. The question travels
with the first statement of the work; what that one did is undone if the answer is no.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, TypeVar

import sqlalchemy as sa
from starlette.requests import Request

from rollbook.server.accounts.keys import matches, parse_api_key, role_of_key
from rollbook.server.blobs.interface import BlobStore
from rollbook.server.db.engine import Database, Tenant
from rollbook.server.db.tables import now_us
from rollbook.server.http.responses import Problem
from rollbook.server.logs import Log
from rollbook.server.metrics import Metrics
from rollbook.server.queries import KeyRow, Scope, key_by_id, needs_touch, touch_key
from rollbook.server.queries.keys import ask_key
from rollbook.server.settings import Settings

T = TypeVar("T")
ScopedWork: TypeAlias = "Callable[[Scope], T]"
SessionLookup: TypeAlias = "Callable[[Request], Awaitable[Caller | None]]"

_KEY_HEADERS = ("x-rollbook-key", "x-robotrace-key")
_MOST_KEYS = 10_000
_MAY_NOT_WRITE = ("viewer",)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: an API key of an organisation, or a person signed in there."""

    org_id: str
    key_id: str | None = None
    user_id: str | None = None
    role: str = "member"

    @property
    def tenant(self) -> Tenant:
        return Tenant(org_id=self.org_id, user_id=self.user_id, key_id=self.key_id)

    @property
    def name(self) -> str:
        """For `created_by` and the audit log."""
        return f"key:{self.key_id}" if self.key_id is not None else f"user:{self.user_id}"


class Limits(Protocol):
    def spend(self, request: Request, caller: Caller) -> None:
        """Raises a Problem 429 with an integer Retry-After when the caller has had enough for now."""
        ...


class NoLimits:
    def spend(self, request: Request, caller: Caller) -> None:
        return


@dataclass(slots=True)
class ServerContext:
    settings: Settings
    db: Database
    blobs: BlobStore
    log: Log
    metrics: Metrics
    clock: Callable[[], int] = now_us
    """Microseconds since 1970."""
    limits: Limits = field(default_factory=NoLimits)
    session_caller: SessionLookup | None = None
    """Finds who is signed in by the request's cookie, and refuses a change without a CSRF token."""
    video_turns: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(os.cpu_count() or 1)
    )
    """Looking into a video is a process of its own; more at once would not be done sooner."""
    renditions_wanted: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    """Organisations that have just brought a video to be transcoded."""
    deliveries_wanted: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    """Organisations whose webhooks have something to be told."""
    known_keys: KnownKeys = field(default_factory=lambda: KnownKeys(_MOST_KEYS))
    known_hosts: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.known_hosts = self.settings.known_hosts

    async def read(self, caller: Caller, work: ScopedWork[T]) -> T:
        return await self.db.read(caller.tenant, self._as(caller, work))

    async def write(self, caller: Caller, work: ScopedWork[T]) -> T:
        check_may_write(caller)
        return await self.db.write(caller.tenant, self._as(caller, work))

    async def read_for(self, org_id: str, work: ScopedWork[T]) -> T:
        """On the server's own behalf, for upkeep and for what it notices while it serves."""
        return await self.db.read(Tenant(org_id=org_id), self._as(Caller(org_id), work))

    async def write_for(self, org_id: str, work: ScopedWork[T]) -> T:
        return await self.db.write(Tenant(org_id=org_id), self._as(Caller(org_id), work))

    def _as(self, caller: Caller, work: ScopedWork[T]) -> Callable[[sa.Connection], T]:
        def confirmed(connection: sa.Connection) -> T:
            if caller.key_id is not None:
                self._confirm(connection, caller.key_id)
            return work(Scope(connection, caller.org_id, self.clock))

        return confirmed

    def _confirm(self, connection: sa.Connection, key_id: str) -> None:
        def refuse() -> None:
            self.known_keys.forget(key_id)
            raise unauthorized()

        ask_key(connection, key_id, refuse)


class KnownKeys:
    """Whose key it is never changes, so it is remembered; whether it still counts is asked every time."""

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


# --------------------------------------------------------------------------------------- who it is


def unauthorized() -> Problem:
    """One answer for every cause: missing, malformed, unknown and revoked keys look the same."""
    text = "the API key is missing, wrong or revoked; send Authorization: Bearer <key>"
    return Problem(401, "unauthorized", text, headers={"WWW-Authenticate": "Bearer"})


def check_may_write(caller: Caller) -> None:
    """Every write asks; also for whoever has a lot to do before theirs."""
    if caller.role in _MAY_NOT_WRITE:
        text = "viewers and read-only keys may not change anything; ask an admin for another role or key"
        raise Problem(403, "forbidden", text)


async def caller_of(request: Request) -> Caller:
    """Who asks, by key or by session. What follows goes through `context.read` or `context.write`, which confirm the
    key in their own transaction: without one of them a key that was just revoked would pass."""
    context = context_of(request)
    caller = await _caller_by_key(context, request)
    if caller is None and context.session_caller is not None:
        caller = await context.session_caller(request)
    if caller is None:
        raise unauthorized()
    request.state.caller = caller
    context.limits.spend(request, caller)
    return caller


async def _caller_by_key(context: ServerContext, request: Request) -> Caller | None:
    """None when no key was sent. A key that was sent and is wrong is refused, whatever cookie came with it."""
    text = _sent_key(request)
    if text is None:
        return None
    parsed = parse_api_key(text)
    if parsed is None:
        raise unauthorized()
    key_id, full = parsed
    key = context.known_keys.get(key_id)
    same = matches(full, None if key is None else key.secret_hash)
    if not same:
        # also for a key we remember: how long a refusal takes must not tell which keys there are
        key = await context.db.read(
            Tenant(key_id=key_id), lambda connection: key_by_id(connection, key_id)
        )
        same = matches(full, None if key is None else key.secret_hash)
    if key is None or not same or key.revoked_at_us is not None:
        raise unauthorized()
    _note_use(context, key)
    return Caller(org_id=key.org_id, key_id=key_id, role=role_of_key(key.prefix))


def _sent_key(request: Request) -> str | None:
    authorization = request.headers.get("authorization")
    if authorization is not None:
        scheme, _, key = authorization.partition(" ")
        return key.strip() if scheme.lower() == "bearer" else ""
    return next((request.headers[name] for name in _KEY_HEADERS if name in request.headers), None)


def _note_use(context: ServerContext, key: KeyRow) -> None:
    """Once a minute, and nobody waits for it."""
    now = context.clock()
    if not needs_touch(key, now):
        context.known_keys.remember(key)
        return
    context.known_keys.remember(replace(key, last_used_at_us=now))
    future = context.db.submit_write(
        Tenant(org_id=key.org_id, key_id=key.key_id),
        lambda connection: touch_key(connection, key.key_id, now),
    )

    def noted(done: Any) -> None:
        if not done.cancelled() and done.exception() is not None:
            context.log.warning("key_use_not_noted", key_id=key.key_id, error=str(done.exception()))

    future.add_done_callback(noted)


# -------------------------------------------------------------------------------------- where it is


def base_url_of(request: Request) -> str:
    """What URLs we hand out begin with. A Host header that is not ours would lead whoever follows them elsewhere."""
    context = context_of(request)
    if context.settings.public_url is not None:
        return context.settings.public_url
    host = request.headers.get("host", "").lower()
    if host not in context.known_hosts and host != _own_address(request):
        text = f"this server is not known as {host[:100]!r}; start it with --public-url to say where clients reach it"
        raise Problem(400, "host_not_allowed", text)
    return f"{request.url.scheme}://{host}"


def _own_address(request: Request) -> str | None:
    """The address the connection came in on, which no header can change."""
    server = request.scope.get("server")
    if server is None or server[1] is None:
        return None
    host, port = server
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
