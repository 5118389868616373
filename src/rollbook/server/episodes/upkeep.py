"""Upkeep: gives up abandoned recordings, and deletes orphaned blobs and expired rows.

Everything here may be done twice, or by two processes at once, without harm. A lease lets one process per machine do
the work.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass

from rollbook.errors import LeaseHeld, RollbookError
from rollbook.files import Lease
from rollbook.server.blobs.interface import BlobInfo
from rollbook.server.context import ServerContext
from rollbook.server.db.engine import NOBODY
from rollbook.server.episodes.artifacts import check_artifacts, remove_blobs, write_checks
from rollbook.server.logs import frames_of
from rollbook.server.queries import EpisodeRow, Scope, delete_expired, organisation_ids
from rollbook.server.webhooks.events import announce_run

_AT_ONCE = 100
_KEYS_AT_ONCE = 500
_EXPIRED_KEPT_US = 86_400_000_000
"""A client that polls an expired device login is told so for a day."""
_LEASE_PASSES = 3


@dataclass(slots=True)
class UpkeepDone:
    abandoned: int = 0
    uploads: int = 0
    blobs: int = 0
    orphans: int = 0
    leftovers: int = 0
    expired: int = 0
    idempotency_keys: int = 0
    eval_runs: int = 0
    deliveries: int = 0


async def keep_up(context: ServerContext) -> None:
    """Runs until it is cancelled. A failure is logged, and the work is tried again at the next turn."""
    every_s = context.settings.reap_every_s
    next_orphans = 0.0
    clock = asyncio.get_running_loop().time
    while every_s > 0:
        try:
            with _turn(context):
                find_orphans = clock() >= next_orphans
                _log_done(context, await do_upkeep(context, find_orphans=find_orphans))
                if find_orphans:
                    next_orphans = clock() + context.settings.find_orphans_every_s
        except LeaseHeld:
            pass  # another process does the upkeep
        except Exception as error:  # noqa: BLE001 - upkeep must not end because of one bad turn
            context.log.error("upkeep_failed", error=repr(error), frames=frames_of(error))
        await asyncio.sleep(every_s)


def _turn(context: ServerContext) -> Lease:
    owner = f"{socket.gethostname()}:{os.getpid()}"
    ttl_s = max(60.0, _LEASE_PASSES * context.settings.reap_every_s)
    return Lease.acquire(context.settings.data_dir / "upkeep.lease", owner=owner, ttl_s=ttl_s)


def _log_done(context: ServerContext, done: UpkeepDone) -> None:
    counts = {name: count for name, count in asdict(done).items() if count}
    if counts:
        context.log.info("upkeep", **counts)


async def do_upkeep(context: ServerContext, *, find_orphans: bool = False) -> UpkeepDone:
    """One turn over all organisations. An error of one organisation does not stop the others."""
    done = UpkeepDone()
    now = context.clock()
    done.expired = await context.db.write(
        NOBODY, lambda connection: delete_expired(connection, now - _EXPIRED_KEPT_US)
    )
    for org_id in await context.db.read(NOBODY, organisation_ids):
        try:
            await _tend_organisation(context, org_id, done)
        except RollbookError as error:
            context.log.warning("upkeep_put_off", org_id=org_id, error=str(error))
    done.leftovers = await context.blobs.sweep(older_than_s=context.settings.reap_after_s)
    if find_orphans:
        done.orphans = await _remove_orphans(context)
    return done


async def _tend_organisation(context: ServerContext, org_id: str, done: UpkeepDone) -> None:
    settings, now = context.settings, context.clock()
    before_us = now - int(settings.reap_after_s * 1e6)
    done.abandoned += await _abandon(context, org_id, before_us)
    done.uploads += await _give_up_uploads(context, org_id, before_us)
    doomed = await context.read_for(org_id, lambda scope: scope.doomed_objects())
    done.blobs += len(await remove_blobs(context, org_id, doomed))
    old_us = now - int(settings.idempotency_ttl_s * 1e6)
    done.idempotency_keys += await context.write_for(
        org_id, lambda scope: scope.forget_idempotency_keys(old_us)
    )
    done.eval_runs += await _give_up_runs(context, org_id)
    told_us = now - int(settings.webhook_log_s * 1e6)
    done.deliveries += await context.write_for(
        org_id, lambda scope: scope.forget_deliveries(told_us)
    )


async def _abandon(context: ServerContext, org_id: str, before_us: int) -> int:
    """Marks the episodes as failed and keeps what arrived: the last minutes before a crash are the most useful."""

    def find(scope: Scope) -> list[EpisodeRow]:
        ids = scope.abandoned_episodes(before_us, _AT_ONCE)
        return [episode for each in ids if (episode := scope.episode(each)) is not None]

    count = 0
    while found := await context.read_for(org_id, find):
        done = [await _abandon_one(context, org_id, episode, before_us) for episode in found]
        count += sum(done)
        if not all(done) or len(found) < _AT_ONCE:
            break
    return count


async def _abandon_one(
    context: ServerContext, org_id: str, episode: EpisodeRow, before_us: int
) -> bool:
    checks = await check_artifacts(context, episode.artifacts, {})

    def abandon(scope: Scope) -> bool:
        abandoned = scope.abandon_episode(episode.id, before_us)
        if abandoned:
            write_checks(scope, episode.id, checks)
        return abandoned

    abandoned = await context.write_for(org_id, abandon)
    if abandoned:
        context.metrics.episode("abandoned")
    return abandoned


async def _give_up_uploads(context: ServerContext, org_id: str, before_us: int) -> int:
    """Notes their parts here; they are removed with the other blobs that wait for deletion."""

    def give_up(scope: Scope) -> int:
        stale = scope.stale_uploads(before_us, _AT_ONCE)
        for upload in stale:
            scope.abort_upload(upload.id)
        return len(stale)

    count = 0
    while given_up := await context.write_for(org_id, give_up):
        count += given_up
        if given_up < _AT_ONCE:
            break
    return count


async def _give_up_runs(context: ServerContext, org_id: str) -> int:
    """Marks the runs as failed and keeps the results that arrived. A runner that returns can continue."""
    before_us = context.clock() - int(context.settings.reap_runs_after_s * 1e6)

    def give_up(scope: Scope) -> tuple[int, bool]:
        told = False
        stale = scope.stale_eval_runs(before_us, _AT_ONCE)
        for run in stale:
            failed = scope.change_eval_run(run.id, {"status": "failed"})
            told |= failed is not None and announce_run(scope, context.settings, failed)
        return len(stale), told

    count, given_up = 0, _AT_ONCE
    while given_up == _AT_ONCE:
        given_up, told = await context.write_for(org_id, give_up)
        count += given_up
        if told:
            context.deliveries_wanted.put_nowait(org_id)
    return count


# ----------------------------------------------------------------------------------------- orphans


async def _remove_orphans(context: ServerContext) -> int:
    """Blobs that no row names: they were uploaded through a URL that outlived its episode. New blobs are left alone."""
    before_us = context.clock() - int(context.settings.reap_after_s * 1e6)
    count = 0
    async for some in _in_batches(context.blobs.list("episodes/")):
        old = [info.key for info in some if info.modified_at_us < before_us]
        for org_id in {_org_of(key) for key in old}:
            theirs = [key for key in old if _org_of(key) == org_id]
            known = await context.read_for(org_id, lambda scope: scope.known_objects(theirs))  # noqa: B023
            for key in set(theirs) - known:
                await context.blobs.delete(key)
                count += 1
    return count


def _org_of(key: str) -> str:
    return key.split("/")[1]


async def _in_batches(blobs: AsyncIterator[BlobInfo]) -> AsyncIterator[Sequence[BlobInfo]]:
    batch: list[BlobInfo] = []
    async for info in blobs:
        batch.append(info)
        if len(batch) == _KEYS_AT_ONCE:
            yield batch
            batch = []
    yield batch
