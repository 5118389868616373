"""The routes of all settings pages."""

from __future__ import annotations

from rollbook.portal.settings import audit, gates, retention, usage, webhooks
from rollbook.server.http.openapi import LeanRoute

settings_routes: tuple[LeanRoute, ...] = (
    *usage.routes,
    *gates.routes,
    *retention.routes,
    *webhooks.routes,
    *audit.routes,
)
