"""Answers: JSON objects, times in UTC, and one shape for every error, `{"error": text, "code": str, …}`.

Errors become HTTP statuses only here, so an error has the same answer on every route.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from rollbook.errors import (
    AlreadyTaken,
    BlobError,
    BlobExists,
    BlobNotFound,
    BlobStoreUnavailable,
    BlobTooLarge,
    ConflictingRevision,
    DatabaseFull,
    DatabaseUnavailable,
    EpisodeArchived,
    EpisodeInUse,
    EpisodeOnHold,
    IdempotencyConflict,
    LastOwner,
    MalformedJson,
    PartsMismatch,
    QuotaExceeded,
    Refusal,
    RollbookError,
    UploadNotFound,
)

M = TypeVar("M", bound=msgspec.Struct)
ExceptionHandler: TypeAlias = "Callable[[Request, Any], Coroutine[Any, Any, Response]]"

RETRY_AFTER_S = 5
_LONGEST_SHOWN = 240
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_encode = msgspec.json.Encoder().encode


class Problem(Exception):
    """An error answer. `error` says what the client can do about it."""

    def __init__(
        self,
        status: int,
        code: str,
        error: str,
        *,
        headers: Mapping[str, str] | None = None,
        **extra: object,
    ) -> None:
        super().__init__(error)
        self.status = status
        self.code = code
        self.error = error
        self.headers = dict(headers or {})
        self.extra = extra

    @property
    def body(self) -> dict[str, object]:
        return {"error": self.error, "code": self.code, **self.extra}


def not_found(what: str) -> Problem:
    """The same for an unknown id and for one of another tenant, so it names no id."""
    text = f"there is no such {what}; check its id, and that your key is of the organisation it belongs to"
    return Problem(404, "not_found", text)


# --------------------------------------------------------------------------------------------- JSON


def json_bytes(value: object) -> bytes:
    """The fast encoder cannot write integers beyond 64 bits; a seed or a metadata value may be one."""
    try:
        return _encode(value)
    except OverflowError:
        plain = msgspec.to_builtins(value)
        return json.dumps(
            plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode()


def json_response(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(json_bytes(value), status, dict(headers or {}), "application/json")


def wire_time(at_us: int) -> str:
    """ISO 8601 in UTC, to the microsecond."""
    return (_EPOCH + timedelta(microseconds=at_us)).isoformat().replace("+00:00", "Z")


def answer_from_row(message: type[M], row: object, **more: object) -> M:
    """A message whose fields are columns of the row. A time `x_at` is the column `x_at_us`. `more` holds the fields
    that are not in the row."""
    values = dict(more)
    for name in message.__struct_fields__:
        if name not in values:
            values[name] = _time_of(row, name) if name.endswith("_at") else getattr(row, name)
    return message(**values)


def _time_of(row: object, name: str) -> str | None:
    at_us: int | None = getattr(row, f"{name}_us")
    return None if at_us is None else wire_time(at_us)


# ----------------------------------------------------------------------------------------- problems


def problem_response(problem: Problem) -> Response:
    return json_response(problem.body, problem.status, problem.headers)


def problem_of(error: Exception) -> Problem:
    """The answer to an error. An unexpected error is a 500 that does not reveal its cause."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RollbookError):
        return _problem_of_error(error)
    if isinstance(error, HTTPException):
        return _problem_of_framework(error)
    return Problem(500, "internal", "the server failed; its log says why, under the X-Request-Id")


_STATUS: dict[type[RollbookError], int] = {
    DatabaseUnavailable: 503,
    DatabaseFull: 503,
    EpisodeArchived: 409,
    EpisodeOnHold: 409,
    EpisodeInUse: 409,
    IdempotencyConflict: 409,
    AlreadyTaken: 409,
    ConflictingRevision: 409,
    LastOwner: 409,
    QuotaExceeded: 403,
    MalformedJson: 400,
    Refusal: 400,
    BlobStoreUnavailable: 503,
    BlobNotFound: 404,
    UploadNotFound: 404,
    PartsMismatch: 409,
    BlobExists: 409,
    BlobTooLarge: 413,
    BlobError: 400,
}


def _problem_of_error(error: RollbookError) -> Problem:
    status = next((_STATUS[cls] for cls in type(error).__mro__ if cls in _STATUS), None)
    if status is None:
        return Problem(
            500, error.code, "the server failed; its log says why, under the X-Request-Id"
        )
    # a BlobError says everything in its text; object keys are not part of the wire
    told = {} if isinstance(error, BlobError) else error.fields
    extra = {name: _shortened(value) for name, value in told.items()}
    return Problem(status, error.code, str(error), headers=_retry(status), **extra)


def _shortened(value: object) -> object:
    if isinstance(value, str) and len(value) > _LONGEST_SHOWN:
        return f"{value[:_LONGEST_SHOWN]}…"
    return value


def _retry(status: int) -> dict[str, str]:
    return {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else {}


_FRAMEWORK = {
    404: ("not_found", "there is nothing at this path; /api/docs lists every route"),
    405: ("method_not_allowed", "this path does not take this method; /api/docs lists every route"),
}


def _problem_of_framework(error: HTTPException) -> Problem:
    code, text = _FRAMEWORK.get(error.status_code, ("refused", str(error.detail)))
    return Problem(error.status_code, code, text, headers=error.headers)


async def _handle(request: Request, error: Exception) -> Response:
    return problem_response(problem_of(error))


EXCEPTION_HANDLERS: dict[Any, ExceptionHandler] = {
    Problem: _handle,
    RollbookError: _handle,
    HTTPException: _handle,
}
"""For the application. Other errors reach the middleware, which logs them and answers 500."""
