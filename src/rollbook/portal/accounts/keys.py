"""API keys: list, create with a scope, and revoke after a question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.wire.keys import SCOPES, KeyScope
from rollbook.portal.page import (
    ConfirmPage,
    Page,
    page_route,
    page_session,
    redirect,
    render,
    signed_in_form,
)
from rollbook.server.accounts.manage_keys import (
    SCOPE_TEXTS,
    ListedKey,
    drop_key,
    make_key,
    visible_keys,
)
from rollbook.server.accounts.roles import MAY_GIVE
from rollbook.server.accounts.sessions import Session
from rollbook.server.context import context_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem, not_found

_PATH = "/keys"
_MOST_SHOWN = 60
"""Of each list. An organisation may have a thousand active keys, and any number of revoked ones."""


@dataclass(frozen=True, kw_only=True)
class KeysPage(Page):
    template: ClassVar[str] = "keys.html"
    title: str = "API keys"
    session: Session
    active: list[ListedKey]
    active_count: int
    revoked: list[ListedKey]
    revoked_count: int
    q: str
    """Only keys with this text in their label or their beginning."""
    scopes: list[tuple[KeyScope, str]]
    """Those that this person may give, the usual one first, each in words."""
    new_key: str | None = None
    label: str = ""


async def keys_page(request: Request) -> Response:
    return await _render_keys(request, await page_session(request, "see_own_keys"))


async def create_key_by_form(request: Request) -> Response:
    """The page itself shows the key: a redirect would have to carry it."""
    session, sent = await signed_in_form(request, "make_keys")
    fields = dict(sent)
    label, asked = fields.get("label", "").strip() or None, fields.get("scope")
    if asked is not None and asked not in SCOPES:
        raise Problem(400, "invalid_value", f"scope: expected one of {', '.join(SCOPES)}")
    full, _ = await make_key(request, session.caller, label, asked)
    return await _render_keys(request, session, full, label or "")


async def _render_keys(
    request: Request, session: Session, new_key: str | None = None, label: str = ""
) -> Response:
    caller = session.caller
    found = await context_of(request).read(caller, lambda scope: visible_keys(scope, caller))
    q = request.query_params.get("q", "").strip()
    if q:
        found = [each for each in found if q.lower() in f"{each.row.label}\n{each.prefix}".lower()]
    active = [each for each in found if each.row.revoked_at_us is None]
    revoked = [each for each in found if each.row.revoked_at_us is not None]
    page = KeysPage(
        session=session,
        active=active[:_MOST_SHOWN],
        active_count=len(active),
        revoked=revoked[:_MOST_SHOWN],
        revoked_count=len(revoked),
        q=q,
        scopes=[(each, SCOPE_TEXTS[each]) for each in SCOPES if caller.role in MAY_GIVE[each]],
        new_key=new_key,
        label=label,
    )
    return render(request, page)


async def ask_before_revoking(request: Request) -> Response:
    session = await page_session(request, "revoke_own_keys")
    caller, key_id = session.caller, request.path_params["key_id"]
    found = await context_of(request).read(caller, lambda scope: visible_keys(scope, caller))
    key = next((each for each in found if each.row.key_id == key_id and each.revocable), None)
    if key is None:
        raise not_found("key")
    page = ConfirmPage(
        session=session,
        title="Revoke a key",
        heading=f"Revoke {key.prefix}?" if key.row.label is None else f"Revoke “{key.row.label}”?",
        consequences=(
            "The key stops working with its next request, and cannot be restored.",
            "Keys and webhooks that were made with it end too. What it recorded stays.",
        ),
        action=f"{_PATH}/{key_id}/revoke",
        button="Revoke key",
        cancel=_PATH,
    )
    return render(request, page)


async def revoke_key_by_form(request: Request) -> Response:
    session, _ = await signed_in_form(request, "revoke_own_keys")
    await drop_key(request, session.caller, request.path_params["key_id"])
    return redirect(request, _PATH)


async def keys_by_another_path(request: Request) -> Response:
    return redirect(request, _PATH)


routes: tuple[LeanRoute, ...] = (
    page_route("GET", _PATH, keys_page),
    page_route("POST", _PATH, create_key_by_form),
    page_route("GET", f"{_PATH}/{{key_id}}/revoke", ask_before_revoking),
    page_route("POST", f"{_PATH}/{{key_id}}/revoke", revoke_key_by_form),
    page_route("GET", "/portal/api-keys", keys_by_another_path),
)
