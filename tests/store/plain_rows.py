"""What a store should hold, from its records: one row at a time, in obvious code. And records of every kind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollbook.contracts.lineage import RolloutLineage
from rollbook.contracts.reasons import decode_invalid_reason, reason_mask
from rollbook.store.lineage_rows import KNOWN_FIELDS
from rollbook.store.manifest import RolloutStoreManifestContext
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.records import (
    CandidateSamplingResult,
    RolloutChain,
    RolloutStep,
    RolloutZarrRecord,
    TargetEvalCrop,
)
from rollbook.store.schema import LINEAGE_NUMBERS, TABLES
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.synthetic import make_records

Row = dict[str, Any]
Rows = dict[str, list[Row]]
NAN = float("nan")
STORES = settings(
    max_examples=20, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
"""For tests in which every example writes a store: a smaller one would cost more than it tells."""

LABELS = {
    "scene_rri": ["scene_rri", "oracle_scene_rri"],
    "target_rri": ["target_rri", "oracle_target_rri"],
    "scene_root_gain": ["scene_root_gain"],
    "target_root_gain": ["target_root_gain", "root_gain"],
    "scene_log_error_gain": ["scene_log_error_gain"],
    "target_log_error_gain": ["target_log_error_gain", "log_error_gain"],
    "scene_pm_dist_before": ["scene_pm_dist_before"],
    "scene_pm_dist_after": ["scene_pm_dist_after"],
    "target_pm_dist_before": ["target_pm_dist_before"],
    "target_pm_dist_after": ["target_pm_dist_after"],
    "target_current_support": ["target_current_support"],
    "target_candidate_support": ["target_candidate_support"],
}
SELECTION = {
    "selection_logits": NAN,
    "selection_probabilities": 0.0,
    "selection_log_probabilities": -np.inf,
}
SUMS = ("target_rri", "scene_rri", "target_root_gain", "scene_root_gain")
SHOWN_FIRST = [
    "POSE_NONFINITE",
    "PATH_SEGMENT_COLLISION",
    "CLEARANCE_TOO_SMALL",
    "POSE_OUT_OF_EXTENT",
    "CAMERA_OUT_OF_EXTENT",
    "FRUSTUM_OUT_OF_BOUNDS",
    "DEPTH_NO_HIT",
    "DEPTH_TOO_SPARSE",
    "BACKPROJECT_EMPTY",
    "TARGET_SUPPORT_TOO_LOW",
    "TARGET_VISIBILITY_TOO_LOW",
    "SAMPLER_RULE_REJECTED",
]


# -------------------------------------------------------------------------------------- what is expected


def plain_rows(records: Sequence[RolloutZarrRecord], *, crop_points: int = 0) -> Rows:
    """Every factual table. Coded columns hold their words; None is what is not known."""
    rows: Rows = {name: [] for name, table in TABLES.items() if not table.derived}
    sources: dict[int, Row] = {}
    targets: dict[tuple[Any, ...], Row] = {}
    for record in records:
        source = _source(record.lineage)
        sources.setdefault(source["source_row_id"], source)
        key = (source["source_row_id"], *_target_key(record.lineage))
        target = targets.setdefault(key, _target(len(targets), record.lineage))
        first = len(rows["rollouts"])
        for number, chain in enumerate(record.result.chains):
            _add_chain(rows, record, number, chain, first, source, target, crop_points)
    rows["sources"] = list(sources.values())
    rows["targets"] = list(targets.values())
    return rows


def _source(lineage: RolloutLineage) -> Row:
    row_id = lineage.source_row_id
    if row_id is None:
        row_id = lineage.source_sample_index
    return {
        "source_row_id": row_id,
        "sample_index": lineage.source_sample_index,
        "sample_key_id": lineage.source_sample_key,
        "scene_id": lineage.scene_id,
        "snippet_id": lineage.snippet_id,
        "split_id": lineage.split,
        "source_cache_version_id": lineage.source_cache_version,
        "source_offline_store_manifest_hash_id": lineage.source_offline_store_manifest_hash,
        "split_manifest_hash_id": lineage.split_manifest_hash,
        "source_shard_id": lineage.source_shard_id,
        "source_shard_row": lineage.source_shard_row,
    }


def _selector_index(lineage: RolloutLineage) -> int | None:
    if lineage.target_source_index is not None:
        return lineage.target_source_index
    return lineage.target_row_id


def _target_key(lineage: RolloutLineage) -> tuple[Any, ...]:
    return (
        lineage.target_id,
        lineage.matched_gt_target_id,
        lineage.matched_gt_target_row_id,
        _selector_index(lineage),
    )


def _target(row_id: int, lineage: RolloutLineage) -> Row:
    bits = lineage.target_invalid_reason_bitset
    bits = 1 if bits is None else bits
    matched = lineage.matched_gt_target_row_id
    same = {name: getattr(lineage, name, None) for name in TABLES["targets"].columns}
    return {
        **same,
        "target_row_id": row_id,
        "target_id": "unknown-target" if lineage.target_id is None else lineage.target_id,
        "target_selection_policy_id": lineage.target_selection_policy,
        "target_source_id": lineage.target_source,
        "target_source_index": _selector_index(lineage),
        "target_class_name_id": lineage.target_class_name,
        "target_invalid_reason_bitset": bits,
        "target_valid_mask": bits == 1,
        "target_primary_invalid_reason": next((bit for bit in range(1, 32) if bits >> bit & 1), 0),
        "target_reason_code_version_id": lineage.target_reason_code_version,
        "matched_gt_target_id": lineage.matched_gt_target_id,
        "gt_match_status_id": "not_requested"
        if lineage.gt_match_status is None
        else lineage.gt_match_status,
        "gt_label_valid_mask": lineage.gt_match_status in ("matched", "v0_gt_input")
        and matched is not None
        and matched >= 0,
        "target_crop_policy_id": lineage.target_crop_policy,
        "lineage_values": [
            NAN if value is None else value
            for field, size in LINEAGE_NUMBERS.items()
            for value in np.broadcast_to(np.array(getattr(lineage, field), object), size)
        ],
    }


def _add_chain(
    rows: Rows,
    record: RolloutZarrRecord,
    number: int,
    chain: RolloutChain,
    first: int,
    source: Row,
    target: Row,
    crop_points: int,
) -> None:
    result, lineage = record.result, record.lineage
    rollout_row = len(rows["rollouts"])
    step_offset = len(rows["steps"])
    sums: dict[str, float] = dict.fromkeys(SUMS, NAN)
    for index, step in enumerate(chain.steps):
        _add_step(rows, record, step, index, rollout_row, sums, target, crop_points)
    ended = "incomplete_rollout"
    if len(chain.steps) >= result.horizon:
        ended = "fixed_horizon"
    if chain.terminated_early:
        ended = "terminated_early"
    rows["rollouts"].append(
        {
            "rollout_row_id": rollout_row,
            "rollout_id": f"{record.rollout_id_prefix}-{number:06d}",
            "chain_id": number,
            "source_row_id": source["source_row_id"],
            "root_pose_world": result.root_pose_world,
            "root_time_ns": result.root_time_ns,
            "root_trajectory_index": result.root_trajectory_index,
            "root_frame_index": result.root_frame_index,
            "scene_id": lineage.scene_id,
            "snippet_id": lineage.snippet_id,
            "target_row_id": target["target_row_id"],
            "policy_id": result.policy,
            "horizon": result.horizon,
            "branch_factor": result.branch_factor,
            "beam_width": result.beam_width,
            "temperature": chain.steps[0].temperature if chain.steps else None,
            "random_seed": lineage.random_seed,
            "termination_reason": ended,
            **{f"final_cumulative_{name}": sums[name] for name in SUMS},
            "split_id": lineage.split,
            "step_offset": step_offset,
            "num_steps": len(chain.steps),
            "parent_rollout_row_id": None
            if chain.parent_chain is None
            else first + chain.parent_chain,
            "fork_step_index": chain.fork_step_index,
        }
    )
    rows["lineage"].append(_lineage(rollout_row, record.lineage_for_chain(number)))


def _lineage(rollout_row: int, lineage: RolloutLineage) -> Row:
    return {
        "rollout_row_id": rollout_row,
        "candidate_config_id": lineage.candidate_config_hash,
        "oracle_config_id": lineage.oracle_config_hash,
        "rollout_config_id": lineage.rollout_config_hash,
        "model_checkpoint_id": lineage.model_checkpoint_hash,
        "mesh_version_id": lineage.mesh_version,
        "branch_schedule_id": lineage.branch_schedule_id,
        "target_protocol_version_id": lineage.target_protocol_version,
        "target_crop_policy_id": lineage.target_crop_policy,
        "reason_code_version_id": lineage.reason_code_version,
        "selection_rng_state_hash_id": lineage.selection_rng_state_hash,
        "lineage_digest": list(bytes.fromhex(lineage.digest())),
        "known_fields": sum(
            2**bit for bit, field in enumerate(KNOWN_FIELDS) if getattr(lineage, field) is not None
        ),
        "selector_target_row_id": lineage.target_row_id,
        "policy_revision_index": None,
    }


def _add_step(
    rows: Rows,
    record: RolloutZarrRecord,
    step: RolloutStep,
    index: int,
    rollout_row: int,
    sums: dict[str, float],
    target: Row,
    crop_points: int,
) -> None:
    shell, step_row = step.candidates, len(rows["steps"])
    offset = len(rows["candidates"])
    for place in range(len(shell)):
        candidate = _candidate(record, step, place, target)
        candidate |= {
            "candidate_row_id": offset + place,
            "step_row_id": step_row,
            "rollout_row_id": rollout_row,
            "step_index": index,
        }
        rows["candidates"].append(candidate)
        rows["candidate_diagnostics"].append(_diagnostics(shell, place, offset + place))
    taken = rows["candidates"][offset + step.selected_shell_index]
    for name in SUMS:
        if np.isfinite(taken[name]):
            sums[name] = float(taken[name]) + (0.0 if np.isnan(sums[name]) else sums[name])
    rows["steps"].append(
        {
            "step_row_id": step_row,
            "rollout_row_id": rollout_row,
            "step_index": index,
            "selected_candidate_row_id": offset + step.selected_shell_index,
            "selected_shell_index": step.selected_shell_index,
            "selected_compact_valid_index": taken["compact_valid_index"],
            "num_candidates": len(shell),
            "num_valid_candidates": sum(bool(each) for each in shell.mask_valid),
            **{f"cumulative_{name}": sums[name] for name in SUMS},
            "candidate_offset": offset,
            "rng_state_digest": list(step.rng_state_digest or bytes(32)),
        }
    )
    _add_depth(rows, step, step_row, offset)
    for crop in step.target_eval_crops:
        _add_crop(rows, step, crop, step_row, offset, crop_points)


def _candidate(record: RolloutZarrRecord, step: RolloutStep, place: int, target: Row) -> Row:
    shell = step.candidates
    valid = bool(shell.mask_valid[place])
    rank = sum(bool(each) for each in shell.mask_valid[:place])

    def given(values: Any, fill: Any) -> Any:
        """Of a vector over the shell, or over the valid part of it."""
        if values is None or not valid:
            return fill
        return values[place] if len(values) == len(shell) else values[rank]

    labels = {}
    for column, names in LABELS.items():
        vector = next((step.metric_vectors[n] for n in names if n in step.metric_vectors), None)
        labels[column] = np.float32(given(vector, NAN))
    labelled = valid and bool(np.isfinite(labels["target_root_gain"]))
    bits = _bits(shell, place)
    return {
        "shell_index": place,
        "compact_valid_index": rank if valid else -1,
        "pose_world_cam": shell.shell_poses[place],
        "pose_relative_root": relative(record.result.root_pose_world, shell.shell_poses[place]),
        "actor_action_mask": valid,
        "oracle_label_mask": labelled,
        "q_train_mask": labelled and target["target_valid_mask"] and target["gt_label_valid_mask"],
        "selected_mask": place == step.selected_shell_index,
        **{
            name: None if getattr(shell, name) is None else getattr(shell, name)[place]
            for name in ("strategy_id", "position_id", "mixture_id", "sampler_probability")
        },
        "score_source_id": step.score_label,
        "invalid_reason_bitset": bits,
        "primary_invalid_reason": _primary(bits),
        **labels,
        **{name: given(getattr(step, name), fill) for name, fill in SELECTION.items()},
        "actor_features": None if shell.actor_features is None else shell.actor_features[place],
    }


def _bits(shell: CandidateSamplingResult, place: int) -> int:
    bits = 0
    if shell.invalid_reason_bitset is not None:
        bits = int(shell.invalid_reason_bitset[place])
    elif shell.mask_valid[place]:
        bits = 1
    if not np.isfinite(shell.shell_poses[place]).all():
        bits |= reason_mask("POSE_NONFINITE")
    if "path_collision_mask" in shell.extras and shell.extras["path_collision_mask"][place]:
        bits |= reason_mask("PATH_SEGMENT_COLLISION")
    return bits or reason_mask("SAMPLER_RULE_REJECTED")


def _primary(bits: int) -> int:
    names = [decode_invalid_reason(bit) for bit in range(1, 32) if bits >> bit & 1]
    ordered = [name for name in SHOWN_FIRST if name in names] + names
    return next(
        (bit for bit in range(32) if ordered and decode_invalid_reason(bit) == ordered[0]), 0
    )


def relative(root: NDArray[Any], pose: NDArray[Any]) -> NDArray[Any]:
    """With 4x4 matrices."""

    def matrix(values: NDArray[Any]) -> NDArray[Any]:
        result = np.eye(4)
        result[:3, :3] = np.asarray(values[:9], np.float64).reshape(3, 3)
        result[:3, 3] = values[9:]
        return result

    with np.errstate(invalid="ignore"):
        product = np.linalg.inv(matrix(root)) @ matrix(pose)
    return np.concatenate([product[:3, :3].ravel(), product[:3, 3]])


def _diagnostics(shell: CandidateSamplingResult, place: int, row: int) -> Row:
    columns = list(TABLES["candidate_diagnostics"].columns)[2:]
    return {
        "candidate_row_id": row,
        "position_id": None if shell.position_id is None else shell.position_id[place],
        **{name: shell.extras[name][place] if name in shell.extras else None for name in columns},
    }


def _add_depth(rows: Rows, step: RolloutStep, step_row: int, offset: int) -> None:
    depth = step.selected_depth
    if depth is not None:
        rows["selected_depth"].append(
            {
                "step_row_id": step_row,
                "candidate_row_id": offset + step.selected_shell_index,
                "focal_px": depth.focal_px,
                "principal_point_px": depth.principal_point_px,
                "image_size_hw": depth.depth_m.shape,
                "depth_m": np.where(depth.valid_mask, depth.depth_m, 0).astype(np.float16),
                "valid_mask": depth.valid_mask,
            }
        )


def _add_crop(
    rows: Rows, step: RolloutStep, crop: TargetEvalCrop, step_row: int, offset: int, limit: int
) -> None:
    kept = [point for point in crop.points_world if np.isfinite(point).all()][:limit]
    points = np.zeros((limit, 3), np.float32)
    for place, point in enumerate(kept):
        points[place] = point
    current = crop.shell_index is None
    rows["target_eval_crops"].append(
        {
            "crop_row_id": len(rows["target_eval_crops"]),
            "step_row_id": step_row,
            "candidate_row_id": -1 if crop.shell_index is None else offset + crop.shell_index,
            "source_role_id": 0 if current else 1,
            "crop_policy_id": step.crop_policy,
            "voxel_size_m": step.crop_voxel_size_m,
            "max_points": limit,
            "lengths": len(kept),
            "points_world": points,
            "mask": [place < len(kept) for place in range(limit)],
        }
    )


# ------------------------------------------------------------------------------------------ comparing


def assert_table(reader: RolloutZarrStoreReader, table: str, rows: Sequence[Row]) -> None:
    for name in reader.column_names(table):
        column, values = TABLES[table].columns[name], reader.array(f"{table}/{name}")
        wanted = [row[name] for row in rows]
        if column.words is not None:
            assert reader.decoded(table, name) == wanted, f"{table}/{name}"
            continue
        assert values.dtype == column.numpy, f"{table}/{name}"
        assert len(values) == len(rows), f"{table}/{name}"
        expected = np.full(values.shape, column.fill, column.numpy)
        for row, value in enumerate(wanted):
            if value is not None:
                expected[row] = value
        if name == "pose_relative_root":
            finite = np.isfinite([row["pose_world_cam"] for row in rows]).all(axis=-1)
            np.testing.assert_allclose(values[finite], expected[finite], rtol=1e-4, atol=1e-4)
            assert not np.isfinite(values[~finite]).all(axis=1).any()
        else:
            np.testing.assert_array_equal(values, expected, err_msg=f"{table}/{name}")


# ------------------------------------------------------------------------------------------ writing


def _not_synced(descriptor: int) -> None:
    pass


@contextmanager
def written(
    records: Sequence[RolloutZarrRecord], **options: Any
) -> Iterator[RolloutZarrStoreReader]:
    options.setdefault("selected_depth_enabled", False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollouts.zarr"
        with mock.patch("os.fsync", new=_not_synced):  # nothing here outlives the test
            write_rollout_zarr_store(
                path, records, manifest_context=RolloutStoreManifestContext(), **options
            )
        yield RolloutZarrStoreReader(path)


def with_lineage(record: RolloutZarrRecord, **fields: Any) -> RolloutZarrRecord:
    return replace(record, lineage=msgspec.structs.replace(record.lineage, **fields))


def with_steps(
    record: RolloutZarrRecord, change: Callable[[RolloutStep], RolloutStep]
) -> RolloutZarrRecord:
    chains = tuple(
        replace(chain, steps=tuple(change(step) for step in chain.steps))
        for chain in record.result.chains
    )
    return replace(record, result=replace(record.result, chains=chains))


# --------------------------------------------------------------------------------- records of every kind


@st.composite
def varied_records(draw: st.DrawFn, most: int = 4) -> list[RolloutZarrRecord]:
    """Ragged shells, forks, early ends, missing labels and vectors, unmatched targets, chains without a step."""
    options: dict[str, Any] = {
        "seed": draw(st.integers(0, 1000)),
        "horizon": draw(st.integers(1, 4)),
        "candidates": (draw(st.integers(1, 3)), draw(st.integers(3, 7))),
        "valid_fraction": draw(st.sampled_from([0.2, 0.6, 1.0])),
        "unlabelled_fraction": draw(st.sampled_from([0.0, 0.5])),
        "early_fraction": draw(st.sampled_from([0.0, 0.5])),
        "unmatched_fraction": draw(st.sampled_from([0.0, 0.5])),
        "branching": draw(st.booleans()),
        "features": draw(st.sampled_from([0, 3])),
    }
    rng = np.random.default_rng(options["seed"])
    count = draw(st.integers(1, most))
    changed = draw(st.booleans())
    records = list(make_records(count, **options))
    return [_changed(rng, record) if changed else record for record in records]


def _changed(rng: np.random.Generator, record: RolloutZarrRecord) -> RolloutZarrRecord:
    chains = tuple(
        replace(chain, steps=tuple(_changed_step(rng, step) for step in chain.steps))
        for chain in record.result.chains
    )
    if len(chains) == 1 and rng.random() < 0.3:
        chains = (RolloutChain(steps=(), terminated_early=bool(rng.random() < 0.5)), *chains)
    return replace(record, result=replace(record.result, chains=chains))


def _changed_step(rng: np.random.Generator, step: RolloutStep) -> RolloutStep:
    shell = step.candidates
    poses = shell.shell_poses.copy()
    broken = ~shell.mask_valid & (rng.random(len(shell)) < 0.3)
    poses[broken, int(rng.integers(12))] = rng.choice([np.nan, np.inf])

    def kept(value: Any) -> Any:
        return value if rng.random() < 0.7 else None

    shell = replace(
        shell,
        shell_poses=poses,
        invalid_reason_bitset=kept(shell.invalid_reason_bitset),
        strategy_id=kept(shell.strategy_id),
        position_id=kept(shell.position_id),
        mixture_id=kept(shell.mixture_id),
        sampler_probability=kept(shell.sampler_probability),
        extras={name: values for name, values in shell.extras.items() if rng.random() < 0.7},
    )
    probabilities = kept(step.selection_probabilities)
    return replace(
        step,
        candidates=shell,
        metric_vectors={n: v for n, v in step.metric_vectors.items() if rng.random() < 0.7},
        selection_logits=kept(step.selection_logits),
        selection_probabilities=probabilities,
        selection_log_probabilities=None
        if probabilities is None
        else step.selection_log_probabilities,
        temperature=kept(step.temperature),
        rng_state_digest=kept(step.rng_state_digest),
    )
