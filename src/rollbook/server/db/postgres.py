"""PostgreSQL: several threads, each transaction on a connection of a pool. Every transaction names its tenant first;
row-level security shows no rows without one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import sqlalchemy as sa

from rollbook.errors import KeyRevoked
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
from rollbook.server.db.errors import can_run_again, translated
from rollbook.server.db.value_checks import is_storable
from rollbook.server.metrics import NO_METRICS, Metrics

T = TypeVar("T")

_MOST_ATTEMPTS = 4
_OLDEST_CONNECTION_S = 1800


class PostgresDatabase(Database):
    kind = "postgresql"

    def __init__(self, url: str, connections: int = 16, metrics: Metrics = NO_METRICS) -> None:
        self._engine = sa.create_engine(
            url,
            pool_size=connections,
            max_overflow=0,
            pool_recycle=_OLDEST_CONNECTION_S,
            # the last connection used is used again first: with little work few connections are open
            pool_use_lifo=True,
            json_serializer=to_json,
            json_deserializer=from_json,
            hide_parameters=True,
        )
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
        self._threads.shutdown()
        self._engine.dispose()

    def _run(self, tenant: Tenant, work: Work[T], *, read_only: bool) -> T:
        """Runs the work again where that is harmless: the connection was found broken before the work began (as all are
        after a restart), or the database undid the work to end a deadlock."""
        for attempt in range(1, _MOST_ATTEMPTS + 1):
            began = False
            try:
                with self._engine.connect() as connection:
                    _begin(connection, tenant, read_only=read_only)
                    began = True
                    result = do(work, connection)
                    _commit(connection)
                    return result
            except Exception as error:
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
