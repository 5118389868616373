"""Backups: one folder with all data of a server, and a manifest to verify it.

    manifest.json      size and SHA-256 of each file
    rollbook.db        the database as it was at one moment, if it is SQLite
    database.dump      the same of PostgreSQL, as pg_dump writes it
    objects.jsonl      key, size and SHA-256 of every object that the database names, as of the same moment
    secret.key         signs URLs; with another secret, existing URLs stop working
    blobs/objects/…    the bytes of artifacts, if they are on local disk, or if objects of S3 were asked for

The server may keep running. The database is copied before the blobs: a blob that arrives between is an extra file and
does no harm. In the other order it would be missing. The folder gets its name when it is complete.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import sqlalchemy as sa

from rollbook import __version__
from rollbook.errors import (
    BlobNotFound,
    ChecksumMismatch,
    ConfigurationError,
    StorageError,
    TargetExists,
    TruncatedFile,
    UnsupportedVersion,
)
from rollbook.files import make_folders, promote_folder, write_bytes
from rollbook.server.blobs.interface import BlobStore
from rollbook.server.blobs.open import open_blobs, open_blobs_of
from rollbook.server.db.migrate import current_revision
from rollbook.server.db.sqlite import make_private_file, sqlite_path
from rollbook.server.settings import Settings

FORMAT = "rollbook-backup"
VERSION = 1
MANIFEST = "manifest.json"
_DATABASE = "rollbook.db"
_DUMP = "database.dump"
_LIST = "objects.jsonl"
_SECRET = "secret.key"
_BLOBS = "blobs"
_OBJECTS = "objects"
_BELOW = f"{_BLOBS}/{_OBJECTS}/"
_CHUNK = 1 << 20
_STORED = (
    "SELECT object_key, size, sha256 FROM artifacts WHERE status = 'stored' ORDER BY object_key"
)


@dataclass(frozen=True, slots=True)
class BackedUpFile:
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Backup:
    """The content of the manifest."""

    path: Path
    made_at: str
    revision: str | None
    database: str
    """`sqlite` or `postgresql`."""
    blobs: str
    """`local` or `s3`."""
    missing: tuple[str, ...]
    """Blobs that the database names but that were missing: deleted during the backup, or lost earlier."""
    files: dict[str, BackedUpFile]
    changed: tuple[str, ...] = ()
    """Blobs that have other bytes than those that were checked: replaced during the backup, or damaged."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())

    @property
    def notes(self) -> list[str]:
        """What the operator must do in addition."""
        notes = []
        if self.blobs == "s3" and not self._has_objects:
            notes.append(
                "the objects are in S3 and not in this backup, which has their list: keep versions of the bucket, copy "
                "it, or back up with --objects"
            )
        if self.missing:
            notes.append(f"{len(self.missing)} blobs were not there, the first {self.missing[0]}")
        if self.changed:
            notes.append(
                f"{len(self.changed)} blobs have other bytes than were checked, the first {self.changed[0]}"
            )
        return notes

    @property
    def _has_objects(self) -> bool:
        return any(name.startswith(_BELOW) for name in self.files)


@dataclass(frozen=True, slots=True)
class _Object:
    """What the database says about a blob."""

    key: str
    size: int | None
    sha256: str | None


# ---------------------------------------------------------------------------------------- back up


def backup(settings: Settings, out: Path, *, objects: bool = False) -> Backup:
    """Writes a backup into a folder that must not exist yet. `objects` also copies the objects of S3."""
    sqlite = settings.database_url.startswith("sqlite:///")
    local = urlsplit(settings.blobs_url).scheme == "file"
    with _unfinished(out) as folder:
        files: dict[str, BackedUpFile] = {}
        if sqlite:
            _copy_database(sqlite_path(settings.database_url), folder / _DATABASE)
            named = _named_in(folder / _DATABASE)
        else:
            make_private_file(folder / _DUMP)
            named = _dumped(settings.database_url, folder / _DUMP)
        make_private_file(folder / _SECRET)
        (folder / _SECRET).write_bytes(settings.secret)
        write_bytes(
            folder / _LIST, b"".join(json.dumps(asdict(each)).encode() + b"\n" for each in named)
        )
        for name in (_DATABASE if sqlite else _DUMP, _SECRET, _LIST):
            files[name] = _digested(folder / name)
        if local:
            where = Path(unquote(urlsplit(settings.blobs_url).path)) / _OBJECTS
            files.update(_copy_blobs(where, folder))
        elif objects:
            files.update(asyncio.run(_fetch_objects(settings, named, folder)))
        copied = local or objects
        found = _copied_objects(files) if copied else asyncio.run(_listed_objects(settings))
        made = Backup(
            path=out,
            made_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            revision=current_revision(settings.database_url),
            database="sqlite" if sqlite else "postgresql",
            blobs="local" if local else "s3",
            missing=tuple(each.key for each in named if each.key not in found),
            files=files,
            changed=tuple(each.key for each in named if _differs(each, found.get(each.key))),
        )
        write_bytes(folder / MANIFEST, _manifest_of(made))
    return made


def _dumped(database_url: str, target: Path) -> list[_Object]:
    from rollbook.server.db.postgres_dump import dump

    def read(connection: sa.Connection) -> list[_Object]:
        return [_Object(*row) for row in connection.execute(sa.text(_STORED))]

    return dump(database_url, target, read)


def _named_in(database: Path) -> list[_Object]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return [_Object(*row) for row in connection.execute(_STORED)]


def _copied_objects(files: dict[str, BackedUpFile]) -> dict[str, _Object]:
    return {
        key: _Object(key, file.size, file.sha256)
        for name, file in files.items()
        if (key := name.removeprefix(_BELOW)) != name
    }


async def _listed_objects(settings: Settings) -> dict[str, _Object]:
    """All that S3 has. It tells sizes, not digests."""
    blobs = open_blobs_of(settings)
    try:
        return {
            info.key: _Object(info.key, info.size, None) async for info in blobs.list("episodes/")
        }
    finally:
        await blobs.close()


def _differs(named: _Object, found: _Object | None) -> bool:
    if found is None:
        return False  # it is missing
    return any(
        said is not None and seen is not None and said != seen
        for said, seen in ((named.size, found.size), (named.sha256, found.sha256))
    )


async def _fetch_objects(
    settings: Settings, named: Sequence[_Object], folder: Path
) -> dict[str, BackedUpFile]:
    blobs = open_blobs_of(settings)
    try:
        return {
            f"{_BELOW}{each.key}": fetched
            for each in named
            if (fetched := await _fetched(blobs, each.key, folder / _BELOW / each.key)) is not None
        }
    finally:
        await blobs.close()


async def _fetched(blobs: BlobStore, key: str, target: Path) -> BackedUpFile | None:
    try:
        chunks = await blobs.read(key)
    except BlobNotFound:
        return None
    digest, size = hashlib.sha256(), 0
    make_private_file(target)
    with open(target, "wb") as copy:
        async for chunk in chunks:
            digest.update(chunk)
            copy.write(chunk)
            size += len(chunk)
    return BackedUpFile(size, digest.hexdigest())


@contextmanager
def _unfinished(final: Path) -> Iterator[Path]:
    """A private folder. It gets its name when the block ends, and is removed when the block fails."""
    if os.path.lexists(final):
        raise TargetExists(path=str(final), detail="choose a name that is not taken")
    folder = final.with_name(f".{final.name}.{os.urandom(8).hex()}.partial")
    try:
        try:
            make_folders(final.parent)
            folder.mkdir(mode=0o700)
            yield folder
        except OSError as error:
            detail = f"cannot be written: {error.strerror or error}"
            raise StorageError(path=str(final), detail=detail) from error
        promote_folder(folder, final)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy_database(source: Path, target: Path) -> None:
    """Copies the database as it is at one moment, while others write, without the free space of deleted rows."""
    if not source.exists():
        raise StorageError(path=str(source), detail="there is no database to back up")
    make_private_file(target)
    try:
        with closing(sqlite3.connect(source, timeout=30, isolation_level=None)) as connection:
            connection.execute("VACUUM INTO ?", (str(target),))
    except sqlite3.Error as error:
        detail = f"the database cannot be copied: {error}"
        raise StorageError(path=str(source), detail=detail) from error


def _copy_blobs(objects: Path, folder: Path) -> Iterator[tuple[str, BackedUpFile]]:
    for place, _, names in os.walk(objects):
        for name in sorted(names):
            source = Path(place, name)
            target = folder / _BLOBS / _OBJECTS / source.relative_to(objects)
            if source.is_symlink():
                continue  # not one of our blobs
            try:
                copied = _copied(source, target)
            except FileNotFoundError:
                continue  # its episode was deleted after the folder was listed
            yield str(PurePosixPath(target.relative_to(folder))), copied


def _manifest_of(made: Backup) -> bytes:
    said = asdict(made)
    del said["path"]
    about = {"format": FORMAT, "version": VERSION, "rollbook": __version__}
    return json.dumps({**about, **said}, indent=2, sort_keys=True).encode()


# ------------------------------------------------------------------------------------------- restore


def read_backup(path: Path) -> Backup:
    """The manifest of a backup. `verify` checks the files against it."""
    try:
        said = json.loads((path / MANIFEST).read_bytes())
        if said["format"] != FORMAT:
            raise ValueError(f"its format is {said['format']!r}")
        if said["version"] != VERSION:
            raise UnsupportedVersion.of(path, said["version"], VERSION)
        return _backup_from(path, said)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(path=str(path), detail=f"not a backup: {error}") from error


def _backup_from(path: Path, said: dict[str, Any]) -> Backup:
    files = {
        _checked_name(name): BackedUpFile(int(file["size"]), str(file["sha256"]))
        for name, file in said["files"].items()
    }
    return Backup(
        path=path,
        made_at=str(said["made_at"]),
        revision=said["revision"],
        database=str(said["database"]),
        blobs=str(said["blobs"]),
        missing=tuple(map(str, said["missing"])),
        files=files,
        changed=tuple(map(str, said.get("changed", ()))),
    )


def _checked_name(name: str) -> str:
    """A backup may come from anywhere: refuse names that lead out of its folder."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\x00" in name:
        raise ValueError(f"{name!r} is no name of a file in it")
    return name


def verify(path: Path) -> Backup:
    """Reads every byte; raises for the first file that differs from the manifest."""
    found = read_backup(path)
    for name, expected in found.files.items():
        _compare(path / name, _read(path / name, _digested), expected)
    return found


def restore(
    path: Path,
    data_dir: Path,
    *,
    database_url: str | None = None,
    blobs_url: str | None = None,
    s3_endpoint: str | None = None,
) -> Backup:
    """Restores into a data folder that does not exist or is empty. The folder appears when every file was verified.

    A backup of PostgreSQL needs the URL of an empty database. Objects go into the data folder, or to `blobs_url`.
    """
    found = read_backup(path)
    _check_target(found, database_url)
    remote = blobs_url is not None and urlsplit(blobs_url).scheme != "file"
    with _unfinished(_free_name(data_dir)) as folder:
        for name, expected in found.files.items():
            if name in (_DUMP, _LIST) or (remote and name.startswith(_BELOW)):
                copied = _read(path / name, _digested)
            else:
                copied = _read(path / name, partial(_copied, target=folder / name))
            _compare(path / name, copied, expected)
        if found.database == "sqlite":
            _check_database(folder / _DATABASE)
        if remote:
            secret = (folder / _SECRET).read_bytes()
            blobs = open_blobs(blobs_url or "", secret=secret, s3_endpoint=s3_endpoint)
            asyncio.run(_send_objects(found, blobs))
        if found.database == "postgresql":
            from rollbook.server.db.postgres_dump import load

            load(path / _DUMP, database_url or "")
    return found


def _check_target(found: Backup, database_url: str | None) -> None:
    """Refuses before anything is written."""
    is_postgres = database_url is not None and database_url.startswith("postgres")
    if found.database == "postgresql":
        if _DUMP not in found.files:
            detail = "it has no database in it: pg_restore your own dump, and copy secret.key into the data folder"
            raise StorageError(path=str(found.path), detail=detail)
        if not is_postgres:
            message = (
                "this is a backup of PostgreSQL; give --database with the URL of an empty database"
            )
            raise ConfigurationError(message=message)
    elif is_postgres:
        message = (
            "this is a backup of SQLite; it is restored into the data folder, without --database"
        )
        raise ConfigurationError(message=message)


async def _send_objects(found: Backup, blobs: BlobStore) -> None:
    try:
        for name, expected in found.files.items():
            if name.startswith(_BELOW):
                key = name.removeprefix(_BELOW)
                sent = await blobs.put(
                    key, _chunks_of(found.path / name), content_type="application/octet-stream"
                )
                _compare(found.path / name, BackedUpFile(sent.size, sent.sha256), expected)
    finally:
        await blobs.close()


async def _chunks_of(path: Path) -> AsyncIterator[bytes]:
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _free_name(data_dir: Path) -> Path:
    if data_dir.is_dir() and not data_dir.is_symlink() and not any(data_dir.iterdir()):
        data_dir.rmdir()
    if os.path.lexists(data_dir):
        detail = "restore into a new folder, then start the server on that"
        raise TargetExists(path=str(data_dir), detail=detail)
    return data_dir


def _check_database(path: Path) -> None:
    if not path.exists():
        raise StorageError(path=str(path.name), detail="the backup has no database in it")
    with closing(sqlite3.connect(path)) as connection:
        (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if answer != "ok":
            raise StorageError(path=str(path.name), detail=f"the database is damaged: {answer}")


def _read(path: Path, how: Callable[[Path], BackedUpFile]) -> BackedUpFile:
    try:
        return how(path)
    except FileNotFoundError as error:
        raise TruncatedFile(path=str(path), detail="it is in the manifest and not there") from error


def _compare(path: Path, found: BackedUpFile, expected: BackedUpFile) -> None:
    if found.size != expected.size:
        detail = f"it has {found.size} bytes, the manifest says {expected.size}"
        raise TruncatedFile(path=str(path), detail=detail)
    if found.sha256 != expected.sha256:
        detail = f"its SHA-256 is {found.sha256}, the manifest says {expected.sha256}"
        raise ChecksumMismatch(path=str(path), detail=detail)


# ------------------------------------------------------------------------------------------- reading


def _digested(path: Path) -> BackedUpFile:
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return BackedUpFile(size, digest.hexdigest())


def _copied(source: Path, target: Path) -> BackedUpFile:
    """Digests the bytes that were read, so a copy that differs is found later."""
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        make_private_file(target)
        with open(target, "wb") as copy:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                copy.write(chunk)
                size += len(chunk)
    return BackedUpFile(size, digest.hexdigest())
