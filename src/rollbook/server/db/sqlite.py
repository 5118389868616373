"""SQLite: one thread writes, a few threads read.

The writer commits everything that waits in one transaction: one sync to disk serves many requests, and nobody waits for
a lock. A piece of work that fails is undone alone.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from rollbook.errors import ConfigurationError, DatabaseUnavailable, KeyRevoked, StorageError
from rollbook.server.db import engine
from rollbook.server.db.engine import (
    Database,
    Tenant,
    Work,
    do,
    from_json,
    submit,
    to_json,
    watched,
)
from rollbook.server.db.errors import translated
from rollbook.server.metrics import NO_METRICS, Metrics

T = TypeVar("T")

_READERS = 4
_MOST_AT_ONCE = 256
"""Pieces of work in one commit."""
_STEPS_BETWEEN_LOOKS = 20_000
"""Steps of SQLite's virtual machine between two looks at the clock: about a millisecond."""


def sqlite_path(url: str) -> Path:
    name = url.removeprefix("sqlite:///")
    if not name or name.startswith((":memory:", "file:")):
        message = "database: sqlite:/// needs the path of a file, such as sqlite:////var/lib/rollbook/rollbook.db"
        raise ConfigurationError(message=message)
    return Path(name)


@dataclass(frozen=True, slots=True)
class _Job:
    work: Work[Any]
    future: Future[Any]
    asked: float
    """When, by `time.perf_counter()`."""


@dataclass(slots=True)
class _Outcome:
    future: Future[Any]
    result: Any = None
    failure: BaseException | None = None

    def tell(self) -> None:
        if self.failure is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.failure)


class SqliteDatabase(Database):
    kind = "sqlite"

    def __init__(self, path: Path, metrics: Metrics = NO_METRICS) -> None:
        make_private_file(path)
        self._metrics = metrics
        metrics.database_pool(_READERS + 1)
        self.path = path
        self._engine = sqlite_engine(path)
        self._own = threading.local()
        self._reading: list[_SqliteReader] = []
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="db-read")
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._door = threading.Lock()
        self._closed = False
        self._writing: sa.Connection | None = None
        self._writer = threading.Thread(target=self._write_all, name="db-write", daemon=True)
        self._writer.start()

    def submit_read(self, tenant: Tenant, work: Work[T]) -> Future[T]:
        confirmed = _by_key(tenant, work)
        return submit(self._readers, watched(self._metrics, lambda: self._reader().run(confirmed)))

    def submit_write(self, tenant: Tenant, work: Work[T]) -> Future[T]:
        future: Future[T] = Future()
        with self._door:  # so that no job is put behind the end of the queue
            if self._closed:
                raise DatabaseUnavailable(detail="it is closing")
            self._jobs.put(_Job(_by_key(tenant, work), future, time.perf_counter()))
        return future

    def close(self) -> None:
        with self._door:
            if self._closed:
                return
            self._closed = True
            self._jobs.put(None)
        self._writer.join()
        self._readers.shutdown()
        for reader in self._reading:
            reader.close()
        self._drop_writing()
        self._engine.dispose()

    def _reader(self) -> _SqliteReader:
        """Each reading thread keeps a connection of its own."""
        reader: _SqliteReader | None = getattr(self._own, "reader", None)
        if reader is None:
            reader = self._own.reader = _SqliteReader(self._engine)
            self._reading.append(reader)
        return reader

    def _write_all(self) -> None:
        ended = False
        while not ended:
            first = self._jobs.get()
            if first is None:
                return
            batch, ended = self._waiting(first)
            # jobs that were cancelled while they waited are left out; later nobody can cancel
            batch = [job for job in batch if job.future.set_running_or_notify_cancel()]
            if batch:
                self._commit(batch)

    def _waiting(self, first: _Job) -> tuple[list[_Job], bool]:
        batch = [first]
        while len(batch) < _MOST_AT_ONCE:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return batch, True
            batch.append(job)
        return batch, False

    def _commit(self, batch: list[_Job]) -> None:
        """All jobs in one transaction; results are reported after the commit is on disk."""
        try:
            connection = self._writing or self._open_writing()
            driver = _driver_of(connection)
            driver.execute("BEGIN IMMEDIATE")
            outcomes = [self._attempt(connection, driver, job) for job in batch]
            driver.execute("COMMIT")
            connection.commit()  # only updates SQLAlchemy's state: the driver has nothing left to commit
        except BaseException as error:  # noqa: BLE001 - whatever it is, those who wait have to hear of it
            self._drop_writing()
            outcomes = [_Outcome(job.future, failure=translated(error)) for job in batch]
        for outcome in outcomes:
            outcome.tell()

    def _attempt(
        self, connection: sa.Connection, driver: sqlite3.Connection, job: _Job
    ) -> _Outcome:
        self._metrics.database_began(time.perf_counter() - job.asked)
        try:
            return _attempt(connection, driver, job)
        finally:
            self._metrics.database_ended()

    def _open_writing(self) -> sa.Connection:
        self._writing = self._engine.connect()
        return self._writing

    def _drop_writing(self) -> None:
        """Drops everything that was not committed. A connection with an error is not used again."""
        connection, self._writing = self._writing, None
        if connection is not None:
            with suppress(Exception):
                connection.rollback()
            connection.invalidate()
            connection.close()


def _attempt(connection: sa.Connection, driver: sqlite3.Connection, job: _Job) -> _Outcome:
    """Work that fails is undone alone. Some failures, such as a full disk, make SQLite undo the whole transaction: then
    the savepoint is gone, and every job of the batch fails."""
    driver.execute("SAVEPOINT work")
    outcome = _Outcome(job.future)
    try:
        outcome.result = do(job.work, connection)
    except Exception as error:  # noqa: BLE001 - it belongs to whoever gave the work
        outcome.failure = translated(error)
        try:
            driver.execute("ROLLBACK TO work")
        except sqlite3.Error:
            raise outcome.failure from error
    driver.execute("RELEASE work")
    return outcome


def _by_key(tenant: Tenant, work: Work[T]) -> Work[T]:
    """The work, preceded by a check of its API key."""
    if not tenant.acts_by_key:
        return work

    def confirmed(connection: sa.Connection) -> T:
        if _driver_of(connection).execute(_KEY, (tenant.key_id,)).fetchone() is None:
            raise KeyRevoked(key_id=tenant.key_id or "")
        return work(connection)

    return confirmed


_KEY = "SELECT 1 FROM api_keys WHERE key_id = ? AND revoked_at_us IS NULL"


def _driver_of(connection: sa.Connection) -> sqlite3.Connection:
    """The driver's connection, for statements that begin and end a transaction."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


class _SqliteReader:
    """A connection that cannot write and stops a query that takes too long."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._connection: sa.Connection | None = None
        self._deadline = 0.0

    def run(self, work: Work[T]) -> T:
        try:
            connection = self._connection or self._open()
            self._deadline = time.monotonic() + engine.LONGEST_QUERY_S
            driver = _driver_of(connection)
            driver.execute("BEGIN")
            result = do(work, connection)
            driver.execute("ROLLBACK")
            connection.rollback()
        except Exception as error:
            self._recover(error)
            fault = translated(error)
            if fault is error:
                raise
            raise fault from error
        return result

    def _recover(self, error: Exception) -> None:
        """An error of the work itself does not affect the connection."""
        if self._connection is None or isinstance(error, sqlite3.Error | sa.exc.SQLAlchemyError):
            self.close()
        else:
            _driver_of(self._connection).rollback()
            self._connection.rollback()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()

    def _open(self) -> sa.Connection:
        self._connection = self._engine.connect()
        driver = _driver_of(self._connection)
        driver.execute("PRAGMA query_only=ON")
        driver.set_progress_handler(self._is_late, _STEPS_BETWEEN_LOOKS)
        return self._connection

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline


def make_private_file(path: Path) -> None:
    """The file holds hashes of keys and passwords. SQLite gives its own files beside it the same mode."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
    except OSError as error:
        raise StorageError(path=str(path), detail=f"cannot be made: {error.strerror}") from error


def sqlite_engine(path: Path) -> sa.Engine:
    """Threads keep their connections, so there is no pool. The driver's own transactions are off, so that we can send
    BEGIN IMMEDIATE."""
    made = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        poolclass=sa.pool.NullPool,
        connect_args={
            "check_same_thread": False,
            "timeout": engine.LONGEST_QUERY_S,
            "isolation_level": None,
        },
        json_serializer=to_json,
        json_deserializer=from_json,
        hide_parameters=True,
    )
    sa.event.listen(made, "connect", _set_up_sqlite)
    return made


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    for pragma in _SQLITE_SETTINGS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


_SQLITE_SETTINGS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    "journal_size_limit=67108864",
    "cache_size=-16384",
)
"""temp_store stays as it is: in memory, the undo records of a transaction would grow with every large row it changes.
Records below 64 kB stay in memory anyway."""
