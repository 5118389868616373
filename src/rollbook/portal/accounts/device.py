"""A device asks for a key: the person who started its login compares the code and decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response

from rollbook.portal.page import (
    MessagePage,
    Page,
    page_route,
    page_session,
    render,
    signed_in_form,
)
from rollbook.server.accounts.device_login import decide_login, normal_code, pending_login
from rollbook.server.accounts.manage_keys import SCOPE_TEXTS
from rollbook.server.accounts.roles import login_scope, require_gift
from rollbook.server.accounts.sessions import Session
from rollbook.server.accounts.sign_in import memberships_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem, not_found
from rollbook.server.queries import DeviceLoginRow, MembershipRow

_PATH = "/cli/auth"
_NOT_PENDING = "No device waits under this code: it is mistyped, too old, or decided already. Start the login again."


@dataclass(frozen=True, kw_only=True)
class CodePage(Page):
    template: ClassVar[str] = "device_code.html"
    title: str = "Connect a device"
    session: Session


@dataclass(frozen=True, kw_only=True)
class ApprovalPage(Page):
    template: ClassVar[str] = "device.html"
    title: str = "Connect a device"
    session: Session
    login: DeviceLoginRow
    organisations: list[tuple[MembershipRow, str]]
    """Each with what the key may do there, in words."""


async def approval_page(request: Request) -> Response:
    session = await page_session(request, "keep_session")
    code = request.query_params.get("code")
    if not code:
        return render(request, CodePage(session=session))
    login = await pending_login(request, session, code)
    if login is None:
        return render(request, CodePage(session=session, problem=_NOT_PENDING), 404)
    theirs = await memberships_of(request, session.member.user_id)
    organisations = [(each, SCOPE_TEXTS[login.scope or login_scope(each.role)]) for each in theirs]
    page = ApprovalPage(session=session, login=login, organisations=organisations)
    return render(request, page)


async def decide_by_form(request: Request) -> Response:
    session, sent = await signed_in_form(request, "keep_session")
    fields = dict(sent)
    decision, code = fields.get("decision"), normal_code(fields.get("code", ""))
    if decision not in ("approve", "deny"):
        raise Problem(400, "invalid_value", "decision: expected approve or deny")
    org_id = fields.get("org_id", session.organisation.id)
    theirs = await memberships_of(request, session.member.user_id)
    role = next((each.role for each in theirs if each.org_id == org_id), None)
    if role is None:
        raise not_found("organisation")
    login = await pending_login(request, session, code)
    if login is None:
        return render(request, CodePage(session=session, problem=_NOT_PENDING), 404)
    approved = decision == "approve"
    if approved:
        require_gift(role, login.scope or login_scope(role))
    if not await decide_login(request, session, code, org_id, approved=approved):
        return render(request, CodePage(session=session, problem=_NOT_PENDING), 409)
    return render(request, _decided(session, approved=approved))


def _decided(session: Session, *, approved: bool) -> MessagePage:
    if approved:
        text = "The device gets its key within a few seconds. You can close this page."
        return MessagePage(
            session=session,
            heading="Device connected",
            text=text,
            link="/keys",
            link_text="API keys",
        )
    text = "The device gets no key. If you did not start this login, somebody else did: nothing was given to them."
    return MessagePage(session=session, heading="Device refused", text=text)


routes: tuple[LeanRoute, ...] = (
    page_route("GET", _PATH, approval_page),
    page_route("POST", _PATH, decide_by_form),
)
