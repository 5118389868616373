"""Fresh baselines over HTTP: recordings that no eval run has used, drawn at random. A run on them is a first one."""

from __future__ import annotations

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from rollbook.contracts.evals import MOST_BASELINES
from rollbook.contracts.wire.eval_runs import FreshBaselines
from rollbook.server.accounts.callers import caller_of
from rollbook.server.context import context_of
from rollbook.server.episodes.search import PARAMETERS, search_of
from rollbook.server.http.openapi import LeanRoute, query, route
from rollbook.server.http.responses import Problem, json_response

_COUNT, _SEED = "count", "draw_seed"
_NOT_HERE = ("limit", "cursor")
_GREATEST_SEED = 2**63 - 1


async def draw_fresh_baselines(request: Request) -> Response:
    caller = await caller_of(request, "read")
    params = request.query_params
    count = _whole(params, _COUNT, least=1, most=MOST_BASELINES)
    seed = _whole(params, _SEED, most=_GREATEST_SEED) if _SEED in params else 0
    others = [(name, text) for name, text in params.multi_items() if name not in (_COUNT, _SEED)]
    for name, _ in others:
        if name in _NOT_HERE:
            text = f"{name}: this is not a list in pages; {_COUNT} says how many"
            raise Problem(400, "unknown_filter", text, where=name)
    filters = search_of(QueryParams(others)).filters
    drawn, available = await context_of(request).read(
        caller, lambda scope: scope.fresh_baselines(filters, count, seed)
    )
    if len(drawn) < count:
        text = (
            f"{available} episodes match and were never used by a run, and {count} are asked for; "
            "record more, ask for fewer, or use baselines that were used before, which the ledger counts"
        )
        raise Problem(409, "too_few_fresh_baselines", text, available=available)
    return json_response(FreshBaselines(drawn, available, seed))


def _whole(params: QueryParams, name: str, *, least: int = 0, most: int) -> int:
    text = params.get(name, "")
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    if not is_number or not least <= int(text) <= most:
        expected = f"{name}: expected a whole number from {least} to {most}"
        raise Problem(400, "invalid_value", expected, where=name)
    return int(text)


routes: tuple[LeanRoute, ...] = (
    route(
        "GET",
        "/api/fresh-baselines",
        draw_fresh_baselines,
        summary="Draws finished recordings that no eval run has used, for the baselines of a new run.",
        gives=FreshBaselines,
        errors=(400, 403, 409),
        parameters=(
            query(
                _COUNT,
                {"type": "integer", "minimum": 1, "maximum": MOST_BASELINES},
                "How many are drawn.",
            ),
            query(
                _SEED,
                {"type": "integer", "minimum": 0, "maximum": _GREATEST_SEED},
                "Seed of the draw; 0 by default.",
            ),
            *(each for each in PARAMETERS if each["name"] not in _NOT_HERE),
        ),
        tag="eval runs",
    ),
)
