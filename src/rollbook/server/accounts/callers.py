"""Callers: which API key or which signed-in person sends a request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.requests import Request

from rollbook.server.accounts.keys import matches, parse_api_key, scope_of_key
from rollbook.server.accounts.roles import Action, machine, require
from rollbook.server.accounts.sessions import session_caller
from rollbook.server.context import Caller, ServerContext, context_of, unauthorized
from rollbook.server.db.engine import Tenant
from rollbook.server.queries import KeyRow, key_by_id, needs_touch, touch_key

_KEY_HEADERS = ("x-rollbook-key", "x-robotrace-key")


async def caller_of(request: Request, action: Action) -> Caller:
    """The API key or the person that sends the request, and that may do this. It is the first thing that a route asks:
    nothing is read, looked up or changed for a caller who may not.

    The handler then uses `context.read` or `context.write`, which check the key again in their own transaction. Without
    that a key that was just revoked would pass."""
    context = context_of(request)
    caller = await _caller_by_key(context, request)
    if caller is None:
        caller = await session_caller(request)
    if caller is None:
        raise unauthorized()
    request.state.caller = caller
    context.limits.spend(request, caller.name)
    require(caller, action)
    return caller


async def _caller_by_key(context: ServerContext, request: Request) -> Caller | None:
    """None when no key was sent. A wrong key is refused, even when a valid cookie came with it."""
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
        # also for a known key: the time of a refusal must not reveal which keys exist
        key = await context.db.read(
            Tenant(key_id=key_id), lambda connection: key_by_id(connection, key_id)
        )
        same = matches(full, None if key is None else key.secret_hash)
    if key is None or not same or key.revoked_at_us is not None:
        raise unauthorized()
    _note_use(context, key)
    return machine(key.org_id, key_id, scope_of_key(key.prefix))


def _sent_key(request: Request) -> str | None:
    authorization = request.headers.get("authorization")
    if authorization is not None:
        scheme, _, key = authorization.partition(" ")
        return key.strip() if scheme.lower() == "bearer" else ""
    return next((request.headers[name] for name in _KEY_HEADERS if name in request.headers), None)


def _note_use(context: ServerContext, key: KeyRow) -> None:
    """Stores the time of the last use, once a minute and in the background."""
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
