"""Uploads: one file to its place, by one request or in parts, with its SHA-256 taken on the way."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias

from rollbook.client.artifact_files import ArtifactFile
from rollbook.client.connection import Connection
from rollbook.client.file_slice import FileSlice, sha256_of
from rollbook.client.runtime import Job
from rollbook.contracts.episode import ARTIFACT_KINDS, CONTENT_TYPES, ArtifactKind
from rollbook.errors import APIError, ConfigurationError, NotFoundError, ServerError

OnProgress: TypeAlias = "Callable[[ArtifactKind, int, int], None]"
"""Called with the kind, the bytes sent so far and all there are. It may be called from other threads."""

MULTIPART_ABOVE = 64 << 20
PARTS_AT_ONCE = 4
_NO_SUCH_ROUTE = (404, 405, 501)
_MAY_HAVE_EXPIRED = (400, 401, 403, 410)
"""Stores differ in what they say to a signed URL whose time is over."""
_EXPIRES_SOON_S = 30


@dataclass(frozen=True, slots=True)
class UploadUrl:
    kind: ArtifactKind
    url: str = field(repr=False)
    expires_at: str
    public_url: str | None = None

    @property
    def expires_soon(self) -> bool:
        """By our clock, which may be wrong: a new URL is then asked for in vain, and nothing worse happens."""
        try:
            ends = datetime.fromisoformat(self.expires_at)
        except ValueError:
            return False
        ends = ends if ends.tzinfo else ends.replace(tzinfo=UTC)
        return (ends - datetime.now(UTC)).total_seconds() < _EXPIRES_SOON_S


@dataclass(frozen=True, slots=True)
class Uploaded:
    size: int
    sha256: str

    def as_dict(self) -> dict[str, Any]:
        return {"sha256": self.sha256, "size": self.size}


def upload_urls(answer: Mapping[str, Any]) -> dict[ArtifactKind, UploadUrl]:
    """From the answer to a create or a re-mint. Kinds that this release does not know are left out."""
    found: dict[ArtifactKind, UploadUrl] = {}
    for each in answer.get("upload_urls") or ():
        for kind in ARTIFACT_KINDS:
            if each.get("kind") == kind and each.get("url"):
                expires_at, public_url = each.get("expires_at"), each.get("public_url")
                found[kind] = UploadUrl(kind, str(each["url"]), str(expires_at), public_url)
    return found


class _Meter:
    """Adds up what the parts of one file have sent, and tells whoever wants to know."""

    def __init__(self, file: ArtifactFile, on_progress: OnProgress | None) -> None:
        self._file = file
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._sent = 0
        self._stopped = False

    def add(self, count: int) -> None:
        with self._lock:
            if self._stopped:
                raise ConnectionAbortedError("another part of this file could not be sent")
            self._sent += count
            if self._on_progress is not None and count > 0:
                self._on_progress(self._file.kind, self._sent, self._file.size)

    def stop(self) -> None:
        """Parts that are still being sent end at their next piece."""
        self._stopped = True


class _Watcher:
    """Hashes one part, and takes back what it reported when the part has to be sent again."""

    def __init__(self, meter: _Meter) -> None:
        self._meter = meter
        self._sent = 0
        self._hasher = hashlib.sha256()

    def begin(self) -> None:
        self._meter.add(-self._sent)
        self._sent = 0
        self._hasher = hashlib.sha256()

    def piece(self, piece: bytes) -> None:
        self._hasher.update(piece)
        self._sent += len(piece)
        self._meter.add(len(piece))

    @property
    def sha256(self) -> str:
        return self._hasher.hexdigest()


class Uploader:
    """Uploads into one episode. `began` is told the id of an upload in parts, by which it can be gone on with later."""

    def __init__(
        self,
        connection: Connection,
        episode_id: str,
        urls: dict[ArtifactKind, UploadUrl],
        *,
        multipart_above: int = MULTIPART_ABOVE,
        began: Callable[[ArtifactKind, str], None] | None = None,
    ) -> None:
        self._connection = connection
        self._path = f"/api/ingest/episode/{episode_id}"
        self._urls = urls
        self._multipart_above = multipart_above
        self._began = began

    async def upload(
        self, file: ArtifactFile, on_progress: OnProgress | None = None, resume: str | None = None
    ) -> Uploaded:
        if file.kind not in self._urls:
            message = (
                f"this episode has no place for {file.kind}: name it in artifacts= when starting it"
            )
            raise ConfigurationError(message=message)
        if file.size > self._multipart_above:
            if resume is not None:
                with suppress(NotFoundError):  # given up by the server meanwhile: begin again
                    return await self._in_parts(file, await self._begun(file, resume), on_progress)
            parts = await self._begin(file)
            if parts is not None:
                return await self._in_parts(file, parts, on_progress)
        return await self._whole(file, on_progress)

    async def _in_parts(
        self, file: ArtifactFile, parts: _Parts, on_progress: OnProgress | None
    ) -> Uploaded:
        return await _PartsUpload(self._connection, file, parts).run(on_progress)

    async def _whole(self, file: ArtifactFile, on_progress: OnProgress | None) -> Uploaded:
        watcher = _Watcher(_Meter(file, on_progress))
        if self._urls[file.kind].expires_soon:
            await self._remint(file.kind)
        try:
            await self._put(file, watcher)
        except APIError as error:
            if error.status_code not in _MAY_HAVE_EXPIRED or not await self._remint(file.kind):
                raise
            await self._put(file, watcher)
        return Uploaded(file.size, watcher.sha256)

    async def _put(self, file: ArtifactFile, watcher: _Watcher) -> None:
        whole = FileSlice(file.path, 0, file.size, watcher)
        url, content_type = self._urls[file.kind].url, CONTENT_TYPES[file.kind]
        await self._connection.put(f"upload {file.kind}", url, content_type, whole)

    async def _remint(self, kind: ArtifactKind) -> bool:
        """False where the server cannot, or will not because the episode has ended."""
        try:
            answer = await self._connection.call(
                f"get a new URL for {kind}",
                "POST",
                f"{self._path}/upload-urls",
                body={"request_uploads": [kind]},
                safe_to_resend=True,
            )
        except APIError as error:
            if error.status_code in (409, *_NO_SUCH_ROUTE):
                return False
            raise
        self._urls.update(upload_urls(answer))
        return True

    async def _begun(self, file: ArtifactFile, upload_id: str) -> _Parts:
        path = f"{self._path}/upload/{upload_id}"
        return _Parts.of(path, await _state(self._connection, file, path), file)

    async def _begin(self, file: ArtifactFile) -> _Parts | None:
        """None where the server takes files in one piece only."""
        try:
            answer = await self._connection.call(
                f"begin to upload {file.kind}",
                "POST",
                f"{self._path}/upload",
                body={"kind": file.kind, "size": file.size},
                safe_to_resend=True,  # one begun twice is forgotten by the server in time
            )
        except APIError as error:
            if error.status_code in _NO_SUCH_ROUTE:
                return None
            raise
        upload_id = str(answer.get("upload_id"))
        if self._began is not None:
            self._began(file.kind, upload_id)
        return _Parts.of(f"{self._path}/upload/{upload_id}", answer, file)


async def _state(connection: Connection, file: ArtifactFile, path: str) -> dict[str, Any]:
    return await connection.call(f"go on uploading {file.kind}", "GET", path)


@dataclass(slots=True)
class _Parts:
    """What the server knows of an upload in parts."""

    path: str
    part_size: int
    urls: dict[int, str]
    done: frozenset[int]

    @staticmethod
    def of(path: str, answer: Mapping[str, Any], file: ArtifactFile) -> _Parts:
        try:
            part_size = int(answer["part_size"])
            numbers = frozenset(range(1, math.ceil(file.size / part_size) + 1))
            urls = {int(each["number"]): str(each["url"]) for each in answer["parts"]}
            done = frozenset(int(each["number"]) for each in answer["done"])
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise _unusable(file, answer) from error
        if answer.get("completed"):
            done = numbers
        if not numbers <= urls.keys() | done:
            raise _unusable(file, answer)
        return _Parts(path, part_size, urls, done)


def _unusable(file: ArtifactFile, answer: Mapping[str, Any]) -> ServerError:
    message = f"cannot upload {file.kind}: the server's list of parts does not fit the file"
    return ServerError(status_code=200, message=message, response_body=dict(answer))


class _PartsUpload:
    def __init__(self, connection: Connection, file: ArtifactFile, parts: _Parts) -> None:
        self._connection = connection
        self._file = file
        self._parts = parts
        self._digests: dict[int, str] = {}
        self._whole = ""

    async def run(self, on_progress: OnProgress | None) -> Uploaded:
        meter = _Meter(self._file, on_progress)
        count = math.ceil(self._file.size / self._parts.part_size)
        jobs: list[Job] = [self._hash_whole]
        jobs += [partial(self._send, number, meter) for number in range(1, count + 1)]
        try:
            await self._connection.runtime.together(jobs, PARTS_AT_ONCE + 1)
        finally:
            meter.stop()
        await self._complete()
        return Uploaded(self._file.size, self._whole)

    async def _hash_whole(self) -> None:
        """Beside the sending: parts leave in no order, and a digest of the whole needs one."""
        self._whole = await self._connection.runtime.in_thread(
            lambda: sha256_of(self._file.path, 0, self._file.size)
        )

    async def _send(self, number: int, meter: _Meter) -> None:
        start = (number - 1) * self._parts.part_size
        length = min(self._parts.part_size, self._file.size - start)
        if number in self._parts.done:
            self._digests[number] = await self._connection.runtime.in_thread(
                lambda: sha256_of(self._file.path, start, length)
            )
            meter.add(length)
            return
        watcher = _Watcher(meter)
        part = FileSlice(self._file.path, start, length, watcher)
        try:
            await self._put(number, part)
        except APIError as error:
            if error.status_code not in _MAY_HAVE_EXPIRED:
                raise
            answer = await _state(self._connection, self._file, self._parts.path)
            self._parts.urls |= _Parts.of(self._parts.path, answer, self._file).urls
            await self._put(number, part)
        self._digests[number] = watcher.sha256

    async def _put(self, number: int, part: FileSlice) -> None:
        await self._connection.put(
            f"upload part {number} of {self._file.kind}",
            self._parts.urls[number],
            "application/octet-stream",
            part,
        )

    async def _complete(self) -> None:
        parts = [{"number": number, "sha256": sha} for number, sha in sorted(self._digests.items())]
        await self._connection.call(
            f"complete the upload of {self._file.kind}",
            "POST",
            f"{self._parts.path}/complete",
            body={"parts": parts, "sha256": self._whole},
            slow=True,
            safe_to_resend=True,
        )
