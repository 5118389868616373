"""A PostgreSQL that is frozen (SIGSTOP) keeps its connections and answers nothing, not even a request to cancel."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
import sqlalchemy as sa

from rollbook.errors import DatabaseUnavailable
from rollbook.server.db import engine, postgres
from rollbook.server.db.engine import NOBODY
from rollbook.server.db.open import postgres_url
from rollbook.server.db.postgres import PostgresDatabase
from tests.server.postgres_cluster import PostgresCluster

_ONE = sa.select(1)


@pytest.fixture
def database(
    postgres_cluster: PostgresCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PostgresDatabase]:
    """One thread with one connection, which is open."""
    monkeypatch.setattr(postgres, "LONGEST_BEGIN_S", 0.3)
    monkeypatch.setattr(postgres, "LONGEST_WAIT_S", 0.3)
    monkeypatch.setattr(postgres, "_ANSWER_S", 0.3)
    monkeypatch.setattr(engine, "LONGEST_QUERY_S", 0.3)
    url = postgres_url(postgres_cluster.new_database(migrated=True))
    with closing(PostgresDatabase(url, connections=1)) as opened:
        one(opened)
        yield opened


def one(database: PostgresDatabase) -> object:
    return database.read_now(NOBODY, lambda connection: connection.scalar(_ONE))


def test_work_that_begins_meanwhile_is_given_up_and_later_work_is_done(
    database: PostgresDatabase, postgres_cluster: PostgresCluster
) -> None:
    with postgres_cluster.frozen():
        for _ in range(2):  # on the connection that was open, and on a new one
            with pytest.raises(DatabaseUnavailable):
                one(database)
    assert one(database) == 1


def test_work_in_the_middle_is_given_up(
    database: PostgresDatabase, postgres_cluster: PostgresCluster
) -> None:
    def work(connection: sa.Connection) -> None:
        with postgres_cluster.frozen():
            connection.scalar(_ONE)

    with pytest.raises(DatabaseUnavailable, match="does not answer"):
        database.write_now(NOBODY, work)
    assert one(database) == 1


def test_an_error_of_the_work_itself_does_not_wait_for_the_rollback(
    database: PostgresDatabase, postgres_cluster: PostgresCluster
) -> None:
    thaw = threading.Event()

    def work(connection: sa.Connection) -> None:
        connection.scalar(_ONE)
        postgres_cluster.freeze()
        thaw.set()
        raise LookupError("of the work")

    try:
        with pytest.raises((LookupError, DatabaseUnavailable)):
            database.write_now(NOBODY, work)
        assert thaw.is_set()
    finally:
        postgres_cluster.thaw()
    assert one(database) == 1


def test_work_that_finds_no_thread_in_time_is_never_done(database: PostgresDatabase) -> None:
    leave, done = threading.Event(), threading.Event()
    busy = database.submit_read(NOBODY, lambda _: leave.wait())
    try:
        with pytest.raises(DatabaseUnavailable, match="all its connections are in use"):
            asyncio.run(database.write(NOBODY, lambda _: done.set()))
    finally:
        leave.set()
    busy.result()
    assert one(database) == 1
    assert not done.is_set()


def test_closing_does_not_wait_for_an_answer(
    database: PostgresDatabase, postgres_cluster: PostgresCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "LONGEST_QUERY_S", 600.0)
    monkeypatch.setattr(postgres, "_CLOSE_S", 0.3)
    frozen = threading.Event()

    def work(connection: sa.Connection) -> None:
        connection.scalar(_ONE)
        postgres_cluster.freeze()
        frozen.set()
        connection.scalar(_ONE)

    try:
        running = database.submit_write(NOBODY, work)
        frozen.wait()
        database.close()
        assert isinstance(running.exception(), DatabaseUnavailable)
    finally:
        postgres_cluster.thaw()
