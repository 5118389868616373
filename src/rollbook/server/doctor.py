"""The doctor checks a server's folder, database and blobs, and says what is wrong and what to do about it."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import closing

import sqlalchemy as sa

from rollbook.contracts.findings import Finding
from rollbook.errors import RollbookError
from rollbook.server.blobs.open import open_blobs
from rollbook.server.db.checks import examine_database
from rollbook.server.db.engine import NOBODY, Database, Tenant
from rollbook.server.db.open import open_database
from rollbook.server.queries import Scope, Usage, organisation_ids
from rollbook.server.settings import Settings

_LITTLE_ROOM = 1 << 30


def examine(settings: Settings) -> list[Finding]:
    """Checks in the order in which they depend on each other. Changes nothing."""
    database = examine_database(settings.database_url)
    usable = all(finding.passed for finding in database if finding.subject == "database")
    return [
        _folder(settings),
        *database,
        *(_organisations(settings) if usable else ()),
        _blobs(settings),
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
        blobs = open_blobs(
            settings.blobs_url, secret=settings.secret, s3_endpoint=settings.s3_endpoint
        )
        try:
            await blobs.check()
            return blobs.kind
        finally:
            await blobs.close()

    try:
        return Finding("blobs", True, f"{asyncio.run(look())}, ready for work")
    except RollbookError as error:
        return Finding.violation("blobs", error)
