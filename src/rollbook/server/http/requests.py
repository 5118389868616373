"""Requests: a body of limited size, decoded and checked against its type. Any other body is answered 4xx with what to
send."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from rollbook.server.http.responses import Problem

T = TypeVar("T")

_SLOWEST_BODY_S = 60.0
_DRAINED_S = 2.0
_DRAINED_BODIES = 4
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_US = 2**62


async def json_body(request: Request, decoder: msgspec.json.Decoder[T], limit: int) -> T:
    return decoded(await json_text(request, limit), decoder)


LARGE_BODY = 1 << 20
"""Bytes. Bodies above this size are decoded and answered one after the other: a body of 4 MB can become objects of 100
MB."""
TURN = "rollbook.large_body_turn"
"""Where the scope of a request keeps its turn. The route gives it back."""


async def json_text(request: Request, limit: int) -> bytes:
    """Requires `Content-Type: application/json`: a page of another site cannot send it with somebody's cookie."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        await _drain(request, limit)
        text = "the body has to be JSON, sent with Content-Type: application/json"
        raise Problem(415, "unsupported_media_type", text)
    body = await _body(request, limit)
    if len(body) > LARGE_BODY:
        turn: asyncio.Semaphore = request.app.state.context.large_bodies
        await turn.acquire()
        request.scope[TURN] = turn
    return body


async def _body(request: Request, limit: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        await _drain(request, limit)
        raise _too_large(limit)
    chunks, size = [], 0
    try:
        async with asyncio.timeout(_SLOWEST_BODY_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    break
                chunks.append(chunk)
    except TimeoutError as error:
        text = "the body took too long to arrive; send it again"
        raise Problem(408, "body_too_slow", text) from error
    if size > limit:
        await _drain(request, limit)
        raise _too_large(limit)
    return b"".join(chunks)


def decoded(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """NaN and Infinity are not JSON and are refused."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        detail, _, path = str(error).partition(" - at ")
        where = path.strip("`") or "$"
        text = f"{where}: {detail.replace('`', '')}"
        raise Problem(400, "invalid_value", text, where=where) from error
    except msgspec.DecodeError as error:
        raise _malformed(f"the body is not JSON: {error}") from error
    except UnicodeDecodeError as error:
        raise _malformed("the body is not UTF-8; encode its text as UTF-8") from error
    except RecursionError as error:
        raise _malformed("the body is nested too deeply; send fewer levels") from error


def moment_us(name: str, text: str) -> int:
    """ISO 8601 to microseconds since 1970; a time without a zone is UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        expected = "expected a time such as 2026-01-31T12:00:00Z"
        raise Problem(400, "invalid_value", f"{name}: {expected}", where=name) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max((moment - _EPOCH) // timedelta(microseconds=1), 0), _LATEST_US)


def _malformed(text: str) -> Problem:
    return Problem(400, "malformed_json", text)


def _too_large(limit: int) -> Problem:
    text = f"the body has more than {limit} bytes; what is large belongs into an artifact"
    return Problem(413, "body_too_large", text, limit=limit)


async def _drain(request: Request, limit: int) -> None:
    """Reads a part of a refused body: a client that is cut off while it sends may never see the answer."""
    seen = 0
    try:
        async with asyncio.timeout(_DRAINED_S):
            async for chunk in request.stream():
                seen += len(chunk)
                if seen > _DRAINED_BODIES * limit:
                    return
    except (ClientDisconnect, TimeoutError, RuntimeError):
        return
