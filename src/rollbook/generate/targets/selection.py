"""Targets: which object a rollout should reconstruct better, chosen from what the actor itself has seen.

Boxes of the actor's own are measured, gated, ranked and drawn. Ground truth is looked at only when that is over, and
then only to say which object the labels are about.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.lineage import LABELLED_STATUSES, RolloutLineage
from rollbook.contracts.reasons import (
    TARGET_REASON_VERSION,
    VALID_BITSET,
    primary_target_reasons,
)
from rollbook.errors import ConfigurationError, InvalidTrajectory, InvalidValue
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.poses import are_rigid, compose, inverse
from rollbook.generate.targets.considered import (
    TARGET_BIT,
    ConsideredTargets,
    are_padding,
    consider_targets,
    refuse_bad_rotations,
    target_id_of,
)
from rollbook.generate.targets.draws import TargetDraw, greedy_draws, softmax_draws
from rollbook.generate.targets.matching import GtMatch, GtMatchStatus, MatchRules, match_boxes

if TYPE_CHECKING:
    from rollbook.generate.sources.reader import ActorView

DETECTED = "detected_obbs"
ACTOR_SOURCES = (DETECTED, "backbone.obb_pred_viz", "backbone.obb_pred")
"""Where the actor's boxes may come from; the first that has any is used."""
GT_SOURCE_V0 = "gt_obbs_v0_sanity"
GT_SOURCE_ORACLE = "gt_obbs_oracle"
"""Also names the ground-truth object in every match, so that one object has one id."""

NO_RANKED_TARGETS = "no_ranked_targets"
NO_ACTOR_VISIBLE_TARGETS = "no_actor_visible_targets"

_NO_PREDICTIONS: Mapping[str, Boxes] = MappingProxyType({})


class RolloutTargetSource(StrEnum):
    """Who chooses the targets of a source row."""

    ORACLE_TARGET_TASK_SAMPLER = "oracle_target_task_sampler"
    ACTOR_VISIBLE_SELECTOR = "actor_visible_selector"


class TargetSourceMode(StrEnum):
    """What the selector is given to choose from."""

    V1_ACTOR_VISIBLE = "v1_actor_visible"
    V0_GT_INPUT = "v0_gt_input"
    """Ground truth: an upper bound to compare with, no claim about what an actor could do."""


class TargetSelectionPolicy(StrEnum):
    GREEDY_TOP_K = "greedy_top_k"
    TEMPERATURE_SOFTMAX_TOP_K = "temperature_softmax_top_k"
    """One after the other, without replacement."""


# ----------------------------------------------------------------------------------------- config


class TargetSelectorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How boxes are gated, scored, drawn and matched."""

    k: int = 3
    """Targets per source row, at most."""
    policy: TargetSelectionPolicy = TargetSelectionPolicy.GREEDY_TOP_K
    source_mode: TargetSourceMode = TargetSourceMode.V1_ACTOR_VISIBLE
    temperature: float = 1.0
    """Of the softmax over scores."""
    min_confidence: float = 0.2
    min_projected_area_pixels: float = 16.0
    """Counts only when a projection is required."""
    require_projected_visibility: bool = False
    """Whether a box that no frame of the prefix has in view is out, or only scores low."""
    projected_area_normalizer_pixels: float = 57_600.0
    image_width_px: int = 240
    """Areas are measured in an image of this size, whatever the camera's own is."""
    image_height_px: int = 240
    projected_area_full_score_fraction: float = 0.05
    """Of the normalizer; from here up the visibility is 1."""
    min_support_points: int = 3
    support_saturation_points: int = 128
    """An object with this many points has nothing left to gain, by the actor's own account."""
    evl_support_weight: float = 1.0
    """What an observed voxel of the actor's map counts for, in points."""
    missing_projection_visibility_score: float = 0.35
    obb_support_scale: float = 1.0
    """Points count in the box grown by this."""
    max_support_points: int = 20_000
    """Only so many of the first points are looked at."""
    match_gt: bool = True
    min_gt_iou: float = 0.1
    min_gt_match_score: float = 0.05
    gt_iou_samples: int = 8
    """Grid cells along each side of a box."""
    gt_ambiguity_margin: float = 0.02
    """The best match has to be better than the second by more than this."""

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            _expect(self, name, getattr(self, name) >= 1, "at least 1")
        for name in _POSITIVE:
            value = getattr(self, name)
            _expect(self, name, math.isfinite(value) and value > 0, "a finite number above 0")
        for name in _FRACTIONS:
            _expect(self, name, 0 <= getattr(self, name) <= 1, "a number from 0 to 1")
        for name in ("min_projected_area_pixels", "evl_support_weight"):
            value = getattr(self, name)
            _expect(self, name, math.isfinite(value) and value >= 0, "a finite number from 0 up")

    @property
    def protocol(self) -> str:
        """As lineage and store name it."""
        observed = self.source_mode is TargetSourceMode.V1_ACTOR_VISIBLE
        return "v1_observed" if observed else "v0_gt_input"

    @property
    def match_rules(self) -> MatchRules:
        return MatchRules(
            min_iou=self.min_gt_iou,
            min_score=self.min_gt_match_score,
            iou_samples=self.gt_iou_samples,
            ambiguity_margin=self.gt_ambiguity_margin,
        )


_AT_LEAST_ONE = (
    "k",
    "image_width_px",
    "image_height_px",
    "min_support_points",
    "support_saturation_points",
    "max_support_points",
    "gt_iou_samples",
)
_POSITIVE = (
    "temperature",
    "projected_area_normalizer_pixels",
    "projected_area_full_score_fraction",
    "obb_support_scale",
)
_FRACTIONS = (
    "min_confidence",
    "missing_projection_visibility_score",
    "min_gt_iou",
    "min_gt_match_score",
    "gt_ambiguity_margin",
)


def _expect(config: TargetSelectorConfig, name: str, holds: bool, expected: str) -> None:
    if not holds:
        message = f"target_selector.{name} is {getattr(config, name)}, expected {expected}"
        raise ConfigurationError(message=message)


# ---------------------------------------------------------------------------------------- results


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SelectedTarget:
    """One target of one source row. Fields named as in RolloutLineage mean the same there."""

    box: Boxes
    """One row: what the actor is given to aim at."""
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
    """The object as the root camera sees it."""
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
        """Labels of this target's rollouts may be trained on."""
        labelled = self.gt_match_status in LABELLED_STATUSES and self.gt_box_row >= 0
        return labelled and self.reason_bitset == VALID_BITSET

    def lineage_fields(self) -> dict[str, Any]:
        """The target's part of a RolloutLineage, by keyword."""
        return {name: getattr(self, name) for name in _LINEAGE_FIELDS}


_LINEAGE_FIELDS = tuple(
    field.name for field in fields(SelectedTarget) if field.name in RolloutLineage.__struct_fields__
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetSelection:
    """What became of one source row's boxes."""

    targets: list[SelectedTarget]
    """In the order they were selected."""
    considered: ConsideredTargets
    skip_reason: str | None
    """Why there is no target."""
    source_reason_bitset: int = VALID_BITSET
    """Why there was nothing to consider, in bits of TARGET_INVALID_REASON_CODES."""


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

        `observed_voxels` [n, 3] are the centres of the occupied voxels of the actor's own map, if it has one.
        `predictions` are more boxes of the actor's own, by their name in ACTOR_SOURCES: used where there are no
        detections.
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
            source_reason_bitset=VALID_BITSET if len(boxes) else self._nothing_to_see(gt),
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

    def _nothing_to_see(self, gt: Boxes | None) -> int:
        """Ground truth that was there, and was not taken in the place of detections, is said to have been."""
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
        detail = f"pose {bad[0]} is not a pose" if len(poses) else "no poses, so there is no root"
        raise InvalidTrajectory(record=f"trajectory of {place}", detail=detail)


def _refuse_ground_truth(boxes: Boxes, gt: Boxes | None, source: str, place: str) -> None:
    """Boxes that know the instance and agree with the ground truth to the last bit were not detected."""
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
    """Eligible rows, best first. Equal ones in the order of the source, which is also that of the ids' last part."""
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
    """Everything known of each selected box, in the order of the draws."""
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
