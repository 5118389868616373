"""Stores of fixed numbers: every value is a small fraction of a power of two, so that no processor rounds any of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.rollouts import (
    RolloutLineage,
    RolloutStoreManifestContext,
    RolloutZarrRecord,
    RolloutZarrStoreReader,
    write_rollout_zarr_store,
)
from tests.promises.inner import (
    CandidateSamplingResult,
    CounterfactualRolloutResult,
    RolloutChain,
    RolloutStep,
    SelectedDepth,
    TargetEvalCrop,
    repack_store,
)
from tests.promises.placeholders import Placeholders

Array = NDArray[Any]
SIZE = 4
"""Candidates of a shell; the last one is not valid."""
POLICIES = ("oracle_greedy", "random_valid")
_TURNS = (
    (1, 0, 0, 0, 1, 0, 0, 0, 1),
    (0, -1, 0, 1, 0, 0, 0, 0, 1),
    (-1, 0, 0, 0, -1, 0, 0, 0, 1),
    (0, 1, 0, -1, 0, 0, 0, 0, 1),
)
_LOG_OF_A_THIRD = np.float32(-1.0986123)
_NOT_TAKEN = -np.inf


def records() -> list[RolloutZarrRecord]:
    return [_record(number) for number in range(4)]


def _record(number: int) -> RolloutZarrRecord:
    policy = POLICIES[number % 2]
    first, second = (_step(number, step, number % 3, policy) for step in (0, 1))
    fork = _step(number, 1, (number + 1) % 3, policy)
    chains = [RolloutChain(steps=(first, second))]
    if number == 3:
        chains.append(RolloutChain(steps=(first, fork), parent_chain=0, fork_step_index=1))
    result = CounterfactualRolloutResult(
        root_pose_world=_poses(np.zeros((1, 3)))[0],
        chains=tuple(chains),
        policy=policy,
        horizon=2,
        branch_factor=len(chains),
        root_time_ns=1_000 * number,
        root_trajectory_index=number,
        root_frame_index=number,
    )
    return RolloutZarrRecord(
        result=result, lineage=lineage(number), rollout_id_prefix=f"{number:08d}-target-00-{policy}"
    )


def _poses(places: Array) -> Array:
    turns = [_TURNS[place % 4] for place in range(len(places))]
    return np.concatenate([turns, places], axis=1).astype(np.float32)


def _step(number: int, step: int, selected: int, policy: str) -> RolloutStep:
    valid = np.arange(SIZE) < SIZE - 1
    worth: Any = np.array([1, 3, 2, 0], np.float32) / 8 + np.float32(step + number) / 4
    if policy == "oracle_greedy":
        selected = 1
        probabilities = np.array([0, 1, 0, 0], np.float32)
        logs = np.array([_NOT_TAKEN, 0, _NOT_TAKEN, _NOT_TAKEN], np.float32)
    else:
        probabilities = np.array([1, 1, 1, 0], np.float32) / np.float32(3)
        logs = np.array([_LOG_OF_A_THIRD] * 3 + [_NOT_TAKEN], np.float32)
    features: Any = np.arange(SIZE * 2, dtype=np.float32).reshape(SIZE, 2) / 4 + number
    depth: Any = np.arange(48, dtype=np.float32).reshape(6, 8) / 8 + step
    places = np.stack([np.arange(SIZE) / 2, np.full(SIZE, step / 4), np.full(SIZE, 1.5)], -1)
    return RolloutStep(
        candidates=CandidateSamplingResult(
            shell_poses=_poses(places),
            mask_valid=valid,
            strategy_id=np.arange(SIZE, dtype=np.int32),
            position_id=np.ones(SIZE, np.int32),
            mixture_id=np.arange(SIZE, dtype=np.int32) % 2,
            sampler_probability=np.full(SIZE, 0.25, np.float32),
            extras={"motion_step_length_m": np.full(SIZE, 0.5, np.float32)},
            actor_features=features,
        ),
        selected_shell_index=selected,
        metric_vectors={
            "target_rri": worth,
            "target_root_gain": worth + 1,
            "scene_root_gain": worth / 2,
            "target_log_error_gain": worth / 2,
            "scene_log_error_gain": worth / 4,
            "target_pm_dist_before": worth + 2,
            "target_pm_dist_after": worth + 1,
            "scene_pm_dist_before": worth + 1,
            "scene_pm_dist_after": worth + np.float32(0.5),
            "target_current_support": np.full(SIZE, 3, np.float32),
            "target_candidate_support": np.full(SIZE, 2, np.float32),
        },
        score_label="target_root_gain",
        selection_logits=worth,
        selection_probabilities=probabilities,
        selection_log_probabilities=logs,
        rng_state_digest=hashlib.sha256(f"{number}/{step}".encode()).digest(),
        selected_depth=SelectedDepth(
            depth_m=depth,
            valid_mask=np.arange(48).reshape(6, 8) % 5 > 0,
            focal_px=(4.0, 4.0),
            principal_point_px=(4.0, 3.0),
        ),
        target_eval_crops=(
            TargetEvalCrop(points_world=np.full((3, 3), 0.25, np.float32)),
            TargetEvalCrop(points_world=np.full((2, 3), 0.5, np.float32), shell_index=1),
        ),
        crop_policy="gt_obb_oriented_any_vertex_v1",
        crop_voxel_size_m=0.125,
    )


def lineage(number: int) -> RolloutLineage:
    policy = POLICIES[number % 2]
    named = f"flat:walk:detected_obbs:sem=1:inst={number}:idx={number}"
    return RolloutLineage(
        scene_id="flat",
        snippet_id="walk",
        mesh_version="1" * 64,
        candidate_config_hash="2" * 64,
        oracle_config_hash="3" * 64,
        random_seed=5,
        rollout_policy=policy,
        source_cache_version="7",
        split="train",
        source_offline_store_manifest_hash="4" * 64,
        source_row_id=number,
        source_sample_index=number,
        source_sample_key=f"flat/walk/{number}",
        split_manifest_hash="6" * 64,
        source_shard_id="shard-000000",
        source_shard_row=number,
        rollout_config_hash="8" * 64,
        branch_schedule_id=policy,
        target_row_id=number,
        target_id=named,
        target_protocol_version="v1_observed",
        target_crop_policy="gt_obb_oriented_any_vertex_v1",
        selection_rng_state_hash="9" * 64,
        target_selection_policy="greedy_top_k",
        target_selection_rank=0,
        target_selection_score=0.5,
        target_selection_probability=1.0,
        target_source="detected_obbs",
        target_source_index=number,
        target_sem_id=1,
        target_inst_id=number,
        target_class_name="box",
        target_confidence=0.875,
        target_effective_support_count=12.0,
        target_visibility_score=0.75,
        target_center_world=(0.0, 0.5, 0.25),
        target_extents=(1.0, 1.0, 0.5),
        target_invalid_reason_bitset=1,
        target_primary_invalid_reason=0,
        target_reason_code_version="target-invalid-reasons-v1",
        matched_gt_target_row_id=100 + number,
        matched_gt_target_id=named.replace("detected", "gt"),
        gt_match_iou=0.875,
        gt_match_score=0.875,
        gt_match_status="matched",
    )


# ------------------------------------------------------------------------------------ what is written


def write(path: Path, *, depth: bool = True) -> Path:
    write_rollout_zarr_store(
        path,
        records(),
        manifest_context=RolloutStoreManifestContext(runtime={"python": "any"}),
        selected_depth_enabled=depth,
        selected_depth_width_px=8,
        selected_depth_height_px=6,
        target_eval_crops_enabled=True,
        target_eval_crop_max_points=8,
        source_offline_store_version="7",
        split_manifest_hash="6" * 64,
    )
    return path


def store_files(folder: Path) -> dict[str, Any]:
    """Of a store without images every byte; of one with images, and of archives, what they decode to."""
    plain = write(folder / "plain.zarr", depth=False)
    pictured = write(folder / "pictured.zarr")
    archive = repack_store(pictured, folder / "archive.zarr", "archive")
    again = repack_store(archive, folder / "again.zarr", "local")
    hidden = Placeholders()
    hidden.name(manifest_digest(plain), "sha256 of the manifest")
    described = {name: hidden.hide((plain / name).read_text()) for name in _NOT_FIXED}
    manifest = json.loads(described["manifest.json"])
    del manifest["files"]  # they stand below
    local = _decoded(pictured)
    return {
        "manifest.json": {"sha256": _sha256(described["manifest.json"]), **manifest},
        "zarr.json": {
            "sha256": _sha256(described["zarr.json"]),
            **json.loads(described["zarr.json"]),
        },
        "files": {name: data for name, data in _files(plain).items() if name not in _NOT_FIXED},
        "with images, decoded": local,
        "archive, decoded": "the same values" if _decoded(archive) == local else _decoded(archive),
        "archive, metadata": _metadata(archive),
        "repacked to local again": "the same files" if _same(pictured, again) else "other files",
    }


def _sha256(data: str | bytes) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


_NOT_FIXED = ("manifest.json", "zarr.json")
"""They say when a store was written, which is hidden before they are looked at."""


def manifest_digest(store: Path) -> str:
    digest: str = json.loads((store / "zarr.json").read_bytes())["attributes"]["manifest_sha256"]
    return digest


def _files(store: Path) -> dict[str, str]:
    return {
        str(path.relative_to(store)): _sha256(path.read_bytes())[:32]
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


def _same(one: Path, other: Path) -> bool:
    left, right = _files(one), _files(other)
    return {*left} == {*right} and all(
        left[name] == right[name] for name in left if name not in _NOT_FIXED
    )


def _decoded(store: Path) -> dict[str, str]:
    """Type, shape and SHA-256 of the values of every array."""
    reader = RolloutZarrStoreReader(store)
    names = sorted(
        str(path.parent.relative_to(store))
        for path in store.glob("*/*/zarr.json")
        if json.loads(path.read_bytes())["node_type"] == "array"
    )
    found = {}
    for name in names:
        values = np.ascontiguousarray(reader.array(name)[:])
        found[name] = f"{values.dtype.str} {list(values.shape)} {_sha256(values.tobytes())[:32]}"
    return found


def _metadata(store: Path) -> str:
    """Of all arrays together: types, chunks and codecs are in it, compressed bytes are not."""
    digest = hashlib.sha256()
    for path in sorted(store.glob("*/*/zarr.json")):
        digest.update(str(path.relative_to(store)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
