"""Local blobs over HTTP: `/blobs/<token>` accepts the upload or answers the download that its signed token allows.

The token alone decides which blob is meant, so there is no path to manipulate. Bytes are streamed both ways. No answer
is a redirect, because clients do not follow redirects here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from email.utils import formatdate
from typing import TypeAlias

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rollbook.errors import (
    BlobError,
    BlobNotFound,
    BlobStoreUnavailable,
    BlobTooLarge,
    UploadNotFound,
)
from rollbook.server.blobs.file_blobs import LocalBlobs
from rollbook.server.blobs.files import OpenBlob
from rollbook.server.blobs.interface import BlobInfo, BlobStore, PutResult, content_disposition
from rollbook.server.blobs.signing import Grant, TokenRefused

FindBlobs: TypeAlias = "Callable[[Request], BlobStore]"

_RANGE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))", re.IGNORECASE)
_RETRY_AFTER_S = 5


def blob_routes(find: FindBlobs, *, idle_s: float = 120.0) -> list[Route]:
    """`find` gives the blob store of the application that received the request. An upload that sends nothing for
    `idle_s` is given up."""

    async def blob(request: Request) -> Response:
        blobs = find(request)
        if not isinstance(blobs, LocalBlobs):
            return _problem(404, "not_found", "this server keeps its blobs elsewhere")
        token: str = request.path_params.get("token", "")
        try:
            grant = blobs.signer.opened(token, request.method)
        except TokenRefused as refused:
            return _problem(403, refused.code, str(refused))
        if grant.method == "GET":
            return await _get(blobs, grant, request)
        return await _put(blobs, grant, request, idle_s)

    methods = ["GET", "HEAD", "PUT"]
    # the second route, so that no router answers with a redirect to a slash
    return [
        Route("/blobs/{token:path}", blob, methods=methods, include_in_schema=False),
        Route("/blobs", blob, methods=methods, include_in_schema=False),
    ]


# ----------------------------------------------------------------------------------------------- PUT


async def _put(blobs: LocalBlobs, grant: Grant, request: Request, idle_s: float) -> Response:
    refused = _refusal(grant, request)
    if refused is not None:
        return refused
    try:
        stored = await _stored(blobs, grant, _body(request, idle_s))
    except (ClientDisconnect, TimeoutError):
        return _problem(408, "upload_cut_short", "the upload stopped before its end; send it again")
    except BlobError as error:
        return _problem_of(error)
    return JSONResponse(
        {"size": stored.size, "sha256": stored.sha256}, headers={"ETag": f'"{stored.etag}"'}
    )


def _refusal(grant: Grant, request: Request) -> Response | None:
    """Refusals that need no byte of the body."""
    content_type = request.headers.get("content-type")
    if grant.content_type is not None and content_type != grant.content_type:
        text = f"this URL takes Content-Type {grant.content_type!r}, not {content_type!r}"
        return _problem(403, "content_type_mismatch", text)
    length = request.headers.get("content-length", "0")
    if grant.most is not None and length.isdecimal() and int(length) > grant.most:
        return _problem_of(BlobTooLarge(key=grant.key, most=grant.most))
    return None


async def _stored(blobs: LocalBlobs, grant: Grant, body: AsyncIterator[bytes]) -> PutResult:
    if grant.upload is not None and grant.part is not None:
        return await blobs.put_part(grant.key, grant.upload, grant.part, body, most=grant.most)
    content_type = grant.content_type or "application/octet-stream"
    return await blobs.put(grant.key, body, content_type=content_type, most=grant.most)


async def _body(request: Request, idle_s: float) -> AsyncIterator[bytes]:
    """The bytes as they arrive. TimeoutError when no more arrive."""
    receive, more = request.receive, True
    while more:
        async with asyncio.timeout(idle_s):
            message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        more = message.get("more_body", False)
        if chunk := message.get("body"):
            yield chunk


# ----------------------------------------------------------------------------------------------- GET


async def _get(blobs: LocalBlobs, grant: Grant, request: Request) -> Response:
    try:
        blob = await blobs.open(grant.key)
    except BlobError as error:
        return _problem_of(error)
    response = _answer(blob, grant, request)
    if not isinstance(response, StreamingResponse):
        blob.close()
    return response


def _answer(blob: OpenBlob, grant: Grant, request: Request) -> Response:
    info = blob.info
    headers = _headers(info, grant)
    if _named(request.headers.get("if-none-match"), info):
        return Response(status_code=304, headers=headers)
    wanted = _range(request, info)
    if wanted is None:
        start, end, status = 0, info.size, 200
    elif wanted.start >= info.size:
        text = f"there are {info.size} bytes, and the range begins after them"
        return _problem(
            416, "range_not_satisfiable", text, {"Content-Range": f"bytes */{info.size}"}
        )
    else:
        start, end, status = wanted.start, min(wanted.stop, info.size), 206
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{info.size}"
    headers["Content-Length"] = str(end - start)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    return StreamingResponse(blob.chunks(start, end), status, headers)


def _headers(info: BlobInfo, grant: Grant) -> dict[str, str]:
    """Uploaded content must not run as a page of ours: no sniffing, and a sandbox."""
    return {
        "Content-Type": grant.content_type or "application/octet-stream",
        "Content-Disposition": content_disposition(grant.filename),
        "Accept-Ranges": "bytes",
        "ETag": f'"{info.etag}"',
        "Last-Modified": formatdate(info.modified_at_us / 1e6, usegmt=True),
        "Cache-Control": "private, no-cache",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }


def _named(header: str | None, info: BlobInfo) -> bool:
    if header is None:
        return False
    tags = {tag.strip().removeprefix("W/") for tag in header.split(",")}
    return "*" in tags or f'"{info.etag}"' in tags


def _range(request: Request, info: BlobInfo) -> range | None:
    """The one range that is asked for. None (the whole blob) for several ranges, for a malformed one, and for one of an
    older blob."""
    asked = _RANGE.fullmatch(request.headers.get("range", "").strip())
    condition = request.headers.get("if-range")
    if asked is None or (condition is not None and condition != f'"{info.etag}"'):
        return None
    first, last, suffix = asked.groups()
    if suffix is not None:
        # the last 0 bytes begin after the end
        return range(max(0, info.size - int(suffix)) if int(suffix) else info.size, info.size)
    start = int(first)
    if last and int(last) < start:
        return None
    return range(start, int(last) + 1 if last else max(start, info.size))


# ------------------------------------------------------------------------------------------- problems


def _problem_of(error: BlobError) -> Response:
    if isinstance(error, BlobNotFound | UploadNotFound):
        return _problem(404, error.code, str(error))
    if isinstance(error, BlobTooLarge):
        return _problem(413, error.code, str(error))
    if isinstance(error, BlobStoreUnavailable):
        return _problem(503, error.code, str(error), {"Retry-After": str(_RETRY_AFTER_S)})
    return _problem(400, error.code, str(error))


def _problem(
    status: int, code: str, text: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    return JSONResponse({"error": text, "code": code}, status, headers)
