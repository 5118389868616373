"""Rules that make a candidate invalid. Every rule that fails sets its reason bit; a row without a reason is VALID.

The same rules run against the true mesh, which decides what is valid, and against the actor's own map, which says what
the actor believes to be valid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.reasons import VALID_BITSET, Bitset, reason_mask
from rollbook.errors import InvalidValue
from rollbook.generate.candidates.families import Proposal
from rollbook.generate.config_checks import invalid_setting
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.camera import Camera, meets_box
from rollbook.generate.geometry.directions import bearings, walking_headings
from rollbook.generate.geometry.poses import centres, poses_of, wrapped

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Failures = Iterator[tuple[str, Mask]]
"""Pairs of a reason's name and the mask of the rows that have it."""


class Surroundings(Protocol):
    """The space around a camera: a scene's mesh, or the map that an actor made of it."""

    @property
    def bounds(self) -> NDArray[Any]:
        """[2, 3]: lower and upper corner of the space in which a camera may be."""

    def distance(self, points: Array, bound: float, /) -> NDArray[Any]:
        """Distance of points [n, 3] to the nearest surface, at most `bound`."""

    def path_clearance(
        self, start: Array, ends: Array, samples: int, bound: float, /
    ) -> NDArray[Any]:
        """Least distance on the straight paths from `start` to `ends` [n, 3], at most `bound`."""

    def path_hits(self, start: Array, ends: Array, /) -> NDArray[Any]:
        """Which of these paths cross a surface."""

    def floor_below(self, point: Array, radius: float, /) -> float:
        """Height of the floor on which the carrier of a camera at `point` [3] stands; NaN if it is not known."""

    def highest_below(self, points: Array, radius: float, /) -> NDArray[Any]:
        """Height of the highest surface under a disc of this radius at each of `points` [n, 3]; NaN for none."""


class RuleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of all rules. A limit of None switches its rule off; so does 0 where the field says so."""

    body_radius_m: float = 0.1
    """The camera and its carrier as a sphere, which may neither touch a surface nor leave the extent."""
    min_distance_to_mesh_m: float = 0.2
    """A centre must be farther than this from any surface."""
    step_clearance_m: float = 0.1
    """No sample of the path to a centre may be closer to a surface."""
    path_samples: int = 32
    distance_range_m: float = 2.0
    """Larger distances are not measured, which saves time; diagnostics then hold this value."""
    require_floor: bool = True
    """Whether whoever carries the camera must be able to stand under it. Not for a drone or an arm on a table."""
    standing_radius_m: float = 0.2
    """Radius of the floor that a carrier needs."""
    max_floor_step_m: float = 0.25
    """Greatest height of that floor above or below the floor at the reference pose: thresholds, rugs, a stair."""
    max_step_length_m: float | None = 1.0
    max_height_delta_m: float | None = 0.25
    max_backward_step_m: float | None = 1.0
    max_yaw_delta_deg: float | None = 180.0
    """The default lets an actor turn round and step back: with less, many targets cannot be seen by any candidate."""
    duplicate_distance_m: float = 1e-3
    duplicate_angle_deg: float = 0.1
    """Two poses that are this close in distance and in angle are duplicates."""
    require_target_in_view: bool = False
    """Whether some part of the target's box must lie in the view. Occlusion is ignored."""
    min_hit_fraction: float = 0.05
    """Least share of a rendered image's pixels that hit a surface."""
    backprojection_stride: int = 1
    """Every so-many-th row and column of an image becomes points."""
    extent_margin_m: float = 0.1
    """Points this far outside the extent still count."""
    min_target_pixels: int = 0
    """Least number of pixels whose points lie in the target's box; 0 switches the rule off."""
    min_semidense_points: int = 0
    """Least number of semidense points in view; 0 switches the rule off."""
    require_target_evidence: bool = False
    """Whether some observed voxel of the target must lie in the view."""

    def __post_init__(self) -> None:
        for field in _AT_LEAST_ZERO:
            value = getattr(self, field)
            if value is not None and not 0 <= value < math.inf:
                raise invalid_setting(
                    f"candidate_rules.{field}", value, "a finite number, at least 0"
                )
        for field, least in (("path_samples", 2), ("backprojection_stride", 1)):
            if getattr(self, field) < least:
                raise invalid_setting(
                    f"candidate_rules.{field}", getattr(self, field), f"at least {least}"
                )
        if self.min_hit_fraction > 1:
            raise invalid_setting(
                "candidate_rules.min_hit_fraction", self.min_hit_fraction, "at most 1"
            )
        for field in ("body_radius_m", "min_distance_to_mesh_m", "step_clearance_m"):
            if getattr(self, field) >= self.distance_range_m:
                expected = f"less than distance_range_m, {self.distance_range_m}"
                raise invalid_setting(f"candidate_rules.{field}", getattr(self, field), expected)

    def for_verdicts(self) -> RuleConfig:
        """The same rules, with distances measured only as far as a verdict needs: quicker, with the same reasons.

        The diagnostics of distances then end at this shorter range.
        """
        decisive = max(self.body_radius_m, self.min_distance_to_mesh_m, self.step_clearance_m)
        # clearly above the limits: a distance that was cut off here must not look like one at a limit
        reach = max(1.25 * decisive, 0.01)
        return msgspec.structs.replace(self, distance_range_m=min(reach, self.distance_range_m))

    @classmethod
    def reference(cls) -> RuleConfig:
        """The limits of the reference system: a person who walks on. More than half of the roots have no gain then."""
        return cls(
            require_floor=False,
            max_step_length_m=1.0,
            max_height_delta_m=0.25,
            max_backward_step_m=0.25,
            max_yaw_delta_deg=70.0,
        )

    @classmethod
    def rich_local_five_family(cls) -> RuleConfig:
        return cls(
            max_step_length_m=1.25,
            max_height_delta_m=0.6,
            max_backward_step_m=0.35,
            max_yaw_delta_deg=85.0,
        )

    @classmethod
    def radial_target_backtrack_family(cls) -> RuleConfig:
        """Turns are unlimited, because looking back is half a turn."""
        return cls(
            max_step_length_m=1.25,
            max_height_delta_m=0.35,
            max_backward_step_m=0.45,
            max_yaw_delta_deg=None,
        )

    @classmethod
    def upper_bound_free_shell(cls) -> RuleConfig:
        """Only geometry limits the candidates: motion is unlimited, and the camera may fly."""
        return cls(
            require_floor=False,
            max_step_length_m=None,
            max_height_delta_m=None,
            max_backward_step_m=None,
            max_yaw_delta_deg=None,
        )


_MOTION_LIMITS = {
    "max_step_length_m": "motion_step_length_m",
    "max_height_delta_m": "motion_height_delta_m",
    "max_backward_step_m": "motion_backward_step_m",
    "max_yaw_delta_deg": "motion_yaw_delta_deg",
}
_AT_LEAST_ZERO = (
    *("body_radius_m", "min_distance_to_mesh_m", "step_clearance_m", "distance_range_m"),
    *_MOTION_LIMITS,
    *("standing_radius_m", "max_floor_step_m"),
    *("duplicate_distance_m", "duplicate_angle_deg", "min_hit_fraction", "extent_margin_m"),
    *("min_target_pixels", "min_semidense_points"),
)

_NOT_VALID = np.uint32(0xFFFFFFFF ^ VALID_BITSET)


@dataclass(frozen=True, slots=True, eq=False)
class ShellCheck:
    bitset: Bitset
    """[N]: VALID, or every reason against the row."""
    diagnostics: dict[str, NDArray[Any]]
    """[N] each, by column of `candidate_diagnostics`; NaN where a value could not be measured."""

    @property
    def valid(self) -> Mask:
        return np.asarray(self.bitset == VALID_BITSET)


# ------------------------------------------------------------------------------------- geometry


def check_shell(
    proposal: Proposal,
    reference_pose: ArrayLike,
    world: Surroundings,
    rules: RuleConfig,
    *,
    target_box: Boxes | None,
    camera: Camera,
    points: ArrayLike | None = None,
    observed: ArrayLike | None = None,
) -> ShellCheck:
    """Runs the rules that need no rendered image. A row whose pose is not finite gets only that reason.

    `points` are semidense points and `observed` the centres of observed voxels. Only the rules about them need them.
    """
    _check_inputs(rules, target_box, points, observed)
    reference = _checked_reference(reference_pose)
    # the store keeps float32: larger values are not finite there
    finite = np.asarray((np.abs(proposal.poses) <= np.finfo(np.float32).max).all(axis=1))
    rows = np.flatnonzero(finite)
    poses = proposal.poses[rows]
    measured = _measured(poses, reference, world, rules, target_box)
    bits = np.zeros(len(finite), np.uint32)
    bits[~finite] = reason_mask("POSE_NONFINITE")
    for name, failed in (
        *_place_failures(measured, rules),
        *_floor_failures(poses, reference, world, rules),
        *_motion_failures(measured, rules),
        ("CANDIDATE_DUPLICATE", _duplicates(poses, reference, rules)),
        *_view_failures(poses, world, rules, camera, target_box),
        *_evidence_failures(poses, rules, camera, target_box, points, observed),
    ):
        bits[rows[failed]] |= np.uint32(reason_mask(name))
    bits[bits == 0] = VALID_BITSET
    return ShellCheck(bits, _spread(measured, rows, len(finite)))


def _checked_reference(reference_pose: ArrayLike) -> Array:
    reference = np.asarray(reference_pose, np.float64)
    if reference.shape != (12,) or not np.isfinite(reference).all():
        raise InvalidValue(
            record="rules",
            field="reference_pose",
            value=str(reference.tolist()),
            expected="12 finite numbers",
        )
    return reference


def _measured(
    poses: Array,
    reference: Array,
    world: Surroundings,
    rules: RuleConfig,
    target_box: Boxes | None,
) -> dict[str, NDArray[Any]]:
    eyes, here, heading = centres(poses), centres(reference), walking_headings(reference)
    reach = rules.distance_range_m
    clearance = world.path_clearance(here, eyes, rules.path_samples, reach)
    move, facing = eyes - here, walking_headings(poses)
    ahead = move[:, 0] * np.cos(heading) + move[:, 1] * np.sin(heading)
    found = {
        "mesh_distance_m": world.distance(eyes, reach),
        "path_min_clearance_m": clearance,
        "path_collision_mask": world.path_hits(here, eyes) | (clearance < rules.step_clearance_m),
        "free_space_margin_m": _margins(eyes, world.bounds),
        "motion_step_length_m": np.linalg.norm(move, axis=1),
        "motion_height_delta_m": move[:, 2],
        "motion_backward_step_m": np.maximum(-ahead, 0),
        "motion_yaw_delta_deg": np.degrees(wrapped(facing - heading)),
        "target_distance_m": np.full(len(eyes), np.nan),
        "target_bearing_yaw_deg": np.full(len(eyes), np.nan),
    }
    if target_box is not None:
        target = target_box.centres[0]
        to_target = wrapped(bearings(eyes, target, facing) - facing)
        found["target_distance_m"] = np.linalg.norm(target - eyes, axis=1)
        found["target_bearing_yaw_deg"] = np.degrees(to_target)
    return found


def _margins(eyes: Array, bounds: NDArray[Any]) -> Array:
    """Distance to the nearest side of the extent; outside of it, the negative distance to it."""
    inside = np.minimum(eyes - bounds[0], bounds[1] - eyes)
    outside = np.linalg.norm(np.minimum(inside, 0), axis=1)
    return np.asarray(np.where(outside > 0, -outside, inside.min(axis=1)))


def _place_failures(measured: dict[str, NDArray[Any]], rules: RuleConfig) -> Failures:
    margin, distance = measured["free_space_margin_m"], measured["mesh_distance_m"]
    collides = distance < rules.body_radius_m
    yield "POSE_OUT_OF_EXTENT", margin < 0
    yield "CAMERA_OUT_OF_EXTENT", (margin >= 0) & (margin < rules.body_radius_m)
    yield "COLLISION_MESH", collides
    yield "CLEARANCE_TOO_SMALL", collides | (distance <= rules.min_distance_to_mesh_m)
    yield "PATH_SEGMENT_COLLISION", measured["path_collision_mask"]


def _floor_failures(
    poses: Array, reference: Array, world: Surroundings, rules: RuleConfig
) -> Failures:
    """A carrier cannot stand on a sofa, or on nothing. Where no floor is known, nothing speaks against it."""
    if rules.require_floor:
        floor = world.floor_below(centres(reference), rules.standing_radius_m)
        step = world.highest_below(centres(poses), rules.standing_radius_m) - floor
        yield "CARRIER_CANNOT_STAND", np.abs(step) > rules.max_floor_step_m


def _motion_failures(measured: dict[str, NDArray[Any]], rules: RuleConfig) -> Failures:
    for limit, column in _MOTION_LIMITS.items():
        most = getattr(rules, limit)
        if most is not None:
            yield "SAMPLER_RULE_REJECTED", np.abs(measured[column]) > most


def _duplicates(poses: Array, reference: Array, rules: RuleConfig) -> Mask:
    """Which rows have the same place and view direction as the reference or an earlier row."""
    known = np.concatenate([reference[None], poses])
    apart = np.linalg.norm(centres(poses)[:, None] - centres(known), axis=2)
    # the trace of the relative rotation is 1 + 2 cos(angle between the two)
    trace = poses[:, :9] @ known[:, :9].T
    least = 1 + 2 * math.cos(math.radians(rules.duplicate_angle_deg))
    same = (apart <= rules.duplicate_distance_m) & (trace >= least - 1e-9)
    return np.asarray(np.tril(same).any(axis=1))


def _view_failures(
    poses: Array, world: Surroundings, rules: RuleConfig, camera: Camera, target_box: Boxes | None
) -> Failures:
    low, high = np.asarray(world.bounds, np.float64)
    middle = poses_of(np.eye(3), (low + high) / 2)
    yield "FRUSTUM_OUT_OF_BOUNDS", ~meets_box(poses, camera, middle, high - low)
    if rules.require_target_in_view and target_box is not None:
        pose, extents = target_box.pose_world_object[0], target_box.extents[0]
        yield "FRUSTUM_OUT_OF_BOUNDS", ~meets_box(poses, camera, pose, extents)


def _evidence_failures(
    poses: Array,
    rules: RuleConfig,
    camera: Camera,
    target_box: Boxes | None,
    points: ArrayLike | None,
    observed: ArrayLike | None,
) -> Failures:
    if not (rules.min_semidense_points or rules.require_target_evidence):
        return
    from rollbook.generate.candidates.view_counts import points_in_view

    if rules.min_semidense_points and points is not None:
        seen = points_in_view(poses, camera, points)
        yield "SEMIDENSE_SUPPORT_TOO_LOW", seen < rules.min_semidense_points
    if rules.require_target_evidence and target_box is not None and observed is not None:
        voxels = np.asarray(observed, np.float64).reshape(-1, 3)
        of_target = voxels[target_box.contains(0, voxels)]
        yield "EVL_EVIDENCE_MISSING", points_in_view(poses, camera, of_target) == 0


def _spread(
    measured: dict[str, NDArray[Any]], rows: NDArray[np.intp], count: int
) -> dict[str, NDArray[Any]]:
    """The measured columns with one entry per row of the whole shell."""
    spread: dict[str, NDArray[Any]] = {}
    for name, values in measured.items():
        flags = name == "path_collision_mask"
        spread[name] = np.zeros(count, np.bool_) if flags else np.full(count, np.nan, np.float32)
        spread[name][rows] = values
    return spread


def _check_inputs(
    rules: RuleConfig,
    target_box: Boxes | None,
    points: ArrayLike | None,
    observed: ArrayLike | None,
) -> None:
    if target_box is not None and not (len(target_box) == 1 and target_box.have_volume()[0]):
        expected = "one box, finite, with every side longer than 0"
        value = f"{len(target_box)} boxes" if len(target_box) != 1 else "a box without volume"
        raise InvalidValue(record="rules", field="target_box", value=value, expected=expected)
    for field, asked, missing in (
        ("require_target_in_view", rules.require_target_in_view, target_box is None),
        ("min_semidense_points", rules.min_semidense_points, points is None),
        (
            "require_target_evidence",
            rules.require_target_evidence,
            target_box is None or observed is None,
        ),
    ):
        if asked and missing:
            expected = "the target, points or voxels that this rule needs"
            raise invalid_setting(f"candidate_rules.{field}", asked, expected)


# --------------------------------------------------------------------------------------- images


def check_depth(
    bitset: Bitset,
    depth: NDArray[np.float32],
    rules: RuleConfig,
    *,
    poses: ArrayLike,
    camera: Camera,
    bounds: ArrayLike | None = None,
    target_box: Boxes | None = None,
) -> Bitset:
    """Runs the rules on the rendered images [n, H, W] of the n rows that are still valid.

    `poses` [n, 12] and `camera` are those of the images. Their points must lie in `bounds` and, if the rules require
    it, in the target's box.
    """
    rows = np.flatnonzero(np.asarray(bitset) == VALID_BITSET)
    if len(rows) != len(depth):
        raise InvalidValue(
            record="rules",
            field="depth",
            value=f"of {len(depth)} rows",
            expected=f"one for each of the {len(rows)} rows still valid",
        )
    if rules.min_target_pixels and target_box is None:
        expected = "the target's box to be given as well"
        raise invalid_setting(
            "candidate_rules.min_target_pixels", rules.min_target_pixels, expected
        )
    checked = bitset
    for name, failed in _image_failures(depth, rules, poses, camera, bounds, target_box):
        checked = mark(checked, rows[failed], name)
    return checked


def sparse_step(rules: RuleConfig) -> int:
    """Every so-many-th row and column of an image in which surfaces fill four fifths proves that it is dense enough."""
    return min(16, max(1, int(math.sqrt(0.8 / max(rules.min_hit_fraction, 1e-9)))))


def proven_by_sparse_depth(
    depth: NDArray[np.float32],
    rules: RuleConfig,
    *,
    poses: ArrayLike,
    camera: Camera,
    every: int,
    bounds: ArrayLike | None = None,
    target_box: Boxes | None = None,
) -> Mask:
    """Which of n views pass `check_depth` for certain, by every so-many-th row and column of their images.

    `depth` [n, h, w] holds only those pixels. All rules ask for at least so many pixels, so the pixels that are left
    out can only add to what was counted. A view that is not proven may pass too: it has to be rendered whole.
    """
    failed = np.zeros(len(depth), np.bool_)
    for _, some in _image_failures(depth, rules, poses, camera, bounds, target_box, every):
        failed |= some
    return ~failed


def _image_failures(
    depth: NDArray[np.float32],
    rules: RuleConfig,
    poses: ArrayLike,
    camera: Camera,
    bounds: ArrayLike | None,
    target_box: Boxes | None,
    every: int = 1,
) -> Failures:
    from rollbook.generate.candidates.view_counts import pixel_counts  # compiles kernels

    margin = rules.extent_margin_m
    hits, kept, on_target = pixel_counts(
        depth,
        poses,
        camera,
        stride=rules.backprojection_stride,
        extent=None if bounds is None else np.add(bounds, [[-margin], [margin]]),
        box=target_box if rules.min_target_pixels else None,
        every=every,
    )
    yield "DEPTH_NO_HIT", hits == 0
    yield "DEPTH_TOO_SPARSE", hits / (camera.width * camera.height) < rules.min_hit_fraction
    yield "BACKPROJECT_EMPTY", (hits > 0) & (kept == 0)
    yield "TARGET_VISIBILITY_TOO_LOW", on_target < rules.min_target_pixels


def guard_order(
    bitset: Bitset, rendered_rows: ArrayLike, depth: NDArray[np.float32], camera: Camera
) -> Bitset:
    """Marks rows whose image belongs to another row: a renderer must return every valid row in the shell's order.

    If the number or the size of the images is wrong, every row is marked.
    """
    rows = np.flatnonzero(np.asarray(bitset) == VALID_BITSET)
    given = np.asarray(rendered_rows).reshape(-1)
    if len(given) != len(rows) or depth.shape != (len(rows), camera.height, camera.width):
        return mark(bitset, rows, "CANDIDATE_ORDER_GUARD_FAILED")
    return mark(bitset, rows[given != rows], "CANDIDATE_ORDER_GUARD_FAILED")


# ------------------------------------------------------------------------------------- bitsets


def mark(bitset: Bitset, rows: ArrayLike, name: str) -> Bitset:
    """A copy in which these rows also have this reason and are not valid."""
    marked = np.array(bitset, np.uint32)
    given = np.asarray(rows)
    index = given if given.dtype == np.bool_ else given.astype(np.intp)
    marked[index] = (marked[index] | np.uint32(reason_mask(name))) & _NOT_VALID
    return marked
