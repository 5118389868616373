"""A backup is whole or not there, tells when a byte has changed, and gives a working server back."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rollbook.errors import (
    ChecksumMismatch,
    ConfigurationError,
    StorageError,
    TargetExists,
    TruncatedFile,
    UnsupportedVersion,
)
from rollbook.server.backup import MANIFEST, backup, read_backup, restore, verify
from rollbook.server.blobs.open import open_blobs_of
from rollbook.server.db.columns import new_id
from rollbook.server.db.engine import NOBODY, Tenant
from rollbook.server.db.migrate import HEAD, current_revision, migrate
from rollbook.server.db.open import open_database
from rollbook.server.db.sqlite import sqlite_path
from rollbook.server.doctor import examine
from rollbook.server.queries import Scope, organisation_ids
from rollbook.server.settings import Settings
from tests.server.blob_servers import ACCESS_KEY, BUCKET, SECRET_KEY, Served, rclone_server
from tests.server.postgres_cluster import APP_ROLE, PostgresCluster
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
        "objects.jsonl",
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


def test_bytes_that_differ_from_the_checked_ones_are_told(
    settings: Settings, keys: list[str], tmp_path: Path
) -> None:
    """A backup must not pass damaged bytes on as if all were well."""
    path = settings.data_dir / "blobs" / "objects" / keys[3]
    right = path.read_bytes()
    with closing(open_database(settings.database_url)) as database:
        digest = hashlib.sha256(right).hexdigest()
        org_id, episode_id = keys[3].split("/")[1:3]
        database.write_now(
            Tenant(org_id=org_id),
            lambda c: Scope(c, org_id).set_artifact(episode_id, "video", sha256=digest),
        )
    assert backup(settings, tmp_path / "right").changed == ()
    flip(path)
    made = backup(settings, tmp_path / "b")
    assert (made.missing, made.changed) == ((), (keys[3],))
    assert keys[3] in made.notes[0]
    assert read_backup(made.path).changed == (keys[3],)


# ------------------------------------------------------------------------------- PostgreSQL and S3


@pytest.fixture(scope="module")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with rclone_server(tmp_path_factory.mktemp("rclone")) as served:
        yield served


@pytest.fixture
def remote(
    tmp_path: Path,
    postgres_cluster: PostgresCluster,
    rclone: Served,
    monkeypatch: pytest.MonkeyPatch,
) -> Settings:
    """A server on PostgreSQL and S3, as somebody who may see all of the database."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("PATH", str(postgres_cluster.programs), prepend=os.pathsep)
    url = postgres_cluster.new_database(migrated=True)
    return Settings.load(
        tmp_path / "data",
        database_url=url.replace(APP_ROLE, "postgres", 1),
        blobs_url=f"s3://{BUCKET}/{new_id()}",
        s3_endpoint=rclone.url,
    )


def record_remote(settings: Settings) -> dict[str, bytes]:
    """Two organisations with an episode each; their objects by key."""

    async def put(key: str, data: bytes) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield data

        blobs = open_blobs_of(settings)
        await blobs.put(key, chunks(), content_type="video/mp4")
        await blobs.close()

    made: dict[str, bytes] = {}
    with closing(open_database(settings.database_url)) as database:
        for data in (b"one", b"another"):
            org = new_organisation(database)
            episode = org.episode(name=data.decode())
            key = f"episodes/{org.org_id}/{episode.id}/video.mp4"
            asyncio.run(put(key, data))
            org.write(partial(_store, episode.id, key, data))
            made[key] = data
    return made


def _store(episode_id: str, key: str, data: bytes, scope: Scope) -> None:
    scope.request_artifact(episode_id, "video", key, "video/mp4")
    digest = hashlib.sha256(data).hexdigest()
    scope.set_artifact(episode_id, "video", status="stored", size=len(data), sha256=digest)


def objects_of(settings: Settings) -> dict[str, bytes]:
    async def read() -> dict[str, bytes]:
        blobs = open_blobs_of(settings)
        try:
            keys = [info.key async for info in blobs.list("episodes/")]
            return {key: b"".join([c async for c in await blobs.read(key)]) for key in keys}
        finally:
            await blobs.close()

    return asyncio.run(read())


def test_postgresql_and_s3_come_back_from_one_folder(
    remote: Settings, postgres_cluster: PostgresCluster, tmp_path: Path
) -> None:
    recorded = record_remote(remote)
    made = backup(remote, tmp_path / "b", objects=True)
    assert (made.database, made.blobs, made.missing, made.notes) == ("postgresql", "s3", (), [])
    assert verify(made.path) == made
    listed = [json.loads(line) for line in (made.path / "objects.jsonl").read_text().splitlines()]
    assert {each["key"]: each["sha256"] for each in listed} == {
        key: hashlib.sha256(data).hexdigest() for key, data in recorded.items()
    }
    # as the role that serves, which then owns the tables and is held by their policies
    url = postgres_cluster.new_database()
    there = f"s3://{BUCKET}/{new_id()}"
    restore(
        made.path,
        tmp_path / "restored",
        database_url=url,
        blobs_url=there,
        s3_endpoint=remote.s3_endpoint,
    )
    again = Settings.load(
        tmp_path / "restored", database_url=url, blobs_url=there, s3_endpoint=remote.s3_endpoint
    )
    assert again.secret == remote.secret
    assert objects_of(again) == recorded
    assert not (tmp_path / "restored" / "blobs").exists()
    assert migrate(url) == []
    findings = examine(again, deep=True)
    assert [each for each in findings if not each.passed] == []
    with closing(open_database(url)) as database:
        ids = database.read_now(NOBODY, organisation_ids)
        found = [
            database.read_now(Tenant(org_id=org), lambda c, org=org: Scope(c, org).episodes())  # type: ignore[misc]
            for org in ids
        ]
    assert [[each.name for each in page.episodes] for page in found] == [["one"], ["another"]]


def test_the_list_names_what_s3_lost_and_the_folder_can_take_the_objects(
    remote: Settings, postgres_cluster: PostgresCluster, tmp_path: Path
) -> None:
    lost, kept = record_remote(remote)
    whole = backup(remote, tmp_path / "whole", objects=True)

    async def lose() -> None:
        blobs = open_blobs_of(remote)
        await blobs.delete(lost)
        await blobs.close()

    asyncio.run(lose())
    for objects in (False, True):
        made = backup(remote, tmp_path / f"b{objects}", objects=objects)
        assert made.missing == (lost,)
        assert any("not in this backup" in note for note in made.notes) is not objects
    restore(whole.path, tmp_path / "restored", database_url=postgres_cluster.new_database())
    blobs = tmp_path / "restored" / "blobs" / "objects"
    assert [(blobs / key).read_bytes() for key in (lost, kept)] == [b"one", b"another"]


def test_the_dump_and_the_list_are_of_one_moment(
    remote: Settings, postgres_cluster: PostgresCluster, tmp_path: Path
) -> None:
    """Episodes are deleted and made all the while: what the restored database names is what was listed."""
    with closing(open_database(remote.database_url)) as database:
        org = new_organisation(database)
        stop = threading.Event()

        def churn() -> None:
            while not stop.is_set():
                episode = org.episode()
                org.write(partial(_store, episode.id, f"episodes/x/{episode.id}/v.mp4", b"x"))

        churning = threading.Thread(target=churn)
        churning.start()
        try:
            made = backup(remote, tmp_path / "b")
        finally:
            stop.set()
            churning.join()
    url = postgres_cluster.new_database()
    restore(made.path, tmp_path / "restored", database_url=url)
    lines = (made.path / "objects.jsonl").read_text().splitlines()
    listed = [json.loads(line)["key"] for line in lines]
    with closing(open_database(url)) as database:
        found = database.read_now(
            Tenant(org_id=org.org_id), lambda c: Scope(c, org.org_id).stored_artifacts(100_000)
        )
    assert sorted(each.object_key for each in found) == listed
    assert set(made.missing) == set(listed), "none of them was ever in S3"


def test_a_backup_that_cannot_be_whole_is_refused_and_says_what_to_do(
    remote: Settings,
    postgres_cluster: PostgresCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_server = replace(
        remote, database_url=remote.database_url.replace("postgres@", "rollbook_app@")
    )
    with pytest.raises(ConfigurationError, match="BYPASSRLS"):
        backup(as_server, tmp_path / "b")
    made = backup(remote, tmp_path / "whole")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="pg_dump is not installed"):
        backup(remote, tmp_path / "b")
    empty = postgres_cluster.new_database()
    with pytest.raises(ConfigurationError, match="pg_restore is not installed"):
        restore(made.path, tmp_path / "restored", database_url=empty)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data", "whole"]


def test_a_restore_that_would_mix_databases_is_refused_before_anything_is_written(
    remote: Settings, postgres_cluster: PostgresCluster, tmp_path: Path, settings: Settings
) -> None:
    made = backup(remote, tmp_path / "whole")
    full = postgres_cluster.new_database(migrated=True)
    with pytest.raises(ConfigurationError, match="empty database"):
        restore(made.path, tmp_path / "restored", database_url=full)
    with pytest.raises(ConfigurationError, match="--database"):
        restore(made.path, tmp_path / "restored")
    of_sqlite = backup(settings, tmp_path / "sqlite")
    with pytest.raises(ConfigurationError, match="backup of SQLite"):
        restore(of_sqlite.path, tmp_path / "restored", database_url=full)
    flip(made.path / "database.dump")
    empty = postgres_cluster.new_database()
    with pytest.raises(ChecksumMismatch):
        restore(made.path, tmp_path / "restored", database_url=empty)
    assert current_revision(empty) is None
    assert not (tmp_path / "restored").exists()


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
