"""Every table and column of a rollout store, for writer, reader, checks and docs/reference/store-format.md.

A store is a Zarr 3 hierarchy: one group per table, one array per column. All columns of a table have the same number
of rows. Row ids are dense, 0..n-1 in write order, except `source_row_id`, which is the index in the source. Invalid
candidates keep their row: their masks are false, their reason bits say why, and their labels are NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rollbook.contracts.reasons import (
    INVALID_REASON_CODES,
    POSITION_NAMES,
    STRATEGY_NAMES,
    TARGET_INVALID_REASON_CODES,
)
from rollbook.errors import ConfigurationError, near_names

ROLLOUT_ZARR_SCHEMA_ID = "rollbook.rollout_store"
ROLLOUT_ZARR_SCHEMA_VERSION = "1.0-target-rollout-core"
DEFAULT_RETURN_SEMANTICS = "cumulative_target_root_gain"
REWARD_METRIC = "target_root_gain"
TD_SEMANTICS = "selected_transition_only"

Storage = Literal["hot", "table", "raster"]
"""hot: training reads, mapped. table: facts and audits, mapped. raster: images, compressed frame by frame."""

NAN = float("nan")
Fill = bool | int | float


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    dtype: str
    fill: Fill
    """The value for "not known", and for padding in the dense view."""
    doc: str
    shape: tuple[int | str, ...] = ()
    """Shape of one row. Letters are sizes of the store: A actions, F features, N steps, H and W pixels, P points."""
    words: str | None = None
    """The dictionary that a code points into; -1 where there is no word."""
    optional: bool = False
    """The column exists only in stores whose records have it."""
    packed: str | None = None
    """The array that holds the column, where several small columns share one array to save files."""
    fixed_words: str | None = None
    """The entry of FIXED_WORDS that names the codes, where every store has the same names."""

    @property
    def numpy(self) -> np.dtype[np.generic]:
        return np.dtype(self.dtype)


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    doc: str
    storage: Storage
    columns: Mapping[str, Column]
    derived: bool = False
    """It can be computed again from the factual tables, and validation compares the two."""
    optional: bool = False
    """The group always exists. Without its payload it has attributes only."""

    def packed(self) -> dict[str, list[str]]:
        """Arrays that hold several columns side by side, and the names of these columns in order."""
        arrays: dict[str, list[str]] = {}
        for column in self.columns.values():
            if column.packed is not None:
                arrays.setdefault(column.packed, []).append(column.name)
        return arrays


def _table(
    name: str,
    storage: Storage,
    doc: str,
    columns: Iterable[Column],
    *,
    derived: bool = False,
    optional: bool = False,
) -> Table:
    return Table(name, doc, storage, {each.name: each for each in columns}, derived, optional)


def _id(name: str, doc: str, fill: int = -1) -> Column:
    return Column(name, "<i8", fill, doc)


def _code(name: str, words: str, doc: str) -> Column:
    return Column(name, "<i4", -1, doc, words=words)


def _named(name: str, fixed_words: str, doc: str, fill: int = -1, dtype: str = "<i4") -> Column:
    return Column(name, dtype, fill, doc, fixed_words=fixed_words)


def _i32(name: str, doc: str, fill: int = -1) -> Column:
    return Column(name, "<i4", fill, doc)


def _i16(name: str, doc: str, fill: int = -1) -> Column:
    return Column(name, "<i2", fill, doc)


def _f32(name: str, doc: str, fill: float = NAN, shape: tuple[int | str, ...] = ()) -> Column:
    return Column(name, "<f4", fill, doc, shape)


def _oracle_terms() -> Iterable[Column]:
    """The parts of an error, for the target and the scene, before the step and after each candidate."""
    parts = {
        "accuracy": "mean distance from the points to the mesh",
        "completeness": "mean distance from the mesh to the points",
        "coverage": "share of the mesh that has a point close by",
    }
    for region in ("target", "scene"):
        for part, doc in parts.items():
            for when in ("before", "after"):
                name = f"{region}_{part}_{when}"
                yield Column(name, "<f4", NAN, f"{doc}, {when}", packed="oracle_terms")


def _mask(name: str, doc: str, fill: bool = False, shape: tuple[int | str, ...] = ()) -> Column:
    return Column(name, "|b1", fill, doc, shape)


def _score(name: str, doc: str) -> Column:
    return Column(name, "<f4", NAN, doc, packed="scores")


DICTIONARIES = (
    "scene",
    "snippet",
    "rollout",
    "target",
    "source_key",
    "source_shard",
    "target_source",
    "policy",
    "score_source",
    "split",
    "config",
    "class_name",
    "target_match_status",
    "termination_reason",
)
"""Dictionaries of coded strings. The group `dictionaries` has their words as attributes, in order of first use."""

FIXED_WORDS: Mapping[str, tuple[str, ...]] = {
    "strategy": STRATEGY_NAMES,
    "position": POSITION_NAMES,
    "reason": tuple(INVALID_REASON_CODES),
    "target_reason": tuple(TARGET_INVALID_REASON_CODES),
    "role": ("current", "candidate"),
}
"""Names of the codes 0, 1, … that are the same in every store. A code beyond them is of a later release."""

SOURCES = _table(
    "sources",
    "table",
    "One row per source row that rollouts start from.",
    [
        _id("source_row_id", "index of the row in the source"),
        _id("sample_index", "index in the source dataset"),
        _code("sample_key_id", "source_key", "key in the source dataset"),
        _code("scene_id", "scene", "scene"),
        _code("snippet_id", "snippet", "snippet"),
        _code("split_id", "split", "split"),
        _code("source_cache_version_id", "config", "version of the source store"),
        _code("source_offline_store_manifest_hash_id", "config", "digest of the source manifest"),
        _code("split_manifest_hash_id", "config", "digest of the split"),
        _code("source_shard_id", "source_shard", "shard of the source store"),
        _id("source_shard_row", "row in that shard"),
    ],
)

ROLLOUTS = _table(
    "rollouts",
    "table",
    "One row per retained chain.",
    [
        _id("rollout_row_id", "this row"),
        _code("rollout_id", "rollout", "name of the rollout"),
        _i32("chain_id", "index of the chain in its record", 0),
        _id("source_row_id", "source row that it starts from"),
        _f32("root_pose_world", "root camera pose, world from camera", shape=(12,)),
        _id("root_time_ns", "time of the root pose"),
        _i32("root_trajectory_index", "index of the root in the source trajectory"),
        _i32("root_frame_index", "frame of the root"),
        _code("scene_id", "scene", "scene"),
        _code("snippet_id", "snippet", "snippet"),
        _id("target_row_id", "target that it should reconstruct better"),
        _code("policy_id", "policy", "policy that selected its actions"),
        _i16("horizon", "maximum number of steps", 0),
        _i16("branch_factor", "actions kept per expanded node", 0),
        _i16("beam_width", "limit of the frontier, -1 for none"),
        _f32("temperature", "temperature of its first step"),
        _id("random_seed", "random seed of its recipe"),
        _code("termination_reason", "termination_reason", "reason why it ended"),
        _f32("final_cumulative_target_rri", "sum over its steps"),
        _f32("final_cumulative_scene_rri", "sum over its steps"),
        _f32("final_cumulative_target_root_gain", "sum over its steps"),
        _f32("final_cumulative_scene_root_gain", "sum over its steps"),
        _code("split_id", "split", "split"),
        _id("step_offset", "its first row in the table steps"),
        _i32("num_steps", "number of its steps", 0),
        _id("parent_rollout_row_id", "the chain it forked from, -1 for none"),
        _i16("fork_step_index", "first step that differs from the parent chain"),
    ],
)

LINEAGE = _table(
    "lineage",
    "table",
    "Aligned with rollouts: what they were made with.",
    [
        _id("rollout_row_id", "row of the rollout"),
        _code("candidate_config_id", "config", "digest of the candidate generation"),
        _code("oracle_config_id", "config", "digest of the oracle"),
        _code("rollout_config_id", "config", "digest of the resolved recipe"),
        _code("model_checkpoint_id", "config", "checkpoint of a learned policy"),
        _code("mesh_version_id", "config", "content hash of the mesh"),
        _code("branch_schedule_id", "config", "name of the recipe"),
        _code("target_protocol_version_id", "config", "target protocol"),
        _code("target_crop_policy_id", "config", "how the target is cropped out of the mesh"),
        _code("reason_code_version_id", "config", "version of the reason codes"),
        _code(
            "selection_rng_state_hash_id", "config", "state of the generator that chose the target"
        ),
        Column("lineage_digest", "|u1", 0, "SHA-256 of the whole lineage record", (32,)),
        Column(
            "known_fields",
            "<u8",
            0,
            "fields of the lineage record that are not None, as bits in the order of `KNOWN_FIELDS`",
            optional=True,
        ),
        Column(
            "selector_target_row_id",
            "<i8",
            -1,
            "number that the selector gave the target",
            optional=True,
        ),
        Column(
            "policy_revision_index",
            "<i4",
            -1,
            "index in the attribute `stated_policy_revisions` of `metadata`",
            optional=True,
        ),
    ],
)

LINEAGE_NUMBERS: Mapping[str, int] = {
    "target_selection_score": 1,
    "target_selection_probability": 1,
    "target_selection_temperature": 1,
    "target_confidence": 1,
    "target_projected_area_pixels": 1,
    "target_projected_area_fraction": 1,
    "target_effective_support_count": 1,
    "target_visibility_score": 1,
    "target_support_score": 1,
    "target_deficit_score": 1,
    "target_center_world": 3,
    "target_extents": 3,
    "target_pose_world_object": 12,
    "target_relative_pose_reference_object": 12,
    "gt_match_iou": 1,
    "gt_match_score": 1,
}
"""Numbers of the lineage record about the target → how many each has. Columns of the same name round them to float32;
`targets/lineage_values` has them side by side, as given. The order is that of the stored bytes."""

TARGETS = _table(
    "targets",
    "table",
    "One row per target of a source row.",
    [
        _id("target_row_id", "this row"),
        _code("target_id", "target", "name of the target"),
        _code("target_selection_policy_id", "policy", "how it was selected"),
        _i32("target_selection_rank", "rank, from 0"),
        _score("target_selection_score", "score by which it was selected"),
        _score("target_selection_probability", "probability of selecting it"),
        _score("target_selection_temperature", "temperature of a sampled selection"),
        _code("target_source_id", "target_source", "table of boxes that it comes from"),
        _i32("target_source_index", "row in that table"),
        _i32("target_sem_id", "class id"),
        _i32("target_inst_id", "instance id"),
        _code("target_class_name_id", "class_name", "class"),
        _score("target_confidence", "confidence of the box"),
        _score("target_projected_area_pixels", "area of its largest clipped projection"),
        _score("target_projected_area_fraction", "this area as a share of the image"),
        _i32("target_semidense_support_count", "number of semidense points inside the box"),
        _i32("target_evl_support_count", "number of observed voxels inside the box"),
        _score("target_effective_support_count", "weighted sum of both counts"),
        _score("target_visibility_score", "factor of the selection score"),
        _score("target_support_score", "factor of the selection score"),
        _score("target_deficit_score", "factor of the selection score"),
        _f32("target_center_world", "centre, metres", shape=(3,)),
        _f32("target_extents", "side lengths, metres", shape=(3,)),
        _f32("target_pose_world_object", "world from object", shape=(12,)),
        _f32("target_relative_pose_reference_object", "reference rig from object", shape=(12,)),
        Column(
            "target_invalid_reason_bitset", "<u4", 1, "target reason bits; bit 0 alone is valid"
        ),
        _mask("target_valid_mask", "true if the bitset is bit 0 alone", True),
        _named("target_primary_invalid_reason", "target_reason", "primary reason", 0, "<u2"),
        _code("target_reason_code_version_id", "config", "version of the target reason codes"),
        _id("matched_gt_target_row_id", "row of the ground-truth box that gives the labels"),
        _code("matched_gt_target_id", "target", "name of that box"),
        _score("gt_match_iou", "overlap with that box"),
        _score("gt_match_score", "score of the match"),
        _code("gt_match_status_id", "target_match_status", "result of the match"),
        _mask("gt_label_valid_mask", "true if labels of this target may be used for training"),
        _code("target_crop_policy_id", "config", "how the target is cropped out of the mesh"),
        Column(
            "lineage_values",
            "<f8",
            NAN,
            "numbers of the lineage record as given, in the order of `LINEAGE_NUMBERS`",
            (sum(LINEAGE_NUMBERS.values()),),
            optional=True,
        ),
    ],
)

STEPS = _table(
    "steps",
    "table",
    "One row per step of a chain.",
    [
        _id("step_row_id", "this row"),
        _id("rollout_row_id", "row of its chain"),
        _i16("step_index", "place in the chain, from 0", 0),
        _id("selected_candidate_row_id", "row of the selected candidate"),
        _i32("selected_shell_index", "index of that candidate in the shell"),
        _i32("selected_compact_valid_index", "index of that candidate among the valid ones"),
        _i32("num_candidates", "number of candidates in the shell", 0),
        _i32("num_valid_candidates", "number of valid candidates in the shell", 0),
        _f32("cumulative_target_rri", "sum up to this step; NaN before the first label"),
        _f32("cumulative_scene_rri", "the same for the scene"),
        _f32("cumulative_target_root_gain", "the same for the root gain of the target"),
        _f32("cumulative_scene_root_gain", "the same for the root gain of the scene"),
        _id("candidate_offset", "its first row in the table candidates"),
        Column(
            "rng_state_digest",
            "|u1",
            0,
            "digest of the state of the random generator; zeros if it was not recorded",
            (32,),
        ),
    ],
)

CANDIDATES = _table(
    "candidates",
    "table",
    "One row per candidate of a shell, valid or not, in shell order.",
    [
        _id("candidate_row_id", "this row"),
        _id("step_row_id", "row of its step"),
        _id("rollout_row_id", "row of its chain"),
        _i16("step_index", "index of its step in the chain, from 0", 0),
        _i32("shell_index", "index in the shell", 0),
        _i32("compact_valid_index", "index among the valid candidates of the shell, -1 if invalid"),
        _f32("pose_world_cam", "camera pose, world from camera", shape=(12,)),
        _f32("pose_relative_root", "camera pose in the frame of the root", shape=(12,)),
        _mask("actor_action_mask", "true if the actor could take it"),
        _mask("oracle_label_mask", "true if it has a label"),
        _mask("q_train_mask", "true if its label may be used for training"),
        _mask("selected_mask", "true if it was selected"),
        _named("strategy_id", "strategy", "orientation family"),
        _named("position_id", "position", "position family"),
        _i32("mixture_id", "mixture component that proposed it"),
        _f32("sampler_probability", "density of its proposal"),
        _code("score_source_id", "score_source", "score that the policy used"),
        Column("invalid_reason_bitset", "<u4", 0, "reason bits; bit 0 is valid"),
        _named("primary_invalid_reason", "reason", "primary reason", 0, "<u2"),
        _f32("scene_rri", "relative improvement of the scene, state-relative"),
        _f32("target_rri", "relative improvement of the target, state-relative"),
        _f32("scene_root_gain", "improvement relative to the error at the root"),
        _f32("target_root_gain", "the same for the target: the reward"),
        _f32("scene_log_error_gain", "logarithm of the error before over the error after"),
        _f32("target_log_error_gain", "the same for the target"),
        _f32("scene_pm_dist_before", "point-to-mesh error of the scene, before"),
        _f32("scene_pm_dist_after", "point-to-mesh error of the scene, after"),
        _f32("target_pm_dist_before", "point-to-mesh error of the target, before"),
        _f32("target_pm_dist_after", "point-to-mesh error of the target, after"),
        _f32("target_current_support", "number of points on the target before"),
        _f32("target_candidate_support", "number of points on the target that it adds"),
        _f32("selection_logits", "logits of the policy"),
        _f32("selection_probabilities", "probabilities of the policy; 0 if invalid", 0.0),
        _f32(
            "selection_log_probabilities",
            "log-probabilities of the policy; minus infinity if invalid",
            -np.inf,
        ),
        Column(
            "actor_features", "<f4", NAN, "features that a learner may use", ("F",), optional=True
        ),
    ],
)

DIAGNOSTICS = _table(
    "candidate_diagnostics",
    "table",
    "Aligned with candidates, for audits only.",
    [
        _id("candidate_row_id", "row of the candidate"),
        _named("position_id", "position", "position family"),
        _f32("mesh_distance_m", "distance to the mesh"),
        _f32("path_min_clearance_m", "smallest clearance on the path"),
        _f32("free_space_margin_m", "margin inside the free space"),
        _f32("motion_step_length_m", "length of the move"),
        _f32("motion_height_delta_m", "change in height"),
        _f32("motion_backward_step_m", "backward part of the move"),
        _f32("motion_yaw_delta_deg", "change in yaw"),
        _f32("target_distance_m", "distance to the target"),
        _f32("target_bearing_yaw_deg", "yaw to the target"),
        _mask("path_collision_mask", "true if the path collides"),
        _mask("valid_actor_mask", "true if the same rules allow it on the map of the actor"),
        *_oracle_terms(),
    ],
)

SELECTED_DEPTH = _table(
    "selected_depth",
    "raster",
    "One depth image per step, at the pose that was taken: the history of the next state.",
    [
        _id("step_row_id", "the step"),
        _id("candidate_row_id", "row of the candidate that it was rendered at"),
        _f32("focal_px", "focal lengths", shape=(2,)),
        _f32("principal_point_px", "principal point", shape=(2,)),
        Column("image_size_hw", "<i4", 0, "height and width", (2,)),
        Column("depth_m", "<f2", 0.0, "metres; 0 where invalid", ("H", "W")),
        _mask("valid_mask", "true where depth is known", shape=("H", "W")),
    ],
    optional=True,
)

TARGET_EVAL_CROPS = _table(
    "target_eval_crops",
    "raster",
    "Point clouds the oracle used inside the target box, for audits.",
    [
        _id("crop_row_id", "this row"),
        _id("step_row_id", "the step"),
        _id("candidate_row_id", "row of the candidate, -1 for the state before the step"),
        _named("source_role_id", "role", "0 current, 1 candidate", 0),
        _code("crop_policy_id", "config", "crop policy"),
        _f32("voxel_size_m", "voxel size of the fusion"),
        _i32("max_points", "maximum number of points", 0),
        _i32("lengths", "number of points", 0),
        _f32("points_world", "points, padded with zeros", 0.0, ("P", 3)),
        _mask("mask", "true where there is a point", shape=("P",)),
    ],
    optional=True,
)

Q_H = _table(
    "q_h",
    "hot",
    "Dense training view: one state per step, actions padded to the widest shell.",
    [
        _id("state_step_row_id", "the step"),
        _id("source_row_id", "its row in the source"),
        Column("candidate_row_id", "<i8", -1, "rows of the candidates, in shell order", ("A",)),
        _mask("valid_action_mask", "actions the actor could take", shape=("A",)),
        _mask("q_train_mask", "actions with a label to train on", shape=("A",)),
        _id("target_row_id", "row of its target"),
        _i32("selected_candidate_index", "index of the selected action"),
        Column("position_id", "<i4", -1, "position family", ("A",)),
        _f32("one_step_target_rri", "NaN where not valid", shape=("A",)),
        _f32(
            "one_step_target_root_gain",
            "the reward of every action; NaN where not valid",
            shape=("A",),
        ),
        Column("invalid_reason_bitset", "<u4", 0, "reason bits", ("A",)),
        _id("td_selected_candidate_row_id", "row of the selected candidate"),
        _f32("td_reward", "root gain of the selected candidate"),
        _f32(
            "td_reward_target_rri",
            "state-relative improvement of the selected candidate, a diagnostic",
        ),
        _id("td_next_step_row_id", "row of the next state, -1 at the end"),
        _mask("td_terminal_mask", "true if there is no next state", True),
        _f32("td_discount", "gamma, 0 at the end", 0.0),
        Column(
            "actor_features",
            "<f4",
            NAN,
            "features of each action that a learner may use",
            ("A", "F"),
            optional=True,
        ),
    ],
    derived=True,
)

RETURNS = _table(
    "returns",
    "hot",
    "Aligned with q_h: multi-step returns of every state along its own chain, in units of the error at the root. "
    "The state n steps on is state + n while the chain lasts, and its value counts gamma^n.",
    [
        _f32("mc_return", "discounted sum to the end of the chain; NaN without any label"),
        _f32("n_step_return", "discounted sum of the next n rewards, n = 1..N", shape=("N",)),
    ],
    derived=True,
)

TABLES: Mapping[str, Table] = {
    table.name: table
    for table in (
        SOURCES,
        ROLLOUTS,
        LINEAGE,
        TARGETS,
        STEPS,
        CANDIDATES,
        DIAGNOSTICS,
        SELECTED_DEPTH,
        TARGET_EVAL_CROPS,
        Q_H,
        RETURNS,
    )
}
REQUIRED_GROUPS = ("metadata", "dictionaries", *TABLES)


def table_named(name: str) -> Table:
    """The table. Another name is refused with the names that look like it."""
    if name not in TABLES:
        raise ConfigurationError(message=f"there is no table {name!r}; {near_names(name, TABLES)}")
    return TABLES[name]


ROW_COUNTS: Mapping[str, str] = {
    "sources": "num_sources",
    "rollouts": "num_rollouts",
    "lineage": "num_rollouts",
    "targets": "num_targets",
    "steps": "num_steps",
    "candidates": "num_candidates",
    "candidate_diagnostics": "num_candidates",
    "selected_depth": "num_selected_depths",
    "target_eval_crops": "num_target_eval_crops",
    "q_h": "num_steps",
    "returns": "num_steps",
}
"""Table → the root attribute that says how many rows it has."""
