"""Chains of rollout stores as a RolloutTable: one artifact for each chain, one sample for each step.

The id of an artifact is `<first 12 of the store's content digest>:<row of the chain>`; its proof has the whole digest.
A sample has the index of the chosen candidate, its stored log-probability, its reward, and the advantage: the stored
return to the end of the chain minus `value`, the mean label of the candidates that could have been chosen. That mean
depends on the state alone, so it does not bias a policy gradient, and it means the same for every policy.

A step without a label or a log-probability is kept with zeros and a `loss_mask` of 0. Chains are read in blocks, from
mapped columns, whose bytes are compared with the manifest first. The same store always gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.record import check_digest
from rollbook.contracts.rl.provenance import (
    EnvironmentPackageKey,
    LogprobDistribution,
    LogprobSemantics,
    RolloutProofKind,
    RolloutProofReference,
    RolloutTerminationReason,
)
from rollbook.contracts.rl.rollout import RolloutTable
from rollbook.contracts.rl.text_column import offsets_of
from rollbook.contracts.row_numbers import Rows, row_numbers
from rollbook.digest import digest_of
from rollbook.store.collection import RolloutCollection
from rollbook.store.manifest import content_sha256
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.stored_tables import StoredTables

POLICY_FAMILY = "next-best-view"
ENVIRONMENT = "rollbook.next_best_view"
STORE_REFERENCE = "rollout-store:"
"""Begins the reference of a proof; the content digest of the store follows."""
CHAINS_AT_ONCE = 4096
_LABELS_AT_ONCE = 1 << 20
"""Memory does not grow with the width of shells."""
_BUILT_IN_DOMAIN = "rollbook.built_in_policy.v1"
_DIGITS = 12
"""Of a digest inside an id."""

_COLUMNS = {
    "rollouts": (
        *("step_offset", "num_steps", "policy_id", "source_row_id", "target_row_id"),
        *("termination_reason", "temperature"),
    ),
    "lineage": (
        *("candidate_config_id", "oracle_config_id", "rollout_config_id"),
        "model_checkpoint_id",
    ),
    "sources": ("source_row_id", "sample_key_id"),
    "targets": ("target_id",),
    "steps": ("selected_shell_index",),
    "candidates": ("selection_log_probabilities",),
    "q_h": (
        *("q_train_mask", "selected_candidate_index", "td_selected_candidate_row_id"),
        *("td_reward", "one_step_target_root_gain"),
    ),
    "returns": ("mc_return",),
}
"""What artifacts are made of, by table."""
_REVISIONS_FILE = "metadata/zarr.json"

Array = NDArray[Any]
Stores = RolloutZarrStoreReader | RolloutCollection


def chains_table(
    stores: Stores, rows: ArrayLike | None = None, *, family: str = POLICY_FAMILY
) -> RolloutTable:
    """Chains of a store or collection as artifacts, in the order of `rows`; by default all with a step to learn from.

    `rows` are row numbers of the store or of the whole collection, or a mask. A chain without a step to learn from is
    refused if it is named. `family` is the policy family of built-in policies; learned ones have their own.
    """
    chosen = trainable_chains(stores) if rows is None else rows
    return RolloutTable.concat(list(ChainTables(stores, family).blocks(chosen)))


class ChainTables:
    """The chains of a store or collection as tables. The bytes of each store are verified before its first chain."""

    def __init__(self, stores: Stores, family: str = POLICY_FAMILY) -> None:
        self._stores = stores
        self._family = family
        self._verified: set[int] = set()

    def blocks(self, rows: ArrayLike, *, size: int = CHAINS_AT_ONCE) -> Iterator[RolloutTable]:
        """Tables of at most `size` chains, in the order of `rows`."""
        chosen = row_numbers(rows, self._stores.num_rollouts, "the chains")
        for first in range(0, len(chosen), size):
            yield self._table(chosen[first : first + size])

    def _table(self, rows: Rows) -> RolloutTable:
        parts = _parts(self._stores, rows)
        joined = RolloutTable.concat([self._chains(index).table(own) for index, own, _ in parts])
        order = np.argsort(np.concatenate([places for _, _, places in parts]))
        return joined.take(order) if len(parts) > 1 else joined

    def _chains(self, index: int) -> StoredChains:
        chains = StoredChains(self._stores.stores[index], self._family)
        if index not in self._verified:
            chains.verify()
            self._verified.add(index)
        return chains


def trainable_chains(stores: Stores) -> Rows:
    """The rows of all chains that have a step to learn from."""
    found, first = [np.zeros(0, np.int64)], 0
    for store in stores.stores:
        found.append(first + StoredChains(store).trainable())
        first += store.num_rollouts
    return np.concatenate(found)


def store_proof(digest: str) -> RolloutProofReference:
    """The commitment of every chain of a store. The id of the artifact has the row."""
    return RolloutProofReference(
        kind=RolloutProofKind.COMMITMENT,
        digest=digest,
        reference=STORE_REFERENCE + digest,
    )


def chain_id(digest: str, row: int) -> str:
    """The id of the artifact of a chain."""
    return f"{digest[:_DIGITS]}:{row}"


def content_digest(store: StoredTables) -> str:
    """What the store is known by, wherever it lies."""
    return str(store.store_manifest.payload["content_sha256"])


def _parts(stores: Stores, rows: Rows) -> list[tuple[int, Rows, Rows]]:
    """For each store that has some of the rows: its index, its own row numbers, and their places among `rows`."""
    every = np.arange(len(rows))
    if isinstance(stores, RolloutZarrStoreReader):
        return [(0, rows, every)]
    parts = stores.scattered("rollouts", rows).each
    return [(index, np.asarray(local), every[places]) for index, local, places in parts]


class StoredChains:
    """The chains of one store, as tables."""

    def __init__(self, store: StoredTables, family: str = POLICY_FAMILY) -> None:
        self._store = store
        self._family = family
        self._digest = content_digest(store)
        self._created_at_ms = _milliseconds(str(store.attrs["created_at_utc"]))
        self._revision = lru_cache(None)(self._new_revision)

    def verify(self) -> None:
        """Compare every byte that artifacts are made of with the manifest, and its files with the content digest."""
        manifest = self._store.store_manifest
        check_digest(
            f"the store {self._store.store_dir}",
            "content_sha256",
            self._digest,
            content_sha256(manifest.files),
        )
        for table, columns in _COLUMNS.items():
            self._store.verify_columns(table, columns)
        self._store.local(_REVISIONS_FILE)
        self._store.files.verify(_REVISIONS_FILE)

    def table(self, rows: Rows, created_at_ms: ArrayLike | None = None) -> RolloutTable:
        """`created_at_ms`: other times than that of the store, which its content digest does not cover."""
        lengths, states = self._states(rows)
        count = len(rows)
        created = self._created_at_ms if created_at_ms is None else created_at_ms
        return RolloutTable.from_columns(
            artifact_id=[chain_id(self._digest, row) for row in rows.tolist()],
            worker_id=[f"store:{self._digest[:_DIGITS]}"] * count,
            environment=self._environments(rows),
            task_id=self._tasks(rows),
            source_policy_revision=self.revisions(rows),
            offsets=offsets_of(lengths),
            samples=self._samples(states),
            termination_reason=self._terminations(rows),
            created_at_ms=np.broadcast_to(created, count),
            proof_references=[(store_proof(self._digest),)] * count,
            group_id=self._groups(rows),
            logprob_semantics=self._semantics(rows),
        )

    def trainable(self) -> Rows:
        """The rows of the chains that have a step to learn from."""
        found = [np.zeros(0, np.int64)]
        for first in range(0, self._store.num_rollouts, CHAINS_AT_ONCE):
            rows = np.arange(first, min(first + CHAINS_AT_ONCE, self._store.num_rollouts))
            lengths, states = self._states(rows)
            chain = np.repeat(rows, lengths)
            found.append(np.unique(chain[self._in_loss(states)]))
        return np.concatenate(found)

    # ------------------------------------------------------------------------------------- samples

    def _states(self, rows: Rows) -> tuple[Rows, Rows]:
        """How many steps each chain has, and the rows of all these steps."""
        first = self._store.array("rollouts/step_offset")[rows].astype(np.int64)
        lengths = self._store.array("rollouts/num_steps")[rows].astype(np.int64)
        starts = offsets_of(lengths)
        return lengths, np.repeat(first - starts[:-1], lengths) + np.arange(starts[-1])

    def _samples(self, states: Rows) -> dict[str, Array]:
        in_loss = self._in_loss(states)
        value = self._mean_labels(states)
        known = {
            "logprob": self._logprobs(states),
            "reward": self._store.array("q_h/td_reward")[states],
            "advantage": self._store.array("returns/mc_return")[states] - value,
            "value": value,
        }
        return {
            "token_id": self._store.array("steps/selected_shell_index")[states],
            "loss_mask": in_loss,
            # a table has no missing numbers; the loss mask says which ones are known
            **{name: np.where(in_loss, column, 0) for name, column in known.items()},
        }

    def _in_loss(self, states: Rows) -> NDArray[np.bool_]:
        chosen = self._store.array("q_h/selected_candidate_index")[states]
        may_train: NDArray[np.bool_] = self._store.array("q_h/q_train_mask")[states, chosen]
        known = np.isfinite(self._store.array("q_h/td_reward")[states])
        return may_train & known & np.isfinite(self._logprobs(states))

    def _logprobs(self, states: Rows) -> Array:
        chosen = self._store.array("q_h/td_selected_candidate_row_id")[states]
        return self._store.array("candidates/selection_log_probabilities")[chosen]

    def _mean_labels(self, states: Rows) -> NDArray[np.float64]:
        """The mean over candidates whose label may be used for training; 0 where there is none."""
        labels = self._store.array("q_h/one_step_target_root_gain")
        usable = self._store.array("q_h/q_train_mask")
        means = np.zeros(len(states))
        size = max(_LABELS_AT_ONCE // max(labels.shape[1], 1), 1)
        for first in range(0, len(states), size):
            block = states[first : first + size]
            known = labels[block]
            taken = usable[block] & np.isfinite(known)
            # a running sum has one order of additions on every machine and for every width of the shell
            sums = np.cumsum(np.where(taken, known, 0), axis=1, dtype=np.float64)[:, -1]
            means[first : first + size] = sums / np.maximum(taken.sum(axis=1), 1)
        return means

    # ---------------------------------------------------------------------------------- provenance

    def _environments(self, rows: Rows) -> list[EnvironmentPackageKey]:
        """The rules and the oracle. The scene is part of the task."""
        candidates = self._store.decoded("lineage", "candidate_config_id", rows)
        oracles = self._store.decoded("lineage", "oracle_config_id", rows)
        return [_environment(*key) for key in zip(candidates, oracles, strict=True)]

    def revisions(self, rows: Rows) -> list[PolicyRevision]:
        """The policy of each chain."""
        policies = self._store.decoded("rollouts", "policy_id", rows)
        checkpoints = self._store.decoded("lineage", "model_checkpoint_id", rows)
        recipes = self._store.decoded("lineage", "rollout_config_id", rows)
        return [self._revision(*key) for key in zip(policies, checkpoints, recipes, strict=True)]

    def _new_revision(
        self, policy: str | None, checkpoint: str | None, recipe: str | None
    ) -> PolicyRevision:
        """The described revision of a learned policy, or one that stands for a built-in policy and its recipe."""
        described = self._store.policy_revisions.get(checkpoint or "")
        if described is not None:
            return described
        name = policy or "unknown"
        digest = checkpoint or recipe
        return PolicyRevision(
            policy_family=self._family,
            # two recipes may use the same policy, with another seed or temperature
            revision_id=f"{name}@{digest[:_DIGITS]}" if digest else name,
            policy_digest=digest or digest_of(_BUILT_IN_DOMAIN, {"policy": name}),
            # not known, and the same in every store: two stores must not contradict each other
            produced_at_ms=0,
        )

    def _tasks(self, rows: Rows) -> list[str]:
        """Source row and target by name, so that chains of several stores can be compared."""
        sources = self._store.array("rollouts/source_row_id")[rows]
        ids = self._store.array("sources/source_row_id")
        order = np.argsort(ids, kind="stable")
        places = order[np.searchsorted(ids[order], sources)]
        targets = self._store.array("rollouts/target_row_id")[rows]
        keys = self._store.decoded("sources", "sample_key_id", places)
        names = self._store.decoded("targets", "target_id", targets)
        # the first digests of a table use | as a separator, so strict rules refuse it
        return [
            f"{key or source}#{name or 'unknown-target'}".replace("|", "%7C")
            for key, source, name in zip(keys, sources.tolist(), names, strict=True)
        ]

    def _groups(self, rows: Rows) -> list[str]:
        """Chains of one source row and target begin in the same situation."""
        sources = self._store.array("rollouts/source_row_id")[rows].tolist()
        targets = self._store.array("rollouts/target_row_id")[rows].tolist()
        return [
            f"{self._digest[:_DIGITS]}:{source}:{target}"
            for source, target in zip(sources, targets, strict=True)
        ]

    def _terminations(self, rows: Rows) -> list[RolloutTerminationReason]:
        words = self._store.decoded("rollouts", "termination_reason", rows)
        whole, short = RolloutTerminationReason.COMPLETED, RolloutTerminationReason.CANCELLED
        return [whole if word == "fixed_horizon" else short for word in words]

    def _semantics(self, rows: Rows) -> list[LogprobSemantics]:
        temperatures = self._store.array("rollouts/temperature")[rows].tolist()
        return [_semantics(each if np.isfinite(each) else None) for each in temperatures]


@lru_cache
def _environment(candidate_config: str | None, oracle_config: str | None) -> EnvironmentPackageKey:
    parts = [(digest or "unknown")[:_DIGITS] for digest in (candidate_config, oracle_config)]
    return EnvironmentPackageKey(environment_ref=ENVIRONMENT, version="/".join(parts))


@lru_cache
def _semantics(temperature: float | None) -> LogprobSemantics:
    """Stored log-probabilities are those of the distribution that the choice was drawn from."""
    return LogprobSemantics(
        distribution=LogprobDistribution.PROCESSED, temperature=temperature, dtype="float32"
    )


def _milliseconds(created_at_utc: str) -> int:
    return round(datetime.fromisoformat(created_at_utc).timestamp() * 1000)
