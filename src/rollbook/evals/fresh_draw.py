"""Fresh baselines: recordings that no eval run has used. A run on them is the first one in the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from rollbook.contracts.evals import MOST_BASELINES
from rollbook.contracts.wire.eval_runs import FreshBaselines
from rollbook.errors import ConfigurationError
from rollbook.evals.server_calls import ask, client_of

if TYPE_CHECKING:
    from rollbook.client import Client


def fresh_baselines(
    count: int,
    *,
    policy_version: str | None = None,
    env_version: str | None = None,
    git_sha: str | None = None,
    robot: str | None = None,
    source: str | None = None,
    tag: str | Iterable[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    draw_seed: int = 0,
    client: Client | None = None,
) -> FreshBaselines:
    """Draws `count` finished episodes that match every filter and that no run has as a baseline, or ever used.

    Their `episode_ids` are the baselines of a new run. The same `draw_seed` draws the same ones as long as nothing was
    recorded or used; `available` says how many there were to draw from. If there are fewer, this is an error.
    """
    from rollbook.client.listing import search_terms

    if not 1 <= count <= MOST_BASELINES:
        message = f"count is {count}, expected a number from 1 to {MOST_BASELINES}"
        raise ConfigurationError(message=message)
    wanted = {
        "count": count,
        "draw_seed": draw_seed,
        "policy_version": policy_version,
        "env_version": env_version,
        "git_sha": git_sha,
        "robot": robot,
        "source": source,
    }
    query = [(key, str(value)) for key, value in wanted.items() if value is not None]
    query += search_terms(tag, metadata, None, None)
    path = f"/api/fresh-baselines?{urlencode(query)}"
    return ask(client_of(client), FreshBaselines, "draw fresh baselines", "GET", path)
