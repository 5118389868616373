"""Dumps of PostgreSQL, by its own programs pg_dump and pg_restore.

A dump and what is read beside it are of one snapshot. A dump is restored in one transaction: completely or not at all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from rollbook.errors import ConfigurationError, StorageError
from rollbook.server.db.errors import translated
from rollbook.server.db.open import postgres_url

T = TypeVar("T")

_LONGEST_MESSAGE = 300


def dump(database_url: str, target: Path, read: Callable[[sa.Connection], T]) -> T:
    """Dumps the database while others write. Returns what `read` finds in the same snapshot."""
    program = _program("pg_dump")

    def work(connection: sa.Connection) -> T:
        _refuse_role_under_policies(connection)
        snapshot = connection.scalar(sa.text("SELECT pg_export_snapshot()"))
        found = read(connection)
        options = ("--format=custom", "--no-owner", "--no-privileges", f"--snapshot={snapshot}")
        _run(program, *options, f"--file={target}", url=database_url)
        return found

    return _within(database_url, work, isolation_level="REPEATABLE READ")


def load(dumped: Path, database_url: str) -> None:
    """Fills an empty database, whose tables then belong to the role of the URL."""
    program = _program("pg_restore")
    _within(database_url, _refuse_full_database)
    options = ("--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges")
    _run(program, *options, str(dumped), url=database_url)


def _within(
    database_url: str, work: Callable[[sa.Connection], T], isolation_level: str | None = None
) -> T:
    options = {} if isolation_level is None else {"isolation_level": isolation_level}
    engine = sa.create_engine(
        postgres_url(database_url), poolclass=sa.pool.NullPool, hide_parameters=True, **options
    )
    try:
        with engine.connect() as connection:
            return work(connection)
    except sa.exc.SQLAlchemyError as error:
        fault = translated(error)
        if fault is error:
            raise
        raise fault from error
    finally:
        engine.dispose()


def _refuse_role_under_policies(connection: sa.Connection) -> None:
    """pg_dump would refuse it too, but not say what to do."""
    query = "SELECT rolname, rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user"
    name, sees_all = connection.execute(sa.text(query)).one()
    if not sees_all:
        message = (
            f"database: role {name!r} sees one organisation at a time, so it cannot back up all; give --database with "
            "a role made by CREATE ROLE … LOGIN BYPASSRLS and GRANT pg_read_all_data TO …"
        )
        raise ConfigurationError(message=message)


def _refuse_full_database(connection: sa.Connection) -> None:
    names = sa.inspect(connection).get_table_names()
    if names:
        message = (
            f"database: it has tables already, such as {names[0]!r}; restore into an empty database"
        )
        raise ConfigurationError(message=message)


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        message = (
            f"{name} is not installed here, and without it PostgreSQL cannot be copied; install the client programs of "
            "PostgreSQL, at least of the version of your database, and put them on PATH"
        )
        raise ConfigurationError(message=message)
    return found


def _run(program: str, *arguments: str, url: str) -> None:
    """The password is passed by the environment: everybody on this machine can read the arguments."""
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    where: dict[str, Any] = conninfo_to_dict("postgresql://" + url.split("://", 1)[1])
    password = where.pop("password", None)
    environment = {**os.environ, **({} if password is None else {"PGPASSWORD": str(password)})}
    command = [program, *arguments, f"--dbname={make_conninfo('', **where)}", "--no-password"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[:_LONGEST_MESSAGE]
        raise StorageError(path=Path(program).name, detail=f"it failed: {said}")
