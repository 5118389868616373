"""PostgreSQL: several threads, each with a connection of its own. Each transaction names its tenant in the message that
begins it, and row-level security shows nothing without one."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import sqlalchemy as sa

from rollbook.server.db import engine as db
from rollbook.server.db.engine import Database, Tenant, Work, do, submit, to_json
from rollbook.server.db.errors import can_run_again, translated
from rollbook.server.db.pipeline import Opening
from rollbook.server.db.prepared import as_sqlalchemy, begin_now, from_json, prepare
from rollbook.server.db.value_checks import is_storable

T = TypeVar("T")

_MOST_ATTEMPTS = 4
_OLDEST_CONNECTION_S = 1800.0


class PostgresDatabase(Database):
    kind = "postgresql"

    def __init__(self, url: str, connections: int = 16) -> None:
        self._engine = sa.create_engine(
            url,
            poolclass=sa.pool.NullPool,
            # it forgets all prepared statements of a connection now and then, and ours are among them
            connect_args={"prepare_threshold": None},
            json_serializer=to_json,
            json_deserializer=from_json,
            hide_parameters=True,
        )
        sa.event.listen(self._engine, "before_cursor_execute", _begin_now)
        self._own = threading.local()
        self._lines: list[_PostgresLine] = []
        self._pool = ThreadPoolExecutor(connections, thread_name_prefix="db")

    def submit_read(self, tenant: Tenant, work: Work[T]) -> Future[T]:
        return submit(self._pool, lambda: self._run(tenant, work, read_only=True))

    def submit_write(self, tenant: Tenant, work: Work[T]) -> Future[T]:
        return submit(self._pool, lambda: self._run(tenant, work, read_only=False))

    def close(self) -> None:
        self._pool.shutdown()
        for line in self._lines:
            line.close()
        self._engine.dispose()

    def _line(self) -> _PostgresLine:
        """Each thread keeps a connection of its own."""
        line: _PostgresLine | None = getattr(self._own, "line", None)
        if line is None:
            line = self._own.line = _PostgresLine(self._engine)
            self._lines.append(line)
        return line

    def _run(self, tenant: Tenant, work: Work[T], *, read_only: bool) -> T:
        """Again from the start where that is harmless: the connection was found dead before the work began (as all are
        after a restart), or the database undid the work to end a deadlock."""
        line = self._line()
        for attempt in range(1, _MOST_ATTEMPTS + 1):
            opening: Opening | None = None
            try:
                connection = line.open()
                opening = _opening(connection, tenant, read_only=read_only)
                result = _done(work, connection, opening)
                _end(connection)
                return result
            except Exception as raw:
                error = line.as_sqlalchemy(raw)
                line.undo()
                began = opening is not None and opening.has_begun
                if attempt < _MOST_ATTEMPTS and can_run_again(error, began):
                    continue
                fault = translated(error)
                if fault is raw:
                    raise
                raise fault from raw
        raise AssertionError("the last attempt returns or raises")


class _PostgresLine:
    """A connection that is opened when it is needed, and again when it was lost or has become old."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._connection: sa.Connection | None = None
        self._opened_at = 0.0

    def open(self) -> sa.Connection:
        if time.monotonic() - self._opened_at > _OLDEST_CONNECTION_S:
            self.close()
        if self._connection is None:
            self._connection = self._engine.connect()
            self._opened_at = time.monotonic()
        return self._connection

    def as_sqlalchemy(self, error: Exception) -> BaseException:
        """What libpq says by itself is an error of the driver: it refuses, for one, to use a connection that broke."""
        connection = self._connection
        if connection is None or connection.invalidated:
            return error
        if not isinstance(error, connection.dialect.loaded_dbapi.Error):
            return error
        return as_sqlalchemy(connection, "", error)

    def undo(self) -> None:
        """Whatever is not committed. A connection that cannot even do that is not trusted again."""
        connection = self._connection
        if connection is None:
            return
        try:
            if connection.invalidated:
                raise ConnectionError("it was lost")
            _postgres_driver(connection).rollback()
            connection.rollback()  # only SQLAlchemy's own books
        except Exception:  # noqa: BLE001 - what went wrong first is what counts
            self.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()


def _postgres_driver(connection: sa.Connection) -> Any:
    """psycopg's connection, for what begins and ends a transaction."""
    return connection.connection.driver_connection


def _opening(connection: sa.Connection, tenant: Tenant, *, read_only: bool) -> Opening:
    """Begins the transaction and names its tenant, together with the first statement. For this transaction alone:
    between two of them a connection has no tenant."""
    pgconn = _postgres_driver(connection).pgconn
    begin = b"BEGIN READ ONLY" if read_only else b"BEGIN"
    named = (tenant.org_id, tenant.user_id, tenant.key_id, tenant.invitation_hash)
    # what cannot be stored belongs to nobody
    values = [text.encode() if text and is_storable(text) else b"" for text in named]
    longest_ms = int(db.LONGEST_QUERY_S * 1000)
    values += [b"%d" % longest_ms, b"%d" % (2 * longest_ms)]
    try:
        prepare(connection, _SETTINGS, _SET)
    except Exception as error:
        raise as_sqlalchemy(connection, "PREPARE", error) from error
    opening = Opening(connection, lambda: pgconn.send_query_params(begin, None))
    opening.add(lambda: pgconn.send_query_prepared(_SETTINGS, values), lambda _: None)
    return opening


_SETTINGS = b"rollbook_settings"
_NAMES = (
    "app.org",
    "app.user",
    "app.key",
    "app.invitation",
    "statement_timeout",
    "idle_in_transaction_session_timeout",
)
_SET = "SELECT {}".format(
    ", ".join(f"set_config('{name}', ${at}, true)" for at, name in enumerate(_NAMES, 1))
).encode()
"""The timeouts are in milliseconds."""


def _done(work: Work[T], connection: sa.Connection, opening: Opening) -> T:
    """A question that is answered with a refusal counts before what the work finds wrong by itself."""
    try:
        return do(work, connection)
    except Exception:
        if not opening.is_sent:
            begin_now(connection)
        raise


def _begin_now(connection: sa.Connection, *_: Any) -> None:
    begin_now(connection)


def _end(connection: sa.Connection) -> None:
    """A transaction in which something failed is undone by COMMIT, and the database does not call that an error."""
    begin_now(connection)  # where there was no statement: what was asked has yet to be answered
    done = _postgres_driver(connection).pgconn.exec_(b"COMMIT")
    if done.command_status != b"COMMIT":
        raise as_sqlalchemy(connection, "COMMIT", _failure(done))
    connection.commit()  # only SQLAlchemy's own books


def _failure(done: Any) -> Exception:
    from psycopg.errors import InFailedSqlTransaction, error_from_result
    from psycopg.pq import ExecStatus

    if done.status == ExecStatus.COMMAND_OK:
        return InFailedSqlTransaction("something in it had failed")
    return error_from_result(done)
