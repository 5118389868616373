"""Openings: what waits for the first statement is answered before it, undone with it, and lost with nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from rollbook.errors import DatabaseUnavailable
from rollbook.server.db import tables
from rollbook.server.db.engine import NOBODY, Database
from rollbook.server.db.open import postgres_url
from rollbook.server.db.postgres import PostgresDatabase
from rollbook.server.db.prepared import Prepared
from rollbook.server.db.rows import AnyRow
from rollbook.server.db.tables import new_id
from tests.server.postgres_cluster import PostgresCluster

_INSERT = Prepared(
    sa.insert(tables.users)
    .values({name: sa.bindparam(name) for name in ("id", "email", "name", "created_at_us")})
    .inline()
)
_FIND = Prepared(sa.select(tables.users).where(tables.users.c.id == sa.bindparam("wanted")))
_ONE = Prepared(sa.select(sa.literal_column("1").label("one")))
_SELF = sa.text("SELECT pg_backend_pid()")


class _Refused(Exception):
    pass


def _refuse(_: AnyRow | None) -> None:
    raise _Refused


def _user(name: str = "") -> dict[str, Any]:
    return {"id": new_id(), "email": new_id(), "name": name, "created_at_us": 1}


def _is_there(database: Database, user: dict[str, Any]) -> bool:
    wanted = {"wanted": user["id"]}
    return database.read_now(NOBODY, lambda connection: _FIND.first(connection, wanted)) is not None


def _prepared(connection: sa.Connection, user: dict[str, Any]) -> None:
    _INSERT.run(connection, user)


def _by_sqlalchemy(connection: sa.Connection, user: dict[str, Any]) -> None:
    connection.execute(sa.insert(tables.users).values(user))


def _many(connection: sa.Connection, user: dict[str, Any]) -> None:
    _INSERT.run_many(connection, [user, _user()])


def _nothing(connection: sa.Connection, user: dict[str, Any]) -> None:
    return


def _mistake(connection: sa.Connection, user: dict[str, Any]) -> None:
    raise ValueError("what the work says by itself")


@pytest.mark.parametrize("do", [_prepared, _by_sqlalchemy, _many, _nothing, _mistake])
def test_a_refusal_undoes_whatever_was_sent_with_the_question(
    shared_database: Database, do: Callable[[sa.Connection, dict[str, Any]], None]
) -> None:
    user = _user()

    def work(connection: sa.Connection) -> None:
        _ONE.ask(connection, {}, _refuse)
        do(connection, user)

    with pytest.raises(_Refused):
        shared_database.write_now(NOBODY, work)
    assert not _is_there(shared_database, user)


def test_answers_come_before_the_result_of_the_statement(shared_database: Database) -> None:
    heard: list[object] = []

    def work(connection: sa.Connection) -> None:
        wanted = {"wanted": "nobody"}
        _ONE.ask(connection, {}, lambda row: heard.append(None if row is None else row.one))
        _FIND.ask(connection, wanted, lambda row: heard.append(row))
        heard.append(_FIND.all(connection, wanted))

    shared_database.read_now(NOBODY, work)
    assert heard == [1, None, []]


def test_a_refusal_counts_before_an_error_of_the_statement(shared_database: Database) -> None:
    user = _user()
    shared_database.write_now(NOBODY, lambda connection: _INSERT.run(connection, user))

    def work(connection: sa.Connection) -> None:
        _ONE.ask(connection, {}, _refuse)
        _INSERT.run(connection, user)

    with pytest.raises(_Refused):
        shared_database.write_now(NOBODY, work)


def test_an_error_of_the_first_statement_is_that_of_sqlalchemy_and_harms_nobody_later(
    shared_database: Database,
) -> None:
    user, other = _user(), _user()
    shared_database.write_now(NOBODY, lambda connection: _INSERT.run(connection, user))
    with pytest.raises(sa.exc.IntegrityError):
        shared_database.write_now(NOBODY, lambda connection: _INSERT.run(connection, user))
    shared_database.write_now(NOBODY, lambda connection: _INSERT.run(connection, other))
    assert _is_there(shared_database, other)


def test_a_first_statement_greater_than_what_a_socket_holds_is_sent_and_answered(
    shared_database: Database,
) -> None:
    user = _user(name="x" * (8 << 20))

    def work(connection: sa.Connection) -> Any:
        _INSERT.run(connection, user)
        return _FIND.first(connection, {"wanted": user["id"]})

    found = shared_database.write_now(NOBODY, work)
    assert len(found.name) == 8 << 20


# ------------------------------------------------------------------------------- connections that break


@pytest.fixture
def one_connection(postgres_cluster: PostgresCluster) -> Any:
    url = postgres_cluster.new_database(migrated=True)
    with closing(PostgresDatabase(postgres_url(url), connections=1)) as database:
        yield database


def _end_connection(cluster: PostgresCluster, pid: int) -> None:
    with psycopg.connect(cluster.admin_url(), autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


def test_a_connection_that_broke_while_it_was_idle_is_replaced(
    postgres_cluster: PostgresCluster, one_connection: PostgresDatabase
) -> None:
    user = _user()
    pid = one_connection.read_now(NOBODY, lambda connection: connection.execute(_SELF).scalar_one())
    _end_connection(postgres_cluster, pid)
    one_connection.write_now(NOBODY, lambda connection: _INSERT.run(connection, user))
    assert _is_there(one_connection, user)


@pytest.mark.parametrize("last", [_prepared, _by_sqlalchemy, _many, _nothing])
def test_a_connection_that_breaks_in_the_middle_is_an_outage_and_leaves_nothing(
    postgres_cluster: PostgresCluster,
    one_connection: PostgresDatabase,
    last: Callable[[sa.Connection, dict[str, Any]], None],
) -> None:
    """Whichever way the next message takes; with nothing more to do it is the commit."""
    user, second = _user(), _user()

    def work(connection: sa.Connection) -> None:
        _INSERT.run(connection, user)
        _end_connection(postgres_cluster, connection.execute(_SELF).scalar_one())
        last(connection, second)

    with pytest.raises(DatabaseUnavailable):
        one_connection.write_now(NOBODY, work)
    assert not _is_there(one_connection, user)
    assert not _is_there(one_connection, second)
