"""PostgreSQL: several threads, each transaction on a connection of a pool. Every transaction names its tenant first;
row-level security shows no rows without one.

Nobody waits for a database that does not answer: not for a thread, nor for a connection, nor for a transaction. Each of
these has a limit, and all together are the longest time until a request is answered 503.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import sqlalchemy as sa

from rollbook.errors import DatabaseUnavailable, KeyRevoked
from rollbook.server.db import engine
from rollbook.server.db.deadlines import Deadlines
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
from rollbook.server.db.errors import can_run_again, translated
from rollbook.server.db.value_checks import is_storable
from rollbook.server.metrics import NO_METRICS, Metrics

T = TypeVar("T")

_MOST_ATTEMPTS = 4
_OLDEST_CONNECTION_S = 1800
LONGEST_WAIT_S = 10.0
"""Until a thread begins with the work."""
LONGEST_BEGIN_S = 5.0
"""Until the transaction has begun. Nothing but a frozen database takes that long."""
_ANSWER_S = 5.0
"""More than LONGEST_QUERY_S, after which the database itself ends a query, if it still answers."""
_CLOSE_S = 1.0
_CONNECT = {
    "connect_timeout": "3",
    # a lost network is noticed within a minute also where nothing else has a limit, as in a migration
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}
"""Options of libpq, where the URL does not give them."""


def connect_options(url: str) -> dict[str, str]:
    given = sa.make_url(url).query
    return {name: value for name, value in _CONNECT.items() if name not in given}


class PostgresDatabase(Database):
    kind = "postgresql"

    def __init__(self, url: str, connections: int = 16, metrics: Metrics = NO_METRICS) -> None:
        self._engine = sa.create_engine(
            url,
            connect_args=connect_options(url),
            pool_size=connections,
            max_overflow=0,
            pool_recycle=_OLDEST_CONNECTION_S,
            # the last connection used is used again first: with little work few connections are open
            pool_use_lifo=True,
            json_serializer=to_json,
            json_deserializer=from_json,
            hide_parameters=True,
        )
        self._deadlines = Deadlines(self._engine)
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="db")
        self._metrics = metrics
        metrics.database_pool(connections)

    def submit_read(self, tenant: Tenant, work: Work[T]) -> Future[T]:
        return self._submit(lambda: self._run(tenant, work, read_only=True))

    def submit_write(self, tenant: Tenant, work: Work[T]) -> Future[T]:
        return self._submit(lambda: self._run(tenant, work, read_only=False))

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        return submit(self._threads, watched(self._metrics, work))

    def close(self) -> None:
        self._deadlines.hurry(_CLOSE_S)
        self._threads.shutdown()
        self._deadlines.close()
        self._engine.dispose()

    async def _result(self, future: Future[T]) -> T:
        """Work with which no thread has begun in time is not done at all."""
        task = asyncio.current_task()
        assert task is not None
        giving_up = task.get_loop().call_later(LONGEST_WAIT_S, future.cancel)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if task.cancelling():
                raise  # the caller was cancelled, not the work
            raise DatabaseUnavailable(detail="all its connections are in use") from None
        finally:
            giving_up.cancel()

    def _run(self, tenant: Tenant, work: Work[T], *, read_only: bool) -> T:
        """Runs the work again where that is harmless: the connection was found broken before the work began (as all are
        after a restart), or the database undid the work to end a deadlock."""
        for attempt in range(1, _MOST_ATTEMPTS + 1):
            began = False
            with self._deadlines.limit(LONGEST_BEGIN_S) as deadline:
                try:
                    with self._engine.connect() as connection:
                        deadline.cuts(connection)
                        _begin(connection, tenant, read_only=read_only)
                        deadline.move(engine.LONGEST_QUERY_S + _ANSWER_S)
                        began = True
                        result = do(work, connection)
                        _commit(connection)
                        return result
                except Exception as error:
                    if deadline.is_over:
                        raise DatabaseUnavailable(detail="it does not answer") from error
                    if attempt < _MOST_ATTEMPTS and can_run_again(error, began):
                        continue
                    fault = translated(error)
                    if fault is error:
                        raise
                    raise fault from error
        raise AssertionError("the last attempt returns or raises")


def _begin(connection: sa.Connection, tenant: Tenant, *, read_only: bool) -> None:
    """Begins the transaction, names its tenant and asks for its API key, in one message. The settings end with the
    transaction, so an idle connection has no tenant."""
    longest_ms = int(engine.LONGEST_QUERY_S * 1000)
    named = (tenant.org_id, tenant.user_id, tenant.key_id, tenant.invitation_hash)
    # a text that cannot be stored is the id of nobody
    values = [text if text and is_storable(text) else "" for text in named]
    driver: Any = connection.connection.driver_connection
    base = connection.dialect.loaded_dbapi.Error
    try:
        driver.read_only = read_only
        with driver.pipeline():
            driver.execute(_SET, [*values, str(longest_ms), str(2 * longest_ms)])
            key = driver.execute(_KEY, [tenant.key_id]) if tenant.acts_by_key else None
        if key is not None and key.fetchone() is None:
            raise KeyRevoked(key_id=tenant.key_id or "")
    except base as error:
        lost = connection.dialect.is_disconnect(error, driver, None)
        if lost:
            connection.invalidate(error)
        raise sa.exc.DBAPIError.instance(
            "BEGIN", None, error, base, connection_invalidated=lost, dialect=connection.dialect
        ) from error


_SETTINGS = (
    "app.org",
    "app.user",
    "app.key",
    "app.invitation",
    "statement_timeout",
    "idle_in_transaction_session_timeout",
)
_SET = "SELECT " + ", ".join(f"set_config('{name}', %s, true)" for name in _SETTINGS)
"""The timeouts are in milliseconds."""
_KEY = "SELECT 1 FROM api_keys WHERE key_id = %s AND revoked_at_us IS NULL"


def _commit(connection: sa.Connection) -> None:
    """COMMIT undoes a transaction in which a statement failed, and the database does not call that an error."""
    from psycopg.errors import InFailedSqlTransaction
    from psycopg.pq import TransactionStatus

    driver: Any = connection.connection.driver_connection
    if driver.info.transaction_status == TransactionStatus.INERROR:
        failed = InFailedSqlTransaction("a statement of the transaction had failed")
        raise sa.exc.InternalError("COMMIT", None, failed)
    connection.commit()
