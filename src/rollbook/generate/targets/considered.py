"""ConsideredTargets: measurements of boxes in the actor's own view, and every reason against each box.

No function here gets ground truth of the scene.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.reasons import TARGET_INVALID_REASON_CODES, VALID_BITSET
from rollbook.errors import InvalidBoxes
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.poses import are_rigid
from rollbook.generate.targets.config import TargetSelectorConfig

if TYPE_CHECKING:
    from rollbook.generate.sources.reader import ActorView

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

TARGET_BIT = {name: 1 << code for name, code in TARGET_INVALID_REASON_CODES.items()}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConsideredTargets:
    """Every box of the source in its order, with its measurements and every reason against it."""

    source: str
    boxes: Boxes
    target_id: tuple[str, ...]
    projected_area_pixels: Floats
    """Area in the frame that shows most of the box; 0 for a box without a valid shape."""
    projected_area_fraction: Floats
    semidense_support_count: Counts
    evl_support_count: Counts
    effective_support_count: Floats
    visibility_score: Floats
    support_score: Floats
    deficit_score: Floats
    score: Floats
    """NaN if there is a reason against the box."""
    reason_bitset: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.boxes)


def consider_targets(
    boxes: Boxes,
    view: ActorView,
    config: TargetSelectorConfig,
    *,
    source: str,
    place: str,
    observed_voxels: ArrayLike | None,
) -> ConsideredTargets:
    """What the actor's own view says about each box."""
    refuse_bad_rotations(boxes, f"{source} of {place}")
    sound = np.flatnonzero(boxes.have_volume())
    area = np.zeros(len(boxes))
    shapes = boxes.take(sound)
    area[sound] = _largest_areas(shapes, view, config)
    points, voxels = np.zeros((2, len(boxes)), np.int64)
    looked_at = view.points[: config.max_support_points]
    points[sound] = support_counts(shapes, looked_at, config.obb_support_scale)
    if observed_voxels is not None:
        voxels[sound] = support_counts(shapes, observed_voxels, config.obb_support_scale)
    effective = points + config.evl_support_weight * voxels
    fraction = area / config.projected_area_normalizer_pixels
    visibility = _visibility(fraction, config)
    support = np.clip(effective / config.min_support_points, 0, 1)
    deficit = 1 - np.clip(effective / config.support_saturation_points, 0, 1)
    reasons = shape_reasons(boxes) | _gate_reasons(boxes.confidence, area, effective, config)
    reasons[reasons == 0] = VALID_BITSET
    confidence = np.where(reasons == VALID_BITSET, boxes.confidence.astype(np.float64), np.nan)
    return ConsideredTargets(
        source=source,
        boxes=boxes,
        target_id=tuple(target_id_of(place, source, boxes, row) for row in range(len(boxes))),
        projected_area_pixels=area,
        projected_area_fraction=fraction,
        semidense_support_count=points,
        evl_support_count=voxels,
        effective_support_count=effective,
        visibility_score=visibility,
        support_score=support,
        deficit_score=deficit,
        score=confidence * visibility * support * deficit,
        reason_bitset=reasons,
    )


def target_id_of(place: str, source: str, boxes: Boxes, row: int) -> str:
    return f"{place}:{source}:sem={boxes.sem_id[row]}:inst={boxes.inst_id[row]}:idx={row}"


def are_padding(boxes: Boxes) -> NDArray[np.bool_]:
    """Rows that only pad a table: every number of the box is 0."""
    return np.asarray(~np.hstack([boxes.pose_world_object, boxes.extents]).any(axis=1))


def shape_reasons(boxes: Boxes) -> NDArray[np.uint32]:
    """[B]: reason bits against the shape of a box; 0 for a valid shape."""
    numbers = np.column_stack([boxes.pose_world_object, boxes.extents, boxes.confidence])
    reasons = np.zeros(len(boxes), np.uint32)
    reasons[are_padding(boxes)] |= np.uint32(TARGET_BIT["PADDED_OBB"])
    reasons[~np.isfinite(numbers).all(axis=1)] |= np.uint32(TARGET_BIT["OBB_NONFINITE"])
    reasons[(boxes.extents <= 0).any(axis=1)] |= np.uint32(TARGET_BIT["OBB_EXTENT_INVALID"])
    return reasons


def refuse_bad_rotations(boxes: Boxes, record: str) -> None:
    """Refuses all boxes if one has no proper rotation: a wrong layout or scale then affects every box."""
    poses = boxes.pose_world_object
    whole = np.isfinite(poses).all(axis=1) & ~are_padding(boxes)
    bad = np.flatnonzero(whole & ~are_rigid(poses))
    if len(bad):
        detail = f"row {bad[0]}: pose_world_object has no proper rotation"
        raise InvalidBoxes(record=record, detail=detail)


def _gate_reasons(
    confidence: NDArray[np.float32], area: Floats, effective: Floats, config: TargetSelectorConfig
) -> NDArray[np.uint32]:
    required = config.require_projected_visibility
    failed = {
        # compared as float32, so that a detection of 0.7 passes a threshold of 0.7
        "CONFIDENCE_TOO_LOW": confidence < config.min_confidence,
        "NO_PROJECTED_VISIBILITY": (area <= 0) & required,
        "PROJECTED_AREA_TOO_SMALL": (area < config.min_projected_area_pixels) & required,
        "TARGET_SUPPORT_TOO_LOW": effective < config.min_support_points,
    }
    reasons = np.zeros(len(confidence), np.uint32)
    for name, rows in failed.items():
        reasons[rows] |= np.uint32(TARGET_BIT[name])
    return reasons


def _visibility(fraction: Floats, config: TargetSelectorConfig) -> Floats:
    share = np.clip(fraction / config.projected_area_full_score_fraction, 0, 1)
    missing = (
        0.0 if config.require_projected_visibility else config.missing_projection_visibility_score
    )
    return np.where(fraction > 0, share * share * (3 - 2 * share), missing)


def _largest_areas(boxes: Boxes, view: ActorView, config: TargetSelectorConfig) -> Floats:
    camera = view.camera.resized(config.image_width_px, config.image_height_px)
    largest = np.zeros(len(boxes))
    for pose in view.poses:
        np.maximum(largest, boxes.projected_areas(pose, camera), out=largest)
    return largest


def support_counts(boxes: Boxes, points: ArrayLike, scale: float) -> list[int]:
    """Number of points in each box scaled by `scale`. Points are sorted along x, so that each box tests only a few."""
    placed = np.asarray(points, np.float64).reshape(-1, 3)
    placed = placed[np.argsort(placed[:, 0])]
    # a little more than half the diagonal: a float32 rotation is not exact
    reach = np.linalg.norm(boxes.extents.astype(np.float64), axis=1) * scale * 0.501
    first = np.searchsorted(placed[:, 0], boxes.centres[:, 0] - reach).tolist()
    last = np.searchsorted(placed[:, 0], boxes.centres[:, 0] + reach, side="right").tolist()
    inside = (
        boxes.contains(row, placed[start:end], scale=scale)
        for row, (start, end) in enumerate(zip(first, last, strict=True))
    )
    return [int(np.count_nonzero(found)) for found in inside]
