"""Proofs of a table that name rollout stores: which artifact is which row of which store."""

from __future__ import annotations

import numpy as np

from rollbook.contracts.rl.batch import TrainerBatch
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.train.artifacts import STORE_REFERENCE


def rows_of_store(table: RolloutTable, store_digest: str) -> dict[int, int]:
    """Row in the table → row in the store, of every artifact whose proof names the store."""
    return rows_by_store(table).get(store_digest, {})


def rows_by_store(table: RolloutTable) -> dict[str, dict[int, int]]:
    """Content digest of each store that is named → row in the table → row in the store."""
    columns = table.columns
    owners = np.repeat(np.arange(len(table)), np.diff(columns.proof_offsets)).tolist()
    found: dict[str, dict[int, int]] = {}
    for owner, reference in zip(owners, columns.proof_reference, strict=True):
        if not reference.startswith(STORE_REFERENCE):
            continue
        row = columns.artifact_id[owner].rpartition(":")[2]
        if row.isdecimal():
            store = reference.removeprefix(STORE_REFERENCE)
            found.setdefault(store, {})[owner] = int(row)
    return found


def stores_named(batch: TrainerBatch, artifact_ids: set[str]) -> dict[str, list[int]]:
    """Stores that the proofs of a batch name → rows of these artifacts: their ids begin with that of the store."""
    found: dict[str, list[int]] = {}
    for proof in batch.proof_references:
        if not proof.reference.startswith(STORE_REFERENCE):
            continue
        store = proof.reference.removeprefix(STORE_REFERENCE)
        places = (each.rpartition(":") for each in artifact_ids)
        rows = [int(row) for name, _, row in places if name and store.startswith(name)]
        if rows:
            found[store] = rows
    return found
