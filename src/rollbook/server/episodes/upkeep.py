"""Upkeep: gives up abandoned recordings, and deletes orphaned blobs and expired rows.

A turn is a list of steps. A step that fails is logged and counted, and does not stop the others. Everything here may be
done twice, or by two processes at once, without harm. A lease in the database lets one process of all do the work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from rollbook.errors import BlobError, BlobStoreUnavailable, RollbookError
from rollbook.server.blobs.interface import BlobInfo
from rollbook.server.context import ServerContext
from rollbook.server.db.engine import NOBODY
from rollbook.server.episodes.artifacts import check_artifacts, remove_blobs, write_checks
from rollbook.server.episodes.retention import apply_retention
from rollbook.server.episodes.upkeep_lease import once_in
from rollbook.server.logs import frames_of
from rollbook.server.queries import EpisodeRow, Scope, delete_expired, organisation_ids
from rollbook.server.webhooks.events import announce_run

TURN, ORPHANS = "upkeep", "orphans"
"""The names of the leases."""
_AT_ONCE = 100
_KEYS_AT_ONCE = 500
_MOST_NOT_DELETED = 5
"""After so many blobs that cannot be deleted, the others wait for the next turn: the blob store is likely down."""
_EXPIRED_KEPT_US = 86_400_000_000
"""A client that polls an expired device login is told so for a day."""
_SOON_S = 0.05


@dataclass(slots=True)
class UpkeepDone:
    """What one turn did, by step."""

    counts: dict[str, int] = field(default_factory=dict)
    """Rows and blobs that each step changed."""
    failed: list[str] = field(default_factory=list)
    """Steps that failed, once for each organisation in which they did."""

    def __getitem__(self, step: str) -> int:
        return self.counts.get(step, 0)


async def keep_up(context: ServerContext) -> None:
    """Runs until it is cancelled. A failure is logged, and the work is tried again at the next turn."""
    every_s = context.settings.reap_every_s
    while every_s > 0:
        wait_s = every_s
        try:
            wait_s = await once_in(context, TURN, every_s, lambda: _turn(context))
        except Exception as error:  # noqa: BLE001 - upkeep must not end because of one bad turn
            context.log.error("upkeep_failed", error=repr(error), frames=frames_of(error))
        # another process may get the lease first, or die with it
        await asyncio.sleep(min(max(wait_s, _SOON_S), every_s))


async def _turn(context: ServerContext) -> bool:
    began = time.monotonic()
    done = await do_upkeep(context)
    await once_in(
        context,
        ORPHANS,
        context.settings.find_orphans_every_s,
        lambda: find_orphans(context, done),
    )
    seconds = time.monotonic() - began
    context.metrics.upkeep_turn(seconds)
    counts = {step: count for step, count in done.counts.items() if count}
    context.log.info("upkeep", took_s=round(seconds, 3), failed=done.failed, **counts)
    return True


async def do_upkeep(context: ServerContext) -> UpkeepDone:
    """One turn over all organisations, without the search for orphans."""
    done = UpkeepDone()
    await _step(context, done, "expired", lambda: _delete_expired(context))
    for org_id in await context.db.read(NOBODY, organisation_ids):
        for name, step in _STEPS.items():
            await _step(context, done, name, partial(step, context, org_id), org_id)
    await _step(context, done, "leftovers", lambda: _sweep(context))
    return done


async def find_orphans(context: ServerContext, done: UpkeepDone) -> bool:
    """Lists every blob. False when it failed."""
    return await _step(context, done, "orphans", lambda: _remove_orphans(context))


async def _step(
    context: ServerContext,
    done: UpkeepDone,
    name: str,
    work: Callable[[], Awaitable[int]],
    org_id: str | None = None,
) -> bool:
    failure: Exception | None = None
    count = 0
    try:
        count = await work()
    except _PartlyDone as partly:
        count, failure = partly.count, partly.why
    except Exception as error:  # noqa: BLE001 - one step must not stop the others
        failure = error
    done.counts[name] = done[name] + count
    context.metrics.upkeep_step(name, "done" if failure is None else "failed", count)
    if failure is not None:
        done.failed.append(name)
        is_ours = isinstance(failure, RollbookError)
        log = context.log.warning if is_ours else context.log.error
        said = str(failure) if is_ours else repr(failure)
        log("upkeep_step_failed", step=name, org_id=org_id, error=said, frames=frames_of(failure))
    return failure is None


class _PartlyDone(Exception):
    """Some of a step was done, and some was not."""

    def __init__(self, count: int, why: Exception) -> None:
        super().__init__(count, why)
        self.count, self.why = count, why


# -------------------------------------------------------------------------------------------- steps


async def _delete_expired(context: ServerContext) -> int:
    before_us = context.clock() - _EXPIRED_KEPT_US
    return await context.db.write(NOBODY, lambda connection: delete_expired(connection, before_us))


async def _sweep(context: ServerContext) -> int:
    return await context.blobs.sweep(older_than_s=context.settings.reap_after_s)


async def _remove_doomed(context: ServerContext, org_id: str) -> int:
    doomed = await context.read_for(org_id, lambda scope: scope.doomed_objects())
    gone = await remove_blobs(context, org_id, doomed, most_failures=_MOST_NOT_DELETED)
    if len(gone) < len(doomed):
        detail = f"{len(doomed) - len(gone)} of {len(doomed)} blobs could not be deleted"
        raise _PartlyDone(len(gone), BlobStoreUnavailable(detail=detail))
    return len(gone)


async def _forget_idempotency_keys(context: ServerContext, org_id: str) -> int:
    before_us = context.clock() - int(context.settings.idempotency_ttl_s * 1e6)
    return await context.write_for(org_id, lambda scope: scope.forget_idempotency_keys(before_us))


async def _forget_deliveries(context: ServerContext, org_id: str) -> int:
    before_us = context.clock() - int(context.settings.webhook_log_s * 1e6)
    return await context.write_for(org_id, lambda scope: scope.forget_deliveries(before_us))


def _untouched_since_us(context: ServerContext) -> int:
    return context.clock() - int(context.settings.reap_after_s * 1e6)


async def _abandon(context: ServerContext, org_id: str) -> int:
    """Marks the episodes as failed and keeps what arrived: the last minutes before a crash are the most useful."""
    before_us = _untouched_since_us(context)

    def find(scope: Scope) -> list[EpisodeRow]:
        ids = scope.abandoned_episodes(before_us, _AT_ONCE)
        return [episode for each in ids if (episode := scope.episode(each)) is not None]

    count = 0
    failures: list[RollbookError] = []
    while found := await context.read_for(org_id, find):
        done = 0
        for episode in found:
            try:
                done += await _abandon_one(context, org_id, episode, before_us)
            except RollbookError as error:  # the others do not wait for this one
                failures.append(error)
        count += done
        if done < len(found) or len(found) < _AT_ONCE:
            break
    if failures:
        raise _PartlyDone(count, failures[0])
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


async def _give_up_uploads(context: ServerContext, org_id: str) -> int:
    """Notes their parts here; they are removed with the other blobs that wait for deletion."""
    before_us = _untouched_since_us(context)

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
        for run_id in stale:
            failed = scope.change_eval_run(run_id, {"status": "failed"})
            told |= failed is not None and announce_run(scope, context.settings, failed)
        return len(stale), told

    count, given_up = 0, _AT_ONCE
    while given_up == _AT_ONCE:
        given_up, told = await context.write_for(org_id, give_up)
        count += given_up
        if told:
            context.deliveries_wanted.put_nowait(org_id)
    return count


_STEPS: Mapping[str, Callable[[ServerContext, str], Awaitable[int]]] = {
    "abandoned": _abandon,
    "uploads": _give_up_uploads,
    "retention": apply_retention,
    "blobs": _remove_doomed,
    "idempotency_keys": _forget_idempotency_keys,
    "eval_runs": _give_up_runs,
    "deliveries": _forget_deliveries,
}
"""For each organisation, in this order."""

# ----------------------------------------------------------------------------------------- orphans


async def _remove_orphans(context: ServerContext) -> int:
    """Blobs that no row names: they were uploaded through a URL that outlived its episode. New blobs are left alone."""
    before_us = _untouched_since_us(context)
    count = 0
    failures: list[Exception] = []
    async for some in _in_batches(context.blobs.list("episodes/")):
        old = [info.key for info in some if info.modified_at_us < before_us]
        for org_id in {_org_of(key) for key in old}:
            theirs = [key for key in old if _org_of(key) == org_id]
            known = await context.read_for(org_id, lambda scope: scope.known_objects(theirs))  # noqa: B023
            for key in sorted(set(theirs) - known):
                try:
                    await context.blobs.delete(key)
                    count += 1
                except (BlobError, OSError) as error:
                    failures.append(error)
                    if len(failures) == _MOST_NOT_DELETED:
                        raise _PartlyDone(count, error) from error
    if failures:
        raise _PartlyDone(count, failures[0])
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
