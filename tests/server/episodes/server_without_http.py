"""A server without HTTP, for tests of upkeep: its clock can be turned, and its log and metrics are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from rollbook.server.blobs.open import open_blobs_of
from rollbook.server.context import ServerContext
from rollbook.server.db.columns import now_us
from rollbook.server.db.engine import Database
from rollbook.server.episodes.upkeep import UpkeepDone, do_upkeep, find_orphans
from rollbook.server.metrics import PrometheusMetrics
from rollbook.server.settings import Settings

T = TypeVar("T")


class Heard:
    """A log that is kept."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def _hear(self, event: str, **values: Any) -> None:
        self.events.append({"event": event, **values})

    debug = info = warning = error = _hear


class Server:
    """Without HTTP, and with a clock that can be turned."""

    def __init__(self, database: Database, data_dir: Path, **settings: Any) -> None:
        self.database = database
        self.settings = Settings.load(data_dir / "data", **settings)
        self.later_us = 0
        self.log = Heard()
        self.metrics = PrometheusMetrics()

    def run(self, work: Callable[[ServerContext], Awaitable[T]]) -> T:
        async def with_context() -> T:
            blobs = open_blobs_of(self.settings)
            context = ServerContext(
                settings=self.settings,
                db=self.database,
                blobs=blobs,
                log=self.log,
                metrics=self.metrics,
                clock=lambda: now_us() + self.later_us,
            )
            try:
                return await work(context)
            finally:
                await blobs.close()

        return asyncio.run(with_context())

    def do_upkeep(self, *, orphans: bool = True) -> UpkeepDone:
        async def turn(context: ServerContext) -> UpkeepDone:
            done = await do_upkeep(context)
            if orphans:
                await find_orphans(context, done)
            return done

        return self.run(turn)

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def put(self, key: str, content: bytes) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield content

        def put(context: ServerContext) -> Awaitable[Any]:
            return context.blobs.put(key, chunks(), content_type="application/octet-stream")

        self.run(put)

    def keys(self) -> list[str]:
        async def listed(context: ServerContext) -> list[str]:
            return [info.key async for info in context.blobs.list("episodes/")]

        return self.run(listed)
