"""Device login: a command line starts a login, a person approves it in the browser, and the command line receives an
API key.

The key is made when the command line fetches it. It is never stored and is given out once. Polls are not rate-limited,
because the public client gives up when it is told to wait.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated

import msgspec
import sqlalchemy as sa
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.wire.keys import (
    KeyRevoked,
    LoginOver,
    LoginPolled,
    LoginStarted,
    PollLogin,
    StartLogin,
)
from rollbook.errors import AlreadyTaken
from rollbook.server.accounts.callers import caller_of
from rollbook.server.accounts.keys import PREFIX_OF_SCOPE, hash_of
from rollbook.server.accounts.manage_keys import add_key, key_answer, revoke
from rollbook.server.accounts.roles import MAY_GIVE, login_scope, person
from rollbook.server.accounts.sessions import Session
from rollbook.server.accounts.sign_in import BODY_LIMIT
from rollbook.server.context import base_url_of, context_of, unauthorized
from rollbook.server.db.engine import NOBODY, Tenant
from rollbook.server.http.limits import address_of, network_of
from rollbook.server.http.openapi import LeanRoute, route
from rollbook.server.http.requests import json_body
from rollbook.server.http.responses import Problem, json_response
from rollbook.server.queries import (
    DeviceLoginRow,
    Scope,
    consume_device_login,
    create_device_login,
    decide_device_login,
    device_login,
    device_login_by_user_code,
)

LOGIN_LASTS_S = 600
POLL_EVERY_S = 2
_CODE_LETTERS = "BCDFGHJKMNPQRTVWXY34679"
"""Letters and digits that cannot be confused, and no vowels, so that no code is a word."""
_HALF_A_CODE = 4
_PUBLIC_PREFIX = "rt"
"""The prefix of the keys that the public client creates."""
_MOST_TRIES = 5
_LONGEST_SHOWN = 200

Said = Annotated[str, Meta(max_length=1000)]


# ----------------------------------------------------------------------------------- the command line


async def start_login(request: Request) -> Response:
    base_url, context = base_url_of(request), context_of(request)
    context_of(request).attempts.spend("connect a device", network_of(request))
    sent = await json_body(request, _START, BODY_LIMIT)
    device_code = secrets.token_urlsafe(32)
    user_agent = sent.user_agent or request.headers.get("user-agent")

    def start(connection: sa.Connection) -> DeviceLoginRow:
        return create_device_login(
            connection,
            hash_of(device_code),
            new_user_code(),
            expires_at_us=context.clock() + LOGIN_LASTS_S * 1_000_000,
            hostname=_without_invisible(sent.hostname),
            user_agent=_without_invisible(user_agent),
            ip=address_of(request),
            scope=sent.scope,
            label=_without_invisible(sent.label),
        )

    login = await _first_free(lambda: context.db.write(NOBODY, start))
    page = f"{base_url}/cli/auth"
    answer = LoginStarted(
        device_code=device_code,
        user_code=login.user_code,
        verification_uri=page,
        verification_uri_complete=f"{page}?code={login.user_code}",
        interval=POLL_EVERY_S,
        expires_in=LOGIN_LASTS_S,
    )
    return json_response(answer, headers={"Cache-Control": "no-store"})


async def _first_free(start: Callable[[], Awaitable[DeviceLoginRow]]) -> DeviceLoginRow:
    for _ in range(_MOST_TRIES):
        with suppress(AlreadyTaken):
            return await start()
    text = "no code is free at this moment; try again in a minute"
    raise Problem(503, "busy", text, headers={"Retry-After": "60"})


def new_user_code() -> str:
    letters = "".join(secrets.choice(_CODE_LETTERS) for _ in range(2 * _HALF_A_CODE))
    return f"{letters[:_HALF_A_CODE]}-{letters[_HALF_A_CODE:]}"


def _without_invisible(text: str | None) -> str | None:
    """Removes invisible characters, some of which reverse the direction of the text around them."""
    if text is None:
        return None
    return "".join(letter for letter in text if letter.isprintable())[:_LONGEST_SHOWN]


async def poll_login(request: Request) -> Response:
    """An unknown code and an expired code get the same answer, because expired rows are deleted."""
    base_url, context = base_url_of(request), context_of(request)
    sent = await json_body(request, _POLL, BODY_LIMIT)
    code_hash = hash_of(sent.device_code)
    login = await context.db.read(
        NOBODY, lambda connection: device_login(connection, code_hash, context.clock())
    )
    status = "expired" if login is None else login.status
    if login is not None and status == "approved":
        status, delivered = await _deliver(request, login, code_hash)
        if delivered is not None:
            return _polled(msgspec.structs.replace(delivered, base_url=base_url))
    if status == "pending":
        return _polled(LoginPolled("pending", interval=POLL_EVERY_S))
    if status == "denied":
        return _polled(LoginPolled("denied"))
    if status == "consumed":
        text = "this login was used already; start another one"
        return json_response(LoginOver("consumed", text, "consumed"), 410)
    return json_response(
        LoginOver("expired", "this login took too long; start it again", "expired"), 410
    )


async def _deliver(
    request: Request, login: DeviceLoginRow, code_hash: str
) -> tuple[str, LoginPolled | None]:
    """When two requests arrive together, one gets the key. The person who approved must still be a member."""
    context = context_of(request)
    assert login.org_id is not None, "it was approved for an organisation"
    assert login.user_id is not None, "it was approved by someone"
    org_id, user_id = login.org_id, login.user_id

    def deliver(connection: sa.Connection) -> tuple[str, LoginPolled | None]:
        scope = Scope(connection, org_id, context.clock)
        member = scope.member(user_id)
        if member is None:
            return "denied", None
        held = login.scope or login_scope(member.role)
        if member.role not in MAY_GIVE[held]:  # they have another role since they approved
            return "denied", None
        full, key = add_key(
            scope,
            request,
            person(org_id, user_id, member.role),
            prefix=_PUBLIC_PREFIX if held == "write" else PREFIX_OF_SCOPE[held],
            label=login.label or f"login on {login.hostname or 'a device'}"[:_LONGEST_SHOWN],
            created_by=user_id,
        )
        at_us = context.clock()
        if consume_device_login(connection, code_hash, key_id=key.key_id, at_us=at_us) is None:
            raise _Consumed
        answer = LoginPolled(
            "approved",
            api_key=full,
            client_id=org_id,
            user_email=member.email,
            key=key_answer(key),
        )
        return "approved", answer

    try:
        return await context.db.write(Tenant(org_id=org_id), deliver)
    except _Consumed:
        return "consumed", None


class _Consumed(Exception):
    """Another request was faster. The new key is undone with the transaction."""


def _polled(answer: LoginPolled) -> Response:
    return json_response(answer, headers={"Cache-Control": "no-store"})


async def revoke_login(request: Request) -> Response:
    """The key that sends the request revokes itself; no role is needed."""
    context, caller = context_of(request), await caller_of(request, "see_itself")
    key_id = caller.key_id
    if key_id is None:
        raise unauthorized()

    def drop(scope: Scope) -> KeyRevoked:
        key = scope.key(key_id)
        if key is None or key.revoked_at_us is not None:
            raise unauthorized()
        return revoke(scope, request, caller, key)

    return json_response(await context.write_for(caller.org_id, drop))


# --------------------------------------------------------------------------------------- the browser


async def pending_login(request: Request, session: Session, code: str) -> DeviceLoginRow | None:
    context = context_of(request)
    context_of(request).attempts.spend("approve a device", session.member.user_id)
    found = await context.db.read(
        NOBODY,
        lambda connection: device_login_by_user_code(
            connection, normal_code(code), context.clock()
        ),
    )
    return found if found is not None and found.status == "pending" else None


async def decide_login(
    request: Request, session: Session, code: str, org_id: str, *, approved: bool
) -> bool:
    context, user_id = context_of(request), session.member.user_id

    def decide(connection: sa.Connection) -> bool:
        login = decide_device_login(
            connection,
            code,
            approved=approved,
            user_id=user_id,
            org_id=org_id,
            at_us=context.clock(),
        )
        if login is None:
            return False
        Scope(connection, org_id, context.clock).audit(
            "device.approved" if approved else "device.denied",
            actor=f"user:{user_id}",
            subject=f"device:{code}",
            detail={"hostname": login.hostname, "device_ip": login.ip},
            ip=address_of(request),
        )
        return True

    return await context.db.write(Tenant(org_id=org_id, user_id=user_id), decide)


def normal_code(text: str) -> str:
    """The code in the form that was shown, however the person typed it."""
    letters = "".join(letter for letter in text.upper() if letter in _CODE_LETTERS)
    return f"{letters[:_HALF_A_CODE]}-{letters[_HALF_A_CODE:]}"


# ------------------------------------------------------------------------------------------- routes

_START = msgspec.json.Decoder(StartLogin)
_POLL = msgspec.json.Decoder(PollLogin)
_, _over = msgspec.json.schema_components((LoginOver,))

routes: tuple[LeanRoute, ...] = (
    route(
        "POST",
        "/api/cli/auth/start",
        start_login,
        summary="Starts a device login. Returns a code for the machine, a code for a person, and the page to open.",
        takes=StartLogin,
        gives=LoginStarted,
        errors=(429, 503),
        open_to_all=True,
        tag="device login",
    ),
    route(
        "POST",
        "/api/cli/auth/poll",
        poll_login,
        summary="Returns the state of the login. The first poll after the approval gets the key.",
        takes=PollLogin,
        gives=LoginPolled,
        errors=(409, 503),
        answers={
            410: {
                "description": "The login has expired, or its key was already fetched.",
                "content": {"application/json": {"schema": _over["LoginOver"]}},
            }
        },
        open_to_all=True,
        tag="device login",
    ),
    route(
        "POST",
        "/api/cli/auth/revoke",
        revoke_login,
        summary="Revokes the key that sends this request.",
        gives=KeyRevoked,
        errors=(403,),
        tag="device login",
    ),
)
