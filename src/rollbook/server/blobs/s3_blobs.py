"""Blobs as objects of one S3 bucket below a prefix. boto3 makes the requests and the presigned URLs, in threads.

Clients move bytes by presigned URLs; only what the server makes or checks itself passes through here, a part at a time.
boto3 repeats a request that met a passing fault (5xx, a lost connection), and we repeat one whose error message broke
off, which boto3 does not; after that it is BlobStoreUnavailable. So it is when S3 does not answer: a request has a
limit, and so has the thread that sends it.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import logging
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import anyio
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from rollbook.errors import (
    BlobError,
    BlobExists,
    BlobNotFound,
    BlobStoreUnavailable,
    BlobTooLarge,
    ConfigurationError,
    PartsMismatch,
    UploadNotFound,
)
from rollbook.server.blobs.interface import (
    KEY,
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
from rollbook.server.blobs.s3_client import (
    ATTEMPTS,
    BROKEN_OFF,
    READ_S,
    REQUESTS_AT_ONCE,
    s3_client,
)
from rollbook.server.metrics import NO_METRICS, Metrics

T = TypeVar("T")

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PART = 16 << 20
"""A smaller object is one request; a larger one is sent in parts of this size, so memory stays flat up to 160 GB."""
_CHUNK = 1 << 20
_FIRST_WAIT_S = 0.1
_LONGEST_CALL_S = 15.0
"""Of a call that moves no bytes of blobs, with its repetitions and the wait for a thread."""
_SLOWEST_BYTES_PER_S = 100_000
_LONGEST_COMPLETE_S = 60.0
"""S3 may put together the parts of a large object before it answers."""
_RESUMES = 3
_MOST_FAILURES = 5
"""Uploads that cannot be aborted before a sweep is given up: S3 is likely down."""
_TAKEN = frozenset({"PreconditionFailed", "ConditionalRequestConflict"})
_WRONG_PARTS = frozenset({"InvalidPart", "InvalidPartOrder", "EntityTooSmall"})

for _name in ("boto3", "botocore", "urllib3"):
    # below this level they log signatures
    logging.getLogger(_name).setLevel(logging.INFO)


def open_url(
    url: str,
    *,
    secret: bytes,
    s3_endpoint: str | None,
    s3_public_endpoint: str | None = None,
    metrics: Metrics = NO_METRICS,
) -> S3Blobs:
    """`s3://bucket/prefix`. `secret` is not needed: boto3 signs with the credentials of S3."""
    split = urlsplit(url)
    bucket, prefix = split.netloc, split.path.strip("/")
    if not _BUCKET.fullmatch(bucket):
        message = f"blobs: {bucket!r} is not the name of a bucket; expected s3://bucket/prefix"
        raise ConfigurationError(message=message)
    if prefix and not KEY.fullmatch(prefix):
        message = (
            f"blobs: prefix {prefix!r} may have letters, digits, '.', '_' and '-' between slashes"
        )
        raise ConfigurationError(message=message)
    return S3Blobs(bucket, prefix, s3_endpoint, s3_public_endpoint, metrics)


class S3Blobs:
    kind = "s3"

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        endpoint: str | None = None,
        public_endpoint: str | None = None,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        """Clients reach S3 at `public_endpoint`, where that is another address than the server's own `endpoint`."""
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._endpoint = endpoint
        self._client = s3_client(bucket, endpoint, read_timeout_s=READ_S)
        self._signer = s3_client(bucket, public_endpoint) if public_endpoint else self._client
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="s3")

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
            asked = {"Body": first, "ContentType": content_type, **_condition(replace)}
            done = await self._call("put_object", key, **asked)
            return PutResult(len(first), digest.hexdigest(), _etag(done))
        upload = await self.start_multipart(key, content_type=content_type)
        try:
            parts = [await self._put_part(key, upload, 1, first)]
            async for piece in pieces:
                await asyncio.to_thread(digest.update, piece)
                parts.append(await self._put_part(key, upload, len(parts) + 1, piece))
            info = await self._complete(key, upload, parts, replace=replace)
        except BaseException:
            await self._abort_quietly(key, upload)
            raise
        return PutResult(info.size, digest.hexdigest(), info.etag)

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        check_key(key)
        if end is not None and end <= start:
            if await self.head(key) is None:
                raise BlobNotFound(key=key)
            return _empty_body()
        found = await self._get(key, start, end)
        return _empty_body() if found is None else self._resumed_body(key, found, start, end)

    async def head(self, key: str) -> BlobInfo | None:
        try:
            found = await self._call("head_object", check_key(key))
        except BlobNotFound:
            return None
        etag = _etag(found)
        return BlobInfo(key, found["ContentLength"], etag, _moment_us(found["LastModified"], etag))

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
        try:
            await self._call("delete_object", check_key(key))
        except BlobNotFound:
            return

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        asked = {"Prefix": self._prefix + check_prefix(prefix)}
        while True:
            page = await self._call("list_objects_v2", **asked)
            for each in page.get("Contents", ()):
                modified_us = int(each["LastModified"].timestamp() * 1_000_000)
                key = each["Key"].removeprefix(self._prefix)
                yield BlobInfo(key, each["Size"], _etag(each), modified_us)
            if not page.get("IsTruncated"):
                return
            asked["ContinuationToken"] = page["NextContinuationToken"]

    # ------------------------------------------------------------------------------------ signed URLs

    async def presign_put(
        self, key: str, *, content_type: str, ttl_s: int, base_url: str, most: int | None = None
    ) -> str:
        return await self._presigned("put_object", key, ttl_s, ContentType=content_type)

    async def presign_get(
        self,
        key: str,
        *,
        ttl_s: int,
        base_url: str,
        content_type: str,
        filename: str | None = None,
    ) -> str:
        shown = {
            "ResponseContentDisposition": content_disposition(filename),
            "ResponseContentType": content_type,
        }
        return await self._presigned("get_object", key, ttl_s, **shown)

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
        part = {"PartNumber": check_part_number(number), "UploadId": upload}
        return await self._presigned("upload_part", key, ttl_s, **part)

    # -------------------------------------------------------------------------------- uploads in parts

    async def start_multipart(self, key: str, *, content_type: str) -> str:
        asked = {"ContentType": content_type}
        made = await self._call("create_multipart_upload", check_key(key), **asked)
        upload: str = made["UploadId"]
        return upload

    async def parts(self, key: str, upload: str) -> Parts:
        return [
            PartInfo(each["PartNumber"], each["Size"], _etag(each))
            for each in await self._listed_parts(key, upload)
        ]

    async def complete_multipart(self, key: str, upload: str, parts: Parts) -> BlobInfo:
        check_parts(parts)
        return await self._complete(check_key(key), upload, parts, replace=True)

    async def abort_multipart(self, key: str, upload: str) -> None:
        try:
            await self._call("abort_multipart_upload", check_key(key), UploadId=upload)
        except (UploadNotFound, BlobNotFound):
            return

    # ------------------------------------------------------------------------------------ housekeeping

    async def sweep(self, *, older_than_s: float) -> int:
        """Aborts uploads to which nothing was added for so long. One that cannot be aborted does not stop others."""
        before = datetime.now(UTC) - timedelta(seconds=older_than_s)
        removed = 0
        failures: list[BlobStoreUnavailable] = []
        async for each in self._listed_uploads():
            key, upload = each["Key"].removeprefix(self._prefix), each["UploadId"]
            try:
                if each["Initiated"] < before and not await self._has_new_part(key, upload, before):
                    await self.abort_multipart(key, upload)
                    removed += 1
            except BlobStoreUnavailable as error:
                failures.append(error)
                if len(failures) == _MOST_FAILURES:
                    break
        if failures:
            raise failures[0]
        return removed

    async def _listed_uploads(self) -> AsyncIterator[dict[str, Any]]:
        asked = {"Prefix": self._prefix}
        while True:
            page = await self._call("list_multipart_uploads", **asked)
            for each in page.get("Uploads", ()):
                yield each
            if not page.get("IsTruncated"):
                return
            asked["KeyMarker"] = page["NextKeyMarker"]
            asked["UploadIdMarker"] = page["NextUploadIdMarker"]

    async def check(self) -> None:
        await self._call("list_objects_v2", Prefix=self._prefix, MaxKeys=1)

    async def close(self) -> None:
        self._client.close()
        self._signer.close()
        self._threads.shutdown(wait=False)

    # ----------------------------------------------------------------------------------------- helpers

    async def _put_part(self, key: str, upload: str, number: int, data: bytes) -> PartInfo:
        asked = {"PartNumber": number, "UploadId": upload, "Body": data}
        return PartInfo(number, len(data), _etag(await self._call("upload_part", key, **asked)))

    async def _complete(self, key: str, upload: str, parts: Parts, *, replace: bool) -> BlobInfo:
        listed = [{"PartNumber": part.number, "ETag": f'"{part.etag}"'} for part in parts]
        asked = {"UploadId": upload, "MultipartUpload": {"Parts": listed}, **_condition(replace)}
        done_before = False
        try:
            await self._call("complete_multipart_upload", key, **asked)
        except UploadNotFound as error:
            # an attempt whose answer was lost may have done it: then the object has the size of the parts
            done_before = _attempts(error.__cause__) > 1
            if not done_before:
                raise
        info = await self.head(key)
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

    async def _listed_parts(self, key: str, upload: str) -> tuple[dict[str, Any], ...]:
        found: tuple[dict[str, Any], ...] = ()
        asked: dict[str, Any] = {"UploadId": upload}
        while True:
            page = await self._call("list_parts", check_key(key), **asked)
            found += tuple(page.get("Parts", ()))
            if not page.get("IsTruncated"):
                return found
            asked["PartNumberMarker"] = page["NextPartNumberMarker"]

    async def _has_new_part(self, key: str, upload: str, since: datetime) -> bool:
        try:
            parts = await self._listed_parts(key, upload)
        except UploadNotFound:
            return True  # completed or aborted meanwhile
        return any(part["LastModified"] >= since for part in parts)

    async def _get(
        self, key: str, start: int, end: int | None, etag: str | None = None
    ) -> dict[str, Any] | None:
        """The answer; its body is still to be read. None when the range begins after the end."""
        asked: dict[str, str] = {}
        if start or end is not None:
            asked["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        if etag is not None:
            asked["IfMatch"] = f'"{etag}"'
        try:
            return await self._call("get_object", key, **asked)
        except BlobExists as error:  # the condition failed: it has another ETag now
            raise _replaced(key) from error
        except _RangeAfterEnd:
            return None

    async def _resumed_body(
        self, key: str, found: Mapping[str, Any], start: int, end: int | None
    ) -> AsyncIterator[bytes]:
        """The body; where the connection is lost, the rest of the same object is asked for."""
        etag = _etag(found)
        resumes = 0
        while True:
            body = found["Body"]
            try:
                while chunk := await self._in_thread(partial(body.read, _CHUNK)):
                    start += len(chunk)
                    yield chunk
                return
            except (BotoCoreError, HTTPError) as error:
                resumes += 1
                if resumes > _RESUMES:
                    raise self._unreachable(error) from error
            finally:
                body.close()
            again = await self._get(key, start, end, etag)
            if again is None:
                return
            if _etag(again) != etag:
                again["Body"].close()
                raise _replaced(key)
            found = again

    async def _presigned(self, operation: str, key: str, ttl_s: int, **params: Any) -> str:
        named = {"Bucket": self._bucket, "Key": self._prefix + check_key(key), **params}
        # in a thread, because credentials of a role may have to be renewed first
        return await self._in_thread(
            lambda: str(
                self._signer.generate_presigned_url(operation, Params=named, ExpiresIn=ttl_s)
            )
        )

    async def _call(self, operation: str, key: str | None = None, **params: Any) -> dict[str, Any]:
        named = {"Bucket": self._bucket, **params}
        if key is not None:
            named["Key"] = self._prefix + key
        began, outcome = time.monotonic(), "unavailable"
        client, limit_s = self._client, _LONGEST_CALL_S
        body: bytes | None = named.get("Body")
        if body is not None:
            limit_s += len(body) / _SLOWEST_BYTES_PER_S
        elif operation == "complete_multipart_upload":
            client, limit_s = self._patient_client, 2 * _LONGEST_COMPLETE_S

        def ask() -> dict[str, Any]:
            if body is not None:
                # as a file it is sent piece by piece, and the timeout of the socket is that of a piece
                named["Body"] = io.BytesIO(body)
            answer: dict[str, Any] = getattr(client, operation)(**named)
            return answer

        try:
            async with asyncio.timeout(limit_s):
                answer = await self._answer(ask)
            outcome = "ok"
            return answer
        except ClientError as error:
            outcome = "refused"
            raise self._our_error(error, key) from error
        except (BotoCoreError, TimeoutError, *BROKEN_OFF) as error:
            raise self._unreachable(error) from error
        finally:
            self._metrics.s3_request(operation, outcome, time.monotonic() - began)

    async def _answer(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._in_thread(ask)
            except BROKEN_OFF:
                if attempt == ATTEMPTS:
                    raise
            except ClientError as error:
                told = error.response["ResponseMetadata"]
                told["RetryAttempts"] = told.get("RetryAttempts", 0) + attempt - 1
                raise
            await asyncio.sleep(_FIRST_WAIT_S * 2 ** (attempt - 1))
        raise AssertionError("the last attempt returns or raises")

    @cached_property
    def _patient_client(self) -> Any:
        return s3_client(self._bucket, self._endpoint, read_timeout_s=_LONGEST_COMPLETE_S)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _our_error(self, error: ClientError, key: str | None) -> Exception:
        code = error.response.get("Error", {}).get("Code", "")
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        if key is not None and code == "NoSuchUpload":
            return UploadNotFound(key=key)
        if key is not None and status == 404 and code != "NoSuchBucket":
            return BlobNotFound(key=key)
        if key is not None and code in (*_TAKEN, "409", "412"):
            return BlobExists(key=key)
        if code in _WRONG_PARTS:
            return PartsMismatch(detail=f"S3 does not take these parts ({code}); send them again")
        if status == 416:
            return _RangeAfterEnd()
        said = f"{status} {code}" if code and code != str(status) else str(status)
        bucket = self._bucket
        if code == "NoSuchBucket":
            text = f"there is no S3 bucket {bucket!r}; create it, or correct the blobs setting"
        elif status in (400, 401, 403):
            text = f"S3 refuses us bucket {bucket!r} ({said}); check the credentials, their rights and the clock"
        elif 300 <= status < 400:
            text = (
                f"S3 keeps bucket {bucket!r} elsewhere ({said}); check the region and the endpoint"
            )
        else:
            text = f"S3 does not do its work for bucket {bucket!r} ({said}); try again shortly"
        is_refusal = code == "NoSuchBucket" or 300 <= status < 400 or status in (400, 401, 403)
        return BlobStoreUnavailable(detail=text, is_refusal=is_refusal)

    def _unreachable(self, error: Exception) -> BlobStoreUnavailable:
        """Named by its class: the text of an error of boto3 holds whole URLs."""
        reason = type(error).__name__
        return BlobStoreUnavailable(
            detail=f"S3 does not answer for bucket {self._bucket!r} ({reason}); try again, or check its endpoint"
        )


class _RangeAfterEnd(Exception):
    """The range that was asked for begins after the end of the object."""


def _condition(replace: bool) -> dict[str, str]:
    return {} if replace else {"IfNoneMatch": "*"}


def _etag(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _attempts(error: BaseException | None) -> int:
    assert isinstance(error, ClientError)
    return 1 + int(error.response["ResponseMetadata"].get("RetryAttempts", 0))


def _replaced(key: str) -> BlobStoreUnavailable:
    return BlobStoreUnavailable(detail=f"{key!r} was replaced while it was read; read it again")


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


async def _empty_body() -> AsyncIterator[bytes]:
    chunks: tuple[bytes, ...] = ()
    for chunk in chunks:
        yield chunk
