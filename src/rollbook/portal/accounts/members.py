"""Members and invitations: who belongs to the organisation, with which role, and who is asked to join."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response

from rollbook.errors import InvalidText
from rollbook.portal.page import (
    HOME,
    ConfirmPage,
    Page,
    form_fields,
    page_route,
    page_session,
    redirect,
    render,
    signed_in_form,
)
from rollbook.server.accounts.invitations import (
    accept,
    account_of,
    invite_to,
    open_invitation,
    withdraw,
)
from rollbook.server.accounts.members import change_role_of, remove_member_of
from rollbook.server.accounts.roles import may, require
from rollbook.server.accounts.sessions import Session, set_cookie
from rollbook.server.context import context_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem, not_found, problem_of
from rollbook.server.queries import ROLES, InvitationRow, MemberRow, Scope

_PATH = "/members"
_MOST_SHOWN = 100
ROLE_TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "owner": "everything, also change and remove owners",
        "admin": "also members, webhooks, retention and locked gates",
        "member": "record, evaluate, promote and delete",
        "viewer": "read everything, change nothing",
    }
)


@dataclass(frozen=True, kw_only=True)
class MembersPage(Page):
    template: ClassVar[str] = "members.html"
    title: str = "Members"
    session: Session
    members: list[MemberRow]
    member_count: int
    q: str
    """Only members with this text in their address or name."""
    invitations: list[InvitationRow]
    roles: list[tuple[str, str]]
    """Each with what it may do, in words."""
    may_manage: bool
    invitation_url: str | None = None
    email: str = ""


@dataclass(frozen=True, kw_only=True)
class InvitationPage(Page):
    template: ClassVar[str] = "invitation.html"
    title: str = "Invitation"
    token: str
    invitation: InvitationRow
    organisation_name: str
    has_account: bool
    may_do: str


# -------------------------------------------------------------------------------------------- members


async def members_page(request: Request) -> Response:
    return await _render_members(request, await page_session(request, "see_members"))


async def _render_members(
    request: Request,
    session: Session,
    *,
    invitation_url: str | None = None,
    email: str = "",
    problem: Problem | None = None,
) -> Response:
    may_manage = may(session.caller, "invite")

    def find(scope: Scope) -> tuple[list[MemberRow], list[InvitationRow]]:
        return scope.members(), scope.invitations() if may_manage else []

    members, invitations = await context_of(request).read(session.caller, find)
    q = request.query_params.get("q", "").strip()
    if q:
        members = [each for each in members if q.lower() in f"{each.email}\n{each.name}".lower()]
    page = MembersPage(
        session=session,
        members=members[:_MOST_SHOWN],
        member_count=len(members),
        q=q,
        invitations=invitations,
        roles=list(ROLE_TEXTS.items()),
        may_manage=may_manage,
        invitation_url=invitation_url,
        email=email,
        problem=None if problem is None else problem.error,
    )
    return render(request, page, 200 if problem is None else problem.status)


async def change_role_by_form(request: Request) -> Response:
    session, sent = await signed_in_form(request, "change_roles")
    role = dict(sent).get("role", "")
    if role not in ROLES:
        raise Problem(400, "invalid_value", f"role: expected one of {', '.join(ROLES)}")
    user_id = request.path_params["user_id"]
    await change_role_of(request, session.caller, user_id, role)  # type: ignore[arg-type]
    return redirect(request, _PATH)


async def ask_before_removing(request: Request) -> Response:
    session = await page_session(request, "leave")
    user_id = request.path_params["user_id"]
    is_self = user_id == session.member.user_id
    if not is_self:
        require(session.caller, "remove_members")
    member = await context_of(request).read(session.caller, lambda scope: scope.member(user_id))
    if member is None:
        raise not_found("member")
    name = session.organisation.name
    page = ConfirmPage(
        session=session,
        title="Remove a member",
        heading=f"Leave {name}?" if is_self else f"Remove {member.email} from {name}?",
        consequences=(
            "You are signed out here at once." if is_self else "They are signed out here at once.",
            "What they recorded stays. Their API keys stop working, unless you keep them.",
        ),
        action=f"{_PATH}/{user_id}/remove",
        button="Leave" if is_self else "Remove",
        cancel=_PATH,
        choice=("keep_keys", "Keep their API keys working"),
    )
    return render(request, page)


async def remove_by_form(request: Request) -> Response:
    session, sent = await signed_in_form(request, "leave")
    user_id, keep_keys = request.path_params["user_id"], "keep_keys" in dict(sent)
    await remove_member_of(request, session.caller, user_id, keep_keys=keep_keys)
    return redirect(request, _PATH)


# ---------------------------------------------------------------------------------------- invitations


async def invite_by_form(request: Request) -> Response:
    session, sent = await signed_in_form(request, "invite")
    fields = dict(sent)
    email, role = fields.get("email", ""), fields.get("role", "member")
    try:
        made, url = await invite_to(request, session.caller, email, role)
    except (Problem, InvalidText) as error:
        return await _render_members(request, session, email=email, problem=problem_of(error))
    return await _render_members(request, session, invitation_url=url, email=made.email)


async def withdraw_by_form(request: Request) -> Response:
    session, _ = await signed_in_form(request, "invite")
    await withdraw(request, session.caller, request.path_params["invitation_id"])
    return redirect(request, _PATH)


async def invitation_page(request: Request) -> Response:
    page = await _invitation_page(request, request.query_params.get("token", ""))
    return render(request, page)


async def _invitation_page(
    request: Request, token: str, problem: str | None = None
) -> InvitationPage:
    invitation = await open_invitation(request, token)
    context = context_of(request)
    organisation = await context.read_for(invitation.org_id, lambda scope: scope.organisation())
    return InvitationPage(
        token=token,
        invitation=invitation,
        organisation_name="" if organisation is None else organisation.name,
        has_account=await account_of(request, invitation.email) is not None,
        may_do=ROLE_TEXTS[invitation.role],
        problem=problem,
    )


async def accept_by_form(request: Request) -> Response:
    sent = await form_fields(request)
    token, name = sent.get("token", ""), sent.get("name", "").strip() or None
    try:
        begun = await accept(request, token, sent.get("password", ""), name)
    except Problem as problem:
        if problem.code not in ("weak_password", "sign_in_failed"):
            raise
        page = await _invitation_page(request, token, problem.error)
        return render(request, page, problem.status)
    response = redirect(request, HOME)
    set_cookie(request, response, begun.new.token)
    return response


routes: tuple[LeanRoute, ...] = (
    page_route("GET", _PATH, members_page),
    page_route("POST", f"{_PATH}/{{user_id}}/role", change_role_by_form),
    page_route("GET", f"{_PATH}/{{user_id}}/remove", ask_before_removing),
    page_route("POST", f"{_PATH}/{{user_id}}/remove", remove_by_form),
    page_route("POST", "/invitations", invite_by_form),
    page_route("POST", "/invitations/{invitation_id}/withdraw", withdraw_by_form),
    page_route("GET", "/invitation", invitation_page),
    page_route("POST", "/invitation", accept_by_form),
)
