"""StoreBaselines: the chains of a rollout store as baselines, without a server.

In each recorded state a policy sees what the actor knew, and nothing else: no label, no reason, no score of another
policy. The values are memory-mapped columns of the store, and a chain is a slice of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from rollbook.contracts.candidate_keys import (
    CHOICE_KEY,
    FEATURE_NAMES_METADATA,
    FEATURES_KEY,
    HISTORY_KEY,
    POSITION_KEY,
    VALID_KEY,
)
from rollbook.contracts.episode import LONGEST_NAME
from rollbook.contracts.gate import Gate
from rollbook.contracts.lineage import ROLLOUT_METADATA
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.contracts.row_numbers import row_numbers
from rollbook.contracts.wire.episodes import EpisodeRecord
from rollbook.errors import ConfigurationError, InvalidNumber
from rollbook.evals.baselines import Baseline
from rollbook.evals.counterfactual import (
    ChainVerdict,
    Rows,
    StateRewards,
    choices_of,
    choices_of_steps,
)
from rollbook.evals.policies.policy import Action
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.schema import TABLES

CLOCK_KEYS = ("/candidates/_t_ns", "/choice/_t_ns")
MOVE_NS = 1_000_000_000
"""Moves have no times, but recordings need them, so each move takes one second."""

RETURN_RANGE = (0.0, 1.0)
"""A return is the share of the target's error at the root that was removed. No view adds to the error."""

_STATES_AT_ONCE = 8192

Array = NDArray[Any]


class StoreBaselines(Sequence[Baseline]):
    """One baseline for each chain: all chains, those of one policy, or the given rows."""

    def __init__(
        self,
        path: str | os.PathLike[str] | RolloutZarrStoreReader,
        *,
        policy: str | None = None,
        rows: Sequence[int] | None = None,
        limit: int | None = None,
    ) -> None:
        """`policy` is the store's name of the policy that chose, such as `random_valid`. At most `limit` chains."""
        self.reader = (
            path if isinstance(path, RolloutZarrStoreReader) else RolloutZarrStoreReader(path)
        )
        self.digest = str(self.reader.store_manifest.payload["content_sha256"])
        self.rows = self._chosen(policy, rows, limit)

    def _chosen(
        self, policy: str | None, rows: Sequence[int] | None, limit: int | None
    ) -> NDArray[np.int64]:
        count = self.reader.num_rollouts
        try:
            chosen = np.arange(count) if rows is None else row_numbers(rows, count, "the store")
        except InvalidNumber as error:
            raise ConfigurationError(message=str(error)) from error
        if policy is not None:
            words = self.reader.decoded("rollouts", "policy_id", chosen)
            if policy not in words:
                known = ", ".join(sorted({word for word in words if word}))
                message = f"the store has no chains of {policy!r}; it has those of: {known}"
                raise ConfigurationError(message=message)
            chosen = chosen[np.array([word == policy for word in words])]
        if limit is not None and limit < 0:
            raise ConfigurationError(message=f"limit={limit}; it has to be 0 or more")
        return chosen[:limit].astype(np.int64)

    @property
    def policy_versions(self) -> list[str]:
        """The store's own names of the policies that chose in these chains, each once."""
        policies = self.reader.decoded("rollouts", "policy_id", self.rows)
        checkpoints = self.reader.decoded("lineage", "model_checkpoint_id", self.rows)
        pairs = dict.fromkeys(zip(policies, checkpoints, strict=True))
        return sorted(
            _policy_version({"policy": policy, "model_checkpoint": checkpoint})
            for policy, checkpoint in pairs
        )

    def check_version(self, version: str | None, *, field: str, choose: str) -> None:
        """Refuses one version for the chains of several policies. `choose` is the argument that chooses a policy."""
        check_one_policy([self], version, field=field, choose=choose)

    # -------------------------------------------------------------------------------- as baselines

    @property
    def ids(self) -> list[str]:
        return [self.id_of(row) for row in self.rows.tolist()]

    def id_of(self, row: int) -> str:
        """`<first 12 of the store's content digest>:<row of the chain>`"""
        return f"{self.digest[:12]}:{row}"

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Baseline: ...
    @overload
    def __getitem__(self, index: slice) -> list[Baseline]: ...
    def __getitem__(self, index: int | slice) -> Baseline | list[Baseline]:
        if isinstance(index, slice):
            return [self._baseline(row) for row in self.rows[index].tolist()]
        return self._baseline(int(self.rows[index]))

    def __iter__(self) -> Iterator[Baseline]:
        return map(self._baseline, self.rows.tolist())

    def _baseline(self, row: int) -> Baseline:
        record = self.record(row)
        known = record.metadata["outcome"]
        return Baseline(
            id=record.id,
            record=record,
            sensors=self.observations(self.states(row)),
            actions=self.actions(row),
            outcome={name: known[name] for name in OUTCOMES if known.get(name) is not None},
        )

    def record(self, row: int, policy_version: str | None = None) -> EpisodeRecord:
        """The chain as the record of an episode, with everything that reproduces it and its provenance."""
        about = self.provenance(row)
        steps = self.states(row)
        return EpisodeRecord(
            id=self.id_of(row),
            status="ready",
            name=str(about["rollout_id"])[:LONGEST_NAME],
            source="sim",
            policy_version=policy_version or _policy_version(about),
            env_version=env_version(about),
            git_sha=self._git_sha,
            seed=self.seed(row),
            fps=1e9 / MOVE_NS,
            duration_s=(steps.stop - steps.start) * MOVE_NS / 1e9,
            metadata={
                ROLLOUT_METADATA: about,
                "outcome": {"reward_total": self.recorded(row).baseline_reward_total},
                FEATURE_NAMES_METADATA: list(self.feature_names),
            },
            policy_revision=self.reader.policy_revisions.get(about["model_checkpoint"], UNSET),
        )

    def provenance(self, row: int) -> dict[str, Any]:
        """Where the chain comes from: rollout, source row, target, and the digests of the configurations."""
        rollout, lineage = (
            self._identity_columns("rollouts", row),
            self._identity_columns("lineage", row),
        )
        source = self._identity_columns("sources", self._source_places[rollout["source_row_id"]])
        target = self._identity_columns("targets", rollout["target_row_id"])
        return {
            "store_content_sha256": self.digest,
            "store_manifest_sha256": self.reader.attrs["manifest_sha256"],
            "rollout_row_id": row,
            "rollout_id": rollout["rollout_id"],
            "chain_id": rollout["chain_id"],
            "lineage_digest": bytes(self.reader.array("lineage/lineage_digest")[row]).hex(),
            "policy": rollout["policy_id"],
            "recipe": lineage["branch_schedule_id"],
            "model_checkpoint": lineage["model_checkpoint_id"],
            "candidate_config": lineage["candidate_config_id"],
            "oracle_config": lineage["oracle_config_id"],
            "rollout_config": lineage["rollout_config_id"],
            "mesh_version": lineage["mesh_version_id"],
            "source_row_id": rollout["source_row_id"],
            "source_key": source["sample_key_id"],
            "source_manifest_sha256": source["source_offline_store_manifest_hash_id"],
            "source_shard": source["source_shard_id"],
            "source_shard_row": source["source_shard_row"],
            "scene": rollout["scene_id"],
            "split": rollout["split_id"],
            "target_row_id": rollout["target_row_id"],
            "target_id": target["target_id"],
            "target_class": target["target_class_name_id"],
        }

    def repro(self, row: int) -> dict[str, Any]:
        """Both sides have the same recorded states, so the comparison is deterministic. Chains of one source row and
        target are one situation."""
        version = env_version(self._identity_columns("lineage", row))
        seed = self.seed(row)
        rollout = self._identity_columns("rollouts", row)
        return {
            "situation": f"{rollout['source_row_id']}:{rollout['target_row_id']}",
            "env_version": {"baseline": version, "candidate": version},
            "seed": {"baseline": seed, "candidate": seed},
            "env_match": True,
            "deterministic": True,
        }

    # ------------------------------------------------------------------------------------- rewards

    def row_of(self, baseline: Baseline) -> int:
        """The row of the chain that an episode was logged from. Refuses an episode of another store."""
        about = baseline.metadata.get(ROLLOUT_METADATA)
        digest, row = (
            (about.get("store_content_sha256"), about.get("rollout_row_id"))
            if isinstance(about, Mapping)
            else (None, None)
        )
        if digest is None:
            message = f"episode {baseline.id} names no rollout in its metadata; log chains with log_chains"
            raise ConfigurationError(message=message)
        if digest != self.digest:
            message = (
                f"episode {baseline.id} was logged from the store {digest[:12]}…, this one is {self.digest[:12]}… "
                f"({self.reader.store_dir}); its rewards are not those of the episode"
            )
            raise ConfigurationError(message=message)
        if type(row) is not int or not 0 <= row < self.reader.num_rollouts:
            message = f"episode {baseline.id} names row {row!r}; the store has 0 to {self.reader.num_rollouts - 1}"
            raise ConfigurationError(message=message)
        return row

    def judge(self, row: int, answers: Sequence[Action] | Mapping[str, Array]) -> ChainVerdict:
        """The rewards of answers, one for each state of the chain, given as actions or as columns."""
        rewards = StateRewards.of(self.reader, self.states(row))
        if isinstance(answers, Mapping):
            chosen = choices_of(answers, rewards.valid)
        else:
            chosen = choices_of_steps(answers, rewards.valid)
        return rewards.judged(chosen).in_all()

    def recorded(self, row: int) -> ChainVerdict:
        """The rewards of the recorded choices."""
        rewards = StateRewards.of(self.reader, self.states(row))
        return rewards.judged(rewards.taken).in_all()

    def reward_range(self) -> tuple[float, float] | None:
        """Lowest and highest reward that a policy can have in one of these chains. The labels of all candidates say so.
        None where no state has two labels."""
        if not len(self.rows):
            return None
        first = self.reader.array("rollouts/step_offset")[self.rows].astype(np.int64)
        end = first + self.reader.array("rollouts/num_steps")[self.rows]
        start, stop = int(first.min()), int(end.max())
        limits = np.zeros((2, stop - start + 1))
        for begin in range(start, stop, _STATES_AT_ONCE):
            states = slice(begin, min(begin + _STATES_AT_ONCE, stop))
            found = StateRewards.of(self.reader, states).limits()
            limits[:, states.start - start + 1 : states.stop - start + 1] = found
        sums = np.cumsum(limits, axis=1)
        totals = sums[:, end - start] - sums[:, first - start]
        low, high = float(totals[0].min()), float(totals[1].max())
        return (low, high) if low < high else None

    def gate(self, gate: Gate | None = None, *, closed_loop: bool = False) -> Gate:
        """The gate, by default `Gate.for_reward()`, with the range of these chains' rewards where it declares none.

        In a `closed_loop` the range is that of a return.
        """
        gate = gate or Gate.for_reward()
        if gate.reward_range is not None:
            return gate
        range_ = RETURN_RANGE if closed_loop else self.reward_range()
        return msgspec.structs.replace(gate, reward_range=range_)

    # ---------------------------------------------------------------------------- states as columns

    def states(self, row: int) -> slice:
        """The states of the chain, which are consecutive rows of the dense view."""
        first = int(self.reader.array("rollouts/step_offset")[row])
        return slice(first, first + int(self.reader.array("rollouts/num_steps")[row]))

    def observations(self, states: Rows) -> dict[str, Array]:
        """What the actor knew in these states."""
        view = {
            VALID_KEY: self.reader.array("q_h/valid_action_mask")[states],
            POSITION_KEY: self.reader.array("q_h/position_id")[states],
            CLOCK_KEYS[0]: self._times(states),
        }
        if self._features is None:
            return view
        view[FEATURES_KEY] = self._features[states]
        if self._longest > 1:
            view[HISTORY_KEY] = self._history(states)
        return view

    @property
    def history_length(self) -> int:
        """Earlier choices that an observation has room for."""
        return max(0, self._longest - 1)

    @property
    def shell_width(self) -> int:
        """Candidates that an observation has room for."""
        return int(self.reader.array("q_h/valid_action_mask").shape[1])

    def _history(self, states: Rows) -> NDArray[np.float32]:
        assert self._features is not None
        now = np.arange(states.start, states.stop) if isinstance(states, slice) else states
        step = self.reader.array("steps/step_index")[states]
        taken = self.reader.array("q_h/selected_candidate_index")
        width = self._features.shape[2]
        history = np.full((len(now), self._longest - 1, width), np.nan, np.float32)
        for back in range(1, self._longest):
            has = np.flatnonzero(step >= back)
            before = now[has] - back
            history[has, back - 1] = self._features[before, taken[before]]
        return history

    def actions(self, row: int) -> dict[str, Array]:
        states = self.states(row)
        return {
            CHOICE_KEY: self.reader.array("q_h/selected_candidate_index")[states].astype(np.int64),
            CLOCK_KEYS[1]: self._times(states),
        }

    def _times(self, states: Rows) -> NDArray[np.int64]:
        return self.reader.array("steps/step_index")[states].astype(np.int64) * MOVE_NS

    def seed(self, row: int) -> int | None:
        seed = int(self.reader.array("rollouts/random_seed")[row])
        return seed if seed >= 0 else None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names that the generator gave; empty if it gave none."""
        config = self._generation.get("writer_config") or {}
        return tuple(config.get("actor_feature_names") or ())

    # ------------------------------------------------------------------------------------ helpers

    @property
    def _generation(self) -> Mapping[str, Any]:
        return self.reader.store_manifest.payload.get("generation") or {}

    @cached_property
    def _features(self) -> Array | None:
        there = self.reader.has("q_h/actor_features")
        return self.reader.array("q_h/actor_features") if there else None

    @cached_property
    def _longest(self) -> int:
        """Steps of the longest chain of the store."""
        return int(self.reader.array("rollouts/num_steps").max(initial=0))

    @cached_property
    def _source_places(self) -> dict[int, int]:
        ids = self.reader.array("sources/source_row_id").tolist()
        return {source: place for place, source in enumerate(ids)}

    @cached_property
    def _git_sha(self) -> str | None:
        git = (self._generation.get("runtime") or {}).get("git") or {}
        commit = git.get("commit")
        return commit if isinstance(commit, str) else None

    def _identity_columns(self, table: str, row: int) -> dict[str, Any]:
        """The identity columns of one row, with codes decoded to words; None for missing ones."""
        values: dict[str, Any] = {}
        for name in _IDENTITY[table]:
            value = self.reader.array(f"{table}/{name}")[row].item()
            dictionary = TABLES[table].columns[name].words
            if dictionary is not None:
                value = self.reader.words(dictionary)[value] if value >= 0 else None
            values[name] = value
        return values


def check_one_policy(
    stores: Iterable[StoreBaselines], version: str | None, *, field: str, choose: str
) -> None:
    """Refuses one version for the chains of several policies. `choose` is the argument that chooses a policy."""
    if version is None:
        return
    own = sorted({each for store in stores for each in store.policy_versions})
    if len(own) > 1:
        message = (
            f"{field} {version!r} would be the version of chains of {len(own)} policies: {', '.join(own)}. "
            f"Choose one policy with {choose}, or leave {field} out: each chain then has the name of its own policy"
        )
        raise ConfigurationError(message=message)


_IDENTITY = {
    "rollouts": (
        *("rollout_id", "chain_id", "policy_id", "source_row_id"),
        *("target_row_id", "scene_id", "split_id"),
    ),
    "lineage": (
        *("branch_schedule_id", "model_checkpoint_id", "candidate_config_id"),
        *("oracle_config_id", "rollout_config_id", "mesh_version_id"),
    ),
    "sources": (
        *("sample_key_id", "source_offline_store_manifest_hash_id"),
        *("source_shard_id", "source_shard_row"),
    ),
    "targets": ("target_id", "target_class_name_id"),
}


def _policy_version(about: Mapping[str, Any]) -> str:
    checkpoint = about["model_checkpoint"]
    return f"{about['policy']}@{checkpoint[:12]}" if checkpoint else str(about["policy"])


def env_version(about: Mapping[str, Any]) -> str:
    """The configuration of candidates, the configuration of the oracle, and the geometry."""
    names = ("candidate_config", "oracle_config", "mesh_version")
    parts = [about.get(name) or about.get(f"{name}_id") for name in names]
    return "/".join((part or "unknown")[:12] for part in parts)
