"""Sessions: an opaque cookie says who is signed in. The database stores only its hash, so a copy of the database signs
in nobody.

A change by cookie needs two more things that another site cannot send: our own Origin, and a token that only our pages
receive.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from urllib.parse import urlsplit

import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import Response

from rollbook.server.accounts.keys import hash_of
from rollbook.server.accounts.roles import person
from rollbook.server.context import Caller, ServerContext, base_url_of, context_of
from rollbook.server.db.engine import NOBODY, Tenant
from rollbook.server.http.openapi import SESSION_COOKIE
from rollbook.server.http.responses import Problem
from rollbook.server.queries import (
    MemberRow,
    OrganisationRow,
    Scope,
    SessionRow,
    create_session,
    delete_session,
    session_by_hash,
)

SESSION_LASTS_S = 14 * 24 * 3600
CSRF_HEADER = "x-csrf-token"
_LONGEST_TOKEN = 100
_CHANGES_NOTHING = ("GET", "HEAD", "OPTIONS")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True)
class Session:
    token_hash: str
    csrf_token: str
    expires_at_us: int
    member: MemberRow
    organisation: OrganisationRow

    @property
    def caller(self) -> Caller:
        return person(self.organisation.id, self.member.user_id, self.member.role)


@dataclass(frozen=True, slots=True)
class NewSession:
    token: str
    """The text of the cookie. It is stored nowhere else."""
    csrf_token: str
    expires_at_us: int


async def session_of(request: Request) -> Session | None:
    """None without a cookie, after the session expired, and when the user is not a member any more."""
    token = request.cookies.get(cookie_name(request))
    if token is None or len(token) > _LONGEST_TOKEN:
        return None
    context = context_of(request)
    row = await context.db.read(
        NOBODY, lambda connection: session_by_hash(connection, hash_of(token), context.clock())
    )
    if row is None:
        return None
    return await context.read_for(row.org_id, lambda scope: _with_member(scope, row))


def _with_member(scope: Scope, row: SessionRow) -> Session | None:
    member, organisation = scope.member(row.user_id), scope.organisation()
    if member is None or organisation is None:
        return None
    return Session(row.token_hash, row.csrf_token, row.expires_at_us, member, organisation)


async def session_caller(request: Request) -> Caller | None:
    """The person signed in, for JSON routes: a change needs the CSRF token in a header."""
    session = await session_of(request)
    if session is None:
        return None
    if request.method not in _CHANGES_NOTHING:
        refuse_other_origins(request, required=True)
        refuse_wrong_token(session, request.headers.get(CSRF_HEADER, ""))
    return session.caller


# ------------------------------------------------------------------------------ beginning and ending


def add_session(
    connection: sa.Connection, context: ServerContext, user_id: str, org_id: str
) -> NewSession:
    """Runs in a transaction of the organisation. A session always gets a new token, so a planted cookie is useless."""
    made = NewSession(
        token=secrets.token_urlsafe(32),
        csrf_token=secrets.token_urlsafe(32),
        expires_at_us=context.clock() + SESSION_LASTS_S * 1_000_000,
    )
    create_session(
        connection,
        hash_of(made.token),
        user_id,
        org_id,
        csrf_token=made.csrf_token,
        expires_at_us=made.expires_at_us,
    )
    return made


async def end_session(context: ServerContext, session: Session, ip: str) -> None:
    org_id = session.organisation.id

    def end(connection: sa.Connection) -> None:
        if delete_session(connection, session.token_hash):
            scope = Scope(connection, org_id, context.clock)
            scope.audit("sign_out", actor=session.caller.name, ip=ip)

    await context.db.write(Tenant(org_id=org_id), end)


def set_cookie(request: Request, response: Response, token: str) -> None:
    response.set_cookie(
        cookie_name(request),
        token,
        max_age=SESSION_LASTS_S,
        path=_cookie_path(request),
        secure=is_https(request),
        httponly=True,
        samesite="lax",
    )


def clear_cookie(request: Request, response: Response) -> None:
    response.delete_cookie(
        cookie_name(request),
        path=_cookie_path(request),
        secure=is_https(request),
        httponly=True,
        samesite="lax",
    )


def cookie_name(request: Request) -> str:
    """Over https a browser accepts the longer names only over https; `__Host-` only from this host, not from another
    host of the domain, and only for the whole host."""
    if not is_https(request):
        return SESSION_COOKIE
    return f"__Secure-{SESSION_COOKIE}" if _prefix(request) else f"__Host-{SESSION_COOKIE}"


def _cookie_path(request: Request) -> str:
    """Below a path prefix: other programs on the same host must not receive the cookie, nor replace it with theirs."""
    return _prefix(request) or "/"


def _prefix(request: Request) -> str:
    prefix: str = request.scope.get("root_path", "")
    return prefix


def is_https(request: Request) -> bool:
    public_url = context_of(request).settings.public_url
    return (public_url or str(request.url)).startswith("https:")


# ------------------------------------------------------------------------------ origin and token


def refuse_other_origins(request: Request, *, required: bool) -> None:
    """`required`: refuse a request without Origin. Browsers always send one here; programs do not, but they have no
    cookies."""
    origin = request.headers.get("origin")
    if origin is None and not required:
        return
    own = own_origin(request)
    if origin is None or origin.lower() != own:
        text = f"this has to be sent from a page of this server; open {own} in the browser and try again there"
        raise Problem(403, "other_origin", text)


def own_origin(request: Request) -> str:
    """The origin as browsers write it: lower case, and without the default port."""
    parts = urlsplit(base_url_of(request).lower())
    return f"{parts.scheme}://{parts.netloc.removesuffix(_DEFAULT_PORTS[parts.scheme])}"


def refuse_wrong_token(session: Session, sent: str) -> None:
    if not hmac.compare_digest(sent.encode("utf-8", "replace"), session.csrf_token.encode()):
        text = "the CSRF token is missing or not of this session; open the page again and try once more"
        raise Problem(403, "csrf", text)
