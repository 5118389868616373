"""Opening a database by its URL. The driver of a database that is not used is not loaded."""

from __future__ import annotations

import sqlalchemy as sa

from rollbook.errors import ConfigurationError
from rollbook.server.db.engine import Database
from rollbook.server.db.sqlite import SqliteDatabase, sqlite_path
from rollbook.server.metrics import NO_METRICS, Metrics

_POSTGRES_SCHEMES = ("postgresql://", "postgres://", "postgresql+psycopg://")


def open_database(url: str, *, connections: int = 16, metrics: Metrics = NO_METRICS) -> Database:
    """`sqlite:///path` or `postgresql://…`, which gets at most so many `connections`."""
    if url.startswith("sqlite:///"):
        return SqliteDatabase(sqlite_path(url), metrics)
    named = postgres_url(url)
    from rollbook.server.db.postgres import PostgresDatabase

    return PostgresDatabase(named, connections, metrics)


def postgres_url(url: str) -> str:
    """Names the driver: otherwise SQLAlchemy would choose by what is installed."""
    if not url.startswith(_POSTGRES_SCHEMES):
        scheme = url.split("://", 1)[0] if "://" in url else "a path without a scheme"
        message = f"database: {scheme} is not supported; expected sqlite:///PATH or postgresql://…"
        raise ConfigurationError(message=message)
    named = "postgresql+psycopg://" + url.split("://", 1)[1]
    try:
        sa.make_url(named)
    except (ValueError, sa.exc.ArgumentError) as error:
        # without the URL, which may hold a password
        message = (
            "database: it is not a URL such as postgresql://user@host:5432/name; check the port, and write special "
            "characters of the password as %XX"
        )
        raise ConfigurationError(message=message) from error
    return named
