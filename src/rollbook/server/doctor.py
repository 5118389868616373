"""The doctor checks a server's folder, database and blobs, and says what is wrong and what to do about it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import closing

import sqlalchemy as sa

from rollbook.contracts.findings import Finding
from rollbook.errors import RollbookError
from rollbook.server.blobs.interface import BlobStore
from rollbook.server.blobs.open import open_blobs_of
from rollbook.server.db.checks import examine_database
from rollbook.server.db.engine import NOBODY, Database, Tenant
from rollbook.server.db.open import open_database
from rollbook.server.queries import ArtifactRow, Scope, Usage, organisation_ids
from rollbook.server.settings import Settings
from rollbook.server.store_files.root_checks import examine_roots

_LITTLE_ROOM = 1 << 30


_SAMPLE = 100
"""Objects of one organisation that are looked for, unless all are."""
_AT_ONCE = 32
_ROWS_AT_ONCE = 1000


def examine(settings: Settings, *, deep: bool = False) -> list[Finding]:
    """Checks in the order in which they depend on each other. Changes nothing.

    Looks for a sample of the objects that the database names; `deep` looks for all, one request for each.
    """
    database = examine_database(settings.database_url)
    usable = all(finding.passed for finding in database if finding.subject == "database")
    blobs = _blobs(settings)
    return [
        _folder(settings),
        *database,
        *(_organisations(settings) if usable else ()),
        blobs,
        *(_objects(settings, deep) if usable and blobs.passed else ()),
        *examine_roots(settings, _organisation_ids(settings) if usable else None),
    ]


def _folder(settings: Settings) -> Finding:
    free = shutil.disk_usage(settings.data_dir).free
    detail = f"{settings.data_dir}, {free >> 20} MB free"
    if free < _LITTLE_ROOM:
        return Finding("data folder", False, f"{detail}: make room", "little_room")
    if settings.data_dir.stat().st_mode & 0o077:
        why = f"{detail}: others may look into it; chmod 700 it"
        return Finding("data folder", False, why, "open_to_others")
    return Finding("data folder", True, detail)


def _organisations(settings: Settings) -> list[Finding]:
    """What each organisation stores, and whether the count that its quota uses is right."""
    with closing(open_database(settings.database_url)) as database:
        ids = database.read_now(NOBODY, organisation_ids)
        return [_organisation(database, org_id) for org_id in ids]


def _organisation_ids(settings: Settings) -> list[str]:
    with closing(open_database(settings.database_url)) as database:
        return database.read_now(NOBODY, organisation_ids)


class _CountedAgain(Exception):
    """Carries both counts out of a transaction that is undone."""

    def __init__(self, noted: Usage, counted: Usage) -> None:
        super().__init__("undo")
        self.noted, self.counted = noted, counted


def _organisation(database: Database, org_id: str) -> Finding:
    def count(connection: sa.Connection) -> None:
        scope = Scope(connection, org_id)
        noted = scope.quota_usage()
        raise _CountedAgain(noted, scope.recount_usage())

    try:
        database.write_now(Tenant(org_id=org_id), count)
    except _CountedAgain as seen:
        detail = f"{seen.counted.episodes} episodes, {seen.counted.bytes} bytes"
        if seen.noted != seen.counted:
            why = f"{detail}, but {seen.noted.episodes} and {seen.noted.bytes} are noted"
            return Finding(f"organisation {org_id}", False, why, "usage_wrong")
        return Finding(f"organisation {org_id}", True, detail)
    raise AssertionError("the count always comes out")


def _blobs(settings: Settings) -> Finding:
    async def look() -> str:
        blobs = open_blobs_of(settings)
        try:
            await blobs.check()
            return blobs.kind
        finally:
            await blobs.close()

    try:
        return Finding("blobs", True, f"{asyncio.run(look())}, ready for work")
    except RollbookError as error:
        return Finding.violation("blobs", error)


# ------------------------------------------------------------------------------------------- objects


def _objects(settings: Settings, deep: bool) -> list[Finding]:
    """Whether the blob store still has what the database says it has."""
    with closing(open_database(settings.database_url)) as database:

        async def look() -> list[Finding]:
            blobs = open_blobs_of(settings)
            try:
                ids = await database.read(NOBODY, organisation_ids)
                return [await _objects_of(database, blobs, org_id, deep) for org_id in ids]
            finally:
                await blobs.close()

        try:
            return asyncio.run(look())
        except RollbookError as error:
            return [Finding.violation("objects", error)]


async def _objects_of(database: Database, blobs: BlobStore, org_id: str, deep: bool) -> Finding:
    looked_at, wrong = 0, []
    async for some in _artifacts(database, org_id, deep):
        looked_at += len(some)
        seen = await asyncio.gather(*(_is_lost(blobs, each) for each in some))
        wrong += [each for each, lost in zip(some, seen, strict=True) if lost]
    lost = [each for each in wrong if await _is_still_named(database, org_id, each)]
    subject = f"objects of {org_id}"
    sample = "all" if deep else f"a sample of at most {_SAMPLE}; --deep looks for all"
    if not lost:
        return Finding(subject, True, f"{looked_at} looked for ({sample}), all there")
    first = lost[0]
    why = (
        f"{len(lost)} of {looked_at} looked for ({sample}) are lost or cut, the first {first.object_key} "
        f"of episode {first.episode_id}; restore them from a backup or a version of the bucket, or delete the episodes"
    )
    return Finding(subject, False, why, "objects_lost")


async def _artifacts(
    database: Database, org_id: str, deep: bool
) -> AsyncIterator[list[ArtifactRow]]:
    tenant = Tenant(org_id=org_id)
    if not deep:
        found = await database.read(
            tenant, lambda connection: Scope(connection, org_id).sampled_artifacts(_SAMPLE)
        )
        for start in range(0, len(found), _AT_ONCE):
            yield found[start : start + _AT_ONCE]
        return
    after: tuple[str, str] | None = None
    while found := await database.read(
        tenant,
        lambda connection: Scope(connection, org_id).stored_artifacts(_ROWS_AT_ONCE, after),  # noqa: B023
    ):
        for start in range(0, len(found), _AT_ONCE):
            yield found[start : start + _AT_ONCE]
        after = (found[-1].episode_id, found[-1].kind)


async def _is_lost(blobs: BlobStore, artifact: ArtifactRow) -> bool:
    info = await blobs.head(artifact.object_key)
    return info is None or info.size != artifact.size


async def _is_still_named(database: Database, org_id: str, artifact: ArtifactRow) -> bool:
    """Not when its episode was deleted, or the artifact was replaced, since it was read."""
    now = await database.read(
        Tenant(org_id=org_id),
        lambda connection: Scope(connection, org_id).artifact(artifact.episode_id, artifact.kind),
    )
    return now == artifact
