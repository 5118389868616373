"""Blobs: the bytes of artifacts, on local disk or in S3, behind one interface with one suite of tests.

A key is `episodes/<org_id>/<episode_id>/<file>`. A blob is there whole or not at all; it may be replaced, and whoever
reads at that moment gets the old bytes or the new ones, never a mixture.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, TypeAlias
from urllib.parse import quote, unquote, urlsplit

from rollbook.errors import ConfigurationError

_SEGMENT = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT}){{0,11}}")
_PREFIX = re.compile(rf"(?:{_SEGMENT}/){{0,11}}(?:{_SEGMENT})?")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_LAST_PART = 10_000
"""What S3 allows."""


class BlobError(Exception):
    """Base of what can go wrong with blobs. The text may be shown: it holds no path of the server and no secret."""

    code: ClassVar[str] = "blob_error"


class InvalidBlobKey(BlobError, ValueError):
    code = "invalid_blob_key"


class BlobNotFound(BlobError, LookupError):
    code = "blob_not_found"

    def __init__(self, key: str) -> None:
        super().__init__(f"there is nothing at {key!r}; upload it first")
        self.key = key


class UploadNotFound(BlobError, LookupError):
    code = "upload_not_found"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"there is no such upload of {key!r}: it was completed or aborted, or never started; start a new one"
        )
        self.key = key


class PartsMismatch(BlobError, ValueError):
    """The parts named at the end are not those that arrived."""

    code = "parts_mismatch"


class BlobTooLarge(BlobError):
    code = "blob_too_large"

    def __init__(self, key: str, most: int) -> None:
        super().__init__(f"{key!r} may have {most} bytes and has more; nothing was kept")
        self.key = key
        self.most = most


class BlobExists(BlobError):
    code = "blob_exists"

    def __init__(self, key: str) -> None:
        super().__init__(f"{key!r} is there already and was not to be replaced")
        self.key = key


class BlobStoreUnavailable(BlobError):
    """S3 is down or refuses us, or the disk is full: nothing the caller did, and trying later can help."""

    code = "blob_store_unavailable"


@dataclass(frozen=True, slots=True)
class BlobInfo:
    key: str
    size: int
    etag: str
    """Another one whenever the bytes were written again. Without quotes."""
    modified_at_us: int


@dataclass(frozen=True, slots=True)
class PutResult:
    size: int
    sha256: str
    """Of the bytes as they passed through."""
    etag: str


@dataclass(frozen=True, slots=True)
class PartInfo:
    number: int
    size: int
    etag: str


Parts: TypeAlias = "list[PartInfo]"


class BlobStore(Protocol):
    """Every method raises BlobStoreUnavailable when the disk or S3 does not do its work."""

    kind: str
    """`local` or `s3`."""

    async def put(
        self,
        key: str,
        chunks: AsyncIterator[bytes],
        *,
        content_type: str,
        most: int | None = None,
        replace: bool = True,
    ) -> PutResult:
        """Streams to a name that appears when all is there. More than `most` bytes: BlobTooLarge, nothing is kept.

        `replace=False` refuses an existing blob with BlobExists, even one that appeared meanwhile.
        """
        ...

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Bytes from `start` up to, not including, `end`; what lies beyond the blob is left out.

        BlobNotFound is raised here, before the first chunk.
        """
        ...

    async def head(self, key: str) -> BlobInfo | None: ...

    async def sha256(self, key: str) -> str:
        """Of what is stored now: every byte is read."""
        ...

    def as_file(self, key: str) -> AbstractAsyncContextManager[Path]:
        """A file to read while the block lasts: the blob itself, or a copy fetched from S3."""
        ...

    async def delete(self, key: str) -> None:
        """Deleting what is not there is fine."""
        ...

    def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """All blobs whose key begins with `prefix`, in order of the keys."""
        ...

    async def presign_put(
        self, key: str, *, content_type: str, ttl_s: int, base_url: str, most: int | None = None
    ) -> str:
        """A URL that takes one kind of content. `most` is enforced by local blobs; S3 cannot: look at `head` after."""
        ...

    async def presign_get(
        self,
        key: str,
        *,
        ttl_s: int,
        base_url: str,
        content_type: str,
        filename: str | None = None,
    ) -> str:
        """A URL that answers GET, HEAD and Range. With a `filename` browsers save it, without they show it."""
        ...

    async def start_multipart(self, key: str, *, content_type: str) -> str:
        """The id of a new upload in parts."""
        ...

    async def presign_part(
        self,
        key: str,
        upload: str,
        number: int,
        *,
        ttl_s: int,
        base_url: str,
        most: int | None = None,
    ) -> str: ...

    async def parts(self, key: str, upload: str) -> Parts:
        """What has arrived so far, in order: whoever resumes sends the others."""
        ...

    async def complete_multipart(self, key: str, upload: str, parts: Parts) -> BlobInfo:
        """Makes one blob of exactly these parts. PartsMismatch when one is missing or is not what arrived."""
        ...

    async def abort_multipart(self, key: str, upload: str) -> None:
        """Aborting what is not there is fine."""
        ...

    async def sweep(self, *, older_than_s: float) -> int:
        """Removes what killed or forgotten uploads left behind; how many."""
        ...

    async def check(self) -> None:
        """Is it ready for work? BlobStoreUnavailable says what is wrong and what to do."""
        ...

    async def close(self) -> None: ...


def open_blobs(url: str, *, secret: bytes, s3_endpoint: str | None = None) -> BlobStore:
    """`file:///folder`, whose URLs are signed with `secret`, or `s3://bucket/prefix`.

    S3 takes its credentials, region and endpoint from the usual `AWS_*` variables, and from wherever boto3 looks where
    that is installed.
    """
    split = urlsplit(url)
    if split.scheme == "file" and split.netloc in ("", "localhost") and split.path:
        from rollbook.server.blobs.local import LocalBlobs

        return LocalBlobs(Path(unquote(split.path)), secret)
    if split.scheme == "s3":
        return _open_s3(split.netloc, split.path.strip("/"), s3_endpoint)
    message = f"blobs: {url.split('://', 1)[0]!r} is not supported; expected file:///folder or s3://bucket/prefix"
    raise ConfigurationError(message=message)


def _open_s3(bucket: str, prefix: str, endpoint: str | None) -> BlobStore:
    if not _BUCKET.fullmatch(bucket):
        message = f"blobs: {bucket!r} is not the name of a bucket; expected s3://bucket/prefix"
        raise ConfigurationError(message=message)
    if prefix and not _KEY.fullmatch(prefix):
        message = (
            f"blobs: prefix {prefix!r} may have letters, digits, '.', '_' and '-' between slashes"
        )
        raise ConfigurationError(message=message)
    try:
        from rollbook.server.blobs.s3 import S3Blobs
        from rollbook.server.blobs.s3_credentials import S3Place
    except ImportError as missing:
        message = "blobs: S3 needs httpx, which is not installed: pip install 'rollbook[server]'"
        raise ConfigurationError(message=message) from missing
    return S3Blobs(S3Place.from_environment(bucket, endpoint), prefix)


def check_key(key: str) -> str:
    """Letters, digits, dots, dashes and underlines between slashes, and no part that begins with a dot."""
    if not _KEY.fullmatch(key):
        raise InvalidBlobKey(
            f"{key[:100]!r} is not an object key; letters, digits, '.', '_' and '-' between single slashes are"
        )
    return key


def check_prefix(prefix: str) -> str:
    if not _PREFIX.fullmatch(prefix):
        raise InvalidBlobKey(f"{prefix[:100]!r} is not the beginning of an object key")
    return prefix


def check_parts(parts: Parts) -> None:
    numbers = [part.number for part in parts]
    if not numbers or numbers != sorted(set(numbers)):
        raise PartsMismatch("an upload is completed by its parts, each once, in rising order")
    for number in numbers:
        check_part_number(number)


def check_part_number(number: int) -> int:
    if not 1 <= number <= _LAST_PART:
        raise PartsMismatch(f"part {number} is not between 1 and {_LAST_PART}")
    return number


def content_disposition(filename: str | None) -> str:
    """With a name, a browser saves the file under it: RFC 6266, in plain ASCII and in UTF-8."""
    if filename is None:
        return "inline"
    plain = re.sub(r"[^A-Za-z0-9 ._-]", "_", filename)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}"


def sha256_of_file(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
