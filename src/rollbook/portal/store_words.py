"""The words in which pages name the stages, reasons and findings of a rollout store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from rollbook.server.queries import StoreRow

_CODE = re.compile(r"\b[A-Z]+(?:_[A-Z]+)+\b")

STAGES: Mapping[str, str] = MappingProxyType(
    {
        "full shell": "Full shell",
        "actor-valid": "Actor can take it",
        "oracle-label": "Has a label",
        "q-train": "Usable for training",
        "selected": "Taken",
    }
)

REASONS: Mapping[str, str] = MappingProxyType(
    {
        "POSE_NONFINITE": "Pose is not a number",
        "POSE_OUT_OF_EXTENT": "Outside of the scene",
        "CAMERA_OUT_OF_EXTENT": "Camera outside of the scene",
        "COLLISION_MESH": "Inside of something",
        "CLEARANCE_TOO_SMALL": "Too close to something",
        "PATH_SEGMENT_COLLISION": "Path hits something",
        "FRUSTUM_OUT_OF_BOUNDS": "Looks out of the scene",
        "DEPTH_NO_HIT": "Sees nothing",
        "DEPTH_TOO_SPARSE": "Sees too little",
        "BACKPROJECT_EMPTY": "Gives no points",
        "CANDIDATE_DUPLICATE": "Same as another",
        "SAMPLER_RULE_REJECTED": "Sampler rule",
        "TARGET_NOT_ACTOR_VISIBLE": "Actor does not know the target",
        "TARGET_GT_UNMATCHED": "Target has no ground truth",
        "TARGET_CROP_EMPTY": "Nothing of the target to measure",
        "TARGET_SUPPORT_TOO_LOW": "Target has too few points",
        "TARGET_VISIBILITY_TOO_LOW": "Target is hardly visible",
        "SEMIDENSE_SUPPORT_TOO_LOW": "Too few known points in view",
        "EVL_EVIDENCE_MISSING": "No evidence of the target",
        "MESH_REFERENCE_MISSING": "Scene has no mesh",
        "ORACLE_DISTANCE_FAILED": "Label could not be computed",
        "CANDIDATE_ORDER_GUARD_FAILED": "Order of candidates was lost",
        "RUNTIME_ERROR": "Error while computing it",
        "CARRIER_CANNOT_STAND": "Nobody can stand there",
        "NO_ACTOR_VISIBLE_SOURCE": "Nothing that the actor sees names it",
        "GT_SOURCE_DISALLOWED": "Named by the ground truth alone",
        "PADDED_OBB": "No box, only padding",
        "OBB_NONFINITE": "Box is not a number",
        "OBB_EXTENT_INVALID": "Box has no size",
        "CONFIDENCE_TOO_LOW": "Detector is not sure enough",
        "NO_PROJECTED_VISIBILITY": "In no picture of the walk",
        "PROJECTED_AREA_TOO_SMALL": "Too small in every picture",
        "TARGET_GT_AMBIGUOUS": "Fits several objects of the ground truth",
    }
)
"""A reason without words here is shown as its code."""


def reason_words(code: str) -> str:
    """Why a candidate or a target is invalid, for the middle of a sentence."""
    words = REASONS.get(code, code.lower().replace("_", " "))
    return f"{words[:1].lower()}{words[1:]}"


def without_codes(text: str) -> str:
    """A sentence of the audit, with its reasons in words."""
    return _CODE.sub(lambda found: reason_words(found[0]), text)


SUSPICIONS: Mapping[str, str] = MappingProxyType(
    {
        "low_valid_fanout": "Few valid candidates at a step",
        "dominant_invalid_reason": "One reason for nearly all that is invalid",
        "valid_candidate_missing_label": "Valid candidate without a label",
        "high_score_invalid_gt_target": "Target was chosen, but has no ground truth",
        "selected_motion_outlier": "Taken move is unusually large",
        "root_without_gain": "No candidate of a root gains anything",
    }
)


def created_at_us(row: StoreRow) -> int | None:
    """When the store was written, as it says itself."""
    text = (row.counts or {}).get("created_at")
    try:
        at = datetime.fromisoformat(str(text))
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return int(at.timestamp() * 1e6)
    except (ValueError, OverflowError):
        return None
