"""A rollout store on one screen: records → store → validation → audit → training batches.

The records are synthetic, with random poses and gains. They show what a generator passes to the store writer.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import numpy as np

from rollbook.rollouts import (
    CandidateSamplingResult,
    CounterfactualRolloutResult,
    RolloutChain,
    RolloutLineage,
    RolloutStep,
    RolloutZarrRecord,
    RolloutZarrStoreReader,
    candidate_group_summary_rows,
    reason_mask,
    validity_waterfall_rows,
    write_rollout_zarr_store,
)

CANDIDATES, HORIZON = 24, 3


def poses(rng: np.random.Generator, count: int) -> np.ndarray:
    """Cameras turned about the vertical, world from camera: 9 rotation values, then 3 of position."""
    yaw = rng.uniform(-np.pi, np.pi, count)
    zero, one = np.zeros(count), np.ones(count)
    rotation = [np.cos(yaw), -np.sin(yaw), zero, np.sin(yaw), np.cos(yaw), zero, zero, zero, one]
    return np.stack([*rotation, *rng.normal(size=(3, count))], axis=1).astype(np.float32)


def step(rng: np.random.Generator, error: float, root_error: float) -> RolloutStep:
    """A shell in which some candidates are too close to the mesh. The best valid one is selected."""
    valid = rng.random(CANDIDATES) < 0.7
    valid[0] = True
    after = error * rng.uniform(0.6, 1.0, CANDIDATES)
    gain = ((error - after) / root_error).astype(np.float32)
    best = int(np.argmax(np.where(valid, gain, -np.inf)))
    chosen = np.zeros(CANDIDATES, np.float32)
    chosen[best] = 1
    with np.errstate(divide="ignore"):
        log_chosen = np.log(chosen)
    return RolloutStep(
        candidates=CandidateSamplingResult(
            shell_poses=poses(rng, CANDIDATES),
            mask_valid=valid,
            invalid_reason_bitset=np.where(valid, 1, reason_mask("CLEARANCE_TOO_SMALL")).astype(
                np.uint32
            ),
            strategy_id=np.full(CANDIDATES, 3, np.int32),
            position_id=rng.integers(1, 4, CANDIDATES).astype(np.int32),
            mixture_id=np.zeros(CANDIDATES, np.int32),
            sampler_probability=np.full(CANDIDATES, 1 / CANDIDATES, np.float32),
        ),
        selected_shell_index=best,
        metric_vectors={
            "target_root_gain": gain,
            "target_rri": ((error - after) / error).astype(np.float32),
            "target_pm_dist_before": np.full(CANDIDATES, error, np.float32),
            "target_pm_dist_after": after.astype(np.float32),
        },
        score_label="target_root_gain",
        selection_logits=gain,
        selection_probabilities=chosen,
        selection_log_probabilities=log_chosen,
        rng_state_digest=hashlib.sha256(str(rng.bit_generator.state).encode()).digest(),
    )


def record(number: int) -> RolloutZarrRecord:
    rng = np.random.default_rng(number)
    steps, error = [], 1.0
    for _ in range(HORIZON):
        steps.append(step(rng, error, 1.0))
        error = float(
            steps[-1].metric_vectors["target_pm_dist_after"][steps[-1].selected_shell_index]
        )
    lineage = RolloutLineage(
        scene_id="kitchen",
        snippet_id=f"walk-{number}",
        mesh_version="sha256:" + hashlib.sha256(b"kitchen").hexdigest(),
        candidate_config_hash="c" * 64,
        oracle_config_hash="0" * 64,
        rollout_config_hash="a" * 64,
        branch_schedule_id="oracle_greedy",
        random_seed=number,
        source_cache_version="1",
        split="train",
        source_offline_store_manifest_hash="5" * 64,
        source_row_id=number,
        source_sample_index=number,
        source_sample_key=f"kitchen-{number}",
        split_manifest_hash="7" * 64,
        source_shard_id="shard-000000",
        source_shard_row=number,
        target_id=f"mug-{number}",
        target_protocol_version="v1_observed",
        target_crop_policy="oriented_box",
        target_class_name="mug",
        target_center_world=(0.0, 0.0, 1.0),
        matched_gt_target_row_id=number,
        matched_gt_target_id=f"mug-{number}",
        gt_match_iou=0.9,
        gt_match_status="matched",
    )
    result = CounterfactualRolloutResult(
        root_pose_world=poses(rng, 1)[0],
        chains=(RolloutChain(steps=tuple(steps)),),
        policy="oracle_greedy",
        horizon=HORIZON,
    )
    return RolloutZarrRecord(result=result, lineage=lineage, rollout_id_prefix=f"{number:08d}-mug")


def main(folder: Path) -> None:
    written = write_rollout_zarr_store(
        folder / "rollouts.zarr",
        (record(number) for number in range(40)),
        selected_depth_enabled=False,
        source_offline_store_version="1",
        split_manifest_hash="7" * 64,
        replace=True,
    )
    print(f"wrote      {written.num_rollouts} rollouts, {written.num_candidates} candidates")
    print(f"address    {written.content_sha256}")

    store = RolloutZarrStoreReader(folder / "rollouts.zarr")
    report = store.validate(deep=True)
    print(f"validated  every link, label and byte: {'ok' if report.ok else report.errors}")
    for row in validity_waterfall_rows(store):
        print(f"waterfall  {row['stage']:12} {row['count']:5}")
    for row in candidate_group_summary_rows(store, group_by="position"):
        print(f"family     {row['position']:22} mean gain {row['mean_target_root_gain']:.3f}")
    batch = next(store.batches(64, seed=7))
    print(f"batch      rewards of all actions {batch['one_step_target_root_gain'].shape}, seed 7")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
