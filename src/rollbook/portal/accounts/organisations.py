"""The organisations of a person: where they work now, and a switch to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response

from rollbook.portal.page import (
    HOME,
    Page,
    page_route,
    page_session,
    redirect,
    render,
    signed_in_form,
)
from rollbook.server.accounts.sessions import Session, set_cookie
from rollbook.server.accounts.sign_in import memberships_of, switch_to
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.queries import MembershipRow

_PATH = "/portal/organisations"


@dataclass(frozen=True, kw_only=True)
class OrganisationsPage(Page):
    template: ClassVar[str] = "organisations.html"
    title: str = "Organisations"
    session: Session
    memberships: list[MembershipRow]


async def organisations_page(request: Request) -> Response:
    session = await page_session(request, "keep_session")
    memberships = await memberships_of(request, session.member.user_id)
    return render(request, OrganisationsPage(session=session, memberships=memberships))


async def switch_by_form(request: Request) -> Response:
    session, sent = await signed_in_form(request, "keep_session")
    begun = await switch_to(request, session, dict(sent).get("org_id", ""))
    response = redirect(request, HOME)
    set_cookie(request, response, begun.new.token)
    return response


routes: tuple[LeanRoute, ...] = (
    page_route("GET", _PATH, organisations_page),
    page_route("POST", _PATH, switch_by_form),
)
