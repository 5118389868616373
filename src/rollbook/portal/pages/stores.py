"""The rollout stores of an organisation: a list with what each holds, and the forms that register and remove one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response

from rollbook.portal.page import (
    Page,
    page_route,
    page_session,
    redirect,
    render,
    signed_in_form,
)
from rollbook.server.accounts.roles import may
from rollbook.server.accounts.sessions import Session
from rollbook.server.context import Caller, ServerContext, context_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem, not_found
from rollbook.server.queries import StoreRow
from rollbook.server.store_files.open_stores import MOST_OPEN
from rollbook.server.store_files.roots import S3
from rollbook.server.stores.opened import OpenedStore, roots_of, seen
from rollbook.server.stores.routes import register, remove
from rollbook.server.stores.verification import state_of

STORES = "/portal/stores"


@dataclass(frozen=True)
class ListedStore:
    row: StoreRow
    verified: str | None
    """See `verification.state_of`."""


@dataclass(frozen=True, kw_only=True)
class StoresPage(Page):
    template: ClassVar[str] = "stores.html"
    section: ClassVar[str] = "stores"
    title: str = "Stores"
    stores: list[ListedStore]
    may_register: bool
    roots: list[str]
    """The folders and buckets from which stores can be registered."""
    root_line: str
    """What whoever runs the server types to allow one."""
    place: str = ""
    name: str = ""
    """What was written into the form."""


@dataclass(frozen=True, kw_only=True)
class RemoveStorePage(Page):
    template: ClassVar[str] = "store_remove.html"
    section: ClassVar[str] = "stores"
    title: str = "Remove a store"
    store: StoreRow


async def stores(request: Request) -> Response:
    session = await page_session(request)
    return render(request, await _page(request, session))


async def register_by_form(request: Request) -> Response:
    session, pairs = await signed_in_form(request, "manage_stores")
    fields = dict(pairs)
    place, name = fields.get("place", ""), fields.get("name", "")
    try:
        made = await register(request, session.caller, place, name)
    except Problem as problem:
        page = await _page(request, session, problem=problem.error, place=place, name=name)
        return render(request, page, problem.status)
    return redirect(request, f"{STORES}/{made.id}")


async def _page(
    request: Request,
    session: Session,
    *,
    problem: str | None = None,
    place: str = "",
    name: str = "",
) -> StoresPage:
    context, caller = context_of(request), session.caller
    rows = await context.read(caller, lambda scope: scope.stores())
    roots = await roots_of(context, caller.org_id)
    return StoresPage(
        session=session,
        problem=problem,
        stores=[
            ListedStore(row, state_of(row, context.clock()))
            for row in await _looked_at(context, caller, rows)
        ],
        may_register=may(caller, "manage_stores"),
        roots=[root.place for root in roots],
        root_line=f"rollbook serve --store-root {caller.org_id}=/data/stores",
        place=place[:2000],
        name=name[:200],
    )


async def _looked_at(
    context: ServerContext, caller: Caller, rows: list[StoreRow]
) -> list[StoreRow]:
    """As they are now, where that takes no time: a few local stores, which stay open. Others as they were last read."""
    local = [row for row in rows if not row.place.startswith(S3)]
    if len(local) > MOST_OPEN:
        return rows
    found = await asyncio.gather(*(seen(context, caller.org_id, row) for row in local))
    fresh = {
        row.id: row
        for each in found
        for row in [each.row if isinstance(each, OpenedStore) else each]
    }
    return [fresh.get(row.id, row) for row in rows]


async def confirm_removal(request: Request) -> Response:
    session = await page_session(request, "manage_stores")
    store_id: str = request.path_params["store_id"]
    row = await context_of(request).read(session.caller, lambda scope: scope.store(store_id))
    if row is None:
        raise not_found("store")
    return render(request, RemoveStorePage(session=session, store=row))


async def remove_by_form(request: Request) -> Response:
    session, _ = await signed_in_form(request, "manage_stores")
    await remove(request, session.caller, request.path_params["store_id"])
    return redirect(request, STORES)


routes: tuple[LeanRoute, ...] = (
    page_route("GET", STORES, stores),
    page_route("POST", STORES, register_by_form),
    page_route("GET", f"{STORES}/{{store_id}}/remove", confirm_removal),
    page_route("POST", f"{STORES}/{{store_id}}/remove", remove_by_form),
)
