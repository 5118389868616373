"""The overview of an organisation: what was decided, what fails, what was recorded last, and how much is stored. While
nothing is recorded, it is a page of three commands to type next."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from rollbook.portal.decisions import RunLine, run_line
from rollbook.portal.page import HOME, Page, page_route, page_session, redirect, render
from rollbook.portal.pages.trends import measured_run, values_by_version, version_chart
from rollbook.portal.pages.welcome import welcome
from rollbook.server.accounts.sessions import Session
from rollbook.server.context import context_of
from rollbook.server.episodes.quotas import quota_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.queries import (
    EvalRunFilter,
    EvalRunRow,
    Holdings,
    ListedEpisode,
    Scope,
    Standing,
    Usage,
)
from rollbook.server.settings import Settings

_RUNS, _EPISODES, _SCENARIOS, _VERSIONS = 6, 6, 5, 7
_ORDER = {"fail": 0, "error": 0, None: 1, "pass": 2}
_FAMILY = re.compile(r"(.*?)[-_.]?v?\d")


@dataclass(frozen=True, slots=True)
class Storage:
    usage: Usage
    most_bytes: int | None
    most_episodes: int | None

    @property
    def share(self) -> float | None:
        """Of the quota in bytes."""
        if not self.most_bytes:
            return None
        return min(self.usage.bytes / self.most_bytes, 1.0)


@dataclass(frozen=True, slots=True)
class Versions:
    """The success of the versions of one policy."""

    family: str
    chart: Markup
    """Empty where fewer than two versions were measured."""


@dataclass(frozen=True, slots=True)
class Scenarios:
    """How the newest candidate does on the scenarios that it has to pass, the failing ones first."""

    candidate: str
    standings: list[Standing]
    total: int
    failing: int


@dataclass(frozen=True, kw_only=True)
class HomePage(Page):
    template: ClassVar[str] = "home.html"
    section: ClassVar[str] = "overview"
    title: str = "Overview"
    session: Session
    holdings: Holdings
    lines: list[RunLine]
    episodes: list[ListedEpisode]
    scenarios: Scenarios | None
    """None before the first run."""
    versions: Versions | None
    storage: Storage


async def front_door(request: Request) -> Response:
    return redirect(request, HOME)


async def home(request: Request) -> Response:
    session, context = await page_session(request), context_of(request)
    page = await context.read(session.caller, lambda scope: _read(scope, session, context.settings))
    return await welcome(request, session) if page is None else render(request, page)


def _read(scope: Scope, session: Session, settings: Settings) -> HomePage | None:
    """None while there is nothing to show."""
    usage, holdings = scope.quota_usage(), scope.holdings()
    if not usage.episodes and not holdings.eval_runs and not holdings.stores:
        return None
    runs, _ = scope.decided_runs(EvalRunFilter(), None, _RUNS)
    episodes, size = quota_of(usage, settings)
    return HomePage(
        session=session,
        holdings=holdings,
        lines=[run_line(each) for each in runs],
        episodes=scope.newest_episodes(_EPISODES),
        scenarios=_scenarios(scope, runs[0].candidate_policy_version) if runs else None,
        versions=_versions(scope, runs[0].candidate_policy_version) if runs else None,
        storage=Storage(usage, size, episodes),
    )


def _scenarios(scope: Scope, candidate: str) -> Scenarios:
    every = scope.standings(candidate)
    ordered = sorted(
        every, key=lambda each: (_ORDER.get(each.status, 1), each.scenario.severity != "critical")
    )
    failing = sum(each.status in ("fail", "error") for each in every)
    return Scenarios(candidate, ordered[:_SCENARIOS], len(every), failing)


def _versions(scope: Scope, candidate: str) -> Versions:
    family = family_of(candidate)
    runs: list[EvalRunRow] = scope.completed_runs(
        baseline_policy_version=None, candidate_prefix=family, limit=2 * _VERSIONS
    )
    measured = [measured_run(run, "success") for run in runs]
    values = values_by_version([each for each in measured if each is not None])[-_VERSIONS:]
    return Versions(family, version_chart(values, "success") if len(values) > 1 else Markup(""))


def family_of(version: str) -> str:
    """The text before the first number: `pick-act` of `pick-act-v4-rc1`. A version without one is its own family."""
    found = _FAMILY.match(version)
    return found[1] if found and found[1] else version


routes: tuple[LeanRoute, ...] = (
    page_route("GET", "/", front_door),
    page_route("GET", HOME, home),
)
