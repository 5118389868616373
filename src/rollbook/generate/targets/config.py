"""TargetSelectorConfig: how targets are gated, scored, drawn and matched to ground truth."""

from __future__ import annotations

import math
import sys
from enum import StrEnum

import msgspec

from rollbook.generate.config_checks import expect
from rollbook.generate.targets.matching import MatchRules


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
