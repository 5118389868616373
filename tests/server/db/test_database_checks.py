"""The doctor's look at a database finds what is wrong with it, and nothing wrong with a sound one."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from rollbook.server.db import checks as database_checks
from rollbook.server.db.checks import examine_database
from rollbook.server.db.columns import now_us
from rollbook.server.db.sqlite import SqliteDatabase
from tests.server.postgres_cluster import PostgresCluster


def codes(url: str) -> set[str | None]:
    return {finding.code for finding in examine_database(url) if not finding.passed}


def test_a_sound_database_passes_every_check(database_url: str) -> None:
    findings = examine_database(database_url)
    assert [finding for finding in findings if not finding.passed] == []
    assert len(findings) == (2 if database_url.startswith("sqlite") else 4)


def test_an_empty_database_is_told_how_to_begin(empty_database_url: str) -> None:
    (finding,) = examine_database(empty_database_url)
    assert finding.code == "not_migrated"
    assert "rollbook server migrate" in finding.detail


def test_looking_creates_nothing(tmp_path: Path) -> None:
    examine_database(f"sqlite:///{tmp_path / 'none' / 'rollbook.db'}")
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_cannot_be_reached_is_a_finding() -> None:
    url = "postgresql://someone:hunter2@127.0.0.1:9/none?connect_timeout=2"
    (finding,) = examine_database(url)
    assert finding.code == "database_unavailable"
    assert "hunter2" not in finding.detail


def test_a_damaged_file_is_found(sqlite_database: SqliteDatabase) -> None:
    path = sqlite_database.path
    sqlite_database.close()
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    path.write_bytes(data)
    assert codes(f"sqlite:///{path}") & {"damaged", "database_unavailable"}


def test_a_file_that_others_may_read_is_found(sqlite_database: SqliteDatabase) -> None:
    sqlite_database.path.chmod(0o644)
    assert codes(f"sqlite:///{sqlite_database.path}") == {"open_to_others"}


def test_a_role_that_policies_do_not_hold_for_is_found(postgres_cluster: PostgresCluster) -> None:
    url = postgres_cluster.new_database(migrated=True)
    assert codes(url.replace("rollbook_app", "postgres", 1)) == {"role_above_policies"}


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE episodes NO FORCE ROW LEVEL SECURITY",
        "ALTER TABLE episodes DISABLE ROW LEVEL SECURITY",
        "DROP POLICY tenant ON episodes",
        "ALTER TABLE users NO FORCE ROW LEVEL SECURITY",
    ],
)
def test_a_table_that_was_opened_is_found(postgres_cluster: PostgresCluster, change: str) -> None:
    url = postgres_cluster.new_database(migrated=True)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(change.encode())
    (finding,) = [each for each in examine_database(url) if not each.passed]
    assert finding.code == "no_row_level_security"
    assert ("users" if "users" in change else "episodes") in finding.detail


def test_a_clock_that_is_wrong_is_found(
    postgres_cluster: PostgresCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_checks, "now_us", lambda: now_us() + 60_000_000)
    assert codes(postgres_cluster.new_database(migrated=True)) == {"clock_skew"}
