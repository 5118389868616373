"""Delivery: sends the episodes of a spool to the server, each exactly once, also after a crash at any point.

Every step can be repeated: a create with the same key gives the same episode, an upload replaces the same file, and an
episode is finalized once. So a delivery that was interrupted starts again from the beginning of the entry. The entry is
removed as the last step.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from rollbook.client.connection import Connection
from rollbook.client.http import wire_code
from rollbook.client.ingest import (
    create_episode,
    finalize_episode,
    new_upload_urls,
    urls_by_kind,
)
from rollbook.client.runtime import BlockingRuntime, finish
from rollbook.client.spool import Spool, SpoolEntry
from rollbook.client.uploads import (
    MULTIPART_ABOVE,
    OnProgress,
    Uploader,
)
from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.wire.uploads import UploadUrl
from rollbook.errors import (
    AuthError,
    ChecksumMismatch,
    ConflictError,
    LeaseHeld,
    RollbookError,
    ServerError,
    StorageError,
)

_log = logging.getLogger("rollbook.client")


@dataclass(slots=True)
class Delivery:
    """The outcome of a delivery, entry by entry."""

    delivered: dict[str, str] = field(default_factory=dict)
    """Episode id by entry."""
    refused: dict[str, RollbookError] = field(default_factory=dict)
    """Moved to `refused/`: the server does not accept them as they are."""
    waiting: list[str] = field(default_factory=list)
    stopped_by: RollbookError | None = None
    """Why entries are still waiting: no network, a failing server, no valid key. None: they are for another server."""


class DeliveryRound:
    """Delivers every entry of a spool, oldest first."""

    def __init__(
        self,
        spool: Spool,
        connection: Connection,
        *,
        multipart_above: int = MULTIPART_ABOVE,
        for_any_server: bool = False,
        on_progress: OnProgress | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self._spool = spool
        self._connection = connection
        self._multipart_above = multipart_above
        self._for_any_server = for_any_server
        self._on_progress = on_progress
        self._stop = stop or threading.Event()
        self._given_up = False
        self._server_errors = 0
        self._report = Delivery()

    async def run(self) -> Delivery:
        """Raises LeaseHeld while another process delivers from the same spool."""
        with self._spool.delivering() as lost:
            self._spool.sweep()
            for name in self._spool.waiting():
                if self._given_up or lost.is_set() or self._stop.is_set():
                    self._report.waiting.append(name)
                else:
                    await self._deliver(name)
        return self._report

    async def _deliver(self, name: str) -> None:
        try:
            entry = self._spool.open(name)
            if entry is None:
                return
            if entry.facts.base_url != self._connection.base_url and not self._for_any_server:
                self._report.waiting.append(name)
                return
            one = _EntryDelivery(entry, self._connection, self._multipart_above, self._on_progress)
            self._report.delivered[name] = await one.run()
        except RollbookError as error:
            self._note_failure(name, error)
        else:
            self._server_errors = 0
            await self._connection.runtime.in_thread(partial(self._spool.remove, name))

    def _note_failure(self, name: str, error: RollbookError) -> None:
        """A server may fail with one episode and accept the next. After two failures in a row the delivery ends."""
        if not error.retryable and not isinstance(error, AuthError):
            self._spool.refuse(name, error)
            self._report.refused[name] = error
            return
        self._report.waiting.append(name)
        self._report.stopped_by = error
        self._server_errors += 1
        self._given_up = not isinstance(error, ServerError) or self._server_errors > 1


class _EntryDelivery:
    def __init__(
        self,
        entry: SpoolEntry,
        connection: Connection,
        multipart_above: int,
        on_progress: OnProgress | None,
    ) -> None:
        self._entry = entry
        self._connection = connection
        self._multipart_above = multipart_above
        self._on_progress = on_progress

    async def run(self) -> str:
        episode_id, urls = await self._place()
        uploader = Uploader(
            self._connection,
            episode_id,
            urls,
            multipart_above=self._multipart_above,
            began=self._entry.note_upload,
        )
        for kind in self._entry.missing:
            if kind in urls:
                with _unless_stored():
                    await self._upload(uploader, kind)
        await finalize_episode(self._connection, episode_id, self._entry.ending())
        return episode_id

    async def _place(self) -> tuple[str, dict[ArtifactKind, UploadUrl]]:
        facts, episode_id = self._entry.facts, self._entry.progress.episode_id
        if episode_id is None:
            created = await create_episode(self._connection, facts.create, facts.idempotency_key)
            self._entry.note_episode(created.episode_id)
            return created.episode_id, urls_by_kind(created.upload_urls)
        urls: dict[ArtifactKind, UploadUrl] = {}
        if missing := self._entry.missing:
            with _unless_stored():
                urls = await new_upload_urls(self._connection, episode_id, missing)
        return episode_id, urls

    async def _upload(self, uploader: Uploader, kind: ArtifactKind) -> None:
        recorded = self._entry.facts.files[kind]
        file = self._entry.file(kind)
        resume = self._entry.progress.uploads.get(kind)
        try:
            sent = await uploader.upload(file, self._on_progress, resume)
        except OSError as error:
            if isinstance(error, RollbookError):
                raise
            raise StorageError(path=str(file.path), detail=str(error)) from error
        if sent.sha256 != recorded.get("sha256", sent.sha256):
            detail = (
                f"its SHA-256 was {recorded['sha256']} when it was spooled and is now {sent.sha256}"
            )
            raise ChecksumMismatch(path=str(file.path), detail=detail)
        self._entry.note_arrival(kind, sent)


@contextmanager
def _unless_stored() -> Iterator[None]:
    """Ignores that the episode is finalized already: then the upload is not needed. Finalizing compares the digests."""
    try:
        yield
    except ConflictError as error:
        if wire_code(error) == "artifact_mismatch":
            raise


class Courier:
    """Delivers in a background thread when the network is back, over its own connection. It may be killed any time."""

    def __init__(
        self, spool: Spool, connect: Callable[[BlockingRuntime], Connection], multipart_above: int
    ) -> None:
        self._spool = spool
        self._connect = connect
        self._multipart_above = multipart_above
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Does nothing while a delivery is running, or when nothing waits."""
        with self._lock:
            busy = self._thread is not None and self._thread.is_alive()
            if busy or self._stop.is_set() or not self._spool.has_work():
                return
            self._thread = threading.Thread(target=self._run, name="rollbook-courier", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Waits for a running delivery to end."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def stop(self, wait_s: float = 5.0) -> None:
        """Stops after the current entry. A longer upload runs until the program ends; the next delivery resumes it."""
        self._stop.set()
        with self._lock:
            if self._thread is not None:
                self._thread.join(wait_s)

    def _run(self) -> None:
        runtime = BlockingRuntime()
        try:
            connection = self._connect(runtime)
            delivery = DeliveryRound(
                self._spool, connection, multipart_above=self._multipart_above, stop=self._stop
            )
            report = finish(delivery.run())
            for name, error in report.refused.items():
                _log.warning("spooled episode %s was refused: %s", name, error)
            if report.stopped_by is not None:
                _log.info("%d episodes keep waiting: %s", len(report.waiting), report.stopped_by)
        except LeaseHeld:
            _log.debug("another process delivers %s", self._spool.folder)
        except Exception:  # noqa: BLE001 - the thread has no caller
            _log.exception("episodes in %s could not be delivered", self._spool.folder)
        finally:
            finish(runtime.close())
