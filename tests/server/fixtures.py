"""What tests of the server are given. Other folders of tests may import these names into their own conftest."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from rollbook.server.db.engine import Database
from rollbook.server.db.open import open_database
from rollbook.server.db.sqlite import SqliteDatabase
from tests.server.postgres_cluster import PostgresCluster
from tests.server.running import RunningServer

StartServer: TypeAlias = "Callable[..., RunningServer]"


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[PostgresCluster]:
    cluster = PostgresCluster()
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def postgres_url(postgres_cluster: PostgresCluster) -> str:
    """One empty database for the whole session. `postgres_cluster.new_database()` gives one of your own."""
    return postgres_cluster.new_database()


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copied rather than migrated again for every test."""
    from rollbook.server.db.migrate import migrate

    path = tmp_path_factory.mktemp("migrated") / "rollbook.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", "postgres"])
def database_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def empty_database_url(database_kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Nothing has been migrated there yet."""
    if database_kind == "sqlite":
        return f"sqlite:///{tmp_path / 'empty' / 'rollbook.db'}"
    cluster: PostgresCluster = request.getfixturevalue("postgres_cluster")
    return cluster.new_database()


@pytest.fixture
def database_url(database_kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Migrated and empty."""
    if database_kind == "sqlite":
        path = tmp_path / "rollbook.db"
        shutil.copy(request.getfixturevalue("migrated_sqlite"), path)
        return f"sqlite:///{path}"
    cluster: PostgresCluster = request.getfixturevalue("postgres_cluster")
    return cluster.new_database(migrated=True)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """Open, migrated, empty; once on SQLite and once on PostgreSQL."""
    opened = open_database(database_url)
    yield opened
    opened.close()


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def shared_database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    """Migrated, and full of what other tests left: for tests that make an organisation of their own, which is quick."""
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("shared") / "rollbook.db"
        shutil.copy(request.getfixturevalue("migrated_sqlite"), path)
        opened = open_database(f"sqlite:///{path}")
    else:
        cluster: PostgresCluster = request.getfixturevalue("postgres_cluster")
        opened = open_database(cluster.new_database(migrated=True))
    yield opened
    opened.close()


@pytest.fixture
def sqlite_database(migrated_sqlite: Path, tmp_path: Path) -> Iterator[SqliteDatabase]:
    """For what only SQLite does."""
    path = tmp_path / "only" / "rollbook.db"
    path.parent.mkdir()
    shutil.copy(migrated_sqlite, path)
    opened = SqliteDatabase(path)
    yield opened
    opened.close()


@pytest.fixture
def postgres_database(postgres_cluster: PostgresCluster) -> Iterator[Database]:
    """For what only PostgreSQL does."""
    opened = open_database(postgres_cluster.new_database(migrated=True))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """`with running_server(reap_after_s=60) as server: …`; keywords are settings. A module may share one server."""
    started: list[RunningServer] = []

    def start(data_dir: Path | None = None, **overrides: Any) -> RunningServer:
        server = RunningServer(data_dir or tmp_path_factory.mktemp("server"), overrides)
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()
