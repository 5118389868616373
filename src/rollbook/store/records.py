"""RolloutZarrRecord and its parts: the result of one rollout call with its lineage, as the store writer takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.lineage import RolloutLineage

Floats = NDArray[np.float32]
POSE = 12
"""Numbers in a pose: 9 of the rotation, row-major, then 3 of the translation; world from camera."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidateSamplingResult:
    """One full shell: every proposed candidate, valid or not, in canonical order. Chains that fork here share it."""

    shell_poses: Floats
    """[N, 12]"""
    mask_valid: NDArray[np.bool_]
    """[N]: whether the actor may take the candidate."""
    invalid_reason_bitset: NDArray[np.uint32] | None = None
    """[N]. If None, invalid candidates get the reason SAMPLER_RULE_REJECTED."""
    strategy_id: NDArray[np.int32] | None = None
    position_id: NDArray[np.int32] | None = None
    mixture_id: NDArray[np.int32] | None = None
    sampler_probability: Floats | None = None
    extras: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Diagnostics by their column in `candidate_diagnostics`, [N] each."""
    actor_features: Floats | None = None
    """[N, F]"""

    def __len__(self) -> int:
        return len(self.mask_valid)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SelectedDepth:
    """Depth image rendered at the selected pose."""

    depth_m: Floats
    """[H, W] metres."""
    valid_mask: NDArray[np.bool_]
    focal_px: tuple[float, float]
    principal_point_px: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetEvalCrop:
    """Points inside the target box that the oracle used."""

    points_world: Floats
    """[n, 3]"""
    shell_index: int | None = None
    """The candidate that the points belong to; None for the state before the step."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolloutStep:
    """One decision: the shell of candidates, the metrics of every candidate, and the selected one."""

    candidates: CandidateSamplingResult
    selected_shell_index: int
    metric_vectors: Mapping[str, Floats] = field(default_factory=dict)
    """By candidate column. Each vector covers the whole shell, or its valid candidates only."""
    score_label: str = "unknown"
    temperature: float | None = None
    selection_logits: Floats | None = None
    selection_probabilities: Floats | None = None
    selection_log_probabilities: Floats | None = None
    rng_state_digest: bytes | None = None
    """SHA-256 of the state of the random generator before the step."""
    selected_depth: SelectedDepth | None = None
    target_eval_crops: tuple[TargetEvalCrop, ...] = ()
    crop_policy: str | None = None
    crop_voxel_size_m: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolloutChain:
    """One retained trajectory."""

    steps: tuple[RolloutStep, ...]
    terminated_early: bool = False
    parent_chain: int | None = None
    """Index of the chain that this one forked from, in the same result."""
    fork_step_index: int | None = None
    """The first step in which the two chains differ."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CounterfactualRolloutResult:
    """All chains that one policy kept from one root."""

    root_pose_world: Floats
    """[12]"""
    chains: tuple[RolloutChain, ...]
    policy: str
    horizon: int
    branch_factor: int = 1
    beam_width: int | None = None
    root_time_ns: int | None = None
    root_trajectory_index: int | None = None
    root_frame_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolloutZarrRecord:
    """One counterfactual rollout result and its lineage."""

    result: CounterfactualRolloutResult
    lineage: RolloutLineage
    rollout_id_prefix: str

    def lineage_for_chain(self, chain_id: int) -> RolloutLineage:
        """The lineage of one chain, with its rollout id and the policy that chose its actions."""
        return self.lineage.for_chain(
            f"{self.rollout_id_prefix}-{chain_id:06d}", chain_id, self.result.policy
        )
