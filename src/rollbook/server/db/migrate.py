"""Migrations: bring a database to the schema of this release, completely or not at all.

Every step runs in one transaction, on both databases, so a process that dies leaves the old schema. Processes that
start together take turns; the later ones find nothing left to do.

On PostgreSQL the role that migrates owns the tables. A server may run as another role that owns nothing, if it was
granted SELECT, INSERT, UPDATE and DELETE on all tables and USAGE on all sequences of the schema.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from rollbook.errors import ConfigurationError, StorageError
from rollbook.server.db.errors import translated
from rollbook.server.db.open import postgres_url
from rollbook.server.db.sqlite import make_private_file, sqlite_engine, sqlite_path

_FOLDER = Path(__file__).with_name("migrations")
REVISIONS = sorted(path.name[:4] for path in _FOLDER.glob("versions/[0-9]*.py"))
HEAD = REVISIONS[-1]
"""The newest revision, from the file names: a current database is recognised without loading Alembic."""

_ADVISORY_LOCK = 0x526F6C6C626F6F6B
"""A number that no other program on the same database uses."""


def migrate(database_url: str) -> list[str]:
    """Applies the missing revisions and returns them."""
    if current_revision(database_url) == HEAD:
        return []
    with _fault_of_ours(), _locked_connection(database_url) as connection:
        current = _revision(connection)
        if current == HEAD:
            return []
        applied = _upgrade(connection, current)
        _refuse_dangling_rows(connection)
        return applied


def current_revision(database_url: str) -> str | None:
    """None when nothing was migrated. Changes nothing, and creates no file."""
    if database_url.startswith("sqlite:///") and not sqlite_path(database_url).exists():
        return None
    with _fault_of_ours(), _engine(database_url) as engine, engine.connect() as connection:
        return _revision(connection)


def _upgrade(connection: sa.Connection, current: str | None) -> list[str]:
    from alembic import command
    from alembic.config import Config

    if current is not None and current not in REVISIONS:
        raise ConfigurationError(message=f"the database {newer_advice(current)}")
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    applied: list[str] = []

    def on_version_apply(*, step: Any, **_: Any) -> None:
        applied.append(step.up_revision_id)

    config.attributes.update(connection=connection, on_version_apply=on_version_apply)
    command.upgrade(config, "head")
    return applied


def newer_advice(revision: str) -> str:
    """What is wrong with a database whose revision is not in REVISIONS, and what to do."""
    return (
        f"has revision {revision!r}, which this release does not know: "
        "a newer release migrated it, so install that one or restore a backup"
    )


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()


def _refuse_dangling_rows(connection: sa.Connection) -> None:
    """SQLite cannot check references while a table is rebuilt, so they are checked before the commit."""
    if connection.dialect.name == "sqlite":
        dangling = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
        if dangling is not None:
            detail = f"a row of {dangling[0]} refers to a row of {dangling[2]} that is not there; nothing was changed"
            raise StorageError(path="database", detail=detail)


@contextmanager
def _fault_of_ours() -> Iterator[None]:
    try:
        yield
    except sa.exc.SQLAlchemyError as error:
        fault = translated(error)
        if fault is error:
            raise
        raise fault from error


@contextmanager
def _engine(database_url: str) -> Iterator[sa.Engine]:
    if database_url.startswith("sqlite:///"):
        engine = sqlite_engine(sqlite_path(database_url))
    elif database_url.startswith("postgres"):
        from rollbook.server.db.postgres import connect_options

        url = postgres_url(database_url)
        engine = sa.create_engine(
            url,
            connect_args=connect_options(url),
            poolclass=sa.pool.NullPool,
            hide_parameters=True,
        )
    else:
        raise ConfigurationError(message="database: expected sqlite:///PATH or postgresql://…")
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def _locked_connection(database_url: str) -> Iterator[sa.Connection]:
    """A transaction that is committed at the end, while no other process can migrate this database."""
    if not database_url.startswith("sqlite:///"):
        with _engine(database_url) as engine, engine.begin() as connection:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
            yield connection
        return
    path = sqlite_path(database_url)
    make_private_file(path)
    # a lock of our own: SQLite does not wait for its lock while it switches a new file to WAL
    lock = path.with_name(f"{path.name}.migrate-lock")
    with open(lock, "ab") as file, _engine(database_url) as engine:
        fcntl.flock(file, fcntl.LOCK_EX)
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
            connection.rollback()
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
            connection.commit()
