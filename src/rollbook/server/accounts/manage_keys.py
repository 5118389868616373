"""API keys over HTTP: create, list and revoke them.

A key belongs to the person who made it; a key cannot make keys. Revoking a key also ends the keys and the webhooks that
it made: older releases let keys make keys, and the audit log knows which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.wire.keys import (
    CreateKey,
    Ended,
    KeyAnswer,
    KeyCreated,
    KeyList,
    KeyRevoked,
    KeyScope,
    Left,
)
from rollbook.server.accounts.audit import note
from rollbook.server.accounts.callers import caller_of
from rollbook.server.accounts.keys import (
    PREFIX_OF_SCOPE,
    SCOPE_OF_ROLE,
    new_api_key,
    role_of_scope,
    scope_of_key,
    shown_prefix,
)
from rollbook.server.accounts.roles import (
    may,
    require,
    require_gift,
    usual_scope,
)
from rollbook.server.accounts.sign_in import BODY_LIMIT
from rollbook.server.context import Caller, context_of, unauthorized
from rollbook.server.http.openapi import LeanRoute, route
from rollbook.server.http.requests import json_body
from rollbook.server.http.responses import (
    Problem,
    answer_from_row,
    json_response,
    not_found,
    wire_time,
)
from rollbook.server.queries import KeyRow, Scope

MOST_LIVE_KEYS = 1000
SCOPE_TEXTS: Mapping[KeyScope, str] = MappingProxyType(
    {
        "ingest": "record episodes, and read those that it recorded",
        "read": "read everything",
        "write": "record, read and evaluate",
        "admin": "also change scenarios and webhooks, and delete what others recorded",
    }
)


@dataclass(frozen=True, slots=True)
class ListedKey:
    row: KeyRow
    prefix: str
    scope: KeyScope
    revocable: bool


# ------------------------------------------------------------------------------------------ changes


def add_key(
    scope: Scope,
    request: Request,
    caller: Caller,
    *,
    prefix: str,
    label: str | None,
    created_by: str | None,
) -> tuple[str, KeyRow]:
    """The key and its row, made in the caller's transaction."""
    live = [each for each in list(scope.keys()) if each.revoked_at_us is None]
    if len(live) >= MOST_LIVE_KEYS:
        text = f"this organisation has {MOST_LIVE_KEYS} keys; revoke those that nobody uses"
        raise Problem(409, "too_many_keys", text)
    full, key_id, secret_hash = new_api_key(prefix)
    row = scope.create_key(key_id, secret_hash, prefix=prefix, label=label, created_by=created_by)
    held = scope_of_key(prefix)
    detail = {"label": label, "scope": held, "role": role_of_scope(held)}
    note(scope, request, caller, "key.created", f"key:{key_id}", **detail)
    return full, row


async def make_key(
    request: Request, caller: Caller, label: str | None, asked: KeyScope | None
) -> tuple[str, KeyRow]:
    require(caller, "make_keys")
    held = asked or usual_scope(caller.role)
    require_gift(caller.role, held)

    def make(scope: Scope) -> tuple[str, KeyRow]:
        prefix = PREFIX_OF_SCOPE[held]
        return add_key(
            scope, request, caller, prefix=prefix, label=label, created_by=caller.user_id
        )

    # on the server's behalf: a viewer, who changes nothing else, may keep keys that read
    return await context_of(request).write_for(caller.org_id, make)


# ------------------------------------------------------------------------------------------- revoking


async def drop_key(request: Request, caller: Caller, key_id: str) -> KeyRevoked:
    """The key and the keys that it made stop working with the next request. Revoking again is not an error."""
    require(caller, "revoke_own_keys")
    context = context_of(request)

    def drop(scope: Scope) -> KeyRevoked:
        key = scope.key(key_id)
        if key is None:
            raise not_found("key")
        if not _may_revoke(caller, key):
            text = "this key is somebody else's; ask an admin of your organisation to revoke it"
            raise Problem(403, "forbidden", text)
        if caller.key_id is not None and _is_revoked(scope, caller.key_id):
            raise unauthorized()
        return revoke(scope, request, caller, key)

    # on the server's behalf: viewers and read-only keys change nothing else
    return await context.write_for(caller.org_id, drop)


def revoke(scope: Scope, request: Request, caller: Caller, key: KeyRow) -> KeyRevoked:
    """Also ends what the key made: keys, the keys of these keys, and their webhooks. What they recorded stays."""
    is_first = key.revoked_at_us is None
    keys = [key.key_id, *(scope.keys_made_by_key(key.key_id) if is_first else ())]
    ended = [each for each in keys if _revoke_one(scope, request, caller, each)]
    makers = [f"key:{each}" for each in keys]
    webhooks = scope.delete_webhooks_of(makers) if is_first else []
    for webhook_id in webhooks:
        note(scope, request, caller, "webhook.deleted", webhook_id, with_key=key.key_id)
    after = scope.key(key.key_id)
    assert after is not None, "it was there in this transaction"
    assert after.revoked_at_us is not None, "it was just revoked"
    return KeyRevoked(
        key.key_id,
        shown_prefix(key.prefix, key.key_id),
        wire_time(after.revoked_at_us),
        ended=Ended([each for each in ended if each != key.key_id], webhooks) if is_first else None,
        left=Left(**scope.count_made_by(makers)) if is_first else None,
    )


def _revoke_one(scope: Scope, request: Request, caller: Caller, key_id: str) -> bool:
    key = scope.key(key_id)
    if key is None or key.revoked_at_us is not None:
        return False
    note(scope, request, caller, "key.revoked", f"key:{key_id}", label=key.label)
    scope.revoke_key(key_id)
    return True


def _is_revoked(scope: Scope, key_id: str) -> bool:
    key = scope.key(key_id)
    return key is None or key.revoked_at_us is not None


def _may_revoke(caller: Caller, key: KeyRow) -> bool:
    """A person owns the keys that they made. A key owns itself."""
    if may(caller, "revoke_any_key"):
        return True
    if caller.key_id is not None:
        return key.key_id == caller.key_id
    return key.created_by == caller.user_id


def visible_keys(scope: Scope, caller: Caller) -> list[ListedKey]:
    see_all = may(caller, "see_all_keys")
    found = scope.keys()
    return [
        ListedKey(
            row=key,
            prefix=shown_prefix(key.prefix, key.key_id),
            scope=scope_of_key(key.prefix),
            revocable=key.revoked_at_us is None and _may_revoke(caller, key),
        )
        for key in found
        if see_all or key.created_by == caller.user_id
    ]


# --------------------------------------------------------------------------------------------- JSON


async def create_key(request: Request) -> Response:
    caller = await caller_of(request, "make_keys")
    sent = await json_body(request, _CREATE_KEY, BODY_LIMIT)
    full, row = await make_key(request, caller, sent.label, _asked_scope(sent))
    return json_response(KeyCreated(full, key_answer(row)), 201, {"Cache-Control": "no-store"})


def _asked_scope(sent: CreateKey) -> KeyScope | None:
    if sent.role is None:
        return sent.scope
    meant = SCOPE_OF_ROLE[sent.role]
    if sent.scope not in (None, meant):
        text = f"scope: the role {sent.role} means the scope {meant}; send the scope alone"
        raise Problem(400, "invalid_value", text, where="$.scope")
    return meant


async def list_keys(request: Request) -> Response:
    context, caller = context_of(request), await caller_of(request, "see_own_keys")
    found = await context.read(caller, lambda scope: visible_keys(scope, caller))
    return json_response(KeyList([key_answer(each.row) for each in found]))


async def revoke_key(request: Request) -> Response:
    caller = await caller_of(request, "revoke_own_keys")
    return json_response(await drop_key(request, caller, request.path_params["key_id"]))


def key_answer(row: KeyRow) -> KeyAnswer:
    scope = scope_of_key(row.prefix)
    return answer_from_row(
        KeyAnswer,
        row,
        key_prefix=shown_prefix(row.prefix, row.key_id),
        role=role_of_scope(scope),
        scope=scope,
    )


# ------------------------------------------------------------------------------------------- routes

_CREATE_KEY = msgspec.json.Decoder(CreateKey)

routes: tuple[LeanRoute, ...] = (
    route(
        "POST",
        "/api/keys",
        create_key,
        summary="Creates an API key, which is shown once. Only people make keys.",
        takes=CreateKey,
        gives=KeyCreated,
        status=201,
        errors=(403, 409),
        tag="keys",
    ),
    route(
        "GET",
        "/api/keys",
        list_keys,
        summary="Lists the keys of the organisation, newest first, including revoked ones. Viewers see their own.",
        gives=KeyList,
        errors=(403,),
        tag="keys",
    ),
    route(
        "DELETE",
        "/api/keys/{key_id}",
        revoke_key,
        summary="Revokes a key, and what it made. It stops working at once and cannot be restored.",
        gives=KeyRevoked,
        errors=(403, 404),
        tag="keys",
    ),
)
