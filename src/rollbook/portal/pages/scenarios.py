"""Scenarios: episodes that every candidate has to pass. The list, one scenario with its history, and its forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.evals import SEVERITIES
from rollbook.contracts.wire.scenarios import ChangeScenario, Promote
from rollbook.portal.page import (
    Page,
    form_message,
    page_route,
    page_session,
    redirect,
    render,
    signed_in_form,
)
from rollbook.server.accounts.roles import PEOPLE_MAY
from rollbook.server.accounts.sessions import Session
from rollbook.server.context import context_of
from rollbook.server.evals import scenarios as changes
from rollbook.server.evals.verify import promote
from rollbook.server.http.listing import listing_of, truth_of
from rollbook.server.http.openapi import LeanRoute
from rollbook.server.http.responses import Problem, not_found
from rollbook.server.queries import EpisodeRow, ScenarioRow, Scope, VerificationRow

LIST = "/portal/scenarios"
CONFIRMATION = "remove"
_ON_A_PAGE = 50


@dataclass(frozen=True, slots=True)
class ListedScenario:
    scenario: ScenarioRow
    newest: VerificationRow | None
    """Of any candidate."""


@dataclass(frozen=True, kw_only=True)
class ScenariosPage(Page):
    template: ClassVar[str] = "scenarios.html"
    section: ClassVar[str] = "scenarios"
    title: str = "Scenarios"
    scenarios: Sequence[ListedScenario]
    active: bool | None
    cursor: str | None
    """Of the next page."""
    is_first: bool
    candidates: Sequence[str]
    """Versions of the newest runs, to choose from."""


@dataclass(frozen=True, kw_only=True)
class ScenarioPage(Page):
    template: ClassVar[str] = "scenario.html"
    section: ClassVar[str] = "scenarios"
    scenario: ScenarioRow
    episode: EpisodeRow
    results: Sequence[VerificationRow]
    cursor: str | None
    severities: Sequence[str] = SEVERITIES
    may_change: bool


@dataclass(frozen=True, kw_only=True)
class RemoveScenarioPage(Page):
    template: ClassVar[str] = "scenario_remove.html"
    section: ClassVar[str] = "scenarios"
    scenario: ScenarioRow
    confirmation: str = CONFIRMATION


@dataclass(frozen=True, kw_only=True)
class PromotePage(Page):
    template: ClassVar[str] = "promote.html"
    section: ClassVar[str] = "episodes"
    title: str = "Promote to scenario"
    episode: EpisodeRow
    severities: Sequence[str] = SEVERITIES
    otherwise: str = "warning"
    """The severity that the API gives where none is stated."""


def name_of(scenario: ScenarioRow) -> str:
    return scenario.name or f"Episode {scenario.baseline_episode_id}"


def may_change(session: Session) -> bool:
    return session.caller.role in PEOPLE_MAY["change_scenarios"]


# -------------------------------------------------------------------------------------------- pages


async def list_scenarios(request: Request) -> Response:
    session = await page_session(request)
    asked = listing_of(request.query_params, known=("active",), limit=_ON_A_PAGE, most=_ON_A_PAGE)
    active = truth_of(asked.filters, "active")

    def read(scope: Scope) -> tuple[list[ListedScenario], str | None, list[str]]:
        found, following = scope.scenarios(active, asked.cursor, asked.limit)
        newest = scope.newest_verifications(each.id for each in found)
        listed = [ListedScenario(each, newest.get(each.id)) for each in found]
        return listed, following, scope.newest_candidates()

    found, following, candidates = await context_of(request).read(session.caller, read)
    page = ScenariosPage(
        session=session,
        scenarios=found,
        active=active,
        cursor=following,
        is_first=asked.cursor is None,
        candidates=candidates,
    )
    return render(request, page)


async def show_scenario(request: Request) -> Response:
    session = await page_session(request)
    scenario_id: str = request.path_params["scenario_id"]
    asked = listing_of(request.query_params, limit=_ON_A_PAGE, most=_ON_A_PAGE)

    def read(scope: Scope) -> tuple[ScenarioRow, EpisodeRow, list[VerificationRow], str | None]:
        scenario = scope.scenario(scenario_id)
        episode = None if scenario is None else scope.episode(scenario.baseline_episode_id)
        if scenario is None or episode is None:
            raise not_found("scenario")
        return scenario, episode, *scope.verifications(scenario_id, asked.cursor, asked.limit)

    scenario, episode, results, following = await context_of(request).read(session.caller, read)
    page = ScenarioPage(
        session=session,
        title=name_of(scenario),
        scenario=scenario,
        episode=episode,
        results=results,
        cursor=following,
        may_change=may_change(session),
    )
    return render(request, page)


async def old_address(request: Request) -> Response:
    """`rollbook verify check` prints it."""
    await page_session(request)
    return redirect(request, LIST)


# -------------------------------------------------------------------------------------------- forms


async def ask_promotion(request: Request) -> Response:
    session = await page_session(request, "evaluate")
    episode_id: str = request.path_params["episode_id"]
    episode = await context_of(request).read(
        session.caller, lambda scope: scope.episode(episode_id)
    )
    if episode is None:
        raise not_found("episode")
    return render(request, PromotePage(session=session, episode=episode))


async def promote_episode(request: Request) -> Response:
    session, sent = await signed_in_form(request, "evaluate")
    fields = _given(dict(sent), ("name", "severity", "description"))
    body = form_message(
        Promote, {"baseline_episode_id": request.path_params["episode_id"], **fields}
    )
    scenario, _ = await context_of(request).write(
        session.caller, lambda scope: promote(scope, session.caller, body)
    )
    return redirect(request, f"{LIST}/{scenario.id}")


async def change_scenario(request: Request) -> Response:
    session, sent = await signed_in_form(request, "change_scenarios")
    scenario_id: str = request.path_params["scenario_id"]
    fields: dict[str, Any] = _given(dict(sent), ("severity", "active"))
    # a name or a note that was emptied is taken away
    fields |= {name: text.strip() for name, text in sent if name in ("name", "description")}
    if "active" in fields:
        fields["active"] = truth_of(fields, "active")
    body = msgspec.structs.asdict(form_message(ChangeScenario, fields))
    given = {name: value for name, value in body.items() if value is not None}
    if given:
        await context_of(request).write(
            session.caller,
            lambda scope: changes.change(scope, request, session.caller, scenario_id, given),
        )
    return redirect(request, f"{LIST}/{scenario_id}")


async def ask_removal(request: Request) -> Response:
    session = await page_session(request, "change_scenarios")
    scenario_id: str = request.path_params["scenario_id"]
    scenario = await context_of(request).read(
        session.caller, lambda scope: scope.scenario(scenario_id)
    )
    if scenario is None:
        raise not_found("scenario")
    title = f"Remove {name_of(scenario)}"
    return render(request, RemoveScenarioPage(session=session, title=title, scenario=scenario))


async def remove_scenario(request: Request) -> Response:
    session, sent = await signed_in_form(request, "change_scenarios")
    scenario_id: str = request.path_params["scenario_id"]
    is_confirmed = dict(sent).get("confirmation", "").strip().lower() == CONFIRMATION

    def remove(scope: Scope) -> None:
        if scope.scenario(scenario_id) is None:
            raise not_found("scenario")
        if not is_confirmed:
            text = f"nothing was removed; go back and type {CONFIRMATION} to confirm"
            raise Problem(400, "not_confirmed", text)
        changes.delete(scope, request, session.caller, scenario_id)

    await context_of(request).write(session.caller, remove)
    return redirect(request, LIST)


def _given(sent: Mapping[str, str], names: Sequence[str]) -> dict[str, Any]:
    """Without the fields that were left empty."""
    return {name: sent[name].strip() for name in names if sent.get(name, "").strip()}


_SCENARIO, _PROMOTE = "/portal/scenarios/{scenario_id}", "/portal/episodes/{episode_id}/promote"

routes: tuple[LeanRoute, ...] = (
    page_route("GET", LIST, list_scenarios),
    page_route("GET", "/portal/verify", old_address),
    page_route("GET", _SCENARIO, show_scenario),
    page_route("POST", _SCENARIO, change_scenario),
    page_route("GET", f"{_SCENARIO}/remove", ask_removal),
    page_route("POST", f"{_SCENARIO}/remove", remove_scenario),
    page_route("GET", _PROMOTE, ask_promotion),
    page_route("POST", _PROMOTE, promote_episode),
)
