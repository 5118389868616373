"""Blobs: the bytes of artifacts, on local disk or in S3, behind one interface with one suite of tests.

A key is `episodes/<org_id>/<episode_id>/<file>`. A blob is stored completely or not at all. When it is replaced, a
reader gets the old bytes or the new ones, never a mixture.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias
from urllib.parse import quote

from rollbook.errors import InvalidBlobKey, PartsMismatch

_SEGMENT = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"
KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT}){{0,11}}")
_PREFIX = re.compile(rf"(?:{_SEGMENT}/){{0,11}}(?:{_SEGMENT})?")
_LAST_PART = 10_000
"""The limit of S3."""


@dataclass(frozen=True, slots=True)
class BlobInfo:
    key: str
    size: int
    etag: str
    """Changes whenever the bytes are written again. Without quotes."""
    modified_at_us: int


@dataclass(frozen=True, slots=True)
class PutResult:
    size: int
    sha256: str
    """The digest of the bytes as they passed through."""
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
        """Streams to a name that appears when all bytes are there. More than `most` bytes: BlobTooLarge, and nothing is
        kept. `replace=False` refuses an existing blob with BlobExists, even one that appeared during the upload."""
        ...

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Bytes from `start` up to, not including, `end`; the range is cut at the end of the blob. BlobNotFound is
        raised here, before the first chunk."""
        ...

    async def head(self, key: str) -> BlobInfo | None: ...

    async def sha256(self, key: str) -> str:
        """The digest of the stored bytes: every byte is read."""
        ...

    def as_file(self, key: str) -> AbstractAsyncContextManager[Path]:
        """A file to read while the block runs: the blob itself, or a copy fetched from S3."""
        ...

    async def delete(self, key: str) -> None:
        """Deletes the blob. A missing blob is not an error."""
        ...

    def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """All blobs whose key begins with `prefix`, in order of the keys."""
        ...

    async def presign_put(
        self, key: str, *, content_type: str, ttl_s: int, base_url: str, most: int | None = None
    ) -> str:
        """A URL that accepts one content type. Local blobs enforce `most`; S3 cannot, so check `head` afterwards."""
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
        """A URL for GET, HEAD and Range. With a `filename` browsers save the file, without one they show it."""
        ...

    async def start_multipart(self, key: str, *, content_type: str) -> str:
        """Starts an upload in parts and returns its id."""
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
        """The parts that have arrived, in order. A client that resumes sends the others."""
        ...

    async def complete_multipart(self, key: str, upload: str, parts: Parts) -> BlobInfo:
        """Makes one blob of exactly these parts. PartsMismatch when a part is missing or differs from what arrived."""
        ...

    async def abort_multipart(self, key: str, upload: str) -> None:
        """Aborts the upload. A missing upload is not an error."""
        ...

    async def sweep(self, *, older_than_s: float) -> int:
        """Removes the remains of killed or forgotten uploads; returns how many."""
        ...

    async def check(self) -> None:
        """Raises BlobStoreUnavailable when the store is not ready, and says what to do."""
        ...

    async def close(self) -> None: ...


def check_key(key: str) -> str:
    """Letters, digits, '.', '-' and '_' between slashes; no segment begins with a dot."""
    if not KEY.fullmatch(key):
        raise InvalidBlobKey(
            detail=f"{key[:100]!r} is not an object key; letters, digits, '.', '_' and '-' between single slashes are"
        )
    return key


def check_prefix(prefix: str) -> str:
    if not _PREFIX.fullmatch(prefix):
        raise InvalidBlobKey(detail=f"{prefix[:100]!r} is not the beginning of an object key")
    return prefix


def check_parts(parts: Parts) -> None:
    numbers = [part.number for part in parts]
    if not numbers or numbers != sorted(set(numbers)):
        raise PartsMismatch(
            detail="an upload is completed by its parts, each once, in rising order"
        )
    for number in numbers:
        check_part_number(number)


def check_part_number(number: int) -> int:
    if not 1 <= number <= _LAST_PART:
        raise PartsMismatch(detail=f"part {number} is not between 1 and {_LAST_PART}")
    return number


def content_disposition(filename: str | None) -> str:
    """With a filename a browser saves the file under it: RFC 6266, in plain ASCII and in UTF-8."""
    if filename is None:
        return "inline"
    plain = re.sub(r"[^A-Za-z0-9 ._-]", "_", filename)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}"


def sha256_of_file(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
