"""Usage and quotas: what the organisation stores, and how much it may store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response

from rollbook.portal.page import page_route, page_session, redirect, render
from rollbook.portal.settings.tabs import SETTINGS, USAGE, SettingsPage, Tab, tabs_of
from rollbook.server.context import context_of
from rollbook.server.episodes.quotas import quota_of
from rollbook.server.http.openapi import LeanRoute


@dataclass(frozen=True, kw_only=True)
class UsagePage(SettingsPage):
    template: ClassVar[str] = "settings_usage.html"
    title: str = "Usage and quotas"
    tab: Tab = USAGE
    episodes: int
    stored_bytes: int
    most_episodes: int | None
    """None: no limit."""
    most_bytes: int | None
    artifact_limit: int


async def settings_page(request: Request) -> Response:
    return redirect(request, USAGE.path)


async def usage_page(request: Request) -> Response:
    session, context = await page_session(request), context_of(request)
    usage = await context.read(session.caller, lambda scope: scope.quota_usage())
    most_episodes, most_bytes = quota_of(usage, context.settings)
    page = UsagePage(
        session=session,
        tabs=tabs_of(session),
        episodes=usage.episodes,
        stored_bytes=usage.bytes,
        most_episodes=most_episodes,
        most_bytes=most_bytes,
        artifact_limit=context.settings.artifact_limit_bytes,
    )
    return render(request, page)


routes: tuple[LeanRoute, ...] = (
    page_route("GET", SETTINGS, settings_page),
    page_route("GET", USAGE.path, usage_page),
)
