"""Verification of a store: every check, and every byte against its checksum, in a thread of its own.

The row of the store keeps how far it is and how it ended, with the digest of the manifest that was checked. The result
counts for this manifest alone: a store that is written again has to be verified again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from rollbook.errors import RollbookError
from rollbook.server.accounts.audit import note
from rollbook.server.context import Caller, ServerContext, context_of
from rollbook.server.http.responses import Problem
from rollbook.server.queries import Scope, StoreRow
from rollbook.server.stores.opened import OpenedStore
from rollbook.store.checks.validate import CHECKS, validate_rollout_zarr_store

MOST_KEPT = 50
"""Violations and warnings that are kept in words; all are counted."""
_LONGEST_WORDS = 500
_NOTE_EVERY_S = 1.0
_SILENT_S = 60.0
"""A verification that noted nothing for this long was stopped with its process."""


@dataclass(slots=True)
class _Progress:
    done: int = 0
    total: int = len(CHECKS)

    def __call__(self, done: int, total: int) -> None:
        self.done, self.total = done, total


async def start_verification(request: Request, caller: Caller, opened: OpenedStore) -> None:
    """Answers at once; the work goes on in the background. A second start while one is under way is refused."""
    context = context_of(request)
    first: dict[str, Any] = {
        "state": "running",
        "manifest_sha256": opened.store.manifest_sha256,
        "started_at_us": context.clock(),
        "started_by": caller.name,
        "ended_at_us": None,
        "noted_at_us": context.clock(),
        "done": 0,
        "total": len(CHECKS),
        "violations": [],
        "violation_count": 0,
        "warnings": [],
    }

    def begin(scope: Scope) -> None:
        row = scope.store(opened.row.id)
        if row is not None and is_running(row, context.clock()):
            raise Problem(409, "verification_running", "this store is being verified already")
        scope.note_store(opened.row.id, {"verification": first})
        note(scope, request, caller, "store.verification_started", opened.row.id)

    await context.write(caller, begin)
    key = ("verification", f"{caller.org_id}/{opened.row.id}")
    task = asyncio.get_running_loop().create_task(_verify(context, caller, opened, first))
    context.store_tasks[key] = task
    task.add_done_callback(lambda done: _forget(context, key, done))


def is_running(row: StoreRow, now_us: int) -> bool:
    found = row.verification
    if found is None or found["state"] != "running":
        return False
    return bool(now_us - found["noted_at_us"] < _SILENT_S * 1e6)


def state_of(row: StoreRow, now_us: int) -> str | None:
    """`running`, `passed`, `failed`, `stopped`, or `outdated` when another store stands there now; None if never."""
    found = row.verification
    if found is None:
        return None
    if found["state"] == "running":
        return "running" if is_running(row, now_us) else "stopped"
    return str(found["state"]) if found["manifest_sha256"] == row.manifest_sha256 else "outdated"


# ---------------------------------------------------------------------------------------- background


async def _verify(
    context: ServerContext, caller: Caller, opened: OpenedStore, first: dict[str, Any]
) -> None:
    progress = _Progress()
    async with context.store_turn:
        work = asyncio.ensure_future(asyncio.to_thread(_checked, opened, progress))
        while not work.done():
            now = {**first, "done": progress.done, "total": progress.total}
            await _keep(context, caller, opened, now)
            await asyncio.wait({work}, timeout=_NOTE_EVERY_S)
    violations, warnings = work.result()
    ended = {
        **first,
        "state": "failed" if violations else "passed",
        "ended_at_us": context.clock(),
        "done": progress.total,
        "total": progress.total,
        "violations": [each[:_LONGEST_WORDS] for each in violations[:MOST_KEPT]],
        "violation_count": len(violations),
        "warnings": [each[:_LONGEST_WORDS] for each in warnings[:MOST_KEPT]],
    }
    await _keep(context, caller, opened, ended)


async def _keep(
    context: ServerContext, caller: Caller, opened: OpenedStore, found: dict[str, Any]
) -> None:
    values = {"verification": {**found, "noted_at_us": context.clock()}}
    await context.write_for(caller.org_id, lambda scope: scope.note_store(opened.row.id, values))


def _checked(opened: OpenedStore, progress: _Progress) -> tuple[list[str], list[str]]:
    """Violations and warnings. No link is followed: `local` refuses them, before and after."""
    place = opened.store.place
    try:
        found = validate_rollout_zarr_store(opened.reader.local(""), deep=True, progress=progress)
        opened.reader.local("")
    except (RollbookError, OSError) as error:
        return [opened.stores.words_of(error, place)], []
    errors = [opened.stores.words_of(each, place) for each in found.errors]
    return errors, [str(each) for each in found.warnings]


def _forget(context: ServerContext, key: tuple[str, str], task: asyncio.Task[None]) -> None:
    context.store_tasks.pop(key, None)
    if not task.cancelled() and task.exception() is not None:
        context.log.warning("store_verification_failed", error=str(task.exception()))
