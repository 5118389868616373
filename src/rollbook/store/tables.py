"""StoreTables: the rows of a store while it is written.

A record is checked when it is added. Rows of candidates, steps and diagnostics are then computed for many records at
once and handed out in blocks; sources, targets, chains and words stay in memory until the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.lineage import RolloutLineage
from rollbook.contracts.policy import (
    PolicyRevision,
    merged,
    revision_conflict,
    revision_identity,
)
from rollbook.contracts.read_only import read_only
from rollbook.contracts.reasons import VALID_BITSET, primary_target_reasons
from rollbook.store.candidate_columns import (
    AddedRecord,
    Columns,
    Shells,
    diagnostic_columns,
    joined,
    joined_shells,
    shell_columns,
)
from rollbook.store.lineage_rows import (
    NOT_REQUESTED,
    UNKNOWN_TARGET,
    known_fields,
    lineage_values,
)
from rollbook.store.own_steps import own_steps
from rollbook.store.record_checks import checked_steps, feature_count, invalid_value
from rollbook.store.records import RolloutChain, RolloutStep, RolloutZarrRecord
from rollbook.store.schema import DICTIONARIES, TABLES, Column

Block = dict[str, Columns]
"""Rows by table and column."""

CUMULATIVE = ("target_rri", "scene_rri", "target_root_gain", "scene_root_gain")
_OWN_TARGET_FIELDS = ("target_row_id", "target_protocol_version")
_TARGET_FACTS = tuple(
    field
    for field in RolloutLineage.__struct_fields__
    if field.startswith(("target_", "matched_gt_", "gt_match_")) and field not in _OWN_TARGET_FIELDS
)
"""Fields that all rollouts towards one target must share."""


class Words:
    """One dictionary. Words get codes in order of first use."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}

    def code(self, word: str | None) -> int:
        return -1 if word is None else self.codes.setdefault(word, len(self.codes))


class StoreTables:
    """The rows of a store while it is written. A refused record changes nothing."""

    def __init__(self) -> None:
        self.words = {name: Words() for name in DICTIONARIES}
        self._identities: dict[int, tuple[Any, ...]] = {}
        self._targets: dict[tuple[Any, ...], tuple[int, tuple[Any, ...]]] = {}
        self._small: dict[str, list[dict[str, Any]]] = {
            name: [] for name in ("sources", "rollouts", "lineage", "targets")
        }
        self.policy_revisions: dict[str, PolicyRevision] = {}
        """By policy digest, which is what a row of the lineage has."""
        self.stated_revisions: list[PolicyRevision] = []
        """The revisions as single records state them. One of `policy_revisions` joins all that is stated about it."""
        self._pending: list[AddedRecord] = []
        self._flushed = 0
        self.num_rollouts = 0
        self.num_steps = 0
        self.num_candidates = 0
        self.horizon = 0
        self.widest = 0
        self.feature_count: int | None = None

    def count(self, table: str) -> int:
        return len(self._small[table])

    def small(self, table: str) -> Columns:
        """A table that stays in memory, as columns."""
        rows = self._small[table]
        return {
            name: _stack(column, [row[name] for row in rows])
            for name, column in TABLES[table].columns.items()
        }

    # ---------------------------------------------------------------------------------- appending

    def add(self, record: RolloutZarrRecord) -> AddedRecord:
        """Check the record, give ids to its rows and keep a copy until `flush`. A refusal changes nothing."""
        steps = checked_steps(record, self.feature_count)
        shells = joined_shells(record, steps)
        lineages = [record.lineage_for_chain(chain) for chain in range(len(record.result.chains))]
        self._check_names(record, lineages)
        source_row_id = record.lineage.resolved_source_row_id()
        self._check_source(source_row_id, record.lineage)
        self._check_target(source_row_id, record.lineage)
        revision = joined_revision(self.policy_revisions.values(), record.lineage.policy_revision)
        # all checks are done: the changes start here
        if revision is not None:
            self.policy_revisions[revision.policy_digest] = revision
        self._add_source(source_row_id, record.lineage)
        target_row_id = self._add_target(source_row_id, record.lineage)
        root = read_only(record.result.root_pose_world)
        record = replace(record, result=replace(record.result, root_pose_world=root))
        added = self._give_ids(record, own_steps(steps), shells, source_row_id, target_row_id)
        self._add_chains(added, lineages)
        self._pending.append(added)
        self._count(added)
        return added

    def _give_ids(
        self,
        record: RolloutZarrRecord,
        steps: list[RolloutStep],
        shells: Shells,
        source_row_id: int,
        target_row_id: int,
    ) -> AddedRecord:
        counts = np.array([len(step.candidates) for step in steps], np.int64)
        return AddedRecord(
            record=record,
            steps=steps,
            shells=shells,
            counts=counts,
            source_row_id=source_row_id,
            target_row_id=target_row_id,
            first_rollout=self.num_rollouts,
            first_step=self.num_steps,
            offsets=self.num_candidates + np.cumsum(counts) - counts,
        )

    def _count(self, added: AddedRecord) -> None:
        result = added.record.result
        self.num_rollouts += len(result.chains)
        self.num_steps += len(added.steps)
        self.num_candidates += int(added.counts.sum())
        self.horizon = max(self.horizon, result.horizon)
        self.widest = max(self.widest, int(added.counts.max(initial=0)))
        if added.steps:
            self.feature_count = feature_count(added.steps[0])

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    @property
    def pending_candidates(self) -> int:
        return self.num_candidates - self._flushed

    def flush(self) -> Block:
        """The rows of the large tables for the records added since the last flush."""
        added, self._pending = self._pending, []
        columns = shell_columns(added)
        steps = self._step_columns(added, columns)
        columns |= self._links(added, steps)
        self._add_totals(added, steps)
        self._flushed = self.num_candidates
        diagnostics = {
            "candidate_row_id": columns["candidate_row_id"],
            "position_id": columns["position_id"],
            **diagnostic_columns(added),
        }
        return {
            "steps": _typed("steps", steps),
            "candidates": _typed("candidates", columns),
            "candidate_diagnostics": _typed("candidate_diagnostics", diagnostics),
        }

    def _step_columns(self, added: Sequence[AddedRecord], candidates: Columns) -> Columns:
        """The columns of steps: place in the chain, shell, and sums over the selected candidates."""
        steps = [step for each in added for step in each.steps]
        counts = joined((each.counts for each in added), np.int64)
        offsets = joined((each.offsets for each in added), np.int64)
        lengths = np.array(
            [len(chain.steps) for each in added for chain in each.record.result.chains], np.int64
        )
        selected = np.array([step.selected_shell_index for step in steps], np.int64)
        taken = offsets - self._flushed + selected
        valid_before = np.concatenate([[0], np.cumsum(candidates["actor_action_mask"])])
        ends = np.cumsum(counts)
        return {
            "step_row_id": added[0].first_step + np.arange(len(steps)),
            "rollout_row_id": added[0].first_rollout + np.repeat(np.arange(len(lengths)), lengths),
            "step_index": np.arange(len(steps)) - np.repeat(np.cumsum(lengths) - lengths, lengths),
            "selected_candidate_row_id": offsets + selected,
            "selected_shell_index": selected,
            "selected_compact_valid_index": candidates["compact_valid_index"][taken],
            "num_candidates": counts,
            "num_valid_candidates": valid_before[ends] - valid_before[ends - counts],
            "candidate_offset": offsets,
            "rng_state_digest": _digests([step.rng_state_digest for step in steps]),
            **{
                f"cumulative_{name}": _running_sum(candidates[name][taken], lengths)
                for name in CUMULATIVE
            },
        }

    def _links(self, added: Sequence[AddedRecord], steps: Columns) -> Columns:
        """The columns that link candidates to their step and chain."""
        counts = steps["num_candidates"]
        code = self.words["score_source"].code
        scored = [code(step.score_label) for each in added for step in each.steps]
        return {
            "candidate_row_id": self._flushed + np.arange(int(counts.sum())),
            "step_row_id": np.repeat(steps["step_row_id"], counts),
            "rollout_row_id": np.repeat(steps["rollout_row_id"], counts),
            "step_index": np.repeat(steps["step_index"], counts),
            "score_source_id": np.repeat(np.array(scored, np.int32), counts),
        }

    # ------------------------------------------------------------------------------- small tables

    def _check_names(self, record: RolloutZarrRecord, lineages: Sequence[RolloutLineage]) -> None:
        known = self.words["rollout"].codes
        if any(lineage.rollout_id in known for lineage in lineages):
            raise invalid_value(
                f"record {record.rollout_id_prefix!r}",
                "rollout_id_prefix",
                repr(record.rollout_id_prefix),
                "a name that no earlier record of the store has",
            )

    def _check_source(self, row_id: int, lineage: RolloutLineage) -> None:
        if row_id < 0:
            raise invalid_value("source row", "source_row_id", row_id, "a row, from 0 up")
        known = self._identities.get(row_id)
        mine = lineage.source_identity()
        if known is not None and known != mine:
            raise invalid_value(
                f"source row {row_id}",
                "source lineage",
                str(mine),
                f"what an earlier record says of the same source row, {known}",
            )

    def _check_target(self, source_row_id: int, lineage: RolloutLineage) -> None:
        _, known = self._targets.get(_target_key(source_row_id, lineage), (-1, None))
        mine = _target_facts(lineage)
        if known is None or known == mine:
            return
        for field, earlier, now in zip(_TARGET_FACTS, known, mine, strict=True):
            if earlier != now:
                raise invalid_value(
                    f"target {lineage.target_id!r} of source row {source_row_id}",
                    field,
                    repr(now),
                    f"what an earlier record says of the same target, {earlier!r}",
                )

    def _add_source(self, row_id: int, lineage: RolloutLineage) -> None:
        if row_id in self._identities:
            return
        self._identities[row_id] = lineage.source_identity()
        code = {name: words.code for name, words in self.words.items()}
        self._small["sources"].append(
            {
                "source_row_id": row_id,
                "sample_index": lineage.source_sample_index,
                "sample_key_id": code["source_key"](lineage.source_sample_key),
                "scene_id": code["scene"](lineage.scene_id),
                "snippet_id": code["snippet"](lineage.snippet_id),
                "split_id": code["split"](lineage.split),
                "source_cache_version_id": code["config"](lineage.source_cache_version),
                "source_offline_store_manifest_hash_id": code["config"](
                    lineage.source_offline_store_manifest_hash
                ),
                "split_manifest_hash_id": code["config"](lineage.split_manifest_hash),
                "source_shard_id": code["source_shard"](lineage.source_shard_id),
                "source_shard_row": lineage.source_shard_row,
            }
        )

    def _add_target(self, source_row_id: int, lineage: RolloutLineage) -> int:
        """The row id of a target. Targets get row ids in order of first use."""
        key = _target_key(source_row_id, lineage)
        if key not in self._targets:
            row_id = len(self._targets)
            self._targets[key] = (row_id, _target_facts(lineage))
            self._small["targets"].append(self._target_row(row_id, lineage))
        return self._targets[key][0]

    def _target_row(self, row_id: int, lineage: RolloutLineage) -> dict[str, Any]:
        code = {name: words.code for name, words in self.words.items()}
        bitset = lineage.target_invalid_reason_bitset
        bitset = VALID_BITSET if bitset is None else bitset
        primary = primary_target_reasons(np.array([bitset], np.uint32))
        plain = {
            name: getattr(lineage, name)
            for name in TABLES["targets"].columns
            if hasattr(lineage, name)
        }
        return {
            **plain,
            "target_row_id": row_id,
            "target_id": code["target"](
                UNKNOWN_TARGET if lineage.target_id is None else lineage.target_id
            ),
            "target_selection_policy_id": code["policy"](lineage.target_selection_policy),
            "target_source_id": code["target_source"](lineage.target_source),
            "target_source_index": _selector_index(lineage),
            "target_class_name_id": code["class_name"](lineage.target_class_name),
            "target_invalid_reason_bitset": bitset,
            "target_valid_mask": lineage.target_valid,
            "target_primary_invalid_reason": int(primary[0]),
            "target_reason_code_version_id": code["config"](lineage.target_reason_code_version),
            "matched_gt_target_id": code["target"](lineage.matched_gt_target_id),
            "gt_match_status_id": code["target_match_status"](
                NOT_REQUESTED if lineage.gt_match_status is None else lineage.gt_match_status
            ),
            "gt_label_valid_mask": lineage.gt_label_valid,
            "target_crop_policy_id": code["config"](lineage.target_crop_policy),
            "lineage_values": lineage_values(lineage),
        }

    def _add_chains(self, added: AddedRecord, lineages: Sequence[RolloutLineage]) -> None:
        first, offset = added.first_rollout, added.first_step
        chains = added.record.result.chains
        for number, (chain, lineage) in enumerate(zip(chains, lineages, strict=True)):
            parent = chain.parent_chain
            self._small["rollouts"].append(
                {
                    **self._chain_row(added.record, chain, lineage),
                    "rollout_row_id": first + number,
                    "source_row_id": added.source_row_id,
                    "target_row_id": added.target_row_id,
                    "step_offset": offset,
                    "parent_rollout_row_id": None if parent is None else first + parent,
                }
            )
            self._small["lineage"].append(self._lineage_row(first + number, lineage))
            offset += len(chain.steps)

    def _chain_row(
        self, record: RolloutZarrRecord, chain: RolloutChain, lineage: RolloutLineage
    ) -> dict[str, Any]:
        result, code = record.result, {name: words.code for name, words in self.words.items()}
        return {
            "rollout_id": code["rollout"](lineage.rollout_id),
            "chain_id": lineage.chain_id,
            "root_pose_world": result.root_pose_world,
            "root_time_ns": result.root_time_ns,
            "root_trajectory_index": result.root_trajectory_index,
            "root_frame_index": result.root_frame_index,
            "scene_id": code["scene"](lineage.scene_id),
            "snippet_id": code["snippet"](lineage.snippet_id),
            "policy_id": code["policy"](lineage.rollout_policy),
            "horizon": result.horizon,
            "branch_factor": result.branch_factor,
            "beam_width": result.beam_width,
            "temperature": chain.steps[0].temperature if chain.steps else None,
            "random_seed": lineage.random_seed,
            "termination_reason": code["termination_reason"](_termination(chain, result.horizon)),
            "split_id": code["split"](lineage.split),
            "num_steps": len(chain.steps),
            "fork_step_index": chain.fork_step_index,
        }

    def _add_totals(self, added: Sequence[AddedRecord], steps: Columns) -> None:
        """Store the sums at the last step of each chain."""
        end = 0
        for each in added:
            for number, chain in enumerate(each.record.result.chains):
                end += len(chain.steps)
                row = self._small["rollouts"][each.first_rollout + number]
                for name in CUMULATIVE:
                    total = steps[f"cumulative_{name}"][end - 1] if chain.steps else None
                    row[f"final_cumulative_{name}"] = total

    def _lineage_row(self, rollout_row_id: int, lineage: RolloutLineage) -> dict[str, Any]:
        config = self.words["config"].code
        return {
            "rollout_row_id": rollout_row_id,
            "candidate_config_id": config(lineage.candidate_config_hash),
            "oracle_config_id": config(lineage.oracle_config_hash),
            "rollout_config_id": config(lineage.rollout_config_hash),
            "model_checkpoint_id": config(lineage.model_checkpoint_hash),
            "mesh_version_id": config(lineage.mesh_version),
            "branch_schedule_id": config(lineage.branch_schedule_id),
            "target_protocol_version_id": config(lineage.target_protocol_version),
            "target_crop_policy_id": config(lineage.target_crop_policy),
            "reason_code_version_id": config(lineage.reason_code_version),
            "selection_rng_state_hash_id": config(lineage.selection_rng_state_hash),
            "lineage_digest": np.frombuffer(bytes.fromhex(lineage.digest()), np.uint8),
            "known_fields": known_fields(lineage),
            "selector_target_row_id": lineage.target_row_id,
            "policy_revision_index": self._stated_index(lineage.policy_revision),
        }

    def _stated_index(self, revision: PolicyRevision | None) -> int | None:
        return None if revision is None else stated_index(self.stated_revisions, revision)


def stated_index(stated: list[PolicyRevision], revision: PolicyRevision) -> int:
    """The index of a revision among those that records state. A new one is added."""
    if revision not in stated:
        stated.append(revision)
    return stated.index(revision)


def joined_revision(
    known: Iterable[PolicyRevision], revision: PolicyRevision | None
) -> PolicyRevision | None:
    """The policy revision of a record, with what earlier records said about it."""
    if revision is None:
        return None
    identity = revision_identity(revision)
    for each in known:
        if revision_identity(each) == identity or each.policy_digest == revision.policy_digest:
            conflict = revision_conflict("store", None, each, revision)
            if conflict is not None:
                raise conflict
            return merged(each, revision)
    return revision


def _selector_index(lineage: RolloutLineage) -> int | None:
    """The row of the target in the table of the selector."""
    index = lineage.target_source_index
    return lineage.target_row_id if index is None else index


def _target_key(source_row_id: int, lineage: RolloutLineage) -> tuple[Any, ...]:
    return (
        source_row_id,
        lineage.target_id,
        lineage.matched_gt_target_id,
        lineage.matched_gt_target_row_id,
        _selector_index(lineage),
    )


def _target_facts(lineage: RolloutLineage) -> tuple[Any, ...]:
    return tuple(getattr(lineage, field) for field in _TARGET_FACTS)


def _stack(column: Column, values: list[Any]) -> NDArray[Any]:
    """One column of a small table. None becomes the fill value of the column."""
    shape = tuple(int(size) for size in column.shape)
    array = np.full((len(values), *shape), column.fill, column.numpy)
    for row, value in enumerate(values):
        if value is not None:
            array[row] = value
    return array


def _typed(table: str, columns: Columns) -> Columns:
    """The columns in their declared types and order. Other columns are filled, optional ones are left out."""
    rows = len(next(iter(columns.values())))
    typed = {}
    for name, column in TABLES[table].columns.items():
        if name in columns:
            typed[name] = columns[name].astype(column.numpy, copy=False)
        elif not column.optional:
            shape = tuple(int(size) for size in column.shape)
            typed[name] = np.full((rows, *shape), column.fill, column.numpy)
    return typed


def _digests(values: Sequence[bytes | None]) -> NDArray[np.uint8]:
    joint = b"".join(bytes(32) if value is None else value for value in values)
    return np.frombuffer(joint, np.uint8).reshape(len(values), 32)


def _termination(chain: RolloutChain, horizon: int) -> str:
    if chain.terminated_early:
        return "terminated_early"
    return "fixed_horizon" if len(chain.steps) >= horizon else "incomplete_rollout"


def _running_sum(values: NDArray[np.float32], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
    """Running sum of the finite values within each chain; NaN before the first finite value.

    The loop adds all first steps, then all second steps, and so on, so that chains are never mixed.
    """
    finite = np.isfinite(values)
    total, seen = np.where(finite, values, 0).astype(np.float64), finite.copy()
    starts = np.cumsum(lengths) - lengths
    for step in range(1, int(lengths.max(initial=0))):
        rows = starts[lengths > step] + step
        total[rows] += total[rows - 1]
        seen[rows] |= seen[rows - 1]
    return np.where(seen, total, np.nan).astype(np.float32)
