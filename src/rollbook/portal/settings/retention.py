"""Retention: policies that delete old episodes. A new one is made after its preview, which says what would go now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, get_args

from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.episode import EpisodeSource
from rollbook.contracts.wire.retention import CreateRetentionPolicy, RetentionPreview
from rollbook.portal.page import (
    form_message,
    page_route,
    page_session,
    redirect,
    render,
    signed_in_form,
)
from rollbook.portal.settings.tabs import RETENTION, SettingsPage, Tab, tabs_of
from rollbook.server.context import context_of
from rollbook.server.episodes.retention import add_policy, drop_policy, policy_of, preview
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem
from rollbook.server.queries import HoldRow, RetentionRow, Scope

_SHOWN_EPISODES = 20


@dataclass(frozen=True, slots=True)
class PreviewedPolicy:
    asked: CreateRetentionPolicy
    found: RetentionPreview
    shown: int = _SHOWN_EPISODES


@dataclass(frozen=True, kw_only=True)
class RetentionPage(SettingsPage):
    template: ClassVar[str] = "settings_retention.html"
    title: str = "Retention"
    tab: Tab = RETENTION
    policies: list[RetentionRow]
    holds: list[HoldRow]
    previewed: PreviewedPolicy | None
    sources: tuple[str, ...] = get_args(EpisodeSource)
    days: str
    source: str
    tags: str


async def retention_page(request: Request) -> Response:
    session, asked = await page_session(request, "manage_retention"), request.query_params
    policy, problem = None, None
    if "older_than_days" in asked:
        try:
            policy = _policy_in(asked)
        except Problem as refused:
            problem = refused

    def read(scope: Scope) -> tuple[list[RetentionRow], list[HoldRow], PreviewedPolicy | None]:
        shown = None
        if policy is not None:
            shown = PreviewedPolicy(policy, preview(scope, policy_of(scope, policy)))
        return scope.retention_policies(), scope.holds(), shown

    policies, holds, previewed = await context_of(request).read(session.caller, read)
    page = RetentionPage(
        session=session,
        tabs=tabs_of(session),
        policies=policies,
        holds=holds,
        previewed=previewed,
        days=asked.get("older_than_days", "90"),
        source=asked.get("source", ""),
        tags=asked.get("tags", ""),
        problem=None if problem is None else problem.error,
    )
    return render(request, page, 200 if problem is None else problem.status)


def _policy_in(fields: Mapping[str, str]) -> CreateRetentionPolicy:
    """Of a form: empty fields are left out, and tags stand in one field with commas between them."""
    tags = [each.strip() for each in fields.get("tags", "").split(",") if each.strip()]
    asked: dict[str, object] = {
        "older_than_days": fields.get("older_than_days", "").strip(),
        "tags": tags,
    }
    if fields.get("source"):
        asked["source"] = fields["source"]
    return form_message(CreateRetentionPolicy, asked)


async def create_by_form(request: Request) -> Response:
    session, sent = await signed_in_form(request, "manage_retention")
    await add_policy(request, session.caller, _policy_in(dict(sent)))
    return redirect(request, RETENTION.path)


async def delete_by_form(request: Request) -> Response:
    session, _ = await signed_in_form(request, "manage_retention")
    await drop_policy(request, session.caller, request.path_params["policy_id"])
    return redirect(request, RETENTION.path)


routes: tuple[LeanRoute, ...] = (
    page_route("GET", RETENTION.path, retention_page),
    page_route("POST", RETENTION.path, create_by_form),
    page_route("POST", f"{RETENTION.path}/{{policy_id}}/delete", delete_by_form),
)
