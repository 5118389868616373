"""A backup is whole or not there, tells when a byte has changed, and gives a working server back."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rollbook.errors import (
    ChecksumMismatch,
    StorageError,
    TargetExists,
    TruncatedFile,
    UnsupportedVersion,
)
from rollbook.server.backup import MANIFEST, backup, read_backup, restore, verify
from rollbook.server.db.engine import NOBODY, Tenant
from rollbook.server.db.migrate import HEAD, migrate
from rollbook.server.db.open import open_database
from rollbook.server.db.sqlite import sqlite_path
from rollbook.server.queries import Scope, organisation_ids
from rollbook.server.settings import Settings
from tests.server.postgres_cluster import PostgresCluster
from tests.server.tenants import Organisation, new_organisation


@pytest.fixture
def settings(tmp_path: Path, migrated_sqlite: Path) -> Settings:
    loaded = Settings.load(tmp_path / "data")
    shutil.copy(migrated_sqlite, sqlite_path(loaded.database_url))
    return loaded


def record(org: Organisation, settings: Settings, name: str, data: bytes) -> str:
    """An episode with a video, as the server leaves it on disk."""
    made = org.write(lambda scope: scope.create_episode({"name": name}))
    key = f"episodes/{org.org_id}/{made.id}/video.mp4"
    path = settings.data_dir / "blobs" / "objects" / key
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    org.write(lambda scope: scope.request_artifact(made.id, "video", key, "video/mp4"))
    org.write(lambda scope: scope.set_artifact(made.id, "video", status="stored", size=len(data)))
    return key


@pytest.fixture
def keys(settings: Settings) -> list[str]:
    with closing(open_database(settings.database_url)) as database:
        org = new_organisation(database)
        return [record(org, settings, f"e{n}", os.urandom(1000 * n)) for n in range(4)]


def test_what_was_backed_up_comes_back(settings: Settings, keys: list[str], tmp_path: Path) -> None:
    made = backup(settings, tmp_path / "backups" / "monday")
    assert read_backup(made.path) == verify(made.path) == made
    assert (made.revision, made.database, made.blobs, made.missing) == (HEAD, "sqlite", "local", ())
    assert made.notes == []
    assert set(made.files) == {
        "rollbook.db",
        "secret.key",
        *(f"blobs/objects/{key}" for key in keys),
    }
    restored = restore(made.path, tmp_path / "restored")
    assert restored.files == made.files
    again = Settings.load(tmp_path / "restored")
    assert again.secret == settings.secret
    for key in keys:
        before, after = (each.data_dir / "blobs" / "objects" / key for each in (settings, again))
        assert before.read_bytes() == after.read_bytes()
    assert migrate(again.database_url) == []
    assert names(again) == ["e3", "e2", "e1", "e0"]


def names(settings: Settings) -> list[str]:
    with closing(open_database(settings.database_url)) as database:
        (org_id,) = database.read_now(NOBODY, organisation_ids)
        page = database.read_now(Tenant(org_id=org_id), lambda c: Scope(c, org_id).episodes())
        return [episode.name or "" for episode in page.episodes]


def test_a_backup_is_closed_to_others(settings: Settings, keys: list[str], tmp_path: Path) -> None:
    made = backup(settings, tmp_path / "b")
    assert made.path.stat().st_mode & 0o077 == 0
    restore(made.path, tmp_path / "restored")
    for name in ("", "rollbook.db", "secret.key"):
        assert (tmp_path / "restored" / name).stat().st_mode & 0o077 == 0


def test_the_server_goes_on_while_it_is_backed_up(settings: Settings, tmp_path: Path) -> None:
    stop = threading.Event()
    with closing(open_database(settings.database_url)) as database:
        org = new_organisation(database)

        def keep_recording() -> None:
            number = 0
            while not stop.is_set():
                record(org, settings, f"e{number}", bytes(1000))
                number += 1

        recording = threading.Thread(target=keep_recording)
        recording.start()
        try:
            backups = [backup(settings, tmp_path / f"b{number}") for number in range(5)]
        finally:
            stop.set()
            recording.join()
    counts = []
    for made in backups:
        assert made.missing == ()
        restore(made.path, tmp_path / f"restored-{made.path.name}")
        counts.append(len(names(Settings.load(tmp_path / f"restored-{made.path.name}"))))
    assert counts == sorted(counts)
    assert counts[-1] > 0


def test_a_blob_that_is_not_there_is_told(
    settings: Settings, keys: list[str], tmp_path: Path
) -> None:
    (settings.data_dir / "blobs" / "objects" / keys[1]).unlink()
    made = backup(settings, tmp_path / "b")
    assert made.missing == (keys[1],)
    assert keys[1] in made.notes[0]
    assert restore(made.path, tmp_path / "restored").missing == (keys[1],)


# --------------------------------------------------------------------------------------------- damage


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("which", ["rollbook.db", "secret.key", "a blob"])
@pytest.mark.parametrize(
    ("damage", "error"),
    [(cut, TruncatedFile), (flip, ChecksumMismatch), (Path.unlink, TruncatedFile)],
)
def test_damage_is_named_and_nothing_is_restored(
    settings: Settings,
    keys: list[str],
    tmp_path: Path,
    which: str,
    damage: Callable[[Path], None],
    error: type[StorageError],
) -> None:
    made = backup(settings, tmp_path / "b")
    name = f"blobs/objects/{keys[3]}" if which == "a blob" else which
    damage(made.path / name)
    with pytest.raises(error, match=Path(name).name):
        verify(made.path)
    with pytest.raises(error, match=Path(name).name):
        restore(made.path, tmp_path / "restored")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["b", "data"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"format": "tarball"}, StorageError),
        ({"version": 2}, UnsupportedVersion),
        ({"files": {"../outside": {"size": 1, "sha256": "x"}}}, StorageError),
        ({"files": {"/etc/passwd": {"size": 1, "sha256": "x"}}}, StorageError),
        ({"files": {"": {"size": 1, "sha256": "x"}}}, StorageError),
        ({"files": {"a": 5}}, StorageError),
        ({"files": None}, StorageError),
        ({"files": {}}, StorageError),
    ],
    ids=str,
)
def test_a_manifest_of_another_make_is_refused(
    settings: Settings, tmp_path: Path, change: dict[str, Any], error: type[StorageError]
) -> None:
    made = backup(settings, tmp_path / "b")
    manifest = made.path / MANIFEST
    manifest.write_text(json.dumps({**json.loads(manifest.read_bytes()), **change}))
    with pytest.raises(error):
        restore(made.path, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b"[" * 100_000])
def test_what_is_no_backup_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(StorageError, match="not a backup"):
        read_backup(tmp_path)
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(StorageError, match="not a backup"):
        read_backup(tmp_path)


# ----------------------------------------------------------------------------------------- where to


def test_nothing_is_written_over(settings: Settings, keys: list[str], tmp_path: Path) -> None:
    made = backup(settings, tmp_path / "b")
    with pytest.raises(TargetExists):
        backup(settings, tmp_path / "b")
    with pytest.raises(TargetExists):
        restore(made.path, settings.data_dir)
    (tmp_path / "empty").mkdir()
    restore(made.path, tmp_path / "empty")
    assert len(names(Settings.load(tmp_path / "empty"))) == len(keys)


def test_a_server_without_a_database_has_nothing_to_back_up(tmp_path: Path) -> None:
    empty = Settings.load(tmp_path / "data")
    with pytest.raises(StorageError, match="no database"):
        backup(empty, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_postgresql_and_s3_are_left_to_their_own_tools(
    tmp_path: Path, postgres_cluster: PostgresCluster
) -> None:
    url = postgres_cluster.new_database(migrated=True)
    settings = Settings.load(tmp_path / "data", database_url=url, blobs_url="s3://bucket/prefix")
    made = backup(settings, tmp_path / "b")
    assert set(made.files) == {"secret.key"}
    assert "pg_dump" in made.notes[0]
    assert "S3" in made.notes[1]
    assert "rollbook_app" not in (made.path / MANIFEST).read_text()
    restore(made.path, tmp_path / "restored")
    assert Settings.load(tmp_path / "restored").secret == settings.secret


_BACK_UP = """
import sys
from pathlib import Path
from rollbook.server.backup import backup
from rollbook.server.settings import Settings
settings = Settings.load(Path(sys.argv[1]))
print("ready", flush=True)
backup(settings, Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_killed_at_any_moment_it_leaves_a_whole_backup_or_none(
    settings: Settings, tmp_path: Path
) -> None:
    with closing(open_database(settings.database_url)) as database:
        org = new_organisation(database)
        for number in range(60):
            record(org, settings, f"e{number}", os.urandom(300_000))
    chance = random.Random(3)
    whole = 0
    for number in range(12):
        out = tmp_path / f"b{number}"
        process = subprocess.Popen(
            [sys.executable, "-c", _BACK_UP, str(settings.data_dir), str(out)],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0, 0.4))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        if out.exists():
            verify(out)
            whole += 1
    assert whole < 12, "every kill came too late to prove anything"
    assert verify(backup(settings, tmp_path / "last").path).missing == ()
