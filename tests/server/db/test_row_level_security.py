"""On PostgreSQL no organisation is shown a row of another, and without one no row is shown at all: not even to SQL
that forgot to ask whose rows they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy as sa

from rollbook.errors import RollbookError
from rollbook.server.db import tables
from rollbook.server.db.columns import new_id
from rollbook.server.db.engine import NOBODY, Database, Tenant
from rollbook.server.db.migrate import migrate
from rollbook.server.db.open import open_database, postgres_url
from rollbook.server.db.postgres import PostgresDatabase
from rollbook.server.queries import (
    create_device_login,
    create_session,
    create_sign_in_link,
    delete_expired,
    device_login,
    device_login_by_user_code,
    invitation_by_hash,
    key_by_id,
    organisation_ids,
    organisations_of_user,
    session_by_hash,
    touch_key,
    user_by_email,
    user_by_id,
)
from tests.server.db.two_tenants import (
    Ids,
    World,
    everything_of,
    everything_of_the_first,
    fill,
    made_world,
    rows_of,
    secret_of,
)
from tests.server.postgres_cluster import PostgresCluster
from tests.server.tenants import new_organisation


@pytest.fixture(scope="module")
def guarded(postgres_cluster: PostgresCluster) -> Iterator[World]:
    url = postgres_cluster.new_database(migrated=True)
    as_admin = postgres_cluster.admin_url(urlsplit(url).path[1:])
    with made_world(open_database(url), sa.create_engine(postgres_url(as_admin))) as made:
        yield made


def every_table(connection: sa.Connection) -> list[sa.Table]:
    """From the catalogue of the database, so that a table without a policy cannot be left out here. Only the number of
    the schema, which belongs to nobody, is open."""
    kinds = "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p', 'v', 'm', 'f') "
    query = sa.text(kinds + "AND relnamespace = current_schema()::regnamespace")
    names = set(connection.execute(query).scalars()) - {"alembic_version"}
    assert names == set(tables.metadata.tables)
    return [tables.metadata.tables[name] for name in sorted(names)]


def counts(connection: sa.Connection) -> dict[str, int]:
    """By SQL that does not say whose rows are meant."""
    return {
        table.name: connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0
        for table in every_table(connection)
    }


def seen(database: Database, tenant: Tenant) -> dict[str, int]:
    """Tables that show rows, and how many."""
    shown = database.read_now(tenant, counts)
    return {name: count for name, count in shown.items() if count}


def test_the_application_is_not_above_the_policies(guarded: World) -> None:
    query = sa.text("SELECT rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user")
    role = guarded.first.database.read_now(NOBODY, lambda c: tuple(c.execute(query).one()))
    assert role == (False, False)


OF_PERSONS = ("sign_in_links", "device_logins", "leases")
"""What waits for a person to sign in or to decide, and who does the upkeep, is shown to no organisation."""


@pytest.mark.parametrize("tenant", [NOBODY, Tenant(org_id=""), Tenant(org_id="unknown")])
def test_without_a_tenant_no_table_shows_a_row(guarded: World, tenant: Tenant) -> None:
    assert seen(guarded.first.database, tenant) == {}


def test_a_tenant_sees_its_own_rows_by_any_query_and_no_others(guarded: World) -> None:
    def everything_shown(connection: sa.Connection) -> dict[str, list[Any]]:
        return {table.name: rows_of(connection, table) for table in every_table(connection)}

    for org in (guarded.first, guarded.second):
        shown = org.database.read_now(Tenant(org_id=org.org_id), everything_shown)
        assert shown == {
            name: [] if name in OF_PERSONS else rows
            for name, rows in everything_of(guarded, org).items()
        }


@pytest.mark.parametrize("name", sorted(tables.metadata.tables))
def test_without_a_tenant_no_row_can_be_added_to_any_table(guarded: World, name: str) -> None:
    """Not even a copy of one that is there: the policy refuses before the key does."""
    row = everything_of_the_first(guarded)[name][0]._asdict()
    insert = sa.insert(tables.metadata.tables[name]).values(row)
    for tenant in (NOBODY, Tenant(org_id=""), Tenant(org_id=guarded.second.org_id)):
        with pytest.raises(sa.exc.ProgrammingError, match="row-level security"):
            guarded.second.database.write_now(tenant, lambda c: c.execute(insert))


@pytest.mark.parametrize("ends", ["well", "with an error of its own", "with an error of SQL"])
def test_a_connection_that_is_used_again_remembers_no_tenant(guarded: World, ends: str) -> None:
    database = guarded.first.database

    def work(connection: sa.Connection) -> None:
        assert counts(connection)["episodes"] > 0
        if ends == "with an error of its own":
            raise LookupError
        if ends == "with an error of SQL":
            connection.execute(sa.text("SELECT 1 / 0"))

    futures = [database.submit_write(Tenant(org_id=guarded.ids.org), work) for _ in range(40)]
    assert [future.exception() is None for future in futures] == [ends == "well"] * 40
    assert isinstance(database, PostgresDatabase)
    with ExitStack() as stack:  # all connections of the pool, by a way that names no tenant at all
        idle = database._engine.pool.checkedin()  # type: ignore[attr-defined]
        assert idle
        for _ in range(idle):
            assert set(counts(stack.enter_context(database._engine.connect())).values()) == {0}
    after = [database.submit_read(NOBODY, counts) for _ in range(40)]
    assert all(set(future.result().values()) == {0} for future in after)


def test_a_row_of_another_tenant_cannot_be_written(guarded: World) -> None:
    database = guarded.second.database
    row = {"key": "k", "request_digest": "d", "episode_id": "e", "created_at_us": 1}
    insert = sa.insert(tables.idempotency_keys).values(org_id=guarded.ids.org, **row)
    for tenant in (Tenant(org_id=guarded.second.org_id), NOBODY):
        with pytest.raises(sa.exc.ProgrammingError, match="row-level security"):
            database.write_now(tenant, lambda connection: connection.execute(insert))


def test_a_row_cannot_be_given_away(guarded: World) -> None:
    guarded.second.episode()
    move = sa.update(tables.episodes).values(org_id=guarded.ids.org)
    with pytest.raises(sa.exc.ProgrammingError, match="row-level security"):
        guarded.second.database.write_now(
            Tenant(org_id=guarded.second.org_id), lambda connection: connection.execute(move)
        )


@pytest.mark.parametrize("name", sorted(tables.metadata.tables))
def test_sql_that_forgets_the_tenant_changes_only_its_own(guarded: World, name: str) -> None:
    before = everything_of_the_first(guarded)
    table = tables.metadata.tables[name]
    column = next(iter(table.c))
    for statement in (sa.update(table).values({column.name: column}), sa.delete(table)):
        for tenant in (NOBODY, Tenant(org_id=new_id())):
            changed = guarded.second.database.write_now(
                tenant,
                lambda connection, statement=statement: connection.execute(statement).rowcount,  # type: ignore[misc]
            )
            assert changed == 0
    assert everything_of_the_first(guarded) == before


def test_a_row_cannot_hang_on_a_row_of_another_tenant(shared_database: Database) -> None:
    """On both databases: a reference within a tenant names the tenant."""
    first, second = new_organisation(shared_database), new_organisation(shared_database)
    made = first.episode()
    row = {"episode_id": made.id, "kind": "video", "object_key": "k", "content_type": "t"}
    insert = sa.insert(tables.artifacts).values(
        org_id=second.org_id, status="requested", requested_at_us=1, **row
    )
    with pytest.raises(sa.exc.IntegrityError, match=r"(?i)foreign key"):
        shared_database.write_now(
            Tenant(org_id=second.org_id), lambda connection: connection.execute(insert)
        )


# ---------------------------------------------------------------------- before the tenant is known


def test_a_user_sees_their_memberships_and_nothing_more(guarded: World) -> None:
    database, owner = guarded.first.database, guarded.ids.owner
    assert seen(database, Tenant(user_id=owner)) == {"memberships": 1, "organisations": 1}
    assert (
        len(database.read_now(Tenant(user_id=owner), lambda c: organisations_of_user(c, owner)))
        == 1
    )
    stranger = Tenant(user_id=guarded.second.owner_id)
    assert database.read_now(stranger, lambda c: organisations_of_user(c, owner)) == []
    promote = sa.update(tables.memberships).values(role="owner")
    assert database.write_now(Tenant(user_id=owner), lambda c: c.execute(promote).rowcount) == 0


def test_a_key_is_seen_by_who_names_it_and_only_its_last_use_can_be_changed(guarded: World) -> None:
    database, key_id = guarded.first.database, guarded.ids.key
    by_key = Tenant(key_id=key_id)
    assert seen(database, by_key) == {"api_keys": 1}
    assert database.read_now(by_key, lambda c: key_by_id(c, key_id)) is not None
    assert database.read_now(NOBODY, lambda c: key_by_id(c, key_id)) is None
    assert database.write_now(by_key, lambda c: touch_key(c, key_id))
    for change in (
        {"org_id": guarded.second.org_id},
        {"revoked_at_us": 1},
        {"secret_hash": "mine"},
    ):
        statement = sa.update(tables.api_keys).values(**change)
        with pytest.raises(sa.exc.ProgrammingError, match="only its last use"):
            database.write_now(by_key, lambda c, s=statement: c.execute(s))  # type: ignore[misc]
    assert database.write_now(by_key, lambda c: c.execute(sa.delete(tables.api_keys)).rowcount) == 0


def test_an_invitation_is_seen_by_who_holds_its_token(guarded: World) -> None:
    with guarded.unprotected.connect() as connection:
        token_hash = connection.execute(sa.select(tables.invitations.c.token_hash)).scalar_one()
    holder = Tenant(invitation_hash=token_hash)
    database = guarded.first.database
    assert database.read_now(holder, lambda c: invitation_by_hash(c, token_hash)) is not None
    assert database.read_now(NOBODY, lambda c: invitation_by_hash(c, token_hash)) is None
    assert seen(database, holder) == {"invitations": 1}
    change = sa.update(tables.invitations).values(role="owner")
    assert database.write_now(holder, lambda c: c.execute(change).rowcount) == 0


LOOKUPS: dict[str, tuple[Callable[[sa.Connection, Ids], object], dict[str, int]]] = {
    "a session by its token": (
        lambda connection, ids: session_by_hash(connection, secret_of("session", ids.org)),
        {"sessions": 1},
    ),
    "a device by its own code": (
        lambda connection, ids: device_login(connection, secret_of("device", ids.org)),
        {"device_logins": 1},
    ),
    "a device by the code that it shows": (
        lambda connection, ids: device_login_by_user_code(connection, secret_of("code", ids.org)),
        {"device_logins": 1},
    ),
    "a person by e-mail address": (
        lambda connection, ids: user_by_email(connection, f"owner@{ids.org}.example"),
        {"users": 1},
    ),
    "a person by id, with what signs them in": (
        lambda connection, ids: user_by_id(connection, ids.owner),
        {"users": 1, "sessions": 1, "sign_in_links": 1},
    ),
    "organisations, for upkeep": (
        lambda connection, ids: organisation_ids(connection),
        {"organisations": 2},
    ),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_lookup_shows_what_it_names_until_its_transaction_ends(guarded: World, name: str) -> None:
    look_up, shown = LOOKUPS[name]

    def work(connection: sa.Connection) -> dict[str, int]:
        assert look_up(connection, guarded.ids)
        return {name: count for name, count in counts(connection).items() if count}

    assert guarded.first.database.read_now(NOBODY, work) == shown
    assert seen(guarded.first.database, NOBODY) == {}


def test_a_lookup_of_one_row_changes_no_other(guarded: World) -> None:
    before = everything_of_the_first(guarded)

    def forgetful(connection: sa.Connection) -> int:
        """As the second's owner, by statements that forgot their WHERE."""
        assert user_by_id(connection, guarded.second.owner_id)
        changed = 0
        for name in ("users", "sessions", "sign_in_links", "device_logins", "organisations"):
            table = tables.metadata.tables[name]
            column = next(iter(table.c))
            for statement in (sa.update(table).values({column.name: column}), sa.delete(table)):
                changed += connection.execute(statement).rowcount
        return changed

    own_name_only = 1
    assert guarded.second.database.write_now(NOBODY, forgetful) == own_name_only
    assert everything_of_the_first(guarded) == before


def test_upkeep_deletes_what_ended_and_sees_nothing_else(guarded: World) -> None:
    database, org = guarded.second.database, guarded.second
    before = everything_of_the_first(guarded)

    def end(connection: sa.Connection) -> None:
        create_session(
            connection, new_id(), org.owner_id, org.org_id, csrf_token="c", expires_at_us=5
        )
        create_sign_in_link(connection, new_id(), org.owner_id, expires_at_us=5)
        create_device_login(connection, new_id(), new_id(), expires_at_us=5)

    def upkeep(connection: sa.Connection) -> tuple[int, dict[str, int]]:
        return delete_expired(connection, 6), counts(connection)

    database.write_now(Tenant(org_id=org.org_id), end)
    ended, shown = database.write_now(NOBODY, upkeep)
    assert (ended, set(shown.values())) == (3, {0})
    assert everything_of_the_first(guarded) == before


def test_an_organisation_is_made_in_a_transaction_of_its_own_only(guarded: World) -> None:
    from rollbook.server.queries import create_organisation

    database = guarded.first.database
    with pytest.raises((sa.exc.ProgrammingError, RollbookError)):
        database.write_now(NOBODY, lambda c: create_organisation(c, new_id(), "Stray"))


def test_a_role_that_owns_nothing_can_serve(postgres_cluster: PostgresCluster) -> None:
    url = postgres_cluster.new_database(migrated=True)
    with psycopg.connect(url, autocommit=True) as owner:
        name = "rollbook_only_serves"
        with psycopg.connect(postgres_cluster.admin_url(), autocommit=True) as admin:
            admin.execute(f"CREATE ROLE {name} LOGIN NOSUPERUSER NOBYPASSRLS".encode())
        tables_of = "ALL TABLES IN SCHEMA public"
        owner.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables_of} TO {name}".encode())
        owner.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {name}".encode())
    as_server = url.replace("rollbook_app", name, 1)
    assert migrate(as_server) == []
    with closing(open_database(as_server)) as database:
        ids = fill(new_organisation(database))
        assert seen(database, NOBODY) == {}
        shown = seen(database, Tenant(org_id=ids.org))
        assert set(shown) == set(tables.metadata.tables) - set(OF_PERSONS)
