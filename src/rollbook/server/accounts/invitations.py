"""Invitations: a link, valid once, lets a new person join an organisation."""

from __future__ import annotations

import secrets

import msgspec
import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.wire.accounts import (
    AcceptInvitation,
    InvitationAnswer,
    InvitationList,
    InvitationMade,
    InvitationWithdrawn,
    Invite,
    SignedIn,
)
from rollbook.server.accounts.audit import note
from rollbook.server.accounts.callers import caller_of
from rollbook.server.accounts.keys import hash_of
from rollbook.server.accounts.passwords import checked_password, hashed
from rollbook.server.accounts.roles import require, require_power_over
from rollbook.server.accounts.sessions import refuse_other_origins, set_cookie
from rollbook.server.accounts.sign_in import BODY_LIMIT, NewSignIn, begin, user_by_password
from rollbook.server.context import Caller, base_url_of, context_of
from rollbook.server.db.engine import NOBODY, Tenant
from rollbook.server.http.limits import address_of, network_of
from rollbook.server.http.openapi import LeanRoute, route
from rollbook.server.http.requests import json_body
from rollbook.server.http.responses import (
    Problem,
    answer_from_row,
    json_response,
    not_found,
)
from rollbook.server.queries import (
    InvitationRow,
    Scope,
    UserRow,
    create_user,
    invitation_by_hash,
    user_by_email,
)

INVITATION_LASTS_S = 7 * 24 * 3600
MOST_OPEN_INVITATIONS = 200


# --------------------------------------------------------------------------------------------- changes


async def invite_to(
    request: Request, caller: Caller, email: str, role: str
) -> tuple[InvitationRow, str]:
    """The invitation and its link."""
    require(caller, "invite")
    require_power_over(caller, role)
    base_url, context, token = base_url_of(request), context_of(request), secrets.token_urlsafe(32)

    def invite(scope: Scope) -> InvitationRow:
        _refuse_pointless(scope, email)
        made = scope.invite(
            email,
            role,
            token_hash=hash_of(token),
            expires_at_us=context.clock() + INVITATION_LASTS_S * 1_000_000,
            invited_by=caller.name,
        )
        subject = f"invitation:{made.id}"
        note(scope, request, caller, "invitation.created", subject, email=made.email, role=role)
        return made

    return await context.write(caller, invite), f"{base_url}/invitation?token={token}"


def _refuse_pointless(scope: Scope, email: str) -> None:
    if email.strip().lower() in {member.email for member in scope.members()}:
        text = "whoever has this address is a member already; change their role instead"
        raise Problem(409, "already_member", text)
    if len(scope.invitations()) >= MOST_OPEN_INVITATIONS:
        text = f"{MOST_OPEN_INVITATIONS} invitations are open; withdraw some of them first"
        raise Problem(409, "too_many_invitations", text)


async def withdraw(request: Request, caller: Caller, invitation_id: str) -> None:
    require(caller, "invite")

    def delete(scope: Scope) -> None:
        if invitation_id not in {each.id for each in scope.invitations()}:
            raise not_found("invitation")
        scope.revoke_invitation(invitation_id)
        note(scope, request, caller, "invitation.withdrawn", f"invitation:{invitation_id}")

    await context_of(request).write(caller, delete)


async def open_invitation(request: Request, token: str) -> InvitationRow:
    context, token_hash = context_of(request), hash_of(token)
    context_of(request).attempts.spend("open an invitation", network_of(request))
    found = await context.db.read(
        Tenant(invitation_hash=token_hash),
        lambda connection: invitation_by_hash(connection, token_hash, context.clock()),
    )
    if found is None:
        raise _invalid_invitation()
    return found


def _invalid_invitation() -> Problem:
    text = (
        "this invitation was accepted, withdrawn or has expired; ask whoever sent it for a new one"
    )
    return Problem(404, "invitation_invalid", text)


async def accept(request: Request, token: str, password: str, name: str | None) -> NewSignIn:
    """The e-mail address is fixed. A person with an account signs in with its password; a new person sets one."""
    context, invitation = context_of(request), await open_invitation(request, token)
    known = await account_of(request, invitation.email)
    password_hash = None
    if known is not None:
        await user_by_password(request, known.email, password)
    else:
        password_hash = await hashed(checked_password(password, invitation.email))

    def join(connection: sa.Connection) -> UserRow:
        user = known or create_user(
            connection, invitation.email, name=name, password_hash=password_hash
        )
        scope = Scope(connection, invitation.org_id, context.clock)
        if scope.accept_invitation(invitation.id, user.id) is None:
            raise _invalid_invitation()
        scope.audit(
            "invitation.accepted",
            actor=f"user:{user.id}",
            subject=f"invitation:{invitation.id}",
            detail={"role": invitation.role},
            ip=address_of(request),
        )
        return user

    user = await context.db.write(Tenant(org_id=invitation.org_id), join)
    return await begin(request, user, "invitation", invitation.org_id)


async def account_of(request: Request, email: str) -> UserRow | None:
    return await context_of(request).db.read(
        NOBODY, lambda connection: user_by_email(connection, email)
    )


# --------------------------------------------------------------------------------------------- JSON


async def invite_member(request: Request) -> Response:
    caller = await caller_of(request, "invite")
    sent = await json_body(request, _INVITE, BODY_LIMIT)
    made, url = await invite_to(request, caller, sent.email, sent.role)
    answer = answer_from_row(InvitationMade, made, url=url)
    return json_response(answer, 201, {"Cache-Control": "no-store"})


async def list_invitations(request: Request) -> Response:
    context, caller = context_of(request), await caller_of(request, "invite")
    found = await context.read(caller, lambda scope: scope.invitations())
    return json_response(
        InvitationList([answer_from_row(InvitationAnswer, each) for each in found])
    )


async def withdraw_invitation(request: Request) -> Response:
    caller, invitation_id = await caller_of(request, "invite"), request.path_params["invitation_id"]
    await withdraw(request, caller, invitation_id)
    return json_response(InvitationWithdrawn(invitation_id))


async def accept_invitation(request: Request) -> Response:
    refuse_other_origins(request, required=False)
    sent = await json_body(request, _ACCEPT, BODY_LIMIT)
    begun = await accept(request, sent.token, sent.password, sent.name)
    response = json_response(begun.answer(), headers={"Cache-Control": "no-store"})
    set_cookie(request, response, begun.new.token)
    return response


# ------------------------------------------------------------------------------------------- routes

_INVITE = msgspec.json.Decoder(Invite)
_ACCEPT = msgspec.json.Decoder(AcceptInvitation)

routes: tuple[LeanRoute, ...] = (
    route(
        "POST",
        "/api/invitations",
        invite_member,
        summary="Invites a person. The answer has the link for them, which is shown once.",
        takes=Invite,
        gives=InvitationMade,
        status=201,
        errors=(403, 409),
        tag="people",
    ),
    route(
        "GET",
        "/api/invitations",
        list_invitations,
        summary="Lists the open invitations.",
        gives=InvitationList,
        errors=(403,),
        tag="people",
    ),
    route(
        "DELETE",
        "/api/invitations/{invitation_id}",
        withdraw_invitation,
        summary="Withdraws an invitation.",
        gives=InvitationWithdrawn,
        errors=(403, 404),
        tag="people",
    ),
    route(
        "POST",
        "/api/invitations/accept",
        accept_invitation,
        summary="Accepts an invitation by its token, and sets a session cookie.",
        takes=AcceptInvitation,
        gives=SignedIn,
        errors=(401, 403, 404, 409, 429, 503),
        open_to_all=True,
        tag="people",
    ),
)
