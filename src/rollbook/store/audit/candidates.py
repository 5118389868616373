"""Candidates as audit rows: decoded, and joined with their rollout and their diagnostics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np

from rollbook.contracts.reasons import (
    INVALID_REASON_CODES,
    VALID_BITSET,
    decode_invalid_reason,
    decode_position_id,
    decode_strategy_id,
    primary_reasons,
)
from rollbook.errors import ConfigurationError, near_names
from rollbook.store.audit.rows import (
    Array,
    Coded,
    Row,
    Rows,
    Values,
    candidate_span,
    dict_rows,
    gather,
    groups_of,
    limited,
    step_span,
    word_of,
)
from rollbook.store.records import CandidateSamplingResult
from rollbook.store.schema import TABLES
from rollbook.store.views.store_view import StoreView

Reads = Callable[[StoreView, Rows], Values]
"""A function that reads one audit column for these candidate rows."""


def mixture_name(reader: StoreView) -> Callable[[int], str]:
    """The names of mixture components in the config of the writer; `component_<n>` for one without a name, and where
    stores name it differently."""
    named = [_component_names(store.manifest()["manifest"]) for store in reader.stores]
    names = [each[0] if each.count(each[0]) == len(named) else None for each in zip_longest(*named)]

    def name(component: int) -> str:
        if component < 0:
            return "unknown"
        known = names[component] if component < len(names) else None
        return known or f"component_{component}"

    return name


def _component_names(manifest: Mapping[str, Any]) -> list[str | None]:
    """The config can contain anything, so names that are not found are None."""
    found: Any = manifest
    for key in ("generation", "writer_config", "candidate_mixture", "components"):
        found = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(found, list):
        return []
    names = (each.get("name") if isinstance(each, Mapping) else None for each in found)
    return [each if isinstance(each, str) else None for each in names]


# -------------------------------------------------------------------------------------- columns


def _stored(column: str, table: str = "candidates") -> Reads:
    return lambda reader, rows: reader.array(f"{table}/{column}")[rows]


def _diagnostic(column: str) -> Reads:
    return _stored(column, "candidate_diagnostics")


def _named(column: str, decode: Callable[[int], str]) -> Reads:
    return lambda reader, rows: Coded(reader.array(f"candidates/{column}")[rows], decode)


def _of_rollout(column: str) -> Reads:
    """A column of the rollout of a candidate. Codes are decoded."""
    declared = TABLES["rollouts"].columns[column]

    def read(reader: StoreView, rows: Rows) -> Values:
        owners = reader.array("candidates/rollout_row_id")[rows]
        values = gather(reader.array(f"rollouts/{column}"), owners, declared.fill)
        return (
            values
            if declared.words is None
            else Coded(values, word_of(reader.words(declared.words)))
        )

    return read


def _center(axis: int) -> Reads:
    return lambda reader, rows: reader.array("candidates/pose_world_cam")[rows, 9 + axis]


AUDIT_COLUMNS: Mapping[str, Reads] = {
    "candidate_row_id": _stored("candidate_row_id"),
    "rollout_row_id": _stored("rollout_row_id"),
    "step_row_id": _stored("step_row_id"),
    "step_index": _stored("step_index"),
    "shell_index": _stored("shell_index"),
    "compact_valid_index": _stored("compact_valid_index"),
    "scene": _of_rollout("scene_id"),
    "split": _of_rollout("split_id"),
    "policy": _of_rollout("policy_id"),
    "target_row_id": _of_rollout("target_row_id"),
    "selected": _stored("selected_mask"),
    "actor_action": _stored("actor_action_mask"),
    "oracle_label": _stored("oracle_label_mask"),
    "q_train": _stored("q_train_mask"),
    "strategy_id": _stored("strategy_id"),
    "strategy": _named("strategy_id", decode_strategy_id),
    "position_id": _stored("position_id"),
    "position": _named("position_id", decode_position_id),
    "mixture_id": _stored("mixture_id"),
    "mixture": lambda reader, rows: Coded(
        reader.array("candidates/mixture_id")[rows], mixture_name(reader)
    ),
    "sampler_probability": _stored("sampler_probability"),
    "invalid_reason": _named("primary_invalid_reason", decode_invalid_reason),
    "invalid_reason_bitset": _stored("invalid_reason_bitset"),
    "target_rri": _stored("target_rri"),
    "target_root_gain": _stored("target_root_gain"),
    "target_log_error_gain": _stored("target_log_error_gain"),
    "target_pm_dist_before": _stored("target_pm_dist_before"),
    "target_pm_dist_after": _stored("target_pm_dist_after"),
    "scene_rri": _stored("scene_rri"),
    "selection_probability": _stored("selection_probabilities"),
    "center_x": _center(0),
    "center_y": _center(1),
    "center_z": _center(2),
    "mesh_distance_m": _diagnostic("mesh_distance_m"),
    "path_min_clearance_m": _diagnostic("path_min_clearance_m"),
    "path_collision": _diagnostic("path_collision_mask"),
    "free_space_margin_m": _diagnostic("free_space_margin_m"),
    "motion_step_length_m": _diagnostic("motion_step_length_m"),
    "motion_height_delta_m": _diagnostic("motion_height_delta_m"),
    "motion_backward_step_m": _diagnostic("motion_backward_step_m"),
    "motion_yaw_delta_deg": _diagnostic("motion_yaw_delta_deg"),
    "target_distance_m": _diagnostic("target_distance_m"),
    "target_bearing_yaw_deg": _diagnostic("target_bearing_yaw_deg"),
}
"""Every column of an audit row, in order, and the function that reads it."""


# ----------------------------------------------------------------------------------------- rows


def candidate_audit_rows(
    reader: StoreView,
    *,
    rollout_row_id: int | None = None,
    step_row_id: int | None = None,
    limit: int | None = None,
) -> list[Row]:
    """Candidates joined with their rollout and diagnostics. Only the requested rows are read."""
    steps = step_span(reader, rollout_row_id, step_row_id)
    rows = limited(candidate_span(reader, steps), limit)
    return dict_rows({name: read(reader, rows) for name, read in AUDIT_COLUMNS.items()})


def candidate_group_summary_rows(reader: StoreView, *, group_by: str) -> list[Row]:
    """Validity, labels and mean gain of the candidates, grouped by any audit column."""
    if group_by not in AUDIT_COLUMNS:
        near = near_names(group_by, AUDIT_COLUMNS)
        raise ConfigurationError(message=f"candidates have no audit column {group_by!r}; {near}")
    groups = groups_of(AUDIT_COLUMNS[group_by](reader, slice(None)))
    totals = groups.counts()
    valid = groups.counts(reader.array("candidates/actor_action_mask"))
    return dict_rows(
        {
            group_by: list(groups.keys),
            "total": totals,
            "actor_valid": valid,
            "actor_valid_fraction": [
                part / whole for part, whole in zip(valid, totals, strict=True)
            ],
            "q_train": groups.counts(reader.array("candidates/q_train_mask")),
            "selected": groups.counts(reader.array("candidates/selected_mask")),
            "mean_target_root_gain": groups.means(reader.array("candidates/target_root_gain")),
        }
    )


_STAGES = {
    "actor-valid": "actor_action_mask",
    "oracle-label": "oracle_label_mask",
    "q-train": "q_train_mask",
    "selected": "selected_mask",
}


def validity_waterfall_rows(reader: StoreView) -> list[Row]:
    """How many candidates remain at each stage, from the full shells to the selected ones."""
    full = reader.num_candidates
    counts = {"full shell": full}
    for stage, mask in _STAGES.items():
        counts[stage] = int(np.count_nonzero(reader.array(f"candidates/{mask}")))
    return [
        {"stage": stage, "count": count, "fraction_of_full": count / full if full else None}
        for stage, count in counts.items()
    ]


# ------------------------------------------------------------------------------- before storing


def candidate_result_diagnostic_counts(
    candidates: CandidateSamplingResult,
) -> dict[str, list[Row]]:
    """Counts of a shell that is not stored yet, by position family and by reason. Both count every candidate."""
    valid = np.asarray(candidates.mask_valid, bool)
    positions = groups_of(Coded(_positions(candidates), decode_position_id))
    reasons = groups_of(Coded(primary_reasons(_bitset(candidates)), decode_invalid_reason))
    by_position = {
        "position": list(positions.keys),
        "total": positions.counts(),
        "valid": positions.counts(valid),
        "invalid": positions.counts(~valid),
    }
    by_reason = {"invalid_reason": list(reasons.keys), "count": reasons.counts()}
    return {"position": dict_rows(by_position), "invalid_reason": dict_rows(by_reason)}


def _positions(candidates: CandidateSamplingResult) -> Array:
    if candidates.position_id is None:
        return np.full(len(candidates), -1, np.int32)
    return np.asarray(candidates.position_id)


def _bitset(candidates: CandidateSamplingResult) -> Array:
    if candidates.invalid_reason_bitset is not None:
        return np.asarray(candidates.invalid_reason_bitset, np.uint32)
    rejected = 1 << INVALID_REASON_CODES["SAMPLER_RULE_REJECTED"]
    return np.where(candidates.mask_valid, VALID_BITSET, rejected).astype(np.uint32)
