"""Episodes that were logged from a rollout of a store: from the episode to the rollout, and back.

The metadata of such an episode names the store by the digest of its content. So it leads to whichever registered store
holds this content now, wherever it lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollbook.contracts.lineage import ROLLOUT_METADATA
from rollbook.server.queries import EpisodeFilter, EpisodeRow, Scope, StoreRow

MOST_EPISODES = 20


@dataclass(frozen=True, slots=True)
class RolloutLink:
    store: StoreRow
    row: int


def rollout_of_episode(scope: Scope, metadata: Mapping[str, Any]) -> RolloutLink | None:
    """The rollout that an episode was logged from; None if it names none, or its store is not registered."""
    about = metadata.get(ROLLOUT_METADATA)
    if not isinstance(about, Mapping):
        return None
    digest, row = about.get("store_content_sha256"), about.get("rollout_row_id")
    if not isinstance(digest, str) or not isinstance(row, int) or isinstance(row, bool) or row < 0:
        return None
    store = scope.stores_with_content([digest]).get(digest)
    if store is None or row >= (store.counts or {}).get("rollouts", 0):
        return None
    return RolloutLink(store, row)


def episodes_of_rollout(scope: Scope, content_sha256: str, row: int) -> list[EpisodeRow]:
    """Episodes that were logged from this rollout, and replays of it, the newest first."""
    named: dict[str, str | int] = {
        f"{ROLLOUT_METADATA}.store_content_sha256": content_sha256,
        f"{ROLLOUT_METADATA}.rollout_row_id": row,
    }
    return scope.episodes(EpisodeFilter(metadata=named), limit=MOST_EPISODES).episodes
