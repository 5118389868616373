"""Labels of baselines where no server adds up the results: dry runs, replays of a store, runs that may stop early."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollbook.contracts.gate import Gate
from rollbook.contracts.wire.episodes import EpisodeRecord
from rollbook.evals.baselines import look_up
from rollbook.scoring.labels import Labels, label_names, labels_of

if TYPE_CHECKING:
    from rollbook.client import Client
    from rollbook.evals.store_baselines import StoreBaselines


def episode_labels(client: Client, ids: Sequence[str], gate: Gate) -> dict[str, Labels]:
    """Of those episodes that the server has."""
    names = label_names(gate)
    found: dict[str, Labels] = {}
    for ticket in look_up(client, ids):
        record = ticket.record
        if ticket.problem is not None:
            raise ticket.problem
        if record is None:
            continue
        if record.metadata_truncated:
            record = client.episode(ticket.id).record
        found[ticket.id] = record_labels(names, record)
    return found


def record_labels(names: Sequence[str], record: EpisodeRecord) -> Labels:
    return labels_of(
        names,
        record.metadata,
        robot=record.robot,
        env_version=record.env_version,
        tags=record.tags,
    )


def chain_labels(chains: StoreBaselines, gate: Gate) -> dict[str, Labels]:
    """Of the chains of a store: the scene, and what else their provenance says."""
    from rollbook.contracts.lineage import ROLLOUT_METADATA

    names = label_names(gate)
    return {
        chains.id_of(row): labels_of(names, {ROLLOUT_METADATA: chains.provenance(row)})
        for row in chains.rows.tolist()
    }
