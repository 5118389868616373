"""The doctor looks for objects that the database names and the blob store lost, and knows a newer database."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from rollbook.contracts.findings import Finding
from rollbook.server.blobs.open import open_blobs_of
from rollbook.server.db.checks import examine_database
from rollbook.server.db.engine import NOBODY
from rollbook.server.db.open import open_database
from rollbook.server.db.sqlite import sqlite_path
from rollbook.server.doctor import examine
from rollbook.server.queries import Scope
from rollbook.server.settings import Settings
from tests.server.tenants import Organisation, new_organisation


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> Settings:
    return Settings.load(tmp_path / "data", database_url=database_url)


def record(settings: Settings, org: Organisation, count: int) -> list[Path]:
    """Episodes with one stored object each; returns the files."""

    async def put(key: str) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"bytes"

        blobs = open_blobs_of(settings)
        await blobs.put(key, chunks(), content_type="application/octet-stream")
        await blobs.close()

    files = []
    for _ in range(count):
        made = org.episode()
        key = f"episodes/{org.org_id}/{made.id}/sensors.npz"
        asyncio.run(put(key))
        org.write(partial(_store, made.id, key))
        files.append(settings.data_dir / "blobs" / "objects" / key)
    return files


def _store(episode_id: str, key: str, scope: Scope) -> None:
    scope.request_artifact(episode_id, "sensors", key, "application/octet-stream")
    scope.set_artifact(episode_id, "sensors", status="stored", size=5)


def objects(settings: Settings, *, deep: bool = False) -> list[Finding]:
    found = examine(settings, deep=deep)
    return [each for each in found if each.subject.startswith("objects of ")]


def test_an_object_that_is_lost_or_cut_is_found_and_named(settings: Settings) -> None:
    with closing(open_database(settings.database_url)) as database:
        org, other = new_organisation(database), new_organisation(database)
        files = record(settings, org, 3)
        record(settings, other, 1)
    assert [each.passed for each in objects(settings)] == [True, True]
    files[1].unlink()
    mine, theirs = objects(settings)
    assert (mine.passed, mine.code, theirs.passed) == (False, "objects_lost", True)
    assert "1 of 3" in mine.detail
    assert files[1].parent.name in mine.detail
    files[2].write_bytes(b"")
    assert "2 of 3" in objects(settings, deep=True)[0].detail


def test_a_sample_is_looked_for_and_deep_looks_for_all(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbook.server.doctor._SAMPLE", 2)
    monkeypatch.setattr("rollbook.server.doctor._ROWS_AT_ONCE", 3)
    with closing(open_database(settings.database_url)) as database:
        files = record(settings, new_organisation(database), 8)
    assert "2 looked for" in objects(settings)[0].detail
    assert "8 looked for" in objects(settings, deep=True)[0].detail
    files[-1].unlink()
    assert "1 of 8" in objects(settings, deep=True)[0].detail


def test_a_database_of_a_newer_release_is_not_told_to_migrate(database_url: str) -> None:
    newer = sa.text("UPDATE alembic_version SET version_num = '9999'")
    with closing(open_database(database_url)) as database:
        database.write_now(NOBODY, lambda connection: connection.execute(newer))
    [finding] = examine_database(database_url)
    assert finding.code == "newer_than_release"
    assert "install that one or restore a backup" in finding.detail
    assert "rollbook server migrate" not in finding.detail


def test_an_older_database_is_told_to_migrate(tmp_path: Path, migrated_sqlite: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rollbook.db'}"
    shutil.copy(migrated_sqlite, sqlite_path(url))
    older = sa.text("UPDATE alembic_version SET version_num = '0001'")
    with closing(open_database(url)) as database:
        database.write_now(NOBODY, lambda connection: connection.execute(older))
    [finding] = examine_database(url)
    assert (finding.code, "rollbook server migrate" in finding.detail) == ("not_migrated", True)
