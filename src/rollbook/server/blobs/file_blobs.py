"""Blobs as files below one folder: `objects/<key>`, and `incoming/` beside it for uploads that are under way.

A blob is written under a temporary name in `incoming/`, synced, and renamed into place, so neither a reader nor a crash
ever sees half of one. Writing and hashing happen in threads, a batch behind the network.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import ParamSpec, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

from rollbook.errors import (
    BlobExists,
    BlobNotFound,
    BlobStoreUnavailable,
    BlobTooLarge,
    ConfigurationError,
    InvalidBlobKey,
    PartsMismatch,
    UploadNotFound,
)
from rollbook.files import make_folders
from rollbook.server.blobs.confined_files import ConfinedFiles
from rollbook.server.blobs.files import (
    Incoming,
    OpenBlob,
    disk_errors,
    etag_of,
    ignore_error,
    info_of,
    renamed,
    submit_without_waiting,
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
)
from rollbook.server.blobs.signing import Clock, Grant, UrlSigner

P = ParamSpec("P")
T = TypeVar("T")
Chunks: TypeAlias = "list[bytes]"
Writing: TypeAlias = "asyncio.Future[list[None]]"

_BATCH = 1 << 20
_MOST_CHUNKS = 512
"""Limits the number of pieces, so that a sender of single bytes cannot fill the memory with their headers."""
_APART = 1 << 18
"""Below this size hashing is faster than starting a second thread."""
"""Bytes that are gathered before a thread writes them."""
_LISTED_AT_ONCE = 500
_UPLOAD = re.compile(r"[0-9a-f]{32}")
_PART = re.compile(r"[0-9]{5}")
_KEY_FILE = "key"
_THREADS = 16
_TRIES = 5


def open_url(url: str, *, secret: bytes, **_for_s3: object) -> LocalBlobs:
    """`file:///folder`. The other arguments are for S3 alone."""
    split = urlsplit(url)
    if split.netloc not in ("", "localhost") or not split.path:
        message = f"blobs: {url!r} is not a folder of this machine; expected file:///folder"
        raise ConfigurationError(message=message)
    return LocalBlobs(Path(unquote(split.path)), secret)


class LocalBlobs:
    kind = "local"

    def __init__(self, root: Path, secret: bytes, clock: Clock = time.time) -> None:
        self.root = root
        self.signer = UrlSigner(secret, clock)
        self._clock = clock
        self.objects = ConfinedFiles(root / "objects")
        self._uploads = ConfinedFiles(root / "uploads")
        self._incoming = root / "incoming"
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="blobs")
        for folder in (self.objects.root, self._uploads.root, self._incoming):
            _create(folder)

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
        place = check_key(key).split("/")

        def publish(incoming: Incoming) -> str:
            return self._publish(incoming, place, replace=replace)

        return await self._received(key, chunks, most, publish)

    async def open(self, key: str) -> OpenBlob:
        """Opens a blob once, for callers that need its properties and its bytes to agree."""
        file = await self._run(self._opened, key)
        return OpenBlob(info_of(key, os.fstat(file.fileno())), file, self._pool)

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        return (await self.open(key)).chunks(start, end)

    async def head(self, key: str) -> BlobInfo | None:
        place = check_key(key).split("/")
        try:
            return info_of(key, await self._run(self.objects.stat, place))
        except FileNotFoundError:
            return None

    async def sha256(self, key: str) -> str:
        def digest() -> str:
            with self._opened(key) as file:
                return hashlib.file_digest(file, "sha256").hexdigest()

        return await self._run(digest)

    @asynccontextmanager
    async def as_file(self, key: str) -> AsyncIterator[Path]:
        if await self.head(key) is None:
            raise BlobNotFound(key=key)
        yield self.objects.root / key

    async def delete(self, key: str) -> None:
        await self._run(self.objects.remove, check_key(key).split("/"))

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        folders, _, _ = check_prefix(prefix).rpartition("/")
        blobs = self._walk(tuple(folders.split("/")) if folders else (), prefix)
        while batch := await self._run(_next_batch, blobs):
            for each in batch:
                yield each

    def _walk(self, names: tuple[str, ...], prefix: str) -> Iterator[BlobInfo]:
        """Sorted by whole keys; a folder sorts as its name with a slash."""
        found = []
        for name, what in self.objects.entries(names):
            is_folder = stat.S_ISDIR(what.st_mode)
            key = "/".join((*names, name)) + ("/" if is_folder else "")
            if key.startswith(prefix) or (is_folder and prefix.startswith(key)):
                found.append((key, name, what))
        for key, name, what in sorted(found):
            if stat.S_ISDIR(what.st_mode):
                yield from self._walk((*names, name), prefix)
            elif stat.S_ISREG(what.st_mode):
                yield info_of(key, what)

    # ------------------------------------------------------------------------------------ signed URLs

    async def presign_put(
        self, key: str, *, content_type: str, ttl_s: int, base_url: str, most: int | None = None
    ) -> str:
        grant = Grant("PUT", check_key(key), self.signer.expiry(ttl_s), content_type, most=most)
        return self.signer.url(base_url, grant)

    async def presign_get(
        self,
        key: str,
        *,
        ttl_s: int,
        base_url: str,
        content_type: str,
        filename: str | None = None,
    ) -> str:
        expires_at = self.signer.expiry(ttl_s)
        grant = Grant("GET", check_key(key), expires_at, content_type, filename=filename)
        return self.signer.url(base_url, grant)

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
        grant = Grant(
            "PUT",
            check_key(key),
            self.signer.expiry(ttl_s),
            content_type=None,
            most=most,
            upload=upload,
            part=check_part_number(number),
        )
        return self.signer.url(base_url, grant)

    # -------------------------------------------------------------------------------- uploads in parts

    async def start_multipart(self, key: str, *, content_type: str) -> str:
        upload = secrets.token_hex(16)

        def start() -> None:
            note = Incoming(self._incoming)
            try:
                note.write(check_key(key).encode())
                renamed(note, self._uploads, [upload, _KEY_FILE], create=True)
            finally:
                note.discard()

        await self._run(start)
        return upload

    async def put_part(
        self,
        key: str,
        upload: str,
        number: int,
        chunks: AsyncIterator[bytes],
        *,
        most: int | None = None,
    ) -> PutResult:
        """A part that is sent again replaces the first one."""
        name = _part_name(check_part_number(number))
        await self._run(self._check_upload, key, upload)

        def publish(incoming: Incoming) -> str:
            try:
                return renamed(incoming, self._uploads, [upload, name])
            except FileNotFoundError as error:
                raise UploadNotFound(key=key) from error

        return await self._received(key, chunks, most, publish)

    async def parts(self, key: str, upload: str) -> Parts:
        return await self._run(self._parts, key, upload)

    async def complete_multipart(self, key: str, upload: str, parts: Parts) -> BlobInfo:
        check_parts(parts)
        return await self._run(self._joined, key, upload, parts)

    async def abort_multipart(self, key: str, upload: str) -> None:
        def abort() -> None:
            with suppress(UploadNotFound):
                self._check_upload(key, upload)
                self._forget(upload)

        await self._run(abort)

    def _check_upload(self, key: str, upload: str) -> None:
        """An upload belongs to one key; under another key it does not exist."""
        check_key(key)
        try:
            if not _UPLOAD.fullmatch(upload):
                raise FileNotFoundError
            with self._uploads.open([upload, _KEY_FILE]) as file:
                if file.read() != key.encode():
                    raise FileNotFoundError
        except FileNotFoundError:
            raise UploadNotFound(key=key) from None

    def _parts(self, key: str, upload: str) -> Parts:
        self._check_upload(key, upload)
        found = [
            PartInfo(int(name), what.st_size, etag_of(what))
            for name, what in self._uploads.entries([upload])
            if _PART.fullmatch(name) and stat.S_ISREG(what.st_mode)
        ]
        return sorted(found, key=lambda part: part.number)

    def _joined(self, key: str, upload: str, parts: Parts) -> BlobInfo:
        """The parts stay until the blob is in place: after a crash the client completes again, and nothing is lost."""
        self._check_upload(key, upload)
        whole = Incoming(self._incoming)
        try:
            for part in parts:
                with self._part(upload, part) as file:
                    whole.append(file)
            what = whole.sync()
            self._publish(whole, check_key(key).split("/"), replace=True)
        finally:
            whole.discard()
        self._forget(upload)
        return info_of(key, what)

    def _part(self, upload: str, part: PartInfo) -> FileIO:
        try:
            file = self._uploads.open([upload, _part_name(part.number)])
        except FileNotFoundError:
            raise PartsMismatch(
                detail=f"part {part.number} has not arrived; send it first"
            ) from None
        if etag_of(os.fstat(file.fileno())) != part.etag.strip('"'):
            file.close()
            raise PartsMismatch(
                detail=f"part {part.number} is not the one that was named: it was sent again; name the new one"
            )
        return file

    def _forget(self, upload: str) -> None:
        folder = self._uploads.root / upload
        for _ in range(
            _TRIES
        ):  # a part that was on its way can arrive while its folder is being removed
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                return

    # ------------------------------------------------------------------------------------ housekeeping

    async def sweep(self, *, older_than_s: float) -> int:
        return await self._run(self._remove_old, self._clock() - older_than_s)

    def _remove_old(self, before: float) -> int:
        removed = 0
        for name, what in ConfinedFiles(self._incoming).entries([]):
            if what.st_mtime < before:
                (self._incoming / name).unlink(missing_ok=True)
                removed += 1
        for upload, what in self._uploads.entries([]):
            times = [what.st_mtime, *(part.st_mtime for _, part in self._uploads.entries([upload]))]
            if max(times) < before:
                self._forget(upload)
                removed += 1
        return removed

    async def check(self) -> None:
        def attempt() -> None:
            incoming = Incoming(self._incoming)
            try:
                incoming.write(bytes(4096))
                incoming.sync()
            finally:
                incoming.discard()

        await self._run(attempt)

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown)

    # ----------------------------------------------------------------------------------------- helpers

    async def _run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs in a thread, with errors of the disk turned into ours."""

        def run() -> T:
            with disk_errors():
                return work(*args, **kwargs)

        return await asyncio.wrap_future(self._pool.submit(run))

    def _opened(self, key: str) -> FileIO:
        try:
            return self.objects.open(check_key(key).split("/"))
        except FileNotFoundError:
            raise BlobNotFound(key=key) from None

    async def _received(
        self,
        key: str,
        chunks: AsyncIterator[bytes],
        most: int | None,
        publish: Callable[[Incoming], str],
    ) -> PutResult:
        incoming = await self._new_incoming()
        try:
            await self._fill(incoming, key, chunks, most)
            etag = await self._run(publish, incoming)
            return PutResult(incoming.size, incoming.sha256(), etag)
        except Exception:
            # waited for: the disk has room again before the sender gets the error
            await self._run(incoming.discard)
            raise
        finally:
            # not awaited: it must also happen when this task is being cancelled
            submit_without_waiting(self._pool, incoming.discard)

    async def _new_incoming(self) -> Incoming:
        made = self._pool.submit(Incoming, self._incoming)
        try:
            with disk_errors():
                return await asyncio.wrap_future(made)
        except asyncio.CancelledError:
            # a thread that has begun makes the file all the same, and nobody else would remove it
            made.add_done_callback(self._discard_made)
            raise

    def _discard_made(self, made: Future[Incoming]) -> None:
        if not made.cancelled() and made.exception() is None:
            submit_without_waiting(self._pool, made.result().discard)

    async def _fill(
        self, incoming: Incoming, key: str, chunks: AsyncIterator[bytes], most: int | None
    ) -> None:
        size = batched = 0
        batch: Chunks = []
        writing: Writing = asyncio.get_running_loop().create_future()
        writing.set_result([])
        try:
            async for chunk in chunks:
                size += len(chunk)
                if most is not None and size > most:
                    raise BlobTooLarge(key=key, most=most)
                batch.append(chunk)
                if size - batched >= _BATCH or len(batch) == _MOST_CHUNKS:
                    await writing
                    writing = self._write_and_hash(incoming, batch)
                    batch, batched = [], size
            await writing
            writing = self._write_and_hash(incoming, batch)
            await writing
        finally:
            writing.add_done_callback(ignore_error)

    def _write_and_hash(self, incoming: Incoming, batch: Chunks) -> Writing:
        """Joins small pieces first: each separate write or hash has to wait for the interpreter lock."""
        data = b"".join(batch)
        works = (incoming.write, incoming.hash) if len(data) > _APART else (incoming.take,)
        return asyncio.gather(
            *(asyncio.wrap_future(self._pool.submit(work, data)) for work in works)
        )

    def _publish(self, incoming: Incoming, place: Sequence[str], *, replace: bool) -> str:
        key = "/".join(place)
        for _ in range(_TRIES):
            try:
                return renamed(incoming, self.objects, place, create=True, replace=replace)
            except FileExistsError as error:
                raise BlobExists(key=key) from error
            except (NotADirectoryError, IsADirectoryError) as error:
                raise InvalidBlobKey(detail=f"{key!r} lies above or below another blob") from error
            except FileNotFoundError:
                continue  # somebody deleted the last blob of the folder, and the folder with it
        raise BlobStoreUnavailable(detail=f"{key!r} could not be put in its place; try again")


def _create(folder: Path) -> None:
    try:
        make_folders(folder)
    except OSError as error:
        message = f"blobs: folder {folder} cannot be used ({error.strerror}); choose another one"
        raise ConfigurationError(message=message) from error


def _next_batch(blobs: Iterator[BlobInfo]) -> Sequence[BlobInfo]:
    return list(islice(blobs, _LISTED_AT_ONCE))


def _part_name(number: int) -> str:
    return f"{number:05d}"
