"""Calls of a server that several verbs need, with answers decoded into the messages of `rollbook.contracts.wire`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from rollbook.contracts.evals import EvalResult
from rollbook.contracts.wire.eval_runs import EvalResultList
from rollbook.contracts.wire.scenarios import ScenarioList
from rollbook.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbook.client import Client

_ON_A_PAGE = 1000

T = TypeVar("T")


def client_of(given: Any) -> Client:
    """The client, or the default client for None. Refuses an AsyncClient and anything else."""
    from rollbook.client import Client, default_client

    if given is None:
        return default_client()
    if not isinstance(given, Client):
        message = f"client is a {type(given).__name__}, expected a rollbook Client: the runner does not await"
        raise ConfigurationError(message=message)
    return given


def ask(client: Client, answer: type[T], what: str, method: str, path: str, **options: Any) -> T:
    """One call, with the `options` of `Connection.call`, and its answer as a message."""
    from rollbook.client.runtime import finish

    return finish(client.connection.call(what, method, path, answer=answer, **options))


def as_dict(message: msgspec.Struct) -> dict[str, Any]:
    """The JSON object of an answer, for verbs that return plain dicts."""
    found: dict[str, Any] = msgspec.to_builtins(message)
    return found


def run_path(run_id: str) -> str:
    return f"/api/eval-runs/{quote(run_id, safe='')}"


def results_of(client: Client, run_id: str, status: str | None = None) -> Iterator[EvalResult]:
    """Results of a run in the order of its baselines, fetched page by page."""
    query: dict[str, Any] = {"limit": _ON_A_PAGE}
    if status is not None:
        query["status"] = status
    while True:
        path = f"{run_path(run_id)}/results?{urlencode(query)}"
        page = ask(client, EvalResultList, "read the results of an eval run", "GET", path)
        for row in page.results:
            yield EvalResult(
                row.baseline_episode_id,
                row.candidate_episode_id,
                row.status,
                row.metrics,
                row.error,
            )
        if page.next_cursor is None or page.next_cursor == query.get("cursor"):
            return
        query["cursor"] = page.next_cursor


def critical_scenarios(client: Client, baseline_ids: list[str]) -> dict[str, str]:
    """Ids of active critical scenarios, by baseline. A candidate ships only if it passes all of them."""
    asked, found = set(baseline_ids), {}
    path = following = "/api/scenarios?active=true&limit=1000"
    while following:
        page = ask(client, ScenarioList, "read the scenarios", "GET", following)
        for each in page.scenarios:
            if each.severity == "critical" and each.baseline_episode_id in asked:
                found[each.baseline_episode_id] = each.scenario_id
        cursor = page.next_cursor
        following = f"{path}&cursor={quote(cursor, safe='')}" if cursor else ""
    return found
