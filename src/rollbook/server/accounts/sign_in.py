"""Sign-in: by password or by a link that works once; also sign-out, a new password, and who is signed in. JSON under
/api; the pages are in the portal."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.wire.accounts import (
    ChangeOrganisation,
    ChangePassword,
    OrganisationAnswer,
    PersonAnswer,
    SignedIn,
    SignedOut,
    SignIn,
    WhoAmI,
)
from rollbook.contracts.wire.keys import KeySummary
from rollbook.server.accounts.audit import note_failed_sign_in
from rollbook.server.accounts.callers import caller_of
from rollbook.server.accounts.keys import hash_of, role_of_scope, scope_of_key, shown_prefix
from rollbook.server.accounts.passwords import checked_password, hashed, is_password
from rollbook.server.accounts.sessions import (
    NewSession,
    Session,
    add_session,
    clear_cookie,
    end_session,
    refuse_other_origins,
    session_of,
    set_cookie,
)
from rollbook.server.context import Caller, context_of, unauthorized
from rollbook.server.db.engine import NOBODY, Tenant
from rollbook.server.http.limits import address_of, network_of
from rollbook.server.http.openapi import LeanRoute, route
from rollbook.server.http.requests import json_body
from rollbook.server.http.responses import Problem, json_response, not_found, wire_time
from rollbook.server.queries import (
    MembershipRow,
    Scope,
    UserRow,
    delete_session,
    organisations_of_user,
    set_password,
    use_sign_in_link,
    user_by_email,
    user_by_id,
)

BODY_LIMIT = 16 << 10


# ------------------------------------------------------------------------------------------ signing in


@dataclass(frozen=True, slots=True)
class NewSignIn:
    """A person is signed in; `new.token` must reach their browser."""

    new: NewSession
    user: UserRow
    membership: MembershipRow

    def answer(self) -> SignedIn:
        return SignedIn(
            organisation=OrganisationAnswer(self.membership.org_id, self.membership.org_name),
            role=self.membership.role,
            user=_person(self.user),
            csrf_token=self.new.csrf_token,
            expires_at=wire_time(self.new.expires_at_us),
        )


async def user_by_password(request: Request, email: str, password: str) -> UserRow:
    """Every cause gets the same refusal, and takes the same time."""
    context = context_of(request)
    tried = ("sign in", network_of(request), hash_of(email.strip().lower()))
    context.attempts.guess(*tried)
    user = await context.db.read(NOBODY, lambda connection: user_by_email(connection, email))
    if await is_password(password, None if user is None else user.password_hash):
        assert user is not None, "a password was compared with theirs"
        context.attempts.guessed(*tried)
        return user
    ip = address_of(request)
    context.log.warning("sign_in_failed", ip=ip, user_id=None if user is None else user.id)
    if user is not None:
        note_failed_sign_in(context, user.id, ip)
    text = "the e-mail address or the password is wrong; try again, or ask whoever runs this server for a link"
    raise Problem(401, "sign_in_failed", text)


async def user_by_link(request: Request, token: str) -> UserRow:
    """The link is used up, whatever happens next."""
    context = context_of(request)
    context_of(request).attempts.spend("sign in", network_of(request))
    user = await context.db.write(
        NOBODY, lambda connection: use_sign_in_link(connection, hash_of(token), context.clock())
    )
    if user is None:
        context.log.warning("sign_in_link_refused", ip=address_of(request))
        text = (
            "this link was used already or has expired; ask whoever runs this server for a new one"
        )
        raise Problem(401, "link_invalid", text)
    return user


async def begin(request: Request, user: UserRow, how: str, org_id: str | None = None) -> NewSignIn:
    """A session in the given organisation, or in the one the user joined first. The browser's earlier session ends."""
    context = context_of(request)
    memberships = await memberships_of(request, user.id)
    chosen = [each for each in memberships if org_id in (None, each.org_id)]
    if not chosen:
        text = "you belong to no organisation here; ask an admin of yours for an invitation"
        raise Problem(403, "no_organisation", text)
    membership, before = chosen[0], await session_of(request)

    def start(connection: sa.Connection) -> NewSession:
        if before is not None:
            delete_session(connection, before.token_hash)
        made = add_session(connection, context, user.id, membership.org_id)
        scope = Scope(connection, membership.org_id, context.clock)
        scope.audit(
            "sign_in.ok", actor=f"user:{user.id}", detail={"how": how}, ip=address_of(request)
        )
        return made

    new = await context.db.write(Tenant(org_id=membership.org_id), start)
    return NewSignIn(new, user, membership)


async def memberships_of(request: Request, user_id: str) -> list[MembershipRow]:
    return await context_of(request).db.read(
        Tenant(user_id=user_id), lambda connection: organisations_of_user(connection, user_id)
    )


async def change_password_of(
    request: Request, session: Session, current: str | None, new: str
) -> NewSignIn:
    """Ends every session of the user, and gives this browser a new one."""
    context, user = context_of(request), await user_of(request, session)
    if user.password_hash is not None:
        tried = ("change a password", network_of(request), user.id)
        context.attempts.guess(*tried)
        if not await is_password(current or "", user.password_hash):
            text = "the current password is wrong; try again"
            raise Problem(403, "wrong_password", text)
        context.attempts.guessed(*tried)
    password_hash = await hashed(checked_password(new, user.email))
    membership = MembershipRow(
        session.organisation.id, session.organisation.name, session.member.role
    )

    def change(connection: sa.Connection) -> NewSession:
        set_password(connection, user.id, password_hash)
        scope = Scope(connection, membership.org_id, context.clock)
        scope.audit("password.changed", actor=session.caller.name, ip=address_of(request))
        return add_session(connection, context, user.id, membership.org_id)

    made = await context.db.write(Tenant(org_id=membership.org_id), change)
    return NewSignIn(made, user, membership)


async def switch_to(request: Request, session: Session, org_id: str) -> NewSignIn:
    """A session in another organisation of theirs; this one ends."""
    memberships = await memberships_of(request, session.member.user_id)
    if org_id not in {each.org_id for each in memberships}:
        raise not_found("organisation")
    return await begin(request, await user_of(request, session), "switch", org_id)


async def user_of(request: Request, session: Session) -> UserRow:
    user_id = session.member.user_id
    user = await context_of(request).db.read(
        NOBODY, lambda connection: user_by_id(connection, user_id)
    )
    if user is None:
        raise unauthorized()
    return user


# ------------------------------------------------------------------------------------------------ JSON


async def sign_in(request: Request) -> Response:
    refuse_other_origins(request, required=False)
    sent = await json_body(request, _SIGN_IN, BODY_LIMIT)
    if sent.token is not None:
        begun = await begin(request, await user_by_link(request, sent.token), "link")
    elif sent.email is not None and sent.password is not None:
        user = await user_by_password(request, sent.email, sent.password)
        begun = await begin(request, user, "password")
    else:
        text = "send either token, or email and password"
        raise Problem(400, "invalid_value", text, where="$")
    return _with_cookie(request, begun)


async def sign_out(request: Request) -> Response:
    session = await _changing_session(request)
    await end_session(context_of(request), session, address_of(request))
    response = json_response(SignedOut())
    clear_cookie(request, response)
    return response


async def change_password(request: Request) -> Response:
    session = await _changing_session(request)
    sent = await json_body(request, _CHANGE_PASSWORD, BODY_LIMIT)
    begun = await change_password_of(request, session, sent.current_password, sent.new_password)
    return _with_cookie(request, begun)


async def change_organisation(request: Request) -> Response:
    session = await _changing_session(request)
    sent = await json_body(request, _CHANGE_ORGANISATION, BODY_LIMIT)
    return _with_cookie(request, await switch_to(request, session, sent.org_id))


async def who_am_i(request: Request) -> Response:
    context, caller = context_of(request), await caller_of(request, "see_itself")
    return json_response(await context.read(caller, lambda scope: _whoami_answer(scope, caller)))


def _whoami_answer(scope: Scope, caller: Caller) -> WhoAmI:
    organisation = scope.organisation()
    assert organisation is not None, "whoever asks belongs to it"
    role, user, summary = caller.role, None, None
    if caller.user_id is not None and (member := scope.member(caller.user_id)) is not None:
        user = PersonAnswer(member.user_id, member.email, member.name)
    if caller.key_id is not None and (key := scope.key(caller.key_id)) is not None:
        held = scope_of_key(key.prefix)
        role, prefix = role_of_scope(held), shown_prefix(key.prefix, key.key_id)
        summary = KeySummary(key.key_id, prefix, key.label, held)
    return WhoAmI(OrganisationAnswer(organisation.id, organisation.name), role, user, summary)


async def _changing_session(request: Request) -> Session:
    """The session of a person who is signed in by cookie. A key has none."""
    await caller_of(request, "keep_session")
    session = await session_of(request)
    if session is None:  # it ended in between
        raise unauthorized()
    return session


def _with_cookie(request: Request, begun: NewSignIn) -> Response:
    response = json_response(begun.answer(), headers={"Cache-Control": "no-store"})
    set_cookie(request, response, begun.new.token)
    return response


def _person(user: UserRow) -> PersonAnswer:
    return PersonAnswer(user.id, user.email, user.name)


# ---------------------------------------------------------------------------------------------- routes

_SIGN_IN = msgspec.json.Decoder(SignIn)
_CHANGE_PASSWORD = msgspec.json.Decoder(ChangePassword)
_CHANGE_ORGANISATION = msgspec.json.Decoder(ChangeOrganisation)

routes: tuple[LeanRoute, ...] = (
    route(
        "POST",
        "/api/sign-in",
        sign_in,
        summary="Signs in a person by password or by the token of a link, and sets a session cookie.",
        takes=SignIn,
        gives=SignedIn,
        errors=(401, 403, 429, 503),
        open_to_all=True,
        tag="people",
    ),
    route(
        "POST",
        "/api/sign-out",
        sign_out,
        summary="Ends this session.",
        gives=SignedOut,
        errors=(403,),
        tag="people",
    ),
    route(
        "POST",
        "/api/password",
        change_password,
        summary="Sets or changes your password; all other sessions end.",
        takes=ChangePassword,
        gives=SignedIn,
        errors=(403,),
        tag="people",
    ),
    route(
        "POST",
        "/api/organisation",
        change_organisation,
        summary="Switches to another organisation of which you are a member.",
        takes=ChangeOrganisation,
        gives=SignedIn,
        errors=(403, 404),
        tag="people",
    ),
    route(
        "GET",
        "/api/whoami",
        who_am_i,
        summary="Returns the owner and the role of this key or session.",
        gives=WhoAmI,
        tag="people",
    ),
)
