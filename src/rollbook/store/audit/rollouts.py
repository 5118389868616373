"""Rollouts as audit rows: the gain of each step, a summary of the trees, and the targets."""

from __future__ import annotations

import numpy as np

from rollbook.contracts.reasons import (
    decode_invalid_reason,
    decode_position_id,
    decode_strategy_id,
    decode_target_invalid_reason,
)
from rollbook.store.audit.candidates import mixture_name
from rollbook.store.audit.rows import (
    Array,
    Coded,
    Row,
    Values,
    candidate_span,
    columns_of,
    dict_rows,
    gather,
    joint_groups,
    step_span,
    whole,
    word_of,
)
from rollbook.store.schema import TABLES
from rollbook.store.views.store_view import StoreView

Columns = dict[str, Values]


# --------------------------------------------------------------------------------------- steps


def rollout_step_objective_rows(
    reader: StoreView, *, rollout_row_id: int | None = None
) -> list[Row]:
    """The objective and the gain of every step, in order of rollout and step."""
    return dict_rows(_step_columns(reader, step_span(reader, rollout_row_id, None)))


def _step_columns(reader: StoreView, steps: slice) -> Columns:
    own = columns_of(reader, "steps", _OWN, steps)
    total = own["num_candidates"]
    invalid = total - own["num_valid_candidates"]
    return {
        "rollout_row_id": own["rollout_row_id"],
        "step_row_id": own["step_row_id"],
        "step_index": own["step_index"],
        **_rollout_columns(reader, own["rollout_row_id"]),
        "cumulative_target_rri": own["cumulative_target_rri"],
        "marginal_target_rri": _marginal(own["cumulative_target_rri"], own["rollout_row_id"]),
        "cumulative_scene_rri": own["cumulative_scene_rri"],
        "cumulative_target_root_gain": own["cumulative_target_root_gain"],
        "cumulative_scene_root_gain": own["cumulative_scene_root_gain"],
        "num_candidates": total,
        "num_valid_candidates": own["num_valid_candidates"],
        "invalid_fraction": np.divide(
            invalid, total, out=np.full(len(total), np.nan), where=total > 0
        ),
        "selected_candidate_row_id": own["selected_candidate_row_id"],
        **_selected_columns(reader, own["selected_candidate_row_id"], steps),
    }


_OWN = (
    "rollout_row_id",
    "step_row_id",
    "step_index",
    "cumulative_target_rri",
    "cumulative_scene_rri",
    "cumulative_target_root_gain",
    "cumulative_scene_root_gain",
    "num_candidates",
    "num_valid_candidates",
    "selected_candidate_row_id",
)


def _rollout_columns(reader: StoreView, owners: Array) -> Columns:
    def of_owner(column: str) -> Array:
        declared = TABLES["rollouts"].columns[column]
        return gather(reader.array(f"rollouts/{column}"), owners, declared.fill)

    return {
        "chain_id": of_owner("chain_id"),
        "scene": Coded(of_owner("scene_id"), word_of(reader.words("scene"))),
        "split": Coded(of_owner("split_id"), word_of(reader.words("split"))),
        "policy": Coded(of_owner("policy_id"), word_of(reader.words("policy"))),
        "target_row_id": of_owner("target_row_id"),
        "horizon": of_owner("horizon"),
        "branch_factor": of_owner("branch_factor"),
        "beam_width": whole(of_owner("beam_width")),
        "temperature": of_owner("temperature"),
    }


def _selected_columns(reader: StoreView, selected: Array, steps: slice) -> Columns:
    """Columns of the candidate that each step selected. A step that names no existing candidate has no values."""

    def taken(column: str) -> Array:
        declared = TABLES["candidates"].columns[column]
        return gather(reader.array(f"candidates/{column}"), selected, declared.fill)

    there = (selected >= 0) & (selected < reader.num_candidates)
    reasons = np.where(there, taken("primary_invalid_reason").astype(np.int32), -1)
    return {
        "selected_target_rri": taken("target_rri"),
        "selected_target_root_gain": taken("target_root_gain"),
        "selected_scene_rri": taken("scene_rri"),
        "selected_probability": np.where(there, taken("selection_probabilities"), np.nan),
        "selected_entropy": selection_entropy(reader, steps),
        "selected_sampler_probability": taken("sampler_probability"),
        "selected_strategy": Coded(taken("strategy_id"), decode_strategy_id),
        "selected_position": Coded(taken("position_id"), decode_position_id),
        "selected_mixture": Coded(taken("mixture_id"), mixture_name(reader)),
        "selected_invalid_reason": Coded(
            reasons, lambda code: decode_invalid_reason(code) if code >= 0 else None
        ),
    }


def _marginal(cumulative: Array, owners: Array) -> Array:
    """Difference to the step before. NaN, a sum without any label so far, counts as 0."""
    before = np.zeros_like(cumulative)
    same = owners[1:] == owners[:-1]
    before[1:][same] = np.nan_to_num(cumulative[:-1][same], nan=0.0)
    marginal: Array = cumulative - before
    return marginal


def selection_entropy(reader: StoreView, steps: slice) -> Array:
    """Entropy of the policy at each step, in nats; NaN where it gave no probabilities."""
    size = max(steps.stop - steps.start, 0)
    rows = candidate_span(reader, steps)
    weights = reader.array("candidates/selection_probabilities")[rows].astype(np.float64)
    owners = reader.array("candidates/step_row_id")[rows] - steps.start
    counted = (weights > 0) & reader.array("candidates/actor_action_mask")[rows]
    counted &= np.isfinite(weights) & (owners >= 0) & (owners < size)
    weights, owners = weights[counted], owners[counted]
    totals = np.bincount(owners, weights=weights, minlength=size)
    shares = weights / totals[owners]
    entropy = np.bincount(owners, weights=-shares * np.log(shares), minlength=size)
    return np.where(totals > 0, np.maximum(entropy, 0.0), np.nan)


# ---------------------------------------------------------------------------------------- trees

_TREE_KEYS = (
    "policy",
    "horizon",
    "branch_factor",
    "beam_width",
    "temperature",
    "step_index",
    "selected_position",
    "selected_strategy",
    "selected_mixture",
)
_TREE_MEANS = {
    "mean_valid_fanout": "num_valid_candidates",
    "mean_invalid_fraction": "invalid_fraction",
    "mean_marginal_target_rri": "marginal_target_rri",
    "mean_selected_target_root_gain": "selected_target_root_gain",
    "mean_selected_probability": "selected_probability",
    "mean_selected_entropy": "selected_entropy",
}


def rollout_tree_summary_rows(reader: StoreView) -> list[Row]:
    """Selected actions grouped by policy, branching, step and family, with their means."""
    columns = _step_columns(reader, step_span(reader, None, None))
    groups = joint_groups([columns[key] for key in _TREE_KEYS])
    rows = [dict(zip(_TREE_KEYS, key, strict=True)) for key in groups.keys]
    means: dict[str, list[float | None]] = {
        name: groups.means(_numbers(columns[each])) for name, each in _TREE_MEANS.items()
    }
    for at, (row, steps) in enumerate(zip(rows, groups.counts(), strict=True)):
        row["step_label"] = f"step {row['step_index']}"
        row["selected_steps"] = steps
        row.update({name: each[at] for name, each in means.items()})
    return rows


def _numbers(values: Values) -> Array:
    assert isinstance(values, np.ndarray)
    return values


# -------------------------------------------------------------------------------------- targets


def target_audit_rows(reader: StoreView) -> list[Row]:
    """Every target: how the actor selected it, and whether its ground truth gives labels."""
    if not reader.has("targets/target_row_id"):
        return []

    def stored(column: str) -> Array:
        return reader.array(f"targets/{column}")

    def word(column: str) -> Coded:
        dictionary = TABLES["targets"].columns[column].words
        assert dictionary is not None
        return Coded(stored(column), word_of(reader.words(dictionary)))

    return dict_rows(
        {
            "target_row_id": stored("target_row_id"),
            "target_id": word("target_id"),
            "source": word("target_source_id"),
            "source_index": whole(stored("target_source_index")),
            "class": word("target_class_name_id"),
            "sem_id": whole(stored("target_sem_id")),
            "inst_id": whole(stored("target_inst_id")),
            "confidence": stored("target_confidence"),
            "selection_rank": whole(stored("target_selection_rank")),
            "selection_score": stored("target_selection_score"),
            "selection_probability": stored("target_selection_probability"),
            "target_valid": stored("target_valid_mask"),
            "target_invalid_reason": Coded(
                stored("target_primary_invalid_reason"), decode_target_invalid_reason
            ),
            "gt_label_valid": stored("gt_label_valid_mask"),
            "gt_match_status": word("gt_match_status_id"),
            "gt_match_iou": stored("gt_match_iou"),
            "gt_match_score": stored("gt_match_score"),
            "projected_area_pixels": stored("target_projected_area_pixels"),
            "projected_area_fraction": stored("target_projected_area_fraction"),
            "semidense_support": whole(stored("target_semidense_support_count")),
            "evl_support": whole(stored("target_evl_support_count")),
            "effective_support": stored("target_effective_support_count"),
            "visibility_score": stored("target_visibility_score"),
            "support_score": stored("target_support_score"),
            "deficit_score": stored("target_deficit_score"),
        }
    )
