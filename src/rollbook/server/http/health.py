"""Health: `/healthz` says that the process answers, `/readyz` that it can do its work."""

from __future__ import annotations

import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.wire.health import Health
from rollbook.errors import DatabaseFull, DatabaseUnavailable
from rollbook.server.blobs.interface import BlobStoreUnavailable
from rollbook.server.context import ServerContext, context_of
from rollbook.server.db.engine import NOBODY
from rollbook.server.http.openapi import LeanRoute, route
from rollbook.server.http.responses import Problem, json_response


async def healthz(_request: Request) -> Response:
    return json_response(Health("ok"))


async def readyz(request: Request) -> Response:
    context = context_of(request)
    checks = {"database": await _database(context), "blobs": await _blobs(context)}
    if any(check != "ok" for check in checks.values()):
        text = "; ".join(f"{name}: {check}" for name, check in checks.items() if check != "ok")
        raise Problem(503, "not_ready", text, headers={"Retry-After": "5"}, checks=checks)
    return json_response(Health("ready"))


async def _database(context: ServerContext) -> str:
    try:
        await context.db.read(NOBODY, lambda connection: connection.scalar(sa.select(1)))
    except (DatabaseUnavailable, DatabaseFull) as error:
        return str(error)
    return "ok"


async def _blobs(context: ServerContext) -> str:
    try:
        await context.blobs.check()
    except BlobStoreUnavailable as error:
        return str(error)
    return "ok"


routes: tuple[LeanRoute, ...] = (
    route(
        "GET",
        "/healthz",
        healthz,
        summary="The process is up.",
        gives=Health,
        open_to_all=True,
        tag="health",
    ),
    route(
        "GET",
        "/readyz",
        readyz,
        summary="Database and blob store answer.",
        gives=Health,
        errors=(503,),
        open_to_all=True,
        tag="health",
    ),
)
