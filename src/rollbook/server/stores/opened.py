"""Registered stores, open for reading. A store that cannot be read is noted with its row, and answered in words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rollbook.errors import RollbookError, StorageError
from rollbook.server.context import Caller, ServerContext
from rollbook.server.db.engine import NOBODY
from rollbook.server.http.responses import Problem, not_found
from rollbook.server.queries import StoreRow, organisation_ids
from rollbook.server.store_files.open_stores import OpenStores, ReadStore
from rollbook.server.store_files.roots import StorePlace, StoreRoot
from rollbook.store.reader import RolloutZarrStoreReader

T = TypeVar("T")

_LONGEST_PROBLEM = 500


@dataclass(frozen=True, slots=True, eq=False)
class OpenedStore:
    row: StoreRow
    store: ReadStore
    stores: OpenStores

    @property
    def reader(self) -> RolloutZarrStoreReader:
        """Its columns are mapped files: read them in a thread, by `run`."""
        return self.store.reader

    async def run(self, work: Callable[[RolloutZarrStoreReader], T]) -> T:
        """`work` in a thread. A store that breaks meanwhile is answered like one that cannot be opened."""
        try:
            return await asyncio.to_thread(work, self.store.reader)
        except StorageError as error:
            raise unreadable(self.stores.words_of(error, self.store.place)) from error


async def opened(context: ServerContext, caller: Caller, store_id: str) -> OpenedStore:
    """The store with this id, as it is now. 404 for an id of another organisation; 409 when it cannot be read."""
    row = await context.read(caller, lambda scope: scope.store(store_id))
    if row is None:
        raise not_found("store")
    found = await seen(context, caller.org_id, row)
    if isinstance(found, StoreRow):
        raise unreadable(found.problem or "", found.unreadable_at_us)
    return found


async def seen(context: ServerContext, org_id: str, row: StoreRow) -> OpenedStore | StoreRow:
    """The store, open; or its row, which says why and since when it cannot be read."""
    place = await place_of(context, org_id, row.place)
    try:
        if place is None:
            detail = "it lies in no store root of this organisation any more"
            raise StorageError(path=row.place, detail=detail)
        store = await asyncio.to_thread(context.stores.read, org_id, place)
    except RollbookError as error:
        since = row.unreadable_at_us or context.clock()
        words = str(error) if place is None else context.stores.words_of(error, place)
        problem = words[:_LONGEST_PROBLEM]
        return await _noted(context, org_id, row, {"unreadable_at_us": since, "problem": problem})
    fresh = {**columns_of(store), "unreadable_at_us": None, "problem": None}
    return OpenedStore(await _noted(context, org_id, row, fresh), store, context.stores)


async def _noted(
    context: ServerContext, org_id: str, row: StoreRow, values: dict[str, Any]
) -> StoreRow:
    changed = {name: value for name, value in values.items() if getattr(row, name) != value}
    if changed:
        await context.write_for(org_id, lambda scope: scope.note_store(row.id, changed))
    return replace(row, **changed)


def columns_of(store: ReadStore) -> dict[str, Any]:
    """What its row says about a store that was read."""
    attrs = store.reader.attrs
    return {
        "manifest_sha256": store.manifest_sha256,
        "content_sha256": store.content_sha256,
        "counts": {
            "rollouts": store.reader.num_rollouts,
            "steps": store.reader.num_steps,
            "candidates": store.reader.num_candidates,
            "bytes": store.size,
            "schema_version": _text(attrs.get("schema_version")),
            "profile": _text(attrs.get("profile")),
            "created_at": _text(attrs.get("created_at_utc")),
        },
    }


def _text(value: object) -> str | None:
    return value[:200] if isinstance(value, str) else None


def unreadable(problem: str, since_us: int | None = None) -> Problem:
    return Problem(409, "store_unreadable", f"the store cannot be read: {problem}", since=since_us)


# -------------------------------------------------------------------------------------------- roots


async def place_of(context: ServerContext, org_id: str, text: str) -> StorePlace | None:
    return context.stores.place(org_id, await _first_organisation(context), text)


async def roots_of(context: ServerContext, org_id: str) -> tuple[StoreRoot, ...]:
    return context.stores.roots_of(org_id, await _first_organisation(context))


async def _first_organisation(context: ServerContext) -> str:
    """It owns the roots for which no other is named."""
    if all(root.org_id is not None for root in context.stores.roots):
        return ""
    ids = await context.db.read(NOBODY, organisation_ids)
    return ids[0] if ids else ""
