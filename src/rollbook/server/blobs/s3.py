"""Blobs as objects of one S3 bucket below a prefix, by the protocol itself: a signature and a handful of requests.

Clients move bytes by presigned URLs; only what the server makes or checks itself passes through here, a part at a time.
What passes by itself (429, 5xx, a lost connection) is tried again a little, then it is BlobStoreUnavailable.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

import anyio
import httpx

from rollbook.errors import (
    BlobError,
    BlobExists,
    BlobNotFound,
    BlobStoreUnavailable,
    BlobTooLarge,
    PartsMismatch,
    UploadNotFound,
)
from rollbook.server.blobs.interface import (
    BlobInfo,
    PartInfo,
    Parts,
    PutResult,
    check_key,
    check_part_number,
    check_parts,
    check_prefix,
    content_disposition,
)
from rollbook.server.blobs.s3_answers import ListedPart, S3Answer, completion
from rollbook.server.blobs.s3_credentials import S3Place
from rollbook.server.blobs.sigv4 import presigned_url, query_text, signed_headers

_PART = 16 << 20
"""Up to this an object is one request; more goes in parts of this size, so memory stays flat up to 160 GB."""
_ATTEMPTS = 4
_FIRST_WAIT_S = 0.2
_RESUMES = 3
_TIMEOUT = httpx.Timeout(60.0, connect=3.0)
_PASSING = frozenset({429, 500, 502, 503, 504})
_TAKEN = frozenset({409, 412})
_WRONG_PARTS = frozenset({"InvalidPart", "InvalidPartOrder", "EntityTooSmall"})


class S3Blobs:
    kind = "s3"

    def __init__(self, place: S3Place, prefix: str = "") -> None:
        self._place = place
        self._prefix = f"{prefix}/" if prefix else ""
        encrypted = place.bucket_url.startswith(
            "https:"
        )  # without, certificates need not be loaded
        self._http = httpx.AsyncClient(timeout=_TIMEOUT, verify=encrypted, follow_redirects=False)

    # ------------------------------------------------------------------------------------ whole blobs

    async def put(
        self,
        key: str,
        chunks: AsyncIterator[bytes],
        *,
        content_type: str,
        most: int | None = None,
        replace: bool = True,
    ) -> PutResult:
        check_key(key)
        digest = hashlib.sha256()
        pieces = _pieces(key, chunks, most)
        first = await anext(pieces, b"")
        await asyncio.to_thread(digest.update, first)
        if len(first) < _PART:
            etag = await self._put_whole(key, first, content_type, replace)
            return PutResult(len(first), digest.hexdigest(), etag)
        upload = await self.start_multipart(key, content_type=content_type)
        try:
            parts = [await self._put_part(key, upload, 1, first)]
            async for piece in pieces:
                await asyncio.to_thread(digest.update, piece)
                parts.append(await self._put_part(key, upload, len(parts) + 1, piece))
            done = await self._complete(key, upload, parts, replace=replace)
        except BaseException:
            await self._abort_quietly(key, upload)
            raise
        return PutResult(done.size, digest.hexdigest(), done.etag)

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        check_key(key)
        if end is not None and end <= start:
            if await self.head(key) is None:
                raise BlobNotFound(key=key)
            return _nothing()
        response = await self._get(key, start, end)
        return _nothing() if response is None else self._followed(key, response, start, end)

    async def head(self, key: str) -> BlobInfo | None:
        answer = await self._ask("HEAD", check_key(key))
        if answer.status == 404:
            return None
        answer.expect(self._place.bucket, 200)
        modified = parsedate_to_datetime(answer.headers["last-modified"])
        return BlobInfo(
            key,
            int(answer.headers["content-length"]),
            answer.etag,
            _moment_us(modified, answer.etag),
        )

    async def sha256(self, key: str) -> str:
        digest = hashlib.sha256()
        async for chunk in await self.read(key):
            await asyncio.to_thread(digest.update, chunk)
        return digest.hexdigest()

    @asynccontextmanager
    async def as_file(self, key: str) -> AsyncIterator[Path]:
        chunks = await self.read(key)
        with tempfile.TemporaryDirectory(prefix="rollbook-") as folder:
            path = Path(folder) / key.rpartition("/")[2]
            async with await anyio.open_file(path, "wb") as file:
                async for chunk in chunks:
                    await file.write(chunk)
            yield path

    async def delete(self, key: str) -> None:
        answer = await self._ask("DELETE", check_key(key))
        answer.expect(self._place.bucket, 200, 204, 404)

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        query = {"list-type": "2", "prefix": self._prefix + check_prefix(prefix)}
        while True:
            answer = await self._ask("GET", None, query)
            answer.expect(self._place.bucket, 200)
            page = answer.listed()
            for info in page.blobs:
                yield BlobInfo(
                    info.key.removeprefix(self._prefix), info.size, info.etag, info.modified_at_us
                )
            if page.next is None:
                return
            query["continuation-token"] = page.next

    # ------------------------------------------------------------------------------------ signed URLs

    async def presign_put(
        self, key: str, *, content_type: str, ttl_s: int, base_url: str, most: int | None = None
    ) -> str:
        headers = {"content-type": content_type}
        return await self._presigned("PUT", check_key(key), {}, headers, ttl_s)

    async def presign_get(
        self,
        key: str,
        *,
        ttl_s: int,
        base_url: str,
        content_type: str,
        filename: str | None = None,
    ) -> str:
        query = {
            "response-content-disposition": content_disposition(filename),
            "response-content-type": content_type,
        }
        return await self._presigned("GET", check_key(key), query, {}, ttl_s)

    async def presign_part(
        self,
        key: str,
        upload: str,
        number: int,
        *,
        ttl_s: int,
        base_url: str,
        most: int | None = None,
    ) -> str:
        query = {"partNumber": str(check_part_number(number)), "uploadId": upload}
        return await self._presigned("PUT", check_key(key), query, {}, ttl_s)

    # -------------------------------------------------------------------------------- uploads in parts

    async def start_multipart(self, key: str, *, content_type: str) -> str:
        headers = {"content-type": content_type}
        answer = await self._ask("POST", check_key(key), {"uploads": ""}, headers)
        answer.expect(self._place.bucket, 200)
        return answer.upload_id()

    async def parts(self, key: str, upload: str) -> Parts:
        return [part.info for part in await self._listed_parts(key, upload)]

    async def complete_multipart(self, key: str, upload: str, parts: Parts) -> BlobInfo:
        check_parts(parts)
        return await self._complete(check_key(key), upload, parts, replace=True)

    async def abort_multipart(self, key: str, upload: str) -> None:
        answer = await self._ask("DELETE", check_key(key), {"uploadId": upload})
        answer.expect(self._place.bucket, 200, 204, 404)

    # ------------------------------------------------------------------------------------ housekeeping

    async def sweep(self, *, older_than_s: float) -> int:
        """Uploads to which nothing was added for so long."""
        before = datetime.now(UTC) - timedelta(seconds=older_than_s)
        answer = await self._ask("GET", None, {"uploads": "", "prefix": self._prefix})
        answer.expect(self._place.bucket, 200)
        removed = 0
        for key, upload, initiated in answer.uploads():
            own = key.removeprefix(self._prefix)
            if initiated < before and not await self._grew(own, upload, before):
                await self.abort_multipart(own, upload)
                removed += 1
        return removed

    async def check(self) -> None:
        answer = await self._ask(
            "GET", None, {"list-type": "2", "max-keys": "1", "prefix": self._prefix}
        )
        answer.expect(self._place.bucket, 200)

    async def close(self) -> None:
        await self._http.aclose()

    # ------------------------------------------------------------------------------------- inner parts

    async def _put_whole(self, key: str, data: bytes, content_type: str, replace: bool) -> str:
        headers = {"content-type": content_type} | ({} if replace else {"if-none-match": "*"})
        answer = await self._ask("PUT", key, {}, headers, data)
        if not replace and answer.status in _TAKEN:
            raise BlobExists(key=key)
        answer.expect(self._place.bucket, 200)
        return answer.etag

    async def _put_part(self, key: str, upload: str, number: int, data: bytes) -> PartInfo:
        query = {"partNumber": str(number), "uploadId": upload}
        answer = await self._ask("PUT", key, query, content=data)
        answer.expect(self._place.bucket, 200)
        return PartInfo(number, len(data), answer.etag)

    async def _complete(self, key: str, upload: str, parts: Parts, *, replace: bool) -> BlobInfo:
        headers = {"content-type": "application/xml"} | ({} if replace else {"if-none-match": "*"})
        answer = await self._ask("POST", key, {"uploadId": upload}, headers, completion(parts))
        if answer.code in _WRONG_PARTS:
            raise PartsMismatch(
                detail=f"S3 does not take these parts ({answer.code}); send them again"
            )
        if not replace and answer.status in _TAKEN:
            raise BlobExists(key=key)
        done_before = answer.code == "NoSuchUpload" and answer.attempts > 1
        if answer.code == "NoSuchUpload" and not done_before:
            raise UploadNotFound(key=key)
        if not done_before:
            answer.expect(self._place.bucket, 200)
        info = await self.head(key)
        # an attempt whose answer was lost may have done it: then the object has the size of the parts
        if info is None or (done_before and info.size != sum(part.size for part in parts)):
            raise UploadNotFound(key=key)
        return info

    async def _abort_quietly(self, key: str, upload: str) -> None:
        """Also when the task is being cancelled. What cannot be aborted now is swept later."""
        with anyio.CancelScope(shield=True):
            try:
                await self.abort_multipart(key, upload)
            except BlobError:
                return

    async def _listed_parts(self, key: str, upload: str) -> tuple[ListedPart, ...]:
        found: tuple[ListedPart, ...] = ()
        query = {"uploadId": upload}
        while True:
            answer = await self._ask("GET", check_key(key), query)
            if answer.code == "NoSuchUpload":
                raise UploadNotFound(key=key)
            answer.expect(self._place.bucket, 200)
            parts, following = answer.parts()
            found += parts
            if following is None:
                return found
            query["part-number-marker"] = following

    async def _grew(self, key: str, upload: str, since: datetime) -> bool:
        try:
            parts = await self._listed_parts(key, upload)
        except UploadNotFound:
            return True  # completed or aborted meanwhile
        return any(part.modified >= since for part in parts)

    async def _get(
        self, key: str, start: int, end: int | None, etag: str | None = None
    ) -> httpx.Response | None:
        """The answer, its body still to be read. None when the range begins after the end."""
        headers = {}
        if start or end is not None:
            headers["range"] = f"bytes={start}-{'' if end is None else end - 1}"
        if etag is not None:
            headers["if-match"] = f'"{etag}"'
        response, attempts = await self._sent("GET", key, {}, headers, b"", stream=True)
        # not every server says 206
        if response.status_code == 206 or (
            response.status_code == 200
            and ("range" not in headers or "content-range" in response.headers)
        ):
            return response
        answer = S3Answer(response.status_code, response.headers, await response.aread(), attempts)
        await response.aclose()
        if answer.status == 416:
            return None
        if answer.status == 404 and answer.code != "NoSuchBucket":
            raise BlobNotFound(key=key)
        if answer.status == 412:
            raise BlobStoreUnavailable(
                detail=f"{key!r} was replaced while it was read; read it again"
            )
        raise answer.failure(self._place.bucket)

    async def _followed(
        self, key: str, response: httpx.Response, start: int, end: int | None
    ) -> AsyncIterator[bytes]:
        """The body; where the connection is lost, the rest of the same object is asked for."""
        etag = response.headers.get("etag", "").strip('"')
        resumes = 0
        while True:
            try:
                async for chunk in response.aiter_raw():
                    start += len(chunk)
                    yield chunk
                return
            except httpx.TransportError as error:
                resumes += 1
                if resumes > _RESUMES:
                    raise _unreachable(self._place, error) from error
            finally:
                await response.aclose()
            again = await self._get(key, start, end, etag)
            if again is None:
                return
            if again.headers.get("etag", "").strip('"') != etag:
                await again.aclose()
                raise BlobStoreUnavailable(
                    detail=f"{key!r} was replaced while it was read; read it again"
                )
            response = again

    async def _presigned(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        ttl_s: int,
    ) -> str:
        return presigned_url(
            method,
            self._place.url(self._prefix + key),
            query,
            headers,
            credentials=await self._place.credentials.current(),
            region=self._place.region,
            at=datetime.now(UTC),
            ttl_s=ttl_s,
        )

    async def _ask(
        self,
        method: str,
        key: str | None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> S3Answer:
        response, attempts = await self._sent(method, key, query or {}, headers or {}, content)
        return S3Answer(response.status_code, response.headers, response.content, attempts)

    async def _sent(
        self,
        method: str,
        key: str | None,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        content: bytes,
        *,
        stream: bool = False,
    ) -> tuple[httpx.Response, int]:
        url = self._place.url("" if key is None else self._prefix + key)
        attempt = 1
        while True:
            request = await self._request(method, url, query, headers, content)
            try:
                response = await self._http.send(request, stream=stream)
            except httpx.TransportError as error:
                if attempt == _ATTEMPTS:
                    raise _unreachable(self._place, error) from error
            else:
                if response.status_code not in _PASSING or attempt == _ATTEMPTS:
                    return response, attempt
                await response.aclose()
            await asyncio.sleep(_FIRST_WAIT_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.0))
            attempt += 1

    async def _request(
        self,
        method: str,
        url: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        content: bytes,
    ) -> httpx.Request:
        signed = signed_headers(
            method,
            url,
            query,
            headers,
            credentials=await self._place.credentials.current(),
            region=self._place.region,
            at=datetime.now(UTC),
        )
        return self._http.build_request(
            method,
            httpx.URL(url, query=query_text(query).encode()),
            headers=signed,
            content=content,
        )


async def _pieces(key: str, chunks: AsyncIterator[bytes], most: int | None) -> AsyncIterator[bytes]:
    """The stream in pieces of one part each; the last one may be shorter."""
    piece = bytearray()
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if most is not None and size > most:
            raise BlobTooLarge(key=key, most=most)
        piece += chunk
        while len(piece) >= _PART:
            yield bytes(piece[:_PART])
            del piece[:_PART]
    if piece:
        yield bytes(piece)


def _moment_us(modified: datetime, etag: str) -> int:
    """S3 tells times in whole seconds. The rest comes from the ETag, so that what is put in an object's place within
    the same second is not taken for it."""
    rest = int.from_bytes(hashlib.sha256(etag.encode()).digest()[:8], "big") % 1_000_000
    return int(modified.timestamp()) * 1_000_000 + rest


async def _nothing() -> AsyncIterator[bytes]:
    chunks: tuple[bytes, ...] = ()
    for chunk in chunks:
        yield chunk


def _unreachable(place: S3Place, error: httpx.TransportError) -> BlobStoreUnavailable:
    reason = str(error) or type(error).__name__
    return BlobStoreUnavailable(
        detail=f"S3 does not answer for bucket {place.bucket!r} ({reason}); try again, or check its endpoint"
    )
