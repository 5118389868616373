"""Store check: a store that is missing, damaged or not the one of the baselines is found before anything is replayed.

Otherwise every baseline would fail, and the candidate would look bad.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollbook.errors import ConfigurationError, StorageError
from rollbook.evals.baselines import Baseline, look_up
from rollbook.evals.store_baselines import StoreBaselines

if TYPE_CHECKING:
    from rollbook.client import Client

_CHAIN_ID = re.compile(r"[0-9a-f]{12}:\d+", re.ASCII)
"""How StoreBaselines names the chains of a store."""


def opened_store(path: str | os.PathLike[str]) -> StoreBaselines:
    """The store, if the columns that a replay needs can be read."""
    try:
        chains = StoreBaselines(path)
        for chain in chains[:1]:
            chains.recorded(chains.row_of(chain))
    except (StorageError, OSError) as error:
        message = f"the store cannot be replayed against: {error}"
        raise ConfigurationError(message=message) from error
    return chains


def check_logged_from(chains: StoreBaselines, ids: Sequence[str], client: Client | None) -> None:
    """Refuses baselines that are neither chains of this store nor episodes that were logged from it."""
    own = {each for each in ids if is_chain_id(each)}
    unknown = sorted(own.difference(chains.ids))
    if unknown:
        message = f"the store {chains.reader.store_dir} has no chain {unknown[0]}"
        raise ConfigurationError(message=message)
    episodes = [each for each in ids if each not in own]
    if client is None or not episodes:
        return
    for ticket in look_up(client, episodes):
        # an episode that was deleted, or that cannot be looked up now, is a failed result of its own
        if ticket.record is not None:
            chains.row_of(Baseline(ticket.id, ticket.whole_record(client)))


def is_chain_id(baseline_id: str) -> bool:
    """Whether it is the id of a chain of a store. No server has an episode with such an id."""
    return _CHAIN_ID.fullmatch(baseline_id) is not None
