"""The application: builds one ASGI app from settings. All routes are put together here."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from rollbook import __version__
from rollbook.portal.page import unknown_path
from rollbook.portal.prefix import PathPrefix, prefix_of
from rollbook.portal.routes import portal_routes
from rollbook.server.accounts import (
    audit,
    device_login,
    invitations,
    manage_keys,
    members,
    sign_in,
)
from rollbook.server.blobs.interface import BlobStore
from rollbook.server.blobs.open import open_blobs_of
from rollbook.server.blobs.routes import blob_routes
from rollbook.server.context import ServerContext, context_of
from rollbook.server.db.engine import Database
from rollbook.server.db.migrate import migrate
from rollbook.server.db.open import open_database
from rollbook.server.episodes import (
    artifacts,
    batches as episode_batches,
    retention,
    routes as episodes,
    uploads,
)
from rollbook.server.episodes.upkeep import keep_up
from rollbook.server.evals import (
    evidence,
    fresh_baselines,
    locked_gates,
    results as eval_results,
    revisions,
    runs as eval_runs,
    scenarios,
    trends,
    verify,
)
from rollbook.server.http.health import health_routes
from rollbook.server.http.middleware import RequestEdge
from rollbook.server.http.openapi import document_routes
from rollbook.server.http.responses import EXCEPTION_HANDLERS
from rollbook.server.logs import Log, set_up_logs
from rollbook.server.metrics import Metrics, NoMetrics, PrometheusMetrics, serve_metrics
from rollbook.server.recordings import routes as recordings
from rollbook.server.settings import Settings
from rollbook.server.stores import routes as stores
from rollbook.server.supervisor import stop_with_parent
from rollbook.server.video.renditions import keep_making
from rollbook.server.webhooks import routes as webhooks
from rollbook.server.webhooks.delivery import keep_delivering

WORKER_SETTINGS = "ROLLBOOK_WORKER_SETTINGS"
"""The environment variable that carries the settings to worker processes."""


def create_app(settings: Settings) -> Starlette:
    app = Starlette(
        # the busiest routes first: they are tried in this order
        routes=(
            *episodes.routes,
            *artifacts.routes,
            *recordings.routes,
            *uploads.routes,
            *episode_batches.routes,
            *eval_results.routes,
            *eval_runs.routes,
            *verify.routes,
            *scenarios.routes,
            *revisions.routes,
            *evidence.routes,
            *trends.routes,
            *locked_gates.routes,
            *fresh_baselines.routes,
            *stores.routes,
            *webhooks.routes,
            *retention.routes,
            *blob_routes(_blobs_of),
            *health_routes(_database_of, _blobs_of),
            *manage_keys.routes,
            *device_login.routes,
            *sign_in.routes,
            *members.routes,
            *invitations.routes,
            *audit.routes,
            *portal_routes,
        ),
        middleware=(
            *_proxy_headers(settings),
            Middleware(RequestEdge),
            *_path_prefix(settings),
        ),
        exception_handlers={**EXCEPTION_HANDLERS, HTTPException: unknown_path},
        lifespan=lambda app: _lifespan(app, settings),
    )
    app.router.redirect_slashes = False
    app.router.routes.extend(document_routes(app))
    return app


def _proxy_headers(settings: Settings) -> tuple[Middleware, ...]:
    if not settings.trusted_proxies:
        return ()
    return (Middleware(ProxyHeadersMiddleware, trusted_hosts=list(settings.trusted_proxies)),)


def _path_prefix(settings: Settings) -> tuple[Middleware, ...]:
    prefix = prefix_of(settings.public_url)
    return (Middleware(PathPrefix, prefix=prefix),) if prefix else ()


def worker_app() -> Starlette:
    """The app of a worker process of `rollbook serve --workers`."""
    stop_with_parent()
    given: dict[str, Any] = json.loads(os.environ[WORKER_SETTINGS])
    return create_app(Settings.load(Path(given.pop("data_dir")), **given))


def _database_of(request: Request) -> Database:
    return context_of(request).db


def _blobs_of(request: Request) -> BlobStore:
    return context_of(request).blobs


@asynccontextmanager
async def _lifespan(app: Starlette, settings: Settings) -> AsyncIterator[None]:
    """Resources are closed in reverse order. The database closes when nothing can use it any more."""
    log = set_up_logs(settings.log_level)
    applied = await asyncio.to_thread(migrate, settings.database_url)
    if applied:
        log.info("migrated", revisions=applied)
    async with AsyncExitStack() as stack:
        metrics, stop_metrics = _metrics(settings)
        stack.callback(stop_metrics)
        db = open_database(
            settings.database_url, connections=settings.database_connections, metrics=metrics
        )
        stack.push_async_callback(asyncio.to_thread, db.close)
        blobs = open_blobs_of(settings, metrics)
        stack.push_async_callback(blobs.close)
        context = app.state.context = ServerContext(
            settings=settings,
            db=db,
            blobs=blobs,
            log=log,
            metrics=metrics,
        )
        stack.push_async_callback(_cancel, asyncio.create_task(keep_up(context)))
        stack.push_async_callback(_cancel, asyncio.create_task(keep_making(context)))
        stack.push_async_callback(_cancel, asyncio.create_task(keep_delivering(context)))
        _log_start(log, settings)
        yield
        log.info("stopping")


def _metrics(settings: Settings) -> tuple[Metrics, Callable[[], None]]:
    """With several workers none can own the address, so the parent process serves the metrics."""
    address = settings.metrics_address
    if address is None:
        return NoMetrics(), lambda: None
    metrics = PrometheusMetrics()
    if settings.workers > 1:
        return metrics, lambda: None
    return metrics, serve_metrics(address, metrics.registry)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _log_start(log: Log, settings: Settings) -> None:
    kinds = {"database": settings.database_url, "blobs": settings.blobs_url}
    log.info(
        "started", version=__version__, **{k: url.split(":", 1)[0] for k, url in kinds.items()}
    )
