"""TargetSelectorConfig: how targets are gated, scored, drawn and matched to ground truth."""

from __future__ import annotations

import math
import sys
from enum import StrEnum

import msgspec

from rollbook.generate.config_checks import expect
from rollbook.generate.targets.matching import MatchRules


class RolloutTargetSource(StrEnum):
    """The component that selects the targets of a source row."""

    ORACLE_TARGET_TASK_SAMPLER = "oracle_target_task_sampler"
    ACTOR_VISIBLE_SELECTOR = "actor_visible_selector"


class TargetSourceMode(StrEnum):
    """The boxes from which the selector chooses."""

    V1_ACTOR_VISIBLE = "v1_actor_visible"
    V0_GT_INPUT = "v0_gt_input"
    """Ground truth: an upper bound for comparison, not a result that an actor could reach."""


class TargetSelectionPolicy(StrEnum):
    GREEDY_TOP_K = "greedy_top_k"
    TEMPERATURE_SOFTMAX_TOP_K = "temperature_softmax_top_k"
    """Draws one after the other, without replacement."""


class TargetSelectorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How boxes are gated, scored, drawn and matched."""

    k: int = 3
    """Most targets per source row."""
    policy: TargetSelectionPolicy = TargetSelectionPolicy.GREEDY_TOP_K
    source_mode: TargetSourceMode = TargetSourceMode.V1_ACTOR_VISIBLE
    temperature: float = 1.0
    """Temperature of the softmax over scores."""
    min_confidence: float = 0.2
    min_projected_area_pixels: float = 16.0
    """Applies only with `require_projected_visibility`."""
    require_projected_visibility: bool = False
    """Whether a box that no recorded frame shows is excluded; otherwise it only gets a low score."""
    projected_area_normalizer_pixels: float = 57_600.0
    image_width_px: int = 240
    """Areas are measured in an image of this size, whatever the size of the camera's image."""
    image_height_px: int = 240
    projected_area_full_score_fraction: float = 0.05
    """Share of the normalizer from which the visibility score is 1."""
    min_support_points: int = 3
    support_saturation_points: int = 128
    """Number of points at which the deficit score of an object becomes 0."""
    evl_support_weight: float = 1.0
    """Weight of an observed voxel of the actor's map, in points."""
    missing_projection_visibility_score: float = 0.35
    obb_support_scale: float = 1.0
    """Points are counted in the box scaled by this."""
    max_support_points: int = 20_000
    """Only the first points, up to this number, are counted."""
    match_gt: bool = True
    min_gt_iou: float = 0.1
    min_gt_match_score: float = 0.05
    gt_iou_samples: int = 8
    """Grid cells along each side of a box."""
    gt_ambiguity_margin: float = 0.02
    """The best match must exceed the second by more than this."""

    def __post_init__(self) -> None:
        for names, least, most, expected in (
            (_AT_LEAST_ONE, 1, math.inf, "at least 1"),
            (_POSITIVE, math.nextafter(0, 1), _MOST, "a finite number above 0"),
            (_FRACTIONS, 0, 1, "a number from 0 to 1"),
            (_NOT_NEGATIVE, 0, _MOST, "a finite number from 0 up"),
        ):
            for name in names:
                holds = least <= getattr(self, name) <= most
                expect(self, name, holds, expected, section="target_selector")

    @property
    def protocol(self) -> str:
        """The protocol's name in lineage and store."""
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


_MOST = sys.float_info.max
_AT_LEAST_ONE = (
    *("k", "image_width_px", "image_height_px", "min_support_points"),
    *("support_saturation_points", "max_support_points", "gt_iou_samples"),
)
_POSITIVE = (
    *("temperature", "projected_area_normalizer_pixels"),
    *("projected_area_full_score_fraction", "obb_support_scale"),
)
_FRACTIONS = (
    *("min_confidence", "missing_projection_visibility_score"),
    *("min_gt_iou", "min_gt_match_score", "gt_ambiguity_margin"),
)
_NOT_NEGATIVE = ("min_projected_area_pixels", "evl_support_weight")
