"""Plain statements: values of every type come back as they were written, on both databases."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
import sqlalchemy as sa

from rollbook.errors import InvalidText
from rollbook.server.db import statements, tables
from rollbook.server.db.columns import new_id
from rollbook.server.db.engine import Database, Tenant, Work
from rollbook.server.queries import create_organisation
from tests.server.tenants import Organisation, new_organisation

T = TypeVar("T")


@pytest.fixture
def org(shared_database: Database) -> Organisation:
    return new_organisation(shared_database)


def _invitation(org: Organisation) -> dict[str, Any]:
    named = {"org_id": org.org_id, "id": new_id(), "token_hash": new_id(), "email": "Ä"}
    empty = {"invited_by": None, "accepted_at_us": None}
    return {**named, **empty, "role": "viewer", "created_at_us": 2**40, "expires_at_us": 1}


def _write(org: Organisation, work: Work[T]) -> T:
    return org.database.write_now(Tenant(org_id=org.org_id), work)


def test_what_is_written_is_read_back(org: Organisation) -> None:
    row = _invitation(org)

    def work(connection: sa.Connection) -> Any:
        statements.insert(connection, tables.invitations, row)
        return statements.first(
            connection, tables.invitations, {"id": row["id"], "invited_by": None}
        )

    assert dict(_write(org, work)._mapping) == row


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


def test_a_row_of_the_same_key_is_not_inserted_again(org: Organisation) -> None:
    row = _invitation(org)

    def work(connection: sa.Connection) -> list[bool]:
        return [statements.insert_new(connection, tables.invitations, row) for _ in range(2)]

    assert _write(org, work) == [True, False]


def test_changes_of_other_columns_reach_the_rows_they_are_for(org: Organisation) -> None:
    one, two, three = _invitation(org), _invitation(org), _invitation(org)

    def work(connection: sa.Connection) -> Any:
        statements.insert(connection, tables.invitations, [one, two, three])
        changes: list[tuple[statements.Values, statements.Values]] = [
            ({"email": "a"}, {"id": one["id"]}),
            ({"email": "b", "created_at_us": 7}, {"id": two["id"]}),
            ({"email": "c"}, {"id": three["id"]}),
        ]
        statements.update_many(connection, tables.invitations, changes)
        same = {"id": two["id"], "email": "b"}
        assert statements.update(connection, tables.invitations, {"email": "d"}, same) == 1
        assert statements.update(connection, tables.invitations, {"email": "e"}, same) == 0
        assert (
            statements.delete(connection, tables.invitations, {"id": one["id"], "email": "a"}) == 1
        )
        found = (
            statements.first(connection, tables.invitations, {"id": row["id"]})
            for row in (one, two)
        )
        return [None if row is None else (row.email, row.created_at_us) for row in found]

    assert _write(org, work) == [None, ("d", 7)]


def test_a_text_that_cannot_be_stored_finds_nothing_and_is_refused_when_written(
    org: Organisation,
) -> None:
    row = _invitation(org)

    def work(connection: sa.Connection) -> Any:
        return statements.first(connection, tables.invitations, {"id": "\x00"})

    assert _write(org, work) is None
    with pytest.raises(InvalidText):
        _write(
            org,
            lambda connection: statements.insert(
                connection, tables.invitations, {**row, "email": "\ud800"}
            ),
        )


def test_a_second_row_of_the_same_key_is_an_error_of_sqlalchemy(org: Organisation) -> None:
    row = _invitation(org)
    with pytest.raises(sa.exc.IntegrityError):
        _write(
            org, lambda connection: statements.insert(connection, tables.invitations, [row, row])
        )
