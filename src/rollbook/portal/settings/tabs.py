"""What all settings pages share: the tabs, of which a person sees those that they may open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rollbook.portal.page import Page
from rollbook.server.accounts.roles import Action, may
from rollbook.server.accounts.sessions import Session


class Tab(NamedTuple):
    name: str
    path: str
    action: Action


SETTINGS = "/portal/settings"
USAGE = Tab("Usage and quotas", f"{SETTINGS}/quotas", "read")
GATES = Tab("Locked gates", f"{SETTINGS}/gates", "read")
RETENTION = Tab("Retention", f"{SETTINGS}/retention", "manage_retention")
WEBHOOKS = Tab("Webhooks", f"{SETTINGS}/webhooks", "manage_webhooks")
AUDIT = Tab("Audit log", f"{SETTINGS}/audit", "see_audit_log")
TABS = (USAGE, GATES, RETENTION, WEBHOOKS, AUDIT)


@dataclass(frozen=True, kw_only=True)
class SettingsPage(Page):
    session: Session
    tab: Tab
    tabs: list[Tab]


def tabs_of(session: Session) -> list[Tab]:
    return [each for each in TABS if may(session.caller, each.action)]
