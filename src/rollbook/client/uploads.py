"""Uploads: sends one file in one request or in parts, and computes its SHA-256 on the way."""

from __future__ import annotations

import hashlib
import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import msgspec

from rollbook.client.artifact_files import ArtifactFile
from rollbook.client.connection import Connection
from rollbook.client.file_slice import FileSlice, sha256_of
from rollbook.client.ingest import new_upload_urls
from rollbook.client.runtime import Job
from rollbook.contracts.episode import CONTENT_TYPES, ArtifactKind
from rollbook.contracts.wire.uploads import UploadCompleted, UploadState, UploadUrl
from rollbook.errors import (
    APIError,
    ConfigurationError,
    ConflictError,
    NotFoundError,
    ServerError,
)

OnProgress: TypeAlias = "Callable[[ArtifactKind, int, int], None]"
"""Called with the kind, the bytes sent so far and the size of the file, possibly from another thread."""

_log = logging.getLogger("rollbook.client")

MULTIPART_ABOVE = 64 << 20
PARTS_AT_ONCE = 4
_BEGIN_AGAIN = 2
"""How often an upload starts anew when the object store has lost its parts."""
_NO_SUCH_ROUTE = (404, 405, 501)
_MAY_HAVE_EXPIRED = (400, 401, 403, 410)
"""Statuses that object stores answer when a signed URL has expired."""


@dataclass(frozen=True, slots=True)
class Uploaded:
    size: int
    sha256: str

    def as_dict(self) -> dict[str, Any]:
        return {"sha256": self.sha256, "size": self.size}


class _Meter:
    """Adds up the bytes that the parts of one file have sent, and reports them."""

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
        """Makes parts that are still being sent fail at their next piece."""
        self._stopped = True


class _Watcher:
    """Hashes one part. When the part is sent again, its bytes are not counted twice."""

    def __init__(self, meter: _Meter) -> None:
        self._meter = meter
        self._sent = 0
        self._hasher = hashlib.sha256()

    def begin(self) -> None:
        self._meter.add(-self._sent)
        self._sent = 0
        self._hasher = hashlib.sha256()

    def check(self) -> None:
        self._meter.add(0)

    def piece(self, piece: bytes) -> None:
        self._hasher.update(piece)
        self._sent += len(piece)
        self._meter.add(len(piece))

    @property
    def sha256(self) -> str:
        return self._hasher.hexdigest()


class Uploader:
    """Uploads into one episode. `began` gets the id of an upload in parts, with which it can be resumed later.

    An upload in parts is tried again for minutes, because it took minutes to get so far. With `patient`, an upload in a
    single piece is too: its bytes are nowhere else.
    """

    def __init__(
        self,
        connection: Connection,
        episode_id: str,
        urls: dict[ArtifactKind, UploadUrl],
        *,
        multipart_above: int = MULTIPART_ABOVE,
        began: Callable[[ArtifactKind, str], None] | None = None,
        patient: bool = False,
    ) -> None:
        self._connection = connection
        self._episode_id = episode_id
        self._urls = urls
        self._multipart_above = multipart_above
        self._began = began
        self._patient = patient

    async def upload(
        self, file: ArtifactFile, on_progress: OnProgress | None = None, resume: str | None = None
    ) -> Uploaded:
        if file.kind not in self._urls:
            message = f"this episode was started without {file.kind}: name it in artifacts= when you start it"
            raise ConfigurationError(message=message)
        if file.size <= self._multipart_above:
            return await self._whole(file, on_progress)
        resumed = None if resume is None else await self._resumed(file, resume)
        parts = resumed or await self._begin(file)
        if parts is None:
            return await self._whole(file, on_progress)
        for _ in range(_BEGIN_AGAIN):
            try:
                return await self._in_parts(file, parts, on_progress)
            except (NotFoundError, ConflictError) as error:
                is_lost = isinstance(error, NotFoundError) or parts is resumed
                again = await self._begin(file) if is_lost else None
                if again is None:
                    raise
                parts = again
                _log.warning("%s. Its parts are lost: all of them are sent again", error)
        return await self._in_parts(file, parts, on_progress)

    async def _in_parts(
        self, file: ArtifactFile, parts: _Parts, on_progress: OnProgress | None
    ) -> Uploaded:
        return await _PartsUpload(self._connection, file, parts).run(on_progress)

    async def _resumed(self, file: ArtifactFile, upload_id: str) -> _Parts | None:
        """None when the server has dropped the upload meanwhile."""
        path = f"{self._uploads_path}/{upload_id}"
        try:
            return _Parts.of(path, await _state(self._connection, file, path), file)
        except NotFoundError:
            return None

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
        await self._connection.put(
            f"upload {file.kind}", url, content_type, whole, patient=self._patient
        )

    async def _remint(self, kind: ArtifactKind) -> bool:
        """False when the server has no such route, or refuses because the episode has ended."""
        try:
            self._urls |= await new_upload_urls(self._connection, self._episode_id, [kind])
        except APIError as error:
            if error.status_code in (409, *_NO_SUCH_ROUTE):
                return False
            raise
        return True

    @property
    def _uploads_path(self) -> str:
        return f"/api/ingest/episode/{self._episode_id}/upload"

    async def _begin(self, file: ArtifactFile) -> _Parts | None:
        """None when the server takes files in one piece only."""
        try:
            state = await self._connection.call(
                f"begin to upload {file.kind}",
                "POST",
                self._uploads_path,
                answer=UploadState,
                body={"kind": file.kind, "size": file.size},
                safe_to_resend=True,  # the server drops an upload that nobody goes on with
                patient=True,
            )
        except APIError as error:
            if error.status_code in _NO_SUCH_ROUTE:
                return None
            raise
        if self._began is not None:
            self._began(file.kind, state.upload_id)
        return _Parts.of(f"{self._uploads_path}/{state.upload_id}", state, file)


async def _state(connection: Connection, file: ArtifactFile, path: str) -> UploadState:
    return await connection.call(
        f"go on uploading {file.kind}", "GET", path, answer=UploadState, patient=True
    )


@dataclass(slots=True)
class _Parts:
    """An upload in parts as the server knows it."""

    path: str
    part_size: int
    urls: dict[int, str]
    done: frozenset[int]

    @staticmethod
    def of(path: str, state: UploadState, file: ArtifactFile) -> _Parts:
        numbers = frozenset(range(1, math.ceil(file.size / max(state.part_size, 1)) + 1))
        urls = {each.number: each.url for each in state.parts}
        done = numbers if state.completed else frozenset(each.number for each in state.done)
        if state.part_size < 1 or not numbers <= urls.keys() | done:
            message = f"cannot upload {file.kind}: the server's list of parts does not fit the file"
            raise ServerError(
                status_code=200, message=message, response_body=msgspec.to_builtins(state)
            )
        return _Parts(path, state.part_size, urls, done)


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
        """Runs beside the sending, because parts leave in any order and the digest of the file needs theirs."""
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
            state = await _state(self._connection, self._file, self._parts.path)
            self._parts.urls |= _Parts.of(self._parts.path, state, self._file).urls
            await self._put(number, part)
        self._digests[number] = watcher.sha256

    async def _put(self, number: int, part: FileSlice) -> None:
        await self._connection.put(
            f"upload part {number} of {self._file.kind}",
            self._parts.urls[number],
            "application/octet-stream",
            part,
            patient=True,
        )

    async def _complete(self) -> None:
        parts = [{"number": number, "sha256": sha} for number, sha in sorted(self._digests.items())]
        await self._connection.call(
            f"complete the upload of {self._file.kind}",
            "POST",
            f"{self._parts.path}/complete",
            answer=UploadCompleted,
            body={"parts": parts, "sha256": self._whole},
            slow=True,
            safe_to_resend=True,
            patient=True,
        )
