"""Fixtures of every test of the server; fixtures.py says what each gives."""

from __future__ import annotations

from tests.server.fixtures import (
    database,
    database_kind,
    database_url,
    empty_database_url,
    migrated_sqlite,
    postgres_cluster,
    postgres_database,
    postgres_url,
    running_server,
    shared_database,
    sqlite_database,
)

__all__ = [
    "database",
    "database_kind",
    "database_url",
    "empty_database_url",
    "migrated_sqlite",
    "postgres_cluster",
    "postgres_database",
    "postgres_url",
    "running_server",
    "shared_database",
    "sqlite_database",
]
