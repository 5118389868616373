"""API keys over HTTP: create, list and revoke them, and the page for people.

A key belongs to the person who made it. A key made with another key belongs to the owner of that key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.wire.keys import CreateKey, KeyAnswer, KeyCreated, KeyList, KeyRevoked
from rollbook.server.accounts.audit import note
from rollbook.server.accounts.callers import caller_of
from rollbook.server.accounts.keys import PREFIX_OF_ROLE, new_api_key, role_of_key, shown_prefix
from rollbook.server.accounts.pages import (
    Page,
    page_route,
    page_session,
    redirect,
    render,
    signed_in_form,
)
from rollbook.server.accounts.roles import key_role, may, require
from rollbook.server.accounts.sessions import Session
from rollbook.server.accounts.sign_in import BODY_LIMIT
from rollbook.server.context import Caller, context_of
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

T = TypeVar("T")

MOST_LIVE_KEYS = 1000


@dataclass(frozen=True, slots=True)
class ListedKey:
    row: KeyRow
    prefix: str
    role: str
    revocable: bool


@dataclass(frozen=True, kw_only=True)
class KeysPage(Page):
    template: ClassVar[str] = "keys.html"
    title: ClassVar[str] = "API keys"
    session: Session
    keys: list[ListedKey]
    may_record: bool
    new_key: str | None = None


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
    role = role_of_key(prefix)
    note(scope, request, caller, "key.created", f"key:{key_id}", label=label, role=role)
    return full, row


async def make_key(
    request: Request, caller: Caller, label: str | None, role: str | None
) -> tuple[str, KeyRow]:
    require(caller, "keep_own_keys")
    most = key_role(caller.role)
    if most == "viewer" and role == "member":
        text = "a viewer's keys only read; ask for a key with the role viewer"
        raise Problem(403, "forbidden", text)
    prefix = PREFIX_OF_ROLE[role or most]

    def make(scope: Scope) -> tuple[str, KeyRow]:
        owner = owner_of(scope, caller)
        return add_key(scope, request, caller, prefix=prefix, label=label, created_by=owner)

    return await _written(request, caller, make)


async def drop_key(request: Request, caller: Caller, key_id: str) -> KeyRow:
    """The key stops working with the next request. Revoking again is not an error."""
    require(caller, "keep_own_keys")

    def drop(scope: Scope) -> KeyRow:
        key = scope.key(key_id)
        if key is None:
            raise not_found("key")
        if not _may_revoke(caller, key, owner_of(scope, caller)):
            text = "this key is somebody else's; ask an admin of your organisation to revoke it"
            raise Problem(403, "forbidden", text)
        return revoke(scope, request, caller, key)

    return await _written(request, caller, drop)


def revoke(scope: Scope, request: Request, caller: Caller, key: KeyRow) -> KeyRow:
    if key.revoked_at_us is None:
        note(scope, request, caller, "key.revoked", f"key:{key.key_id}", label=key.label)
    after = scope.revoke_key(key.key_id)
    assert after is not None, "it was there in this transaction"
    return after


async def _written(request: Request, caller: Caller, work: Callable[[Scope], T]) -> T:
    """A person with a read-only role may still keep read-only keys. A key is checked again whenever it is used."""
    context = context_of(request)
    if caller.key_id is None:
        return await context.write_for(caller.org_id, work)
    return await context.write(caller, work)


def owner_of(scope: Scope, caller: Caller) -> str | None:
    if caller.key_id is None:
        return caller.user_id
    key = scope.key(caller.key_id)
    return None if key is None else key.created_by


def _may_revoke(caller: Caller, key: KeyRow, owner: str | None) -> bool:
    own = key.key_id == caller.key_id or (owner is not None and key.created_by == owner)
    return own or may(caller, "revoke_any_key")


def _visible(scope: Scope, caller: Caller) -> list[ListedKey]:
    owner = owner_of(scope, caller)
    see_all = may(caller, "see_all_keys")
    found = scope.keys()
    return [
        ListedKey(
            row=key,
            prefix=shown_prefix(key.prefix, key.key_id),
            role=role_of_key(key.prefix),
            revocable=key.revoked_at_us is None and _may_revoke(caller, key, owner),
        )
        for key in found
        if see_all or key.created_by == owner
    ]


# --------------------------------------------------------------------------------------------- JSON


async def create_key(request: Request) -> Response:
    caller = await caller_of(request)
    sent = await json_body(request, _CREATE_KEY, BODY_LIMIT)
    full, row = await make_key(request, caller, sent.label, sent.role)
    return json_response(KeyCreated(full, _answer(row)), 201, {"Cache-Control": "no-store"})


async def list_keys(request: Request) -> Response:
    context, caller = context_of(request), await caller_of(request)
    require(caller, "keep_own_keys")
    found = await context.read(caller, lambda scope: _visible(scope, caller))
    return json_response(KeyList([_answer(each.row) for each in found]))


async def revoke_key(request: Request) -> Response:
    caller = await caller_of(request)
    return json_response(
        revoked_answer(await drop_key(request, caller, request.path_params["key_id"]))
    )


def revoked_answer(row: KeyRow) -> KeyRevoked:
    assert row.revoked_at_us is not None, "it was just revoked"
    prefix = shown_prefix(row.prefix, row.key_id)
    return KeyRevoked(row.key_id, prefix, wire_time(row.revoked_at_us))


def _answer(row: KeyRow) -> KeyAnswer:
    return answer_from_row(
        KeyAnswer,
        row,
        key_prefix=shown_prefix(row.prefix, row.key_id),
        role=role_of_key(row.prefix),
    )


# -------------------------------------------------------------------------------------------- pages


async def keys_page(request: Request) -> Response:
    return await _render_keys(request, await page_session(request))


async def create_key_by_form(request: Request) -> Response:
    """The page itself shows the key: a redirect would have to carry it."""
    session, sent = await signed_in_form(request)
    label, role = sent.get("label", "").strip() or None, sent.get("role", "viewer")
    if role not in PREFIX_OF_ROLE:
        raise Problem(400, "invalid_value", f"role: expected one of {', '.join(PREFIX_OF_ROLE)}")
    full, _ = await make_key(request, session.caller, label, role)
    return await _render_keys(request, session, full)


async def revoke_key_by_form(request: Request) -> Response:
    session, _ = await signed_in_form(request)
    await drop_key(request, session.caller, request.path_params["key_id"])
    return redirect("/keys")


async def _render_keys(request: Request, session: Session, new_key: str | None = None) -> Response:
    caller = session.caller
    found = await context_of(request).read(caller, lambda scope: _visible(scope, caller))
    may_record = may(caller, "record")
    return render(KeysPage(session=session, keys=found, may_record=may_record, new_key=new_key))


# ------------------------------------------------------------------------------------------- routes

_CREATE_KEY = msgspec.json.Decoder(CreateKey)

routes: tuple[LeanRoute, ...] = (
    route(
        "POST",
        "/api/keys",
        create_key,
        summary="Creates an API key, which is shown once.",
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
        summary="Revokes a key. It stops working at once and cannot be restored.",
        gives=KeyRevoked,
        errors=(403, 404),
        tag="keys",
    ),
    page_route("GET", "/keys", keys_page),
    page_route("POST", "/keys", create_key_by_form),
    page_route("POST", "/keys/{key_id}/revoke", revoke_key_by_form),
)
