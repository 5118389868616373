"""Eval runs as a server has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from rollbook.contracts.evals import EvalResult
from rollbook.errors import ServerError

if TYPE_CHECKING:
    from rollbook.client import Client

_ON_A_PAGE = 1000


def run_path(run_id: str) -> str:
    return f"/api/eval-runs/{quote(run_id, safe='')}"


def results_of(client: Client, run_id: str, status: str | None = None) -> Iterator[EvalResult]:
    """In the order of the baselines, page by page."""
    query: dict[str, Any] = {"limit": _ON_A_PAGE}
    if status is not None:
        query["status"] = status
    while True:
        path = f"{run_path(run_id)}/results?{urlencode(query)}"
        answer = client.call("read the results of an eval run", "GET", path)
        for row in answer["results"]:
            yield EvalResult(
                row["baseline_episode_id"],
                row.get("candidate_episode_id"),
                row["status"],
                row.get("metrics") or {},
                row.get("error"),
            )
        following = answer.get("next_cursor")
        if not isinstance(following, str) or following == query.get("cursor"):
            return
        query["cursor"] = following


def complete_results(client: Client, run_id: str) -> dict[str, EvalResult]:
    """By baseline: those that need not be done again."""
    return {each.baseline_episode_id: each for each in results_of(client, run_id, "complete")}


def run_id_of(answer: Mapping[str, Any]) -> str:
    run_id = answer.get("eval_run_id")
    if not isinstance(run_id, str) or not run_id:
        message = "cannot create an eval run: the answer names none; is the base URL right?"
        raise ServerError(status_code=201, message=message, response_body=dict(answer))
    return run_id
