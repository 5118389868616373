"""Health: `/healthz` says that the process answers, `/readyz` that its database and its blob store answer too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.wire.health import Health
from rollbook.errors import BlobStoreUnavailable, DatabaseFull, DatabaseUnavailable
from rollbook.server.blobs.interface import BlobStore
from rollbook.server.db.engine import NOBODY, Database
from rollbook.server.http.openapi import LeanRoute, route
from rollbook.server.http.responses import Problem, json_response

FindDatabase: TypeAlias = "Callable[[Request], Database]"
FindBlobs: TypeAlias = "Callable[[Request], BlobStore]"

_LONGEST_CHECK_S = 1.5


async def healthz(_request: Request) -> Response:
    return json_response(Health("ok"))


def health_routes(find_database: FindDatabase, find_blobs: FindBlobs) -> tuple[LeanRoute, ...]:
    """Each argument gives what belongs to the application that a request came to."""

    database, blobs = _Check(), _Check()

    async def readyz(request: Request) -> Response:
        answers = await asyncio.gather(
            database.answer(lambda: _check_database(find_database(request))),
            blobs.answer(lambda: _check_blobs(find_blobs(request))),
        )
        checks = dict(zip(("database", "blobs"), answers, strict=True))
        if any(check != "ok" for check in checks.values()):
            text = "; ".join(f"{name}: {check}" for name, check in checks.items() if check != "ok")
            raise Problem(503, "not_ready", text, headers={"Retry-After": "5"}, checks=checks)
        return json_response(Health("ready"))

    return (
        route(
            "GET",
            "/healthz",
            healthz,
            summary="The process answers.",
            gives=Health,
            open_to_all=True,
            tag="health",
        ),
        route(
            "GET",
            "/readyz",
            readyz,
            summary="The database and the blob store answer.",
            gives=Health,
            errors=(503,),
            open_to_all=True,
            tag="health",
        ),
    )


class _Check:
    """One check at a time. While it gets no answer, further requests wait for the same one: otherwise every look at a
    frozen service would take another thread."""

    def __init__(self) -> None:
        self._running: asyncio.Task[str] | None = None

    async def answer(self, check: Callable[[], Awaitable[str]]) -> str:
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(check())
        done, _ = await asyncio.wait({self._running}, timeout=_LONGEST_CHECK_S)
        return self._running.result() if done else f"no answer within {_LONGEST_CHECK_S:g} s"


async def _check_database(database: Database) -> str:
    try:
        await database.read(NOBODY, lambda connection: connection.scalar(sa.select(1)))
    except (DatabaseUnavailable, DatabaseFull) as error:
        return str(error)
    return "ok"


async def _check_blobs(blobs: BlobStore) -> str:
    try:
        await blobs.check()
    except BlobStoreUnavailable as error:
        return str(error)
    return "ok"
