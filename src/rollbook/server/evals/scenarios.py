"""Scenarios over HTTP: list, change, deactivate and delete them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.wire.scenarios import (
    ChangeScenario,
    ScenarioAnswer,
    ScenarioDeleted,
    ScenarioList,
)
from rollbook.server.accounts.audit import note
from rollbook.server.accounts.callers import caller_of
from rollbook.server.context import Caller, context_of
from rollbook.server.http.listing import listing_of, page_parameters, truth_of
from rollbook.server.http.openapi import LeanRoute, query, route
from rollbook.server.http.requests import json_body
from rollbook.server.http.responses import answer_from_row, json_response, not_found
from rollbook.server.queries import ScenarioRow, Scope

MOST_ON_A_PAGE = 1000
_DEFAULT_ON_A_PAGE = 100
_change = msgspec.json.Decoder(ChangeScenario)


def scenario_answer(row: ScenarioRow) -> ScenarioAnswer:
    return answer_from_row(ScenarioAnswer, row, scenario_id=row.id)


async def list_scenarios(request: Request) -> Response:
    caller = await caller_of(request, "read")
    asked = listing_of(
        request.query_params, known=("active",), limit=_DEFAULT_ON_A_PAGE, most=MOST_ON_A_PAGE
    )
    active = truth_of(asked.filters, "active")
    found, following = await context_of(request).read(
        caller, lambda scope: scope.scenarios(active, asked.cursor, asked.limit)
    )
    return json_response(ScenarioList([scenario_answer(each) for each in found], following))


async def change_scenario(request: Request) -> Response:
    """The audit log records who lowers a threshold."""
    context, caller = context_of(request), await caller_of(request, "change_scenarios")
    body = await json_body(request, _change, context.settings.body_limit_bytes)
    given = {
        name: value for name, value in msgspec.structs.asdict(body).items() if value is not None
    }
    scenario_id: str = request.path_params["scenario_id"]

    changed = await context.write(
        caller, lambda scope: change(scope, request, caller, scenario_id, given)
    )
    return json_response(scenario_answer(changed))


def change(
    scope: Scope, request: Request, caller: Caller, scenario_id: str, given: Mapping[str, Any]
) -> ScenarioRow:
    changed = scope.change_scenario(scenario_id, given)
    if changed is None:
        raise not_found("scenario")
    told = {name: given[name] for name in ("severity", "active") if name in given}
    note(scope, request, caller, "scenario.changed", scenario_id, **told)
    return changed


async def delete_scenario(request: Request) -> Response:
    caller = await caller_of(request, "change_scenarios")
    scenario_id: str = request.path_params["scenario_id"]

    await context_of(request).write(
        caller, lambda scope: delete(scope, request, caller, scenario_id)
    )
    return json_response(ScenarioDeleted(scenario_id))


def delete(scope: Scope, request: Request, caller: Caller, scenario_id: str) -> None:
    if not scope.delete_scenario(scenario_id):
        raise not_found("scenario")
    note(scope, request, caller, "scenario.deleted", scenario_id)


_SCENARIO = "/api/scenarios/{scenario_id}"

routes: tuple[LeanRoute, ...] = (
    route(
        "GET",
        "/api/scenarios",
        list_scenarios,
        summary="Lists scenarios, newest first.",
        gives=ScenarioList,
        errors=(400,),
        parameters=(
            query("active", {"type": "boolean"}, "Only active or only inactive scenarios."),
            *page_parameters(MOST_ON_A_PAGE),
        ),
        tag="verify",
    ),
    route(
        "PATCH",
        _SCENARIO,
        change_scenario,
        summary="Changes a scenario. An inactive scenario blocks no candidate.",
        takes=ChangeScenario,
        gives=ScenarioAnswer,
        errors=(403, 404),
        tag="verify",
    ),
    route(
        "DELETE",
        _SCENARIO,
        delete_scenario,
        summary="Deletes a scenario and its results. Its episode stays.",
        gives=ScenarioDeleted,
        errors=(403, 404),
        tag="verify",
    ),
)
