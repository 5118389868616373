"""`rollbook login`, `logout` and `whoami`: get, remove and show the API key of this machine."""

from __future__ import annotations

import os
import platform
import socket
import time
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import urlsplit

import typer

from rollbook.cli.exit_codes import VIOLATIONS
from rollbook.cli.output import AsJson, print_json, say
from rollbook.errors import (
    APIError,
    AuthError,
    ConfigurationError,
    RollbookError,
    ServerError,
    TransportError,
)

if TYPE_CHECKING:
    from rollbook.client.connection import Connection
    from rollbook.client.credentials import Access, Profile
    from rollbook.client.http import Answer
    from rollbook.contracts.wire.keys import LoginPolled

T = TypeVar("T")

DEFAULT_BASE_URL = "http://127.0.0.1:8321"
_LOGIN_LASTS_S = 600.0
_POLL_EVERY_S = 2.0
_LEAST_POLL_S, _MOST_POLL_S = 0.5, 60.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Scope(StrEnum):
    """What a key may do."""

    INGEST = "ingest"
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


ProfileName = Annotated[str, typer.Option("--profile", help="Name of the stored login to use.")]


@contextmanager
def connection_to(access: Access) -> Iterator[Connection]:
    from rollbook.client.connection import ONCE, Connection
    from rollbook.client.runtime import BlockingRuntime, finish

    runtime = BlockingRuntime()
    try:
        yield Connection(runtime, api_key=access.api_key, base_url=access.base_url, retries=ONCE)
    finally:
        finish(runtime.close())


@contextmanager
def connection_of(profile: str) -> Iterator[Connection]:
    """Connect with the key that the SDK would use."""
    from rollbook.client.credentials import DEFAULT_PROFILE, resolve_access

    access = resolve_access(profile=None if profile == DEFAULT_PROFILE else profile)
    with connection_to(access) as connection:
        yield connection


def call(
    connection: Connection,
    what: str,
    method: str,
    path: str,
    answer: type[T],
    body: Mapping[str, Any] | None = None,
) -> T:
    from rollbook.client.runtime import finish

    return finish(connection.call(what, method, path, answer=answer, body=body))


# -------------------------------------------------------------------------------------------- login


def login(
    base_url: Annotated[
        str | None,
        typer.Option(
            help=f"URL of the server. Default: $ROLLBOOK_BASE_URL, or {DEFAULT_BASE_URL}."
        ),
    ] = None,
    profile: ProfileName = "default",
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the link without opening a browser.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Log in again, even if this profile is logged in.")
    ] = False,
    scope: Annotated[
        Scope | None,
        typer.Option(help="What the key may do. Default: write, or read if a viewer approves."),
    ] = None,
) -> None:
    """Get an API key for this machine. You approve it in the browser; it is stored in ~/.rollbook/credentials."""
    from rollbook.client.credentials import Access, read_profile, write_profile

    stored = read_profile(profile)
    url = _server(base_url, stored)
    if stored is not None and not force:
        if stored.base_url == url:
            user = stored.user_email or "an unknown user"
            say(f"already signed in to {url} as {user}; --force signs in again")
            return
        say(
            f"profile {profile!r} is signed in to {stored.base_url}; this login replaces it",
            err=True,
        )
    with connection_to(Access("", url)) as connection:
        waiting = PendingLogin.start(connection, scope=scope)
        say(waiting.invitation(f"connect this machine to {url}"))
        if not no_browser:
            waiting.open_browser()
        approved = waiting.approved()
    path = write_profile(_profile(approved, url), profile)
    say(f"signed in as {approved.user_email or 'an unknown user'}; the key is in {path}")


def _server(given: str | None, stored: Profile | None) -> str:
    from rollbook.client.credentials import ENV_BASE_URL

    known = None if stored is None else stored.base_url
    url = (given or os.environ.get(ENV_BASE_URL) or known or DEFAULT_BASE_URL).strip().rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        message = f"{url!r} is not the URL of a server; use for example --base-url https://rollbook.example.com"
        raise ConfigurationError(message=message)
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        say("warning: without https, others on the network can read the key", err=True)
    return url


def _profile(approved: LoginPolled, base_url: str) -> Profile:
    from rollbook.client.credentials import Profile

    if not approved.api_key:
        message = "the server approved this login but sent no key; start it again"
        raise ServerError(status_code=200, message=message)
    # the URL that was reached, not the one that the server reports: this one works from here
    return Profile(
        api_key=approved.api_key,
        base_url=base_url,
        org_id=approved.client_id,
        user_email=approved.user_email,
    )


@dataclass(slots=True)
class PendingLogin:
    """A login that was started and that a person has to approve."""

    connection: Connection
    device_code: str
    user_code: str
    link: str
    every_s: float

    @classmethod
    def start(
        cls, connection: Connection, *, scope: Scope | None = None, label: str | None = None
    ) -> PendingLogin:
        """`scope` and `label` are those of the key that it asks for."""
        from rollbook.contracts.wire.keys import LoginStarted

        machine = {"user_agent": _user_agent(), "hostname": socket.gethostname() or None}
        body = {**machine, "scope": scope, "label": label}
        started = _post(connection, "start", body, LoginStarted)
        link = started.verification_uri_complete
        every_s = _interval(started.interval, _POLL_EVERY_S)
        return cls(connection, started.device_code, started.user_code, link, every_s)

    def invitation(self, purpose: str) -> str:
        return (
            f"To {purpose}, open\n\n  {self.link}\n\n"
            f"and authorize it if the page shows this code:\n\n  {self.user_code}\n"
        )

    def open_browser(self) -> None:
        if urlsplit(self.link).scheme in ("http", "https"):
            webbrowser.open(self.link)

    def approved(self) -> LoginPolled:
        """Poll until the login is approved or refused. Network errors are retried."""
        from rollbook.contracts.wire.keys import LoginPolled

        body = {"device_code": self.device_code}
        deadline = time.monotonic() + _LOGIN_LASTS_S
        while time.monotonic() < deadline:
            try:
                polled = _post(self.connection, "poll", body, LoginPolled)
            except TransportError:
                time.sleep(min(2 * self.every_s, 5.0))
                continue
            if polled.status == "approved":
                return polled
            if polled.status == "denied":
                raise _not_approved("the login was refused in the browser")
            self.every_s = _interval(polled.interval, self.every_s)
            time.sleep(self.every_s)
        raise _not_approved("the login was not approved in time; start it again")


def _not_approved(text: str) -> typer.Exit:
    """Not an error of the program, so only the text is printed."""
    say(text, err=True)
    return typer.Exit(VIOLATIONS)


def _post(connection: Connection, verb: str, body: Mapping[str, Any], answer: type[T]) -> T:
    """Call one of the two routes that need no key. The body of a refusal such as 410 gives the reason."""
    import msgspec

    from rollbook.client.http import JSON_TIMEOUT, Request, encoded
    from rollbook.client.runtime import finish

    request = Request(
        what=f"{verb} a login",
        method="POST",
        url=f"{connection.base_url}/api/cli/auth/{verb}",
        headers={"Content-Type": "application/json", "Accept": "application/json"},
        body=encoded(body),
        timeout=JSON_TIMEOUT,
    )
    came = finish(connection.send(request))
    if came.status != 200:
        raise _refusal("start a login" if verb == "start" else "log in", came)
    try:
        return msgspec.json.decode(came.body, type=answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"the server did not answer as a Rollbook server does ({error}); check --base-url"
        raise ServerError(status_code=200, message=message) from error


def _refusal(what: str, came: Answer) -> APIError:
    import msgspec

    from rollbook.contracts.wire.errors import ErrorAnswer

    try:
        said = msgspec.json.decode(came.body, type=ErrorAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = ErrorAnswer(f"the server answered {came.status}", "")
    return (ServerError if came.status >= 500 else APIError)(
        status_code=came.status,
        message=f"cannot {what}: {said.error}",
        response_body=msgspec.structs.asdict(said),
    )


def _interval(asked_s: int | None, otherwise_s: float) -> float:
    if asked_s is None or asked_s <= 0:
        return otherwise_s
    return min(max(float(asked_s), _LEAST_POLL_S), _MOST_POLL_S)


def _user_agent() -> str:
    from rollbook.client.http import USER_AGENT

    python = f"{platform.python_implementation().lower()}/{platform.python_version()}"
    return f"{USER_AGENT} {python} {platform.system().lower()}/{platform.machine()}"


# --------------------------------------------------------------------------------- logout and whoami


def logout(
    profile: ProfileName = "default",
    revoke: Annotated[
        bool,
        typer.Option(
            "--revoke", help="Also revoke the key on the server, so that no copy of it works."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove the API key of this machine. It is removed even if the server cannot be reached."""
    from rollbook.client.credentials import credentials_path, read_profile, remove_profile

    stored = read_profile(profile)
    if stored is None:
        message = f"there is no profile {profile!r} in {credentials_path()}"
        raise ConfigurationError(message=message)
    ended, failure = _revoked(stored, as_json) if revoke else (None, None)
    remove_profile(profile)
    if as_json:
        print_json({"profile": profile, "removed": True, "revoked": ended, "error": failure})
    else:
        if ended is not None:
            say(f"revoked {ended} on {stored.base_url}")
        say(f"removed profile {profile!r} from {credentials_path()}")
    if failure is not None:
        say(f"the key could not be revoked and may still work: {failure}", err=True)
        raise typer.Exit(VIOLATIONS)
    if not revoke and not as_json:
        say("the key still works elsewhere; `rollbook logout --revoke` also revokes it")


def _revoked(stored: Profile, as_json: bool) -> tuple[str | None, str | None]:
    """The prefix of the key that ended, and why it could not be revoked."""
    from rollbook.client.credentials import Access
    from rollbook.contracts.wire.keys import KeyRevoked

    try:
        with connection_to(Access(stored.api_key, stored.base_url)) as connection:
            ended = call(connection, "revoke the key", "POST", "/api/cli/auth/revoke", KeyRevoked)
    except AuthError:
        say("the key was already revoked", err=as_json)
        return None, None
    except RollbookError as error:
        return None, str(error)
    return ended.key_prefix, None


def whoami(profile: ProfileName = "default", as_json: AsJson = False) -> None:
    """Show the server, organisation and key that the SDK uses here, and ask the server if the key is valid."""
    from rollbook.client.credentials import credentials_path, read_profile
    from rollbook.contracts.wire.accounts import WhoAmI

    who: WhoAmI | None = None
    with connection_of(profile) as connection:
        try:
            who = call(connection, "ask who this is", "GET", "/api/whoami", WhoAmI)
        except TransportError as error:
            say(f"the server cannot be reached: {error}", err=True)
        base_url = connection.base_url
    stored = read_profile(profile)
    facts = {
        "profile": profile,
        "base_url": base_url,
        "organisation": None if who is None else who.organisation.name,
        "org_id": None if who is None else who.organisation.id,
        "role": None if who is None else who.role,
        "scope": None if who is None or who.key is None else who.key.scope,
        "key_prefix": None if who is None or who.key is None else who.key.key_prefix,
        "user_email": None if stored is None else stored.user_email,
        "written_at": None if stored is None else stored.written_at,
        "credentials_path": str(credentials_path()),
        "checked": who is not None,
    }
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        if value is not None and name != "checked":
            say(f"{name:<17} {value}")
