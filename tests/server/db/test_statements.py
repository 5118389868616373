"""Plain statements: values of every type come back as they were written, on both databases."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from rollbook.errors import InvalidText
from rollbook.server.db import statements, tables
from rollbook.server.db.columns import new_id
from rollbook.server.db.engine import NOBODY, Database, Tenant
from rollbook.server.queries import create_organisation


def _user(**values: Any) -> dict[str, Any]:
    named = {"id": new_id(), "email": new_id(), "name": "Ä", "password_hash": None}
    return {**named, "created_at_us": 2**40, **values}


def test_what_is_written_is_read_back(shared_database: Database) -> None:
    row = _user()

    def work(connection: sa.Connection) -> Any:
        statements.insert(connection, tables.users, row)
        return statements.first(connection, tables.users, {"id": row["id"], "password_hash": None})

    assert dict(shared_database.write_now(NOBODY, work)._mapping) == row


def test_numbers_of_any_size_and_json_pass_through_the_types_of_their_columns(
    shared_database: Database,
) -> None:
    org_id = new_id()
    values = {"org_id": org_id, "id": new_id(), "source": "sim", "status": "ready", "tags": ["ü"]}
    row = {**values, "seed": 10**30, "fps": 0.1, "metadata": {"x": [1, None, 1e22, 10**25]}}

    def work(connection: sa.Connection) -> Any:
        create_organisation(connection, org_id, "Numbers")
        times = {"created_at_us": 1, "updated_at_us": 1}
        statements.insert(connection, tables.episodes, {**row, **times})
        return statements.first(connection, tables.episodes, {"org_id": org_id})

    found = shared_database.write_now(Tenant(org_id=org_id), work)._mapping
    assert {name: found[name] for name in row} == row


def test_a_row_of_the_same_key_is_not_inserted_again(shared_database: Database) -> None:
    row = _user()

    def work(connection: sa.Connection) -> list[bool]:
        return [statements.insert_new(connection, tables.users, row) for _ in range(2)]

    assert shared_database.write_now(NOBODY, work) == [True, False]


def test_changes_of_other_columns_reach_the_rows_they_are_for(shared_database: Database) -> None:
    one, two, three = _user(), _user(), _user()

    def work(connection: sa.Connection) -> Any:
        statements.insert(connection, tables.users, [one, two, three])
        changes: list[tuple[statements.Values, statements.Values]] = [
            ({"name": "a"}, {"id": one["id"]}),
            ({"name": "b", "created_at_us": 7}, {"id": two["id"]}),
            ({"name": "c"}, {"id": three["id"]}),
        ]
        statements.update_many(connection, tables.users, changes)
        same = {"id": two["id"], "name": "b"}
        assert statements.update(connection, tables.users, {"name": "d"}, same) == 1
        assert statements.update(connection, tables.users, {"name": "e"}, same) == 0
        assert statements.delete(connection, tables.users, {"id": one["id"], "name": "a"}) == 1
        found = (
            statements.first(connection, tables.users, {"id": row["id"]}) for row in (one, two)
        )
        return [None if row is None else (row.name, row.created_at_us) for row in found]

    assert shared_database.write_now(NOBODY, work) == [None, ("d", 7)]


def test_a_text_that_cannot_be_stored_finds_nothing_and_is_refused_when_written(
    shared_database: Database,
) -> None:
    row = _user()

    def work(connection: sa.Connection) -> Any:
        return statements.first(connection, tables.users, {"id": "\x00"})

    assert shared_database.read_now(NOBODY, work) is None
    with pytest.raises(InvalidText):
        shared_database.write_now(
            NOBODY,
            lambda connection: statements.insert(
                connection, tables.users, {**row, "name": "\ud800"}
            ),
        )


def test_a_second_row_of_the_same_key_is_an_error_of_sqlalchemy(shared_database: Database) -> None:
    row = _user()
    with pytest.raises(sa.exc.IntegrityError):
        shared_database.write_now(
            NOBODY, lambda connection: statements.insert(connection, tables.users, [row, row])
        )
