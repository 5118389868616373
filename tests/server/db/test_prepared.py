"""Prepared statements: the same values, rows and errors as by SQLAlchemy's own way, on both databases."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa

from rollbook.errors import InvalidText
from rollbook.server.db import tables
from rollbook.server.db.engine import NOBODY, Database, Tenant
from rollbook.server.db.open import postgres_url
from rollbook.server.db.postgres import PostgresDatabase
from rollbook.server.db.prepared import Prepared
from rollbook.server.db.tables import new_id
from rollbook.server.queries import create_organisation
from tests.server.postgres_cluster import PostgresCluster

_USER: dict[str, Any] = {"email": "a@b.example", "name": "Ä", "password_hash": None}
_INSERT = Prepared(
    sa.insert(tables.users)
    .values({name: sa.bindparam(name) for name in ("id", *_USER, "created_at_us")})
    .inline()
)
_FIND = Prepared(sa.select(tables.users).where(tables.users.c.id == sa.bindparam("wanted")))
_ONE = Prepared(sa.select((sa.literal(1) + sa.bindparam("more", type_=sa.Integer)).label("sum")))


def test_what_is_written_is_what_sqlalchemy_reads(shared_database: Database) -> None:
    row = {**_USER, "id": new_id(), "email": new_id(), "created_at_us": 2**40}
    written = shared_database.write_now(NOBODY, lambda connection: _INSERT.run(connection, row))
    query = sa.select(tables.users).where(tables.users.c.id == row["id"])
    theirs = shared_database.read_now(NOBODY, lambda connection: connection.execute(query).one())
    ours = shared_database.read_now(
        NOBODY, lambda connection: _FIND.all(connection, {"wanted": row["id"]})
    )
    assert written == 1
    assert [dict(each._mapping) for each in ours] == [dict(theirs._mapping)] == [row]


def test_numbers_of_any_size_and_json_pass_through_the_types_of_their_columns(
    shared_database: Database,
) -> None:
    org_id = new_id()
    values = {"org_id": org_id, "id": new_id(), "source": "sim", "status": "ready", "tags": ["ü"]}
    row = {**values, "seed": 10**30, "fps": 0.1, "metadata": {"x": [1, None, 1e22]}}
    columns = (*row, "created_at_us", "updated_at_us")
    insert = Prepared(
        sa.insert(tables.episodes).values({name: sa.bindparam(name) for name in columns}).inline()
    )
    find = Prepared(
        sa.select(*(tables.episodes.c[name] for name in row)).where(
            tables.episodes.c.org_id == sa.bindparam("of")
        )
    )

    def work(connection: sa.Connection) -> Any:
        create_organisation(connection, org_id, "Numbers")
        insert.run(connection, {**row, "created_at_us": 1, "updated_at_us": 1})
        return find.first(connection, {"of": org_id})

    found = shared_database.write_now(Tenant(org_id=org_id), work)
    assert dict(found._mapping) == row


def test_values_that_stand_in_the_statement_need_not_be_given(shared_database: Database) -> None:
    found = shared_database.read_now(NOBODY, lambda connection: _ONE.first(connection, {"more": 2}))
    assert found is not None
    assert found.sum == 3


def test_errors_are_those_of_sqlalchemy(shared_database: Database) -> None:
    row = {**_USER, "id": new_id(), "email": new_id(), "created_at_us": 1}

    def twice(connection: sa.Connection) -> None:
        _INSERT.run(connection, row)
        _INSERT.run(connection, row)

    with pytest.raises(sa.exc.IntegrityError):
        shared_database.write_now(NOBODY, twice)
    with pytest.raises(InvalidText):
        shared_database.write_now(
            NOBODY, lambda connection: _INSERT.run(connection, {**row, "name": "\ud800"})
        )


def test_a_statement_that_a_proxy_forgot_is_prepared_again(
    postgres_cluster: PostgresCluster,
) -> None:
    url = postgres_url(postgres_cluster.new_database(migrated=True))
    with closing(PostgresDatabase(url, connections=1)) as database:

        def ask(connection: sa.Connection) -> Any:
            return _ONE.first(connection, {"more": 1})

        database.read_now(NOBODY, ask)
        database.read_now(NOBODY, lambda connection: connection.exec_driver_sql("DEALLOCATE ALL"))
        with pytest.raises(sa.exc.DBAPIError, match="does not exist"):
            database.read_now(NOBODY, ask)
        assert database.read_now(NOBODY, ask).sum == 2


def test_work_that_passed_over_an_error_is_not_taken_for_committed(
    postgres_cluster: PostgresCluster,
) -> None:
    url = postgres_url(postgres_cluster.new_database(migrated=True))
    row = {**_USER, "id": new_id(), "created_at_us": 1}

    def careless(connection: sa.Connection) -> None:
        _INSERT.run(connection, row)
        with pytest.raises(sa.exc.DBAPIError):
            connection.exec_driver_sql("SELECT 1 / 0")

    with closing(PostgresDatabase(url, connections=1)) as database:
        with pytest.raises(sa.exc.DBAPIError, match="had failed"):
            database.write_now(NOBODY, careless)
        found = database.read_now(
            NOBODY, lambda connection: _FIND.first(connection, {"wanted": row["id"]})
        )
    assert found is None
