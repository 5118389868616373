"""Pages: HTML rendered on the server. Every value is escaped, and no script or style stands inside a page.

A page is a dataclass, and its template sees only the fields of that dataclass. An error on a page shows the text that
the API would give. `page_route` makes a route of a handler; `render` answers it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar
from urllib.parse import parse_qsl, quote, urlsplit

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rollbook.errors import RollbookError
from rollbook.portal.formats import FILTERS
from rollbook.portal.prefix import local_url, path_within
from rollbook.portal.static_files import static_path
from rollbook.server.accounts.roles import Action, require
from rollbook.server.accounts.sessions import (
    Session,
    refuse_other_origins,
    refuse_wrong_token,
    session_of,
)
from rollbook.server.context import context_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem, problem_of, problem_response
from rollbook.server.settings import Settings

if TYPE_CHECKING:
    from jinja2 import Environment

Handler: TypeAlias = "Callable[[Request], Coroutine[Any, Any, Response]]"
Fields: TypeAlias = "dict[str, str]"
M = TypeVar("M", bound=msgspec.Struct)

CSRF_FIELD = "csrf_token"
THEME_COOKIE = "rollbook_theme"
HOME = "/portal"
"""The page after sign-in, unless the person was on the way to another page."""
_TEMPLATES = Path(__file__).with_name("templates")
_FORM_LIMIT = 64 << 10
_MOST_FIELDS = 2000
_SLOWEST_FORM_S = 30.0
_LONGEST_PATH = 1000


@dataclass(frozen=True, kw_only=True)
class Page:
    template: ClassVar[str]
    section: ClassVar[str] = ""
    """The entry of the navigation that this page belongs to: overview, episodes, evals, scenarios, stores, lineage."""
    modules: ClassVar[tuple[str, ...]] = ()
    """ES modules that the page loads, such as `episode.js`."""
    title: str
    session: Session | None = None
    """Who is signed in."""
    problem: str | None = None
    """The error of the form that was just sent."""


@dataclass(frozen=True, kw_only=True)
class MessagePage(Page):
    template: ClassVar[str] = "message.html"
    title: str = "Rollbook"
    heading: str
    text: str
    link: str | None = None
    link_text: str | None = None


@dataclass(frozen=True, kw_only=True)
class ConfirmPage(Page):
    """Asks before something ends or is deleted. Its form works without script."""

    template: ClassVar[str] = "confirm.html"
    session: Session
    heading: str
    consequences: tuple[str, ...]
    """What happens, and what else goes, a sentence each."""
    action: str
    """The path that the form is sent to."""
    button: str
    cancel: str
    """The path to go back to."""
    choice: tuple[str, str] | None = None
    """The name and the text of a checkbox."""


def render(
    request: Request, page: Page, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    values = {each.name: getattr(page, each.name) for each in fields(page)}
    theme = request.cookies.get(THEME_COOKIE)
    settings = context_of(request).settings

    def url(path: str) -> str:
        return local_url(request, path)

    text = (
        _environment()
        .get_template(page.template)
        .render(
            **values,
            section=page.section,
            modules=page.modules,
            theme=theme if theme in ("light", "dark") else None,
            host=(settings.public_url or str(request.base_url)).partition("://")[2].rstrip("/"),
            url=url,
            static=lambda name: url(static_path(name)),
        )
    )
    sent = {**page_headers(settings), **(headers or {})}
    return Response(text, status, sent, "text/html")


def page_headers(settings: Settings) -> dict[str, str]:
    """Nothing runs but our own files. Videos and images may also come from where the artifacts are kept."""
    elsewhere = _artifact_origin(settings)
    policy = {
        "default-src": "'none'",
        "style-src": "'self'",
        "script-src": "'self'",
        "connect-src": "'self'",
        "img-src": f"'self' data: blob:{elsewhere}",
        "media-src": f"'self' blob:{elsewhere}",
        "form-action": "'self'",
        "base-uri": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Frame-Options": "DENY",
        "X-Content-Type-Options": "nosniff",
        # a browser that sends no referrer at all sends no Origin either
        "Referrer-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-store",
    }


def _artifact_origin(settings: Settings) -> str:
    address = settings.s3_public_endpoint or settings.s3_endpoint
    if not settings.blobs_url.startswith("s3:"):
        return ""
    if address is None:
        return " https://*.amazonaws.com"
    parts = urlsplit(address)
    return f" {parts.scheme}://{parts.netloc}"


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
    made.filters.update(FILTERS)
    made.globals["csrf_field"] = CSRF_FIELD
    return made


# ------------------------------------------------------------------------------------------- routes


class SignInFirst(Exception):
    """The person is not signed in. After sign-in they return to the page they asked for."""

    def __init__(self, request: Request) -> None:
        super().__init__("sign in first")
        query = f"?{request.url.query}" if request.url.query else ""
        self.path = f"{path_within(request)}{query}" if request.method == "GET" else HOME


def page_route(method: str, path: str, handler: Handler) -> LeanRoute:
    """A route whose errors are pages. It is not part of the API document."""

    async def page(request: Request) -> Response:
        try:
            return await handler(request)
        except SignInFirst as asked:
            return redirect(request, f"/sign-in?next={quote(asked.path, safe='')}")
        except (Problem, RollbookError, HTTPException) as error:
            return await problem_page(request, problem_of(error))

    return LeanRoute(path, page, methods=[method], name=handler.__name__)


async def problem_page(request: Request, problem: Problem) -> Response:
    found = problem.status != 404
    page = MessagePage(
        session=await _session(request),
        title="That did not work" if found else "Not found",
        heading="That did not work" if found else "There is nothing here",
        text=problem.error,
        link=HOME,
        link_text="To the overview",
    )
    return render(request, page, problem.status, problem.headers)


async def unknown_path(request: Request, error: Exception) -> Response:
    """The answer where no route fits: a page for a browser, JSON for a program."""
    problem = problem_of(error)
    is_browser = "text/html" in request.headers.get("accept", "")
    if not is_browser or path_within(request).startswith("/api/"):
        return problem_response(problem)
    text = "No page has this address. Check it, or find what you look for by its id or its name."
    if problem.status == 405:
        text = "This address only takes a form that one of our pages sends. Open that page again."
    return await problem_page(request, Problem(problem.status, problem.code, text))


def redirect(request: Request, path: str) -> Response:
    """Answers a form: the browser then loads the page with GET. `path` is without the prefix."""
    return RedirectResponse(local_url(request, path), 303, headers={"Cache-Control": "no-store"})


def local_path(path: str | None) -> str:
    """A path on this server, without the prefix, or the home page. A link must not lead to another host."""
    if path is None or not path.startswith("/") or len(path) > _LONGEST_PATH:
        return HOME
    # browsers read a backslash as a slash, and drop tabs and line ends first
    if path.startswith(("//", "/\\")) or not path.isascii() or not path.isprintable():
        return HOME
    parts = urlsplit(path)
    return HOME if parts.scheme or parts.netloc else path


async def _session(request: Request) -> Session | None:
    """Looked up once for each request: a page that fails shows its error to the same person."""
    known: Session | None = getattr(request.state, "session", None)
    if known is None:
        known = request.state.session = await session_of(request)
    return known


async def page_session(request: Request, action: Action = "read") -> Session:
    """Who is signed in, and may do this. `session.caller` then reads: `context.read(session.caller, …)`."""
    session = await _session(request)
    if session is None:
        raise SignInFirst(request)
    request.state.caller = session.caller
    context_of(request).limits.spend(request, session.caller.name)
    require(session.caller, action)
    return session


# -------------------------------------------------------------------------------------------- forms


async def form_pairs(request: Request) -> list[tuple[str, str]]:
    """The fields of a form that was sent from one of our pages, in order; a name may stand there several times."""
    refuse_other_origins(request, required=True)
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/x-www-form-urlencoded":
        text = "this takes a form, sent with Content-Type: application/x-www-form-urlencoded"
        raise Problem(415, "unsupported_media_type", text)
    body = await _form_bytes(request)
    try:
        return parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError as error:
        text = "the form cannot be read; open its page again and send it once more"
        raise Problem(400, "malformed_form", text) from error


def form_message(message: type[M], fields: Mapping[str, object]) -> M:
    """The fields of a form as a message of the API, which has the same limits. Text becomes a number where one is
    expected."""
    try:
        return msgspec.convert(dict(fields), message, strict=False)
    except msgspec.ValidationError as error:
        detail, _, path = str(error).partition(" - at ")
        name = path.strip("`").removeprefix("$.")
        text = detail.replace("`", "")
        raise Problem(400, "invalid_value", f"{name}: {text}" if name else text) from error


async def form_fields(request: Request) -> Fields:
    return dict(await form_pairs(request))


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


async def signed_in_form(
    request: Request, action: Action = "read"
) -> tuple[Session, list[tuple[str, str]]]:
    """A change by a signed-in person who may do it, with the token that was in the form."""
    sent = await form_pairs(request)
    session = await page_session(request, action)
    refuse_wrong_token(session, dict(sent).get(CSRF_FIELD, ""))
    return session, sent
