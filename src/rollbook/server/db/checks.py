"""Checks of a database for `rollbook server doctor`: reachable, migrated, undamaged, and on PostgreSQL protected by
row-level security."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import sqlalchemy as sa

from rollbook.contracts.findings import Finding
from rollbook.errors import RollbookError
from rollbook.server.db.columns import now_us
from rollbook.server.db.engine import NOBODY, Database
from rollbook.server.db.migrate import HEAD, REVISIONS, current_revision, newer_advice
from rollbook.server.db.open import open_database
from rollbook.server.db.sqlite import sqlite_path
from rollbook.server.db.tables import metadata

_MOST_SKEW_S = 5


def examine_database(database_url: str) -> list[Finding]:
    """Checks in the order in which they depend on each other. Changes nothing."""
    kind = database_url.split(":", 1)[0]
    try:
        revision = current_revision(database_url)
        if revision != HEAD:
            return [_not_current(kind, revision)]
        current = Finding("database", True, f"{kind}, revision {revision}")
        with closing(open_database(database_url)) as database:
            look = _postgres if database.kind == "postgresql" else _sqlite
            return [current, *look(database, database_url)]
    except RollbookError as error:
        return [Finding.violation("database", error)]


def _not_current(kind: str, revision: str | None) -> Finding:
    if revision is None:
        why = f"{kind}: empty; `rollbook serve` or `rollbook server migrate` sets it up"
    elif revision not in REVISIONS:
        return Finding("database", False, f"{kind}: {newer_advice(revision)}", "newer_than_release")
    else:
        why = f"{kind}: at revision {revision}, this release needs {HEAD}; run `rollbook server migrate`"
    return Finding("database", False, why, "not_migrated")


def _ask(database: Database, query: str) -> list[Any]:
    return database.read_now(
        NOBODY, lambda connection: list(connection.execute(sa.text(query)).all())
    )


# ------------------------------------------------------------------------------------------- SQLite


def _sqlite(database: Database, database_url: str) -> Iterator[Finding]:
    (answer,) = _ask(database, "PRAGMA quick_check(1)")[0]
    if answer == "ok":
        yield Finding("database file", True, "whole")
    else:
        why = f"damaged: {answer}; restore a backup"
        yield Finding("database file", False, why, "damaged")
    path = sqlite_path(database_url)
    if path.stat().st_mode & 0o077:
        why = f"others may read {path}, which has hashes of keys in it; chmod 600 it"
        yield Finding("database file", False, why, "open_to_others")


# --------------------------------------------------------------------------------------- PostgreSQL


def _postgres(database: Database, _: str) -> Iterator[Finding]:
    yield examine_role(database)
    yield _policies(database)
    yield _clock(database)


def examine_role(database: Database) -> Finding:
    """Policies do not apply to a superuser, nor to a role with BYPASSRLS."""
    name, superuser, bypass = _ask(
        database,
        "SELECT rolname, rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user",
    )[0]
    if superuser or bypass:
        what = "a superuser" if superuser else "above row-level security"
        why = (
            f"role {name!r} is {what}, so the database does not keep tenants apart; "
            f"serve with a role made by CREATE ROLE … LOGIN NOSUPERUSER NOBYPASSRLS"
        )
        return Finding("database role", False, why, "role_above_policies")
    return Finding("database role", True, f"{name}, held by row-level security")


def _policies(database: Database) -> Finding:
    rows = _ask(
        database,
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relrowsecurity AND relforcerowsecurity "
        "AND relnamespace = current_schema()::regnamespace "
        "AND EXISTS (SELECT 1 FROM pg_policy WHERE polrelid = pg_class.oid)",
    )
    open_tables = sorted(set(metadata.tables) - {name for (name,) in rows})
    if open_tables:
        why = (
            f"{', '.join(open_tables)}: not under row-level security; "
            "ALTER TABLE … ENABLE and FORCE ROW LEVEL SECURITY, or restore a backup"
        )
        return Finding("row-level security", False, why, "no_row_level_security")
    return Finding("row-level security", True, f"on for all {len(metadata.tables)} tables")


def _clock(database: Database) -> Finding:
    """Signed URLs and sessions expire by the clock, and several machines may check them."""
    before = now_us()
    (theirs,) = _ask(database, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")[
        0
    ]
    after = now_us()
    skew_s = max(before - theirs, theirs - after, 0) / 1e6
    if skew_s > _MOST_SKEW_S:
        why = f"{skew_s:.0f} s apart from the database's; set both by NTP"
        return Finding("clock", False, why, "clock_skew")
    return Finding("clock", True, "agrees with the database's")
