"""Calls of a server that several verbs need, with answers decoded into the messages of `rollbook.contracts.wire`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from rollbook.contracts.evals import EvalResult
from rollbook.contracts.wire.batches import EpisodesCreated, ManyFinalized, OneFinalized
from rollbook.contracts.wire.episodes import EpisodeCreated
from rollbook.contracts.wire.eval_runs import EvalResultList, OneResultPut
from rollbook.contracts.wire.scenarios import ScenarioList
from rollbook.errors import APIError, ConfigurationError
from rollbook.scoring.labels import Labels

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


def create_episodes(client: Client, bodies: Sequence[Mapping[str, Any]]) -> list[EpisodeCreated]:
    """If the answer is lost and the call is repeated, the server removes the first, empty episodes later."""
    from rollbook.client.ingest import warn_of_lost_revisions

    created = ask(
        client,
        EpisodesCreated,
        "create episodes",
        "POST",
        "/api/ingest/episodes",
        body={"episodes": bodies},
        safe_to_resend=True,
    )
    for body, each in zip(bodies, created.episodes, strict=True):
        if "policy_revision" in body and not each.policy_revision_kept:
            warn_of_lost_revisions(client.base_url)
    return created.episodes


def finalize_episodes(client: Client, bodies: Sequence[Mapping[str, Any]]) -> None:
    """Raises the error of the first episode that the server refuses to finalize."""
    finalized = ask(
        client,
        ManyFinalized,
        "finalize episodes",
        "POST",
        "/api/ingest/episodes/finalize",
        body={"episodes": bodies},
        slow=True,
        safe_to_resend=True,
    )
    for each in finalized.results:
        if each.error:
            raise item_error(f"finalize the episode {each.episode_id}", each)


def item_error(what: str, item: OneFinalized | OneResultPut) -> APIError:
    """The error of one item of a batch, as if it had been sent alone."""
    from rollbook.client.http import api_error

    message = f"cannot {what}: {item.error}"
    return api_error(item.status_code or 500, message, as_dict(item))


def as_dict(message: msgspec.Struct) -> dict[str, Any]:
    """The JSON object of an answer, for verbs that return plain dicts."""
    found: dict[str, Any] = msgspec.to_builtins(message)
    return found


def run_path(run_id: str) -> str:
    return f"/api/eval-runs/{quote(run_id, safe='')}"


@dataclass(frozen=True, slots=True)
class ResultRow:
    result: EvalResult
    labels: Labels
    """Of the baseline. Empty where the server does not tell them."""
    attempts: int
    """Different results that were sent so far."""


def results_of(client: Client, run_id: str, status: str | None = None) -> Iterator[EvalResult]:
    """Results of a run in the order of its baselines, fetched page by page."""
    return (each.result for each in result_rows(client, run_id, status))


def result_rows(client: Client, run_id: str, status: str | None = None) -> Iterator[ResultRow]:
    """Results of a run with the labels of their baselines, in their order, fetched page by page."""
    query: dict[str, Any] = {"limit": _ON_A_PAGE}
    if status is not None:
        query["status"] = status
    while True:
        path = f"{run_path(run_id)}/results?{urlencode(query)}"
        page = ask(client, EvalResultList, "read the results of an eval run", "GET", path)
        for row in page.results:
            result = EvalResult(
                row.baseline_episode_id,
                row.candidate_episode_id,
                row.status,
                row.metrics,
                row.error,
            )
            labels = {name: tuple(values) for name, values in (row.labels or {}).items()}
            yield ResultRow(result, labels, row.attempts)
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
