"""Pages: HTML rendered on the server, without scripts and without resources from other hosts. Every value is escaped.

A page is a dataclass, and its template sees only the fields of that dataclass. An error on a page shows the text that
the API would give.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rollbook.errors import RollbookError
from rollbook.server.accounts.sessions import (
    Session,
    refuse_other_origins,
    refuse_wrong_token,
    session_of,
)
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem, problem_of

if TYPE_CHECKING:
    from jinja2 import Environment

Handler: TypeAlias = "Callable[[Request], Coroutine[Any, Any, Response]]"
Fields: TypeAlias = "dict[str, str]"

CSRF_FIELD = "csrf_token"
HOME = "/keys"
"""The page after sign-in, unless the person was on the way to another page."""
_TEMPLATES = Path(__file__).with_name("templates")
_FORM_LIMIT = 16 << 10
_MOST_FIELDS = 20
_SLOWEST_FORM_S = 30.0
_LONGEST_PATH = 1000
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    # a browser that sends no referrer at all sends no Origin either
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, kw_only=True)
class Page:
    template: ClassVar[str]
    title: ClassVar[str]
    session: Session | None = None
    """The e-mail address of the person who is signed in."""
    problem: str | None = None
    """The error of the form that was just sent."""


@dataclass(frozen=True, kw_only=True)
class MessagePage(Page):
    template: ClassVar[str] = "message.html"
    title: ClassVar[str] = "Rollbook"
    heading: str
    text: str
    link: str | None = None
    link_text: str | None = None


def render(page: Page, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    values = {each.name: getattr(page, each.name) for each in fields(page)}
    text = _environment().get_template(page.template).render(title=page.title, **values)
    return Response(text, status, {**_HEADERS, **(headers or {})}, "text/html")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["moment"] = _moment
    made.globals["csrf_field"] = CSRF_FIELD
    made.globals["style_url"] = f"/pages.css?v={_style()[1][:12]}"
    return made


def _moment(at_us: int | None) -> str:
    if at_us is None:
        return "never"
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M UTC")


@cache
def _style() -> tuple[bytes, str]:
    content = (_TEMPLATES / "pages.css").read_bytes()
    return content, hashlib.sha256(content).hexdigest()


async def style(_request: Request) -> Response:
    headers = {"Cache-Control": "public, max-age=86400", "X-Content-Type-Options": "nosniff"}
    return Response(_style()[0], 200, headers, "text/css")


# ------------------------------------------------------------------------------------------- routes


class SignInFirst(Exception):
    """The person is not signed in. After sign-in they return to the page they asked for."""

    def __init__(self, request: Request) -> None:
        super().__init__("sign in first")
        query = f"?{request.url.query}" if request.url.query else ""
        self.path = f"{request.url.path}{query}" if request.method == "GET" else HOME


def page_route(method: str, path: str, handler: Handler) -> LeanRoute:
    """A route whose errors are pages. It is not part of the API document."""

    async def page(request: Request) -> Response:
        try:
            return await handler(request)
        except SignInFirst as asked:
            return redirect(f"/sign-in?next={quote(asked.path, safe='')}")
        except (Problem, RollbookError, HTTPException) as error:
            return problem_page(problem_of(error))

    return LeanRoute(path, page, methods=[method], name=handler.__name__)


def problem_page(problem: Problem) -> Response:
    page = MessagePage(heading="That did not work", text=problem.error)
    return render(page, problem.status, problem.headers)


def redirect(path: str) -> Response:
    """Answers a form: the browser then loads the page with GET."""
    return RedirectResponse(path, 303, headers={"Cache-Control": "no-store"})


def local_path(path: str | None) -> str:
    """A path on this server, or the home page. A link must not lead to another host."""
    if path is None or not path.startswith("/") or len(path) > _LONGEST_PATH:
        return HOME
    # browsers read a backslash as a slash, and drop tabs and line ends first
    if path.startswith(("//", "/\\")) or not path.isascii() or not path.isprintable():
        return HOME
    parts = urlsplit(path)
    return HOME if parts.scheme or parts.netloc else path


async def page_session(request: Request) -> Session:
    session = await session_of(request)
    if session is None:
        raise SignInFirst(request)
    return session


# -------------------------------------------------------------------------------------------- forms


async def form_fields(request: Request) -> Fields:
    """The fields of a form that was sent from one of our pages."""
    refuse_other_origins(request, required=True)
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/x-www-form-urlencoded":
        text = "this takes a form, sent with Content-Type: application/x-www-form-urlencoded"
        raise Problem(415, "unsupported_media_type", text)
    body = await _form_bytes(request)
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError as error:
        text = "the form cannot be read; open its page again and send it once more"
        raise Problem(400, "malformed_form", text) from error
    return dict(pairs)


async def _form_bytes(request: Request) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(_SLOWEST_FORM_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > _FORM_LIMIT:
                    text = f"the form has more than {_FORM_LIMIT} bytes; shorten what you wrote"
                    raise Problem(413, "body_too_large", text)
    except TimeoutError as error:
        text = "the form took too long to arrive; send it again"
        raise Problem(408, "body_too_slow", text) from error
    return bytes(body)


async def signed_in_form(request: Request) -> tuple[Session, Fields]:
    """A change by a signed-in person, with the token that was in the form."""
    sent = await form_fields(request)
    session = await page_session(request)
    refuse_wrong_token(session, sent.get(CSRF_FIELD, ""))
    return session, sent


routes: tuple[LeanRoute, ...] = (page_route("GET", "/pages.css", style),)
