"""Summaries of stores, computed once for each manifest, one at a time, and kept in the data folder."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from rollbook.files import make_folders, write_files
from rollbook.server.context import ServerContext
from rollbook.server.stores.opened import OpenedStore
from rollbook.server.stores.summary import SUMMARY_VERSION, StoreSummary, summary_of

WAIT_S = 2.0
"""A page waits this long for a summary, then says that it is being computed."""


async def summary(context: ServerContext, org_id: str, opened: OpenedStore) -> StoreSummary | None:
    """None while it is being computed: ask again. Raises the 409 of a store that cannot be read."""
    path = _path(context, org_id, opened)
    kept = await asyncio.to_thread(_read, path)
    if kept is not None:
        return kept
    key = ("summary", str(path))
    task: asyncio.Task[StoreSummary] | None = context.store_tasks.get(key)
    if task is None:
        task = asyncio.get_running_loop().create_task(_compute(context, opened, path))
        context.store_tasks[key] = task
        task.add_done_callback(lambda done: _forget(context, key, done))
    await asyncio.wait({task}, timeout=WAIT_S)
    return task.result() if task.done() else None


async def _compute(context: ServerContext, opened: OpenedStore, path: Path) -> StoreSummary:
    async with context.store_turn:
        made = await opened.run(summary_of)
    await asyncio.to_thread(_write, path, made)
    return made


def _forget(context: ServerContext, key: tuple[str, str], task: asyncio.Task[StoreSummary]) -> None:
    context.store_tasks.pop(key, None)
    if not task.cancelled() and task.exception() is not None:
        context.log.warning("store_summary_failed", error=str(task.exception()))


def _path(context: ServerContext, org_id: str, opened: OpenedStore) -> Path:
    return (
        context.settings.data_dir
        / "store-summaries"
        / org_id
        / f"{opened.store.manifest_sha256}.json"
    )


def _write(path: Path, made: StoreSummary) -> None:
    make_folders(path.parent, mode=0o700)
    write_files({path: msgspec.json.encode(made)})


def _read(path: Path) -> StoreSummary | None:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=StoreSummary)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.version == SUMMARY_VERSION else None
