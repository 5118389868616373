"""Request and Answer: what is sent and what comes back, as values. A runtime does the sending."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from rollbook import __version__
from rollbook.client.file_slice import FileSlice
from rollbook.errors import (
    APIError,
    AuthError,
    ConflictError,
    NotFoundError,
    RateLimitError,
    ServerError,
    TransportError,
    ValidationError,
)

USER_AGENT = f"rollbook-python/{__version__}"
JSON_TIMEOUT = httpx.Timeout(connect=3, read=30, write=30, pool=10)
TRANSFER_TIMEOUT = httpx.Timeout(connect=15, read=600, write=600, pool=15)
"""Also for calls in which the server reads every byte that was uploaded."""

_ERRORS: Mapping[int, type[APIError]] = {
    400: ValidationError,
    401: AuthError,
    404: NotFoundError,
    409: ConflictError,
    422: ValidationError,
}
_LONGEST_WAIT_ASKED_S = 86_400
_LONGEST_TEXT_KEPT = 1000

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    what: str
    """In words, for error messages. A signed URL is a secret, so messages never contain one."""
    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | FileSlice | None = None
    timeout: httpx.Timeout
    safe_to_resend: bool = False
    """Whether the server may receive it twice without harm. Only then is it sent again after a lost answer."""
    signed: bool = False
    """The URL itself is the permission, so logs must not show it."""
    patient: bool = False
    """Part of an upload that has begun: it is tried again for `Retries.upload_for_s`, and the log says so."""

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc.rpartition("@")[2]


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


def json_request(
    what: str,
    method: str,
    url: str,
    *,
    api_key: str,
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: httpx.Timeout = JSON_TIMEOUT,
    safe_to_resend: bool = False,
    patient: bool = False,
) -> Request:
    sent = {
        "Authorization": f"Bearer {api_key}",
        "Accept": "application/json",
        **(headers or {}),
    }
    content = None
    if body is not None:
        sent["Content-Type"] = "application/json"
        content = encoded(body)
    return Request(
        what=what,
        method=method,
        url=url,
        headers=sent,
        body=content,
        timeout=timeout,
        safe_to_resend=safe_to_resend,
        patient=patient,
    )


def encoded(body: Mapping[str, Any]) -> bytes:
    """JSON. The same object gives the same bytes, so a request that is sent again is the same request."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def decoded_answer(request: Request, answer: Answer, message: type[T]) -> T:
    """The message of a successful answer. Any other answer raises: a refusal its own error, the rest ServerError."""
    if not answer.ok:
        raise_for(request, answer)
    try:
        return msgspec.json.decode(answer.body or b"{}", type=message)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        body = _decoded(answer.body)
        is_json = isinstance(body, dict)
        reason = f"something unexpected ({error})" if is_json else "an answer that is not JSON"
        raise ServerError(
            status_code=answer.status,
            message=f"cannot {request.what}: {request.host} answered {reason}; is the base URL right?",
            response_body=body if is_json else _first_text(answer.body),
            request_id=_request_id(answer, body),
        ) from error


def raise_for(request: Request, answer: Answer) -> NoReturn:
    body = _decoded(answer.body)
    said = body.get("error") if isinstance(body, dict) else None
    reason = said if isinstance(said, str) and said else _default_reason(request, answer)
    raise api_error(
        answer.status,
        f"cannot {request.what}: {reason}",
        body if body is not None else _first_text(answer.body),
        request_id=_request_id(answer, body),
        retry_after=retry_after(answer),
    )


def api_error(
    status: int,
    message: str,
    response_body: object,
    *,
    request_id: str | None = None,
    retry_after: int | None = None,
) -> APIError:
    """The error class for a status. Also for one item of a batch, as if it had been sent alone."""
    facts: dict[str, Any] = {
        "status_code": status,
        "message": message,
        "response_body": response_body,
        "request_id": request_id,
    }
    if status == 429:
        return RateLimitError(**facts, retry_after=retry_after)
    if status >= 500:
        return ServerError(**facts)
    return _ERRORS.get(status, APIError)(**facts)


def wire_code(error: APIError) -> str | None:
    """The `code` in the server's answer."""
    body = error.response_body
    code = body.get("code") if isinstance(body, dict) else None
    return code if isinstance(code, str) else None


def retry_after(answer: Answer) -> int | None:
    """Whole seconds. Dates are ignored, because the clock of a robot is often wrong."""
    text = answer.headers.get("retry-after", "").strip()
    if not (text.isascii() and text.isdigit()):
        return None
    seconds = int(text)
    return seconds if seconds <= _LONGEST_WAIT_ASKED_S else None


def transport_error(request: Request, error: Exception) -> TransportError:
    """With the error of httpx as its cause. That error names the host only, never a signed URL."""
    detail = f"{type(error).__name__}: {error}".removesuffix(": ")
    found = TransportError(
        message=f"cannot {request.what}: {request.host} cannot be reached ({detail})"
    )
    found.__cause__ = error
    return found


def _default_reason(request: Request, answer: Answer) -> str:
    if 300 <= answer.status < 400:
        to = urlsplit(answer.headers.get("location", ""))
        return f"{request.host} redirects to {to.scheme}://{to.netloc}: use that as the base URL"
    return f"{request.host} gave no reason"


def _decoded(body: bytes) -> Any | None:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _first_text(body: bytes) -> str | None:
    return body[:_LONGEST_TEXT_KEPT].decode("utf-8", "replace") or None


def _request_id(answer: Answer, body: object) -> str | None:
    in_body = body.get("request_id") if isinstance(body, dict) else None
    found = answer.headers.get("x-request-id") or in_body
    return found if isinstance(found, str) else None
