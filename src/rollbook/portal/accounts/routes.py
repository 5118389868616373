"""The routes of all account pages."""

from __future__ import annotations

from rollbook.portal.accounts import device, keys, members, organisations, sign_in
from rollbook.server.http.openapi import LeanRoute

account_routes: tuple[LeanRoute, ...] = (
    *sign_in.routes,
    *keys.routes,
    *members.routes,
    *device.routes,
    *organisations.routes,
)
