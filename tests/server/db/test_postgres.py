"""PostgreSQL: connections that break, transactions that failed, statements greater than a socket's buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from rollbook.errors import DatabaseUnavailable
from rollbook.server.db import tables
from rollbook.server.db.columns import new_id
from rollbook.server.db.engine import Database, Tenant
from rollbook.server.db.open import postgres_url
from rollbook.server.db.postgres import PostgresDatabase
from rollbook.server.queries import create_organisation
from tests.server.postgres_cluster import PostgresCluster

ACME = Tenant(org_id="acme")
_SELF = sa.text("SELECT pg_backend_pid()")


def _invitation(name: str = "") -> dict[str, Any]:
    named = {"org_id": ACME.org_id, "id": new_id(), "token_hash": new_id(), "email": name}
    return {**named, "role": "viewer", "created_at_us": 1, "expires_at_us": 2}


def _insert(connection: sa.Connection, invitation: dict[str, Any]) -> None:
    connection.execute(sa.insert(tables.invitations), invitation)


def _many(connection: sa.Connection, invitation: dict[str, Any]) -> None:
    connection.execute(sa.insert(tables.invitations), [invitation, _invitation()])


def _nothing(connection: sa.Connection, invitation: dict[str, Any]) -> None:
    return


def _name(database: Database, invitation: dict[str, Any]) -> str | None:
    query = sa.select(tables.invitations.c.email).where(tables.invitations.c.id == invitation["id"])
    return database.read_now(ACME, lambda connection: connection.scalar(query))


def test_a_statement_greater_than_what_a_socket_holds_is_sent_and_answered(
    one_connection: PostgresDatabase,
) -> None:
    invitation = _invitation(name="x" * (8 << 20))
    one_connection.write_now(ACME, lambda connection: _insert(connection, invitation))
    assert _name(one_connection, invitation) == "x" * (8 << 20)


def test_an_error_of_a_statement_harms_nobody_later(one_connection: PostgresDatabase) -> None:
    invitation, other = _invitation(), _invitation()
    one_connection.write_now(ACME, lambda connection: _insert(connection, invitation))
    with pytest.raises(sa.exc.IntegrityError):
        one_connection.write_now(ACME, lambda connection: _insert(connection, invitation))
    one_connection.write_now(ACME, lambda connection: _insert(connection, other))
    assert _name(one_connection, other) == ""


def test_prepared_statements_that_were_dropped_are_prepared_again(
    one_connection: PostgresDatabase,
) -> None:
    """As a connection pooler between the server and PostgreSQL does."""

    def drop(connection: sa.Connection) -> None:
        connection.exec_driver_sql("DEALLOCATE ALL")

    for _ in range(2):
        for _ in range(10):  # psycopg prepares a statement that it has seen five times
            assert _name(one_connection, _invitation()) is None
        one_connection.read_now(ACME, drop)


def test_work_that_passed_over_an_error_is_not_taken_for_committed(
    one_connection: PostgresDatabase,
) -> None:
    invitation = _invitation()

    def careless(connection: sa.Connection) -> None:
        _insert(connection, invitation)
        with pytest.raises(sa.exc.DBAPIError):
            connection.exec_driver_sql("SELECT 1 / 0")

    with pytest.raises(sa.exc.DBAPIError, match="had failed"):
        one_connection.write_now(ACME, careless)
    assert _name(one_connection, invitation) is None


@pytest.fixture
def one_connection(postgres_cluster: PostgresCluster) -> Iterator[PostgresDatabase]:
    url = postgres_cluster.new_database(migrated=True)
    with closing(PostgresDatabase(postgres_url(url), connections=1)) as database:
        database.write_now(ACME, lambda connection: create_organisation(connection, "acme", "Acme"))
        yield database


def _end_connection(cluster: PostgresCluster, pid: int) -> None:
    with psycopg.connect(cluster.admin_url(), autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


def test_a_connection_that_broke_while_it_was_idle_is_replaced(
    postgres_cluster: PostgresCluster, one_connection: PostgresDatabase
) -> None:
    invitation = _invitation()
    pid = one_connection.read_now(ACME, lambda connection: connection.execute(_SELF).scalar_one())
    _end_connection(postgres_cluster, pid)
    one_connection.write_now(ACME, lambda connection: _insert(connection, invitation))
    assert _name(one_connection, invitation) == ""


@pytest.mark.parametrize("last", [_insert, _many, _nothing])
def test_a_connection_that_breaks_in_the_middle_is_an_outage_and_leaves_nothing(
    postgres_cluster: PostgresCluster,
    one_connection: PostgresDatabase,
    last: Callable[[sa.Connection, dict[str, Any]], None],
) -> None:
    """Whichever way the next message takes; with nothing more to do it is the commit."""
    invitation, second = _invitation(), _invitation()

    def work(connection: sa.Connection) -> None:
        _insert(connection, invitation)
        _end_connection(postgres_cluster, connection.execute(_SELF).scalar_one())
        last(connection, second)

    with pytest.raises(DatabaseUnavailable):
        one_connection.write_now(ACME, work)
    assert _name(one_connection, invitation) is None
    assert _name(one_connection, second) is None
