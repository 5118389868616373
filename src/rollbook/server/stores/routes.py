"""Registered stores over HTTP: an admin registers a folder or an S3 prefix, and the whole organisation reads it."""

from __future__ import annotations

import asyncio
import posixpath
from shlex import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.wire.stores import (
    RegisterStore,
    StoreAnswer,
    StoreList,
    StoreRemoved,
    StoreVerification,
)
from rollbook.errors import RollbookError
from rollbook.server.accounts.audit import note
from rollbook.server.accounts.callers import caller_of
from rollbook.server.context import Caller, ServerContext, base_url_of, context_of
from rollbook.server.db.value_checks import is_storable
from rollbook.server.http.openapi import LeanRoute, route
from rollbook.server.http.requests import json_body
from rollbook.server.http.responses import (
    Problem,
    answer_from_row,
    json_response,
    not_found,
    wire_time,
)
from rollbook.server.queries import Scope, StoreRow
from rollbook.server.store_files.roots import StorePlace
from rollbook.server.stores.opened import OpenedStore, columns_of, place_of, seen
from rollbook.server.stores.verification import is_running

MOST_STORES = 200
_LONGEST_PLACE = 2000
_LONGEST_NAME = 200
_BODY_LIMIT = 16 << 10
_register = msgspec.json.Decoder(RegisterStore)


# ---------------------------------------------------------------------------------------- registering


async def register(request: Request, caller: Caller, place_text: str, name: str | None) -> StoreRow:
    """A place is registered once."""
    context = context_of(request)
    place = await _allowed_place(context, caller, place_text)
    try:
        store = await asyncio.to_thread(context.stores.read, caller.org_id, place)
    except RollbookError as error:
        words = context.stores.words_of(error, place)
        raise Problem(400, "not_a_store", f"place: {words}", where="$.place") from error
    chosen = _checked_name(name) or posixpath.basename(place.text) or place.text

    def add(scope: Scope) -> StoreRow:
        if scope.count_stores() >= MOST_STORES:
            text = f"this organisation has {MOST_STORES} stores; remove those that nobody needs"
            raise Problem(409, "too_many_stores", text)
        made = scope.add_store(chosen, place.text, caller.name, columns_of(store))
        if made is None:
            known = scope.store_at(place.text)
            text = f"this place is registered already, as {known.name if known else chosen!r}"
            raise Problem(409, "store_exists", text, store_id=known.id if known else None)
        note(scope, request, caller, "store.registered", made.id, place=made.place, name=made.name)
        return made

    return await context.write(caller, add)


async def _allowed_place(context: ServerContext, caller: Caller, text: str) -> StorePlace:
    """Nothing is looked at outside of the roots: the answer tells nobody which files exist."""
    text = text.strip()
    if not text or len(text) > _LONGEST_PLACE or not is_storable(text):
        message = f"place: expected a path or s3:// URL of at most {_LONGEST_PLACE} characters"
        raise Problem(400, "invalid_value", message, where="$.place")
    place = await place_of(context, caller.org_id, text)
    if place is None:
        above = posixpath.dirname(text.rstrip("/"))
        root = text if above in ("", "/") else above  # never the whole machine
        message = (
            f"{text} lies in no store root of your organisation; whoever runs the server allows it with: "
            f"rollbook serve --store-root {quote(f'{caller.org_id}={root}')}"
        )
        raise Problem(403, "outside_store_roots", message)
    return place


def _checked_name(name: str | None) -> str | None:
    stripped = (name or "").strip()
    if len(stripped) > _LONGEST_NAME or not stripped.isprintable():
        message = f"name: expected at most {_LONGEST_NAME} printable characters"
        raise Problem(400, "invalid_value", message, where="$.name")
    return stripped or None


async def remove(request: Request, caller: Caller, store_id: str) -> StoreRow:
    """Forgets the store. Its files stay where they are."""
    context = context_of(request)

    def forget(scope: Scope) -> StoreRow:
        row = scope.store(store_id)
        if row is None or not scope.remove_store(store_id):
            raise not_found("store")
        note(scope, request, caller, "store.removed", store_id, place=row.place, name=row.name)
        return row

    row = await context.write(caller, forget)
    context.stores.forget(caller.org_id, row.place)
    return row


# ------------------------------------------------------------------------------------------- routes


async def list_stores(request: Request) -> Response:
    context, caller = context_of(request), await caller_of(request, "read")
    rows = await context.read(caller, lambda scope: scope.stores())
    return json_response(StoreList([_answer(request, row) for row in rows]))


async def register_store(request: Request) -> Response:
    caller = await caller_of(request, "manage_stores")
    body = await json_body(request, _register, _BODY_LIMIT)
    made = await register(request, caller, body.place, body.name)
    return json_response(_answer(request, made), 201)


async def read_store(request: Request) -> Response:
    """Looks at the store: the answer says whether it can be read now."""
    context, caller = context_of(request), await caller_of(request, "read")
    store_id: str = request.path_params["store_id"]
    row = await context.read(caller, lambda scope: scope.store(store_id))
    if row is None:
        raise not_found("store")
    found = await seen(context, caller.org_id, row)
    row = found.row if isinstance(found, OpenedStore) else found
    return json_response(_answer(request, row))


async def remove_store(request: Request) -> Response:
    caller = await caller_of(request, "manage_stores")
    row = await remove(request, caller, request.path_params["store_id"])
    return json_response(StoreRemoved(row.id))


def _answer(request: Request, row: StoreRow) -> StoreAnswer:
    counts = row.counts or {}
    return answer_from_row(
        StoreAnswer,
        row,
        state="readable" if row.unreadable_at_us is None else "unreadable",
        verification=_verification(row, context_of(request).clock()),
        url=f"{base_url_of(request)}/portal/stores/{row.id}",
        **{name: counts.get(name) for name in ("rollouts", "steps", "candidates", "bytes")},
    )


def _verification(row: StoreRow, now_us: int) -> StoreVerification | None:
    found = row.verification
    if found is None:
        return None
    was_stopped = found["state"] == "running" and not is_running(row, now_us)
    ended = found["ended_at_us"]
    return StoreVerification(
        state="stopped" if was_stopped else found["state"],
        manifest_sha256=found["manifest_sha256"],
        started_at=wire_time(found["started_at_us"]),
        ended_at=None if ended is None else wire_time(ended),
        done=found["done"],
        total=found["total"],
        violations=found["violations"],
        violation_count=found["violation_count"],
    )


_STORES, _STORE = "/api/stores", "/api/stores/{store_id}"

routes: tuple[LeanRoute, ...] = (
    route(
        "GET",
        _STORES,
        list_stores,
        summary="Lists the registered rollout stores of the organisation, by name, as they were last read.",
        gives=StoreList,
        errors=(403,),
        tag="stores",
    ),
    route(
        "POST",
        _STORES,
        register_store,
        summary="Registers a rollout store that lies in a store root of the organisation. For owners and admins.",
        takes=RegisterStore,
        gives=StoreAnswer,
        status=201,
        errors=(400, 403, 409),
        tag="stores",
    ),
    route(
        "GET",
        _STORE,
        read_store,
        summary="Reads one store; looks whether it can be read now.",
        gives=StoreAnswer,
        errors=(403, 404),
        tag="stores",
    ),
    route(
        "DELETE",
        _STORE,
        remove_store,
        summary="Removes a store from the server. Its files stay where they are.",
        gives=StoreRemoved,
        errors=(403, 404),
        tag="stores",
    ),
)
