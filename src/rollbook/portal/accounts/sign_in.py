"""Sign in and out, and a new password."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response

from rollbook.portal.page import (
    HOME,
    Fields,
    MessagePage,
    Page,
    form_fields,
    local_path,
    page_route,
    page_session,
    redirect,
    render,
    signed_in_form,
)
from rollbook.server.accounts.sessions import clear_cookie, end_session, session_of, set_cookie
from rollbook.server.accounts.sign_in import (
    NewSignIn,
    begin,
    change_password_of,
    user_by_link,
    user_by_password,
    user_of,
)
from rollbook.server.context import context_of
from rollbook.server.http.limits import address_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem


@dataclass(frozen=True, kw_only=True)
class SignInPage(Page):
    template: ClassVar[str] = "sign_in.html"
    title: str = "Sign in"
    next: str
    token: str | None = None
    email: str = ""


@dataclass(frozen=True, kw_only=True)
class PasswordPage(Page):
    template: ClassVar[str] = "password.html"
    title: str = "Password"
    has_password: bool


async def sign_in_page(request: Request) -> Response:
    """The button on this page uses the link up; opening it does not, because mail scanners open links too."""
    asked = request.query_params
    token, next_path = asked.get("token"), local_path(asked.get("next"))
    if token is None and await session_of(request) is not None:
        return redirect(request, next_path)
    return render(request, SignInPage(next=next_path, token=token))


async def sign_in_by_form(request: Request) -> Response:
    sent = await form_fields(request)
    next_path = local_path(sent.get("next"))
    try:
        begun = await _begin_by_form(request, sent)
    except Problem as problem:
        page = SignInPage(next=next_path, email=sent.get("email", ""), problem=problem.error)
        return render(request, page, problem.status, problem.headers)
    response = redirect(request, next_path)
    set_cookie(request, response, begun.new.token)
    return response


async def _begin_by_form(request: Request, sent: Fields) -> NewSignIn:
    if "token" in sent:
        return await begin(request, await user_by_link(request, sent["token"]), "link")
    user = await user_by_password(request, sent.get("email", ""), sent.get("password", ""))
    return await begin(request, user, "password")


async def sign_out_by_form(request: Request) -> Response:
    session, _ = await signed_in_form(request, "keep_session")
    await end_session(context_of(request), session, address_of(request))
    response = redirect(request, "/sign-in")
    clear_cookie(request, response)
    return response


async def password_page(request: Request) -> Response:
    session = await page_session(request, "keep_session")
    user = await user_of(request, session)
    page = PasswordPage(session=session, has_password=user.password_hash is not None)
    return render(request, page)


async def password_by_form(request: Request) -> Response:
    session, sent = await signed_in_form(request, "keep_session")
    fields, user = dict(sent), await user_of(request, session)
    try:
        begun = await change_password_of(
            request, session, fields.get("current_password"), fields.get("new_password", "")
        )
    except Problem as problem:
        page = PasswordPage(
            session=session, has_password=user.password_hash is not None, problem=problem.error
        )
        return render(request, page, problem.status, problem.headers)
    text = "Your password is set. Everywhere else you have been signed out."
    # without the session: its token in the page would be that of the session that just ended
    done = MessagePage(title="Password", heading="Done", text=text, link=HOME, link_text="Go on")
    response = render(request, done)
    set_cookie(request, response, begun.new.token)
    return response


routes: tuple[LeanRoute, ...] = (
    page_route("GET", "/sign-in", sign_in_page),
    page_route("POST", "/sign-in", sign_in_by_form),
    page_route("POST", "/sign-out", sign_out_by_form),
    page_route("GET", "/password", password_page),
    page_route("POST", "/password", password_by_form),
)
