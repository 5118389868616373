"""The outermost middleware: every request gets an id, is logged and counted, and always gets an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any, Protocol

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rollbook.server.http.responses import RETRY_AFTER_S, Problem, problem_of, problem_response
from rollbook.server.logs import Log, bind_request, frames_of, request_id_of
from rollbook.server.metrics import Metrics
from rollbook.server.settings import Settings

_CLIENT_LEFT = 499
_QUIET = ("/healthz", "/readyz")
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")
_NO_STORING = (b"cache-control", b"no-store")
_REQUEST_ID = b"x-request-id"


class Telemetry(Protocol):
    """What this middleware needs of the server's context."""

    log: Log
    metrics: Metrics
    settings: Settings


class RequestEdge:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context: Telemetry = scope["app"].state.context
        began = time.perf_counter()
        request_id = request_id_of(Headers(scope=scope).get("x-request-id"))
        bind_request(request_id)
        answer = _Answer(send, request_id, _hsts(context.settings, scope))
        try:
            await self._app(scope, receive, answer.send)
        except ClientDisconnect:
            answer.status = answer.status or _CLIENT_LEFT
        except asyncio.CancelledError:
            # the server stops, and the time that running requests get is over
            if answer.status:
                raise
            await problem_response(_stopping())(scope, receive, answer.send)
        except Exception as error:
            # the class only: the text of an error may contain what the client sent
            name = type(error).__name__
            context.log.error("request_failed", error=name, frames=frames_of(error))
            if answer.status:
                raise  # half an answer was sent: cut the connection, so that nobody takes it for a complete one
            await problem_response(problem_of(error))(scope, receive, answer.send)
        finally:
            _log_request(context, scope, answer.status, time.perf_counter() - began)


def _stopping() -> Problem:
    text = "the server is stopping; send the same request again"
    return Problem(503, "stopping", text, headers={"Retry-After": str(RETRY_AFTER_S)})


def _hsts(settings: Settings, scope: Scope) -> list[tuple[bytes, bytes]]:
    """Over plain HTTP a browser must not be told to use https, which this server may not have."""
    https = settings.public_url is not None and settings.public_url.startswith("https:")
    if settings.hsts_s and (https or scope["scheme"] == "https"):
        return [(b"strict-transport-security", f"max-age={settings.hsts_s}".encode())]
    return []


class _Answer:
    """Adds our headers to the response, and remembers its status."""

    def __init__(self, send: Send, request_id: str, more: Iterable[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._more = more
        self._request_id = request_id
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message.setdefault("headers", [])
            headers.append((_REQUEST_ID, self._request_id.encode()))
            headers.extend(self._more)
            there = {name for name, _ in headers}
            headers.extend(each for each in (_NO_SNIFFING, _NO_STORING) if each[0] not in there)
        await self._send(message)


def _log_request(context: Telemetry, scope: Scope, status: int, seconds: float) -> None:
    route = getattr(scope.get("route"), "path", None)
    if route is None:  # a plain Starlette route leaves only its function in the scope
        route = f"({getattr(scope.get('endpoint'), '__name__', 'none')})"
    method = scope["method"]
    context.metrics.request(method, route, status, seconds)
    values: dict[str, Any] = {"method": method, "route": route, "status": status}
    caller = scope.get("state", {}).get("caller")
    if caller is not None:
        values["org_id"], values["caller"] = caller.org_id, caller.name
    tell = context.log.debug if route in _QUIET else context.log.info
    tell("request", **values, ms=round(seconds * 1000, 2))
