"""Migrations bring any database to the schema of tables.py, once, also when two start together or one is killed."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from rollbook.errors import ConfigurationError, DatabaseUnavailable
from rollbook.server.db import migrate as migrate_module
from rollbook.server.db.migrate import HEAD, current_revision, migrate
from rollbook.server.db.open import postgres_url
from rollbook.server.db.sqlite import make_private_file, sqlite_engine, sqlite_path
from rollbook.server.db.tables import metadata
from tests.leash import tie
from tests.server.postgres_cluster import PostgresCluster

REVISIONS = sorted(path.name[:4] for path in migrate_module._FOLDER.glob("versions/[0-9]*.py"))
"""In the order in which they are applied to an empty database."""


@contextmanager
def connected(url: str) -> Iterator[sa.Connection]:
    sqlite = url.startswith("sqlite")
    engine = sqlite_engine(sqlite_path(url)) if sqlite else sa.create_engine(postgres_url(url))
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def test_an_empty_database_gets_every_table_once(empty_database_url: str) -> None:
    assert current_revision(empty_database_url) is None
    assert migrate(empty_database_url) == REVISIONS
    assert migrate(empty_database_url) == []
    assert current_revision(empty_database_url) == HEAD
    with connected(empty_database_url) as connection:
        names = set(sa.inspect(connection).get_table_names())
    assert names == set(metadata.tables) | {"alembic_version"}


def test_the_migrated_schema_is_the_one_the_queries_are_written_for(database_url: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with connected(database_url) as connection:
        options = {"compare_type": True, "compare_server_default": True}
        differences = compare_metadata(
            MigrationContext.configure(connection, opts=options), metadata
        )
        assert differences == []
        there = sa.inspect(connection)
        for table in metadata.tables.values():
            assert there.get_pk_constraint(table.name)["constrained_columns"] == [
                column.name for column in table.primary_key
            ]
            references = {
                (tuple(key["constrained_columns"]), key["options"].get("ondelete"))
                for key in there.get_foreign_keys(table.name)
            }
            assert references == {
                (tuple(constraint.column_keys), constraint.ondelete)
                for constraint in table.foreign_key_constraints
            }


def test_the_newest_revision_is_the_one_named_in_the_code() -> None:
    from alembic.script import ScriptDirectory

    assert ScriptDirectory(str(migrate_module._FOLDER)).get_heads() == [HEAD]


def test_looking_at_the_revision_creates_nothing(tmp_path: Path) -> None:
    assert current_revision(f"sqlite:///{tmp_path / 'none.db'}") is None
    assert list(tmp_path.iterdir()) == []


def test_a_database_of_a_newer_release_is_left_alone(database_url: str) -> None:
    with connected(database_url) as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
        connection.commit()
    with pytest.raises(ConfigurationError, match="newer release"):
        migrate(database_url)
    assert current_revision(database_url) == "9999"


def test_a_migration_that_fails_changes_nothing(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: sa.Connection) -> None:
        assert sa.inspect(connection).has_table("episodes")
        raise LookupError

    with monkeypatch.context() as patch:
        patch.setattr(migrate_module, "_refuse_dangling_rows", fail)
        with pytest.raises(LookupError):
            migrate(empty_database_url)
    with connected(empty_database_url) as connection:
        assert sa.inspect(connection).get_table_names() == []
    assert migrate(empty_database_url) == REVISIONS


def test_a_database_that_cannot_be_reached_is_a_fault_without_its_password() -> None:
    with pytest.raises(DatabaseUnavailable) as caught:
        migrate("postgresql://someone:hunter2@127.0.0.1:9/none?connect_timeout=2")
    assert "hunter2" not in str(caught.value)


def test_another_kind_of_database_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="sqlite:///"):
        migrate("mysql://somewhere")


_MIGRATE = "import sys; from rollbook.server.db.migrate import migrate; print(migrate(sys.argv[1]))"


@pytest.mark.slow
def test_processes_that_start_together_take_turns(empty_database_url: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _MIGRATE, empty_database_url], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    answers = sorted(process.communicate(timeout=60)[0].strip() for process in processes)
    assert answers == [str(REVISIONS), "[]", "[]"]


_NURSERY = """
import os, sys
import alembic.command, alembic.script, psycopg
from rollbook.server.db.migrate import migrate

print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if not child:
        migrate(line.strip())
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("dead", flush=True)
"""
"""A fork takes milliseconds, where a fresh interpreter takes a second."""


@pytest.mark.parametrize("kills", [5, pytest.param(30, marks=pytest.mark.slow)])
def test_killed_at_any_moment_it_leaves_the_old_schema_or_the_new(
    database_kind: str, tmp_path: Path, postgres_cluster: PostgresCluster, kills: int
) -> None:
    nursery = subprocess.Popen(
        [sys.executable, "-c", _NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    tie(nursery.pid)
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    assert nursery.stdout.readline() == "ready\n"
    chance = random.Random(5)
    before = after = 0
    for number in range(kills):
        url = f"sqlite:///{tmp_path / f'{number}.db'}"
        if database_kind == "postgres":
            url = postgres_cluster.new_database()
        nursery.stdin.write(url + "\n")
        nursery.stdin.flush()
        child = int(nursery.stdout.readline())
        tie(child)
        time.sleep(chance.uniform(0, 0.35) if number else 0)  # the first never comes too late
        subprocess.run(["kill", "-9", str(child)], check=False, stderr=subprocess.DEVNULL)
        assert nursery.stdout.readline() == "dead\n"
        with connected(url) as connection:
            found = set(sa.inspect(connection).get_table_names())
        assert found in (set(), set(metadata.tables) | {"alembic_version"})
        assert migrate(url) == (REVISIONS if not found else [])
        before, after = before + (not found), after + bool(found)
    nursery.stdin.close()
    nursery.wait(10)
    nursery.stdout.close()
    assert before > 0, "every kill came too late to prove anything"


def test_a_file_of_the_database_is_private_from_the_first_moment(tmp_path: Path) -> None:
    path = tmp_path / "rollbook.db"
    make_private_file(path)
    assert path.stat().st_mode & 0o777 == 0o600
    migrate(f"sqlite:///{path}")
    assert path.stat().st_mode & 0o777 == 0o600
