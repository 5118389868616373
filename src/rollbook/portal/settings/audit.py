"""The audit log: what was done, by whom, to what, and from where; the newest first, with filters in the address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rollbook.portal.page import page_route, page_session, render
from rollbook.portal.settings.tabs import AUDIT, SettingsPage, Tab, tabs_of
from rollbook.server.accounts.audit import place_in_log
from rollbook.server.context import context_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.queries import AuditRow, Scope

_ON_A_PAGE = 100
GROUPS = (
    "sign_in",
    "sign_out",
    "key",
    "member",
    "invitation",
    "device",
    "password",
    "webhook",
    "gate",
    "retention",
    "hold",
    "episode",
    "eval_run",
    "scenario",
    "store",
)
"""The first word of events, for the filter. Any other event can be asked for in the address."""


@dataclass(frozen=True, slots=True)
class ShownEvent:
    row: AuditRow
    detail: str


@dataclass(frozen=True, kw_only=True)
class AuditPage(SettingsPage):
    template: ClassVar[str] = "settings_audit.html"
    title: str = "Audit log"
    tab: Tab = AUDIT
    events: list[ShownEvent]
    groups: tuple[str, ...] = GROUPS
    event: str
    about: str
    names: Mapping[str, str]
    """Addresses of members and labels of keys, by the name that the log has for them."""
    following: int | None
    """Where the next page begins."""
    is_first: bool


async def audit_page(request: Request) -> Response:
    session, asked = await page_session(request, "see_audit_log"), request.query_params
    event, about = asked.get("event", "").strip(), asked.get("about", "").strip()
    before = place_in_log(request)

    def read(scope: Scope) -> tuple[list[AuditRow], dict[str, str]]:
        members, keys = scope.members(), scope.keys()
        names = {f"user:{each.user_id}": each.email for each in members}
        names |= {f"key:{each.key_id}": each.label for each in keys if each.label}
        known = next((name for name, shown in names.items() if shown == about), about)
        # what the command line did is noted with bare ids
        names |= {each.user_id: each.email for each in members}
        names[session.organisation.id] = session.organisation.name
        found = scope.audit_events(_ON_A_PAGE + 1, before, event=event or None, about=known or None)
        return found, names

    found, names = await context_of(request).read(session.caller, read)
    shown = found[:_ON_A_PAGE]
    page = AuditPage(
        session=session,
        tabs=tabs_of(session),
        events=[ShownEvent(each, _detail(each)) for each in shown],
        event=event,
        about=about,
        names=names,
        following=shown[-1].id if len(found) > _ON_A_PAGE else None,
        is_first=before is None,
    )
    return render(request, page)


def _detail(row: AuditRow) -> str:
    """The parts that say something, as `name: value`."""
    said = {name: value for name, value in row.detail.items() if value not in (None, [], "")}
    return "; ".join(f"{name.replace('_', ' ')}: {_text(value)}" for name, value in said.items())


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


routes: tuple[LeanRoute, ...] = (page_route("GET", AUDIT.path, audit_page),)
