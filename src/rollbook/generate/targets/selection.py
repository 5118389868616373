"""Target selection: chooses the objects that rollouts should reconstruct, from what the actor itself has seen.

The actor's own boxes are measured, gated, ranked and drawn. Ground truth is used only afterwards, and only to find the
object that the labels describe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.lineage import LABELLED_STATUSES, RolloutLineage
from rollbook.contracts.reasons import (
    TARGET_REASON_VERSION,
    VALID_BITSET,
    primary_target_reasons,
)
from rollbook.errors import InvalidTrajectory, InvalidValue
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.poses import are_rigid, compose, inverse
from rollbook.generate.targets.config import (
    TargetSelectionPolicy,
    TargetSelectorConfig,
    TargetSourceMode,
)
from rollbook.generate.targets.considered import (
    TARGET_BIT,
    ConsideredTargets,
    are_padding,
    consider_targets,
    refuse_bad_rotations,
    target_id_of,
)
from rollbook.generate.targets.draws import TargetDraw, greedy_draws, softmax_draws
from rollbook.generate.targets.matching import GtMatch, GtMatchStatus, match_boxes

if TYPE_CHECKING:
    from rollbook.generate.sources.reader import ActorView

DETECTED = "detected_obbs"
ACTOR_SOURCES = (DETECTED, "backbone.obb_pred_viz", "backbone.obb_pred")
"""Sources of the actor's boxes; the first that has any box is used."""
GT_SOURCE_V0 = "gt_obbs_v0_sanity"
GT_SOURCE_ORACLE = "gt_obbs_oracle"
"""Also part of the id of the matched ground-truth object, so that an object has one id everywhere."""

NO_RANKED_TARGETS = "no_ranked_targets"
NO_ACTOR_VISIBLE_TARGETS = "no_actor_visible_targets"

_NO_PREDICTIONS: Mapping[str, Boxes] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SelectedTarget:
    """One target of one source row. Fields named as in RolloutLineage mean the same there."""

    box: Boxes
    """One row: the box that the actor gets as its target."""
    log_probability: float
    entropy: float | None
    target_row_id: int
    target_id: str
    target_selection_policy: str
    target_selection_rank: int
    target_selection_score: float
    target_selection_probability: float
    target_selection_temperature: float | None
    target_source: str
    target_source_index: int
    target_sem_id: int
    target_inst_id: int
    target_class_name: str
    target_confidence: float
    target_projected_area_pixels: float
    target_projected_area_fraction: float
    target_semidense_support_count: int
    target_evl_support_count: int
    target_effective_support_count: float
    target_visibility_score: float
    target_support_score: float
    target_deficit_score: float
    target_center_world: tuple[float, ...]
    target_extents: tuple[float, ...]
    target_pose_world_object: tuple[float, ...]
    target_relative_pose_reference_object: tuple[float, ...]
    """Pose of the object in the frame of the root camera."""
    target_invalid_reason_bitset: int
    target_primary_invalid_reason: int
    target_reason_code_version: str
    matched_gt_target_row_id: int | None
    matched_gt_target_id: str | None
    gt_match_iou: float | None
    gt_match_score: float | None
    gt_match_status: str

    @property
    def rank(self) -> int:
        return self.target_selection_rank

    @property
    def gt_box_row(self) -> int:
        """The row of the ground-truth boxes that labels are measured against; -1 for none."""
        return -1 if self.matched_gt_target_row_id is None else self.matched_gt_target_row_id

    @property
    def reason_bitset(self) -> int:
        return self.target_invalid_reason_bitset

    @property
    def label_valid(self) -> bool:
        """Whether the labels of this target's rollouts may be used for training."""
        labelled = self.gt_match_status in LABELLED_STATUSES and self.gt_box_row >= 0
        return labelled and self.reason_bitset == VALID_BITSET

    def lineage_fields(self) -> dict[str, Any]:
        """The target's fields of a RolloutLineage, by keyword."""
        return {name: getattr(self, name) for name in _LINEAGE_FIELDS}


_LINEAGE_FIELDS = tuple(
    field.name for field in fields(SelectedTarget) if field.name in RolloutLineage.__struct_fields__
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetSelection:
    """The result of target selection for one source row."""

    targets: list[SelectedTarget]
    """The targets in the order of their selection."""
    considered: ConsideredTargets
    skip_reason: str | None
    """The reason if there is no target."""
    source_reason_bitset: int = VALID_BITSET
    """The reasons if there was no box at all, as bits of TARGET_INVALID_REASON_CODES."""


# --------------------------------------------------------------------------------------- selector


class ActorVisibleTargetSelector:
    def __init__(self, config: TargetSelectorConfig | None = None) -> None:
        self.config = config or TargetSelectorConfig()

    def select(
        self,
        view: ActorView,
        gt: Boxes | None,
        *,
        scene_id: str,
        snippet_id: str,
        rng: np.random.Generator,
        observed_voxels: ArrayLike | None = None,
        predictions: Mapping[str, Boxes] = _NO_PREDICTIONS,
    ) -> TargetSelection:
        """The targets of one source row, best or first drawn first.

        `observed_voxels` [n, 3] are the centres of the occupied voxels of the actor's map, if it has one. `predictions`
        are other boxes of the actor by their name in ACTOR_SOURCES; they are used if there are no detections.
        """
        place = f"{scene_id}:{snippet_id}"
        refuse_bad_trajectory(view.poses, place)
        source, boxes = self._source(view, gt, predictions, place)
        considered = consider_targets(
            boxes, view, self.config, source=source, place=place, observed_voxels=observed_voxels
        )
        draws = self._draws(considered, rng)
        matches = self._matches(boxes, draws, gt, place)
        softmax = self.config.policy is TargetSelectionPolicy.TEMPERATURE_SOFTMAX_TOP_K
        targets = selected_targets(
            considered,
            draws,
            matches,
            gt,
            place=place,
            root_pose=view.root_pose,
            policy=self.config.policy.value,
            temperature=self.config.temperature if softmax else None,
        )
        if targets:
            return TargetSelection(targets=targets, considered=considered, skip_reason=None)
        return TargetSelection(
            targets=[],
            considered=considered,
            skip_reason=NO_RANKED_TARGETS if len(boxes) else NO_ACTOR_VISIBLE_TARGETS,
            source_reason_bitset=VALID_BITSET if len(boxes) else self._missing_source(gt),
        )

    def _source(
        self, view: ActorView, gt: Boxes | None, predictions: Mapping[str, Boxes], place: str
    ) -> tuple[str, Boxes]:
        if self.config.source_mode is TargetSourceMode.V0_GT_INPUT:
            return GT_SOURCE_V0, Boxes.none() if gt is None else gt
        for name in predictions:
            if name not in ACTOR_SOURCES[1:]:
                raise InvalidValue(
                    record=f"targets of {place}",
                    field="predictions",
                    value=name,
                    expected=f"{' or '.join(ACTOR_SOURCES[1:])} (GT_SOURCE_DISALLOWED for ground truth)",
                )
        offered = {DETECTED: view.detections, **predictions}
        for name, boxes in offered.items():
            _refuse_ground_truth(boxes, gt, name, place)
        for name in ACTOR_SOURCES:
            if name in offered and not are_padding(offered[name]).all():
                return name, offered[name]
        return DETECTED, view.detections

    def _missing_source(self, gt: Boxes | None) -> int:
        """Reason bits if the actor has no box; also says whether ground truth existed and was not used instead."""
        observed = self.config.source_mode is TargetSourceMode.V1_ACTOR_VISIBLE
        refused = observed and gt is not None and len(gt) > 0
        return TARGET_BIT["NO_ACTOR_VISIBLE_SOURCE"] | (
            TARGET_BIT["GT_SOURCE_DISALLOWED"] if refused else 0
        )

    def _draws(self, considered: ConsideredTargets, rng: np.random.Generator) -> list[TargetDraw]:
        config, ranked = self.config, _ranked(considered)
        if config.policy is TargetSelectionPolicy.GREEDY_TOP_K:
            return greedy_draws(ranked, config.k)
        return softmax_draws(ranked, considered.score, config.k, config.temperature, rng)

    def _matches(
        self, boxes: Boxes, draws: Sequence[TargetDraw], gt: Boxes | None, place: str
    ) -> list[GtMatch]:
        if self.config.source_mode is TargetSourceMode.V0_GT_INPUT:
            return [GtMatch(GtMatchStatus.V0_GT_INPUT, draw.row, 1.0, 1.0) for draw in draws]
        if not self.config.match_gt:
            return [GtMatch(GtMatchStatus.NOT_REQUESTED)] * len(draws)
        if gt is not None:
            refuse_bad_rotations(gt, f"ground truth of {place}")
        return match_boxes(boxes.take([draw.row for draw in draws]), gt, self.config.match_rules)


def refuse_bad_trajectory(poses: NDArray[np.float32], place: str) -> None:
    bad = np.flatnonzero(~are_rigid(poses)) if len(poses) else np.zeros(1, np.intp)
    if len(bad):
        detail = f"pose {bad[0]} is not rigid" if len(poses) else "no poses, so there is no root"
        raise InvalidTrajectory(record=f"trajectory of {place}", detail=detail)


def _refuse_ground_truth(boxes: Boxes, gt: Boxes | None, source: str, place: str) -> None:
    """Refuses detections that have an instance id and equal a ground-truth box exactly: they were not detected."""
    if gt is None or not len(boxes) or not len(gt):
        return
    same = (boxes.inst_id[:, None] == gt.inst_id) & (boxes.inst_id[:, None] >= 0)
    same &= (boxes.pose_world_object[:, None] == gt.pose_world_object).all(axis=2)
    same &= (boxes.extents[:, None] == gt.extents).all(axis=2)
    if boxes is gt or same.any():
        row = int(np.argmax(same.any(axis=1)))
        raise InvalidValue(
            record=f"targets of {place}",
            field=f"{source}[{row}]",
            value="a ground-truth box",
            expected="a box the actor detected (GT_SOURCE_DISALLOWED); source_mode v0_gt_input takes ground truth",
        )


def _ranked(considered: ConsideredTargets) -> list[int]:
    """Eligible rows, best first. Rows with equal scores keep the order of the source."""
    rows = np.flatnonzero(considered.reason_bitset == VALID_BITSET)
    order: list[int] = rows[np.argsort(-considered.score[rows], kind="stable")].tolist()
    return order


# --------------------------------------------------------------------------------------- assembly


def selected_targets(
    considered: ConsideredTargets,
    draws: Sequence[TargetDraw],
    matches: Sequence[GtMatch],
    gt: Boxes | None,
    *,
    place: str,
    root_pose: ArrayLike,
    policy: str,
    temperature: float | None,
) -> list[SelectedTarget]:
    """The selected targets with all their fields, in the order of the draws."""
    truth = Boxes.none() if gt is None else gt
    found = []
    for rank, (draw, match) in enumerate(zip(draws, matches, strict=True)):
        found.append(
            SelectedTarget(
                target_selection_policy=policy,
                target_selection_rank=rank,
                target_selection_probability=draw.probability,
                target_selection_temperature=temperature,
                log_probability=draw.log_probability,
                entropy=draw.entropy,
                matched_gt_target_row_id=None if match.row < 0 else match.row,
                matched_gt_target_id=None
                if match.row < 0
                else target_id_of(place, GT_SOURCE_ORACLE, truth, match.row),
                gt_match_iou=match.iou,
                gt_match_score=match.score,
                gt_match_status=match.status.value,
                **_reason_fields(match.joined(int(considered.reason_bitset[draw.row]))),
                **_box_fields(considered.boxes, draw.row, root_pose),
                **_measured_fields(considered, draw.row),
            )
        )
    return found


def _reason_fields(bitset: int) -> dict[str, Any]:
    return {
        "target_invalid_reason_bitset": bitset,
        "target_primary_invalid_reason": int(
            primary_target_reasons(np.array([bitset], np.uint32))[0]
        ),
        "target_reason_code_version": TARGET_REASON_VERSION,
    }


def _box_fields(boxes: Boxes, row: int, root_pose: ArrayLike) -> dict[str, Any]:
    box = boxes.take([row])
    pose = box.pose_world_object[0]
    return {
        "box": box,
        "target_sem_id": int(box.sem_id[0]),
        "target_inst_id": int(box.inst_id[0]),
        "target_class_name": box.class_name[0],
        "target_confidence": float(box.confidence[0]),
        "target_center_world": tuple(pose[9:].tolist()),
        "target_extents": tuple(box.extents[0].tolist()),
        "target_pose_world_object": tuple(pose.tolist()),
        "target_relative_pose_reference_object": tuple(compose(inverse(root_pose), pose).tolist()),
    }


def _measured_fields(considered: ConsideredTargets, row: int) -> dict[str, Any]:
    return {
        "target_row_id": row,
        "target_id": considered.target_id[row],
        "target_source": considered.source,
        "target_source_index": row,
        "target_selection_score": float(considered.score[row]),
        "target_projected_area_pixels": float(considered.projected_area_pixels[row]),
        "target_projected_area_fraction": float(considered.projected_area_fraction[row]),
        "target_semidense_support_count": int(considered.semidense_support_count[row]),
        "target_evl_support_count": int(considered.evl_support_count[row]),
        "target_effective_support_count": float(considered.effective_support_count[row]),
        "target_visibility_score": float(considered.visibility_score[row]),
        "target_support_score": float(considered.support_score[row]),
        "target_deficit_score": float(considered.deficit_score[row]),
    }
