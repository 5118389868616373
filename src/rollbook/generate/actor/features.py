"""Features: the columns that a learner gets for each candidate, computed from what the actor knows.

The target frame has its origin at the centre of the observed box and the axes of that box. 16 x 16 rays over the
candidate's image are marched through the actor's map until an occupied voxel, the map's edge, or `RAY_RANGE_M`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.errors import InvalidBoxes, InvalidValue
from rollbook.generate.actor.actor import ActorMap, ActorState
from rollbook.generate.actor.voxels import RAY_COLUMNS, TARGET, march, seen_points
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.poses import (
    IDENTITY,
    are_rigid,
    centres,
    compose,
    forwards,
    inverse,
    rotations,
)

Array = NDArray[np.float64]

RAY_RANGE_M = 6.0
"""Depth at which rays end: a map of semidense points knows little beyond it."""
SUPPORT_SATURATION = 128
"""Number of points in the target's box at which its deficit becomes 0."""
_CELLS = 16
_NEAR_VIEW = math.radians(30.0)

FEATURE_MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "rel_pos_target_x": "candidate's centre in the target frame, x, in diagonals of the box",
        "rel_pos_target_y": "the same, y",
        "rel_pos_target_z": "the same, z",
        "dist_target": "metres from the candidate's centre to that of the target",
        "cos_bearing": "cosine of the angle between where it looks and where the target is",
        "elev_sin": "sine of the angle at which it looks down on the target; negative from below",
        "view_novelty_rad": "least angle, at the target, to an earlier view of it; pi if there is none",
        "prior_view_density_30deg": "share of the earlier views of the target that lie within 30 degrees",
        "obb_area_frac": "share of the image that the rectangle around the target's box covers",
        "obb_corners_in_frac": "share of the box's eight corners that are in view",
        "trans_m": "metres from the reference to the candidate",
        "rot_rad": "angle of the turn from the reference to the candidate",
        "path_len_m": "metres walked since the root, this move included",
        "unknown_per_ray": "unknown voxels that a ray passes, on average",
        "target_unknown_per_ray": "those of them that the target's box reaches",
        "target_occ_per_ray": "share of rays that end at an occupied voxel of the target",
        "hit_occ_frac": "share of rays that end at an occupied voxel",
        "hit_unknown_frac": "share of rays that meet something unknown before they end",
        "mean_hit_depth": "mean depth in metres at which rays end; the whole range where they meet nothing",
        "frontier_per_ray": "steps from free into unknown that a ray takes, on average",
        "target_ray_frac": "share of rays that reach the target's box with nothing known in between",
        "semidense_in_view": "share of all semidense points that are in view",
        "semidense_in_target_in_view": "share of the target's semidense points that are in view; 0 if it has none",
        "empty_pixel_frac": "share of the image, in 16 x 16 parts, in which no known point lies",
        "strategy_id": "where the candidate looks: STRATEGY_NAMES",
        "mixture_id": "component of the mixture that proposed it",
        "sampler_log_density": "log of the density with which its centre was proposed, per cubic metre",
        "pose_rel_ref_r0": "candidate in the reference's frame: its x axis, x",
        "pose_rel_ref_r1": "its x axis, y",
        "pose_rel_ref_r2": "its x axis, z",
        "pose_rel_ref_r3": "its y axis, x",
        "pose_rel_ref_r4": "its y axis, y",
        "pose_rel_ref_r5": "its y axis, z",
        "pose_rel_ref_tx": "its centre, x",
        "pose_rel_ref_ty": "its centre, y",
        "pose_rel_ref_tz": "its centre, z",
        "valid_actor": "1 where the rules allow it on the actor's own map",
        "step_index": "moves made before this one",
        "remaining": "moves left, this one included",
        "target_confidence": "of the detection",
        "target_ext_x": "side of the target's box, metres",
        "target_ext_y": "the same, y",
        "target_ext_z": "the same, z",
        "target_sem_id": "class of the target",
        "log_semidense_support": "log(1 + semidense points in the target's box)",
        "log_fused_support": "log(1 + points of the actor's own depth images in it)",
        "target_deficit": "1 with no point in the box, falling to 0 at SUPPORT_SATURATION",
        "n_prior_target_views": "earlier views that had the target's centre in the image",
        "own_progress": "share of the points in the box that the actor's own moves have brought",
    }
)
FEATURES = tuple(FEATURE_MEANINGS)
"""The columns, in order."""


def candidate_features(
    state: ActorState,
    poses: ArrayLike,
    *,
    reference_pose: ArrayLike,
    target: Boxes,
    camera: Camera,
    strategy_id: ArrayLike,
    mixture_id: ArrayLike,
    density: ArrayLike,
    valid_actor: ArrayLike,
    step_index: int,
    horizon: int,
) -> NDArray[np.float32]:
    """[N, len(FEATURES)]: features of all candidates, valid or not. A row is all NaN if its pose is not finite.

    `target` is one observed box. `camera` is the camera of the candidates.
    """
    given = np.asarray(poses, np.float64).reshape(-1, 12)
    usable = np.asarray(np.isfinite(given).all(axis=1))
    columns = {
        "strategy_id": _column("strategy_id", strategy_id, usable),
        "mixture_id": _column("mixture_id", mixture_id, usable),
        "sampler_log_density": _log_density(density, usable),
        "valid_actor": _column("valid_actor", valid_actor, usable),
    }
    reference = np.asarray(reference_pose, np.float64)
    if reference.shape != (12,) or not are_rigid(reference):
        raise _invalid("reference_pose", reference.tolist(), "a finite pose with a proper rotation")
    _check_target(target)
    if not 0 <= step_index < horizon:
        raise _invalid("step_index", step_index, f"0 or more, and less than the horizon {horizon}")
    sight = _Sight(state, target, camera, given[usable], reference)
    for part in (sight.of_target, sight.of_move, sight.of_map, sight.of_points, sight.of_state):
        columns |= part()
    columns |= {"step_index": np.array(step_index), "remaining": np.array(horizon - step_index)}
    features = np.full((len(given), len(FEATURES)), np.nan, np.float32)
    for place, name in enumerate(FEATURES):
        features[usable, place] = columns[name]
    return features


@dataclass(frozen=True, eq=False)
class _Sight:
    """The features that depend on the poses of the candidates, which are all finite here."""

    state: ActorState
    target: Boxes
    camera: Camera
    poses: Array
    reference: Array

    @cached_property
    def in_target(self) -> NDArray[np.bool_]:
        """Which semidense points lie in the target's box."""
        return self.target.contains(0, self.state.points)

    @cached_property
    def earlier_views(self) -> Array:
        """[k, 3]: unit vectors from the target to the cameras that saw it."""
        seen = np.zeros(len(self.state.poses), np.bool_)
        centre = self.target.centres[0]
        offsets = centres(self.state.poses) - centre
        local = np.einsum("kji,kj->ki", rotations(self.state.poses), -offsets)
        for camera in set(self.state.cameras):
            rows = np.array([each == camera for each in self.state.cameras])
            seen |= rows & camera.sees(local, IDENTITY)
        return _unit(offsets[seen])

    def of_target(self) -> dict[str, Array]:
        box = self.target
        offset = centres(self.poses) - box.centres[0]
        away = _unit(offset)
        diagonal = float(np.linalg.norm(box.extents[0].astype(np.float64)))
        local = offset @ rotations(box.pose_world_object[0]) / diagonal
        earlier = self.earlier_views
        angles = np.arccos(np.clip(away @ earlier.T, -1.0, 1.0))
        # one box seen by many cameras equals many boxes seen by one camera
        count = len(self.poses)
        placed = compose(inverse(self.poses), box.pose_world_object[0])
        seen = Boxes.build(placed, np.repeat(box.extents, count, 0), np.repeat(box.sem_id, count))
        pixels = self.camera.width * self.camera.height
        return {
            "rel_pos_target_x": local[:, 0],
            "rel_pos_target_y": local[:, 1],
            "rel_pos_target_z": local[:, 2],
            "dist_target": np.linalg.norm(offset, axis=1),
            "cos_bearing": -(away * forwards(self.poses)).sum(axis=1),
            "elev_sin": away[:, 2],
            "view_novelty_rad": angles.min(axis=1, initial=math.pi),
            "prior_view_density_30deg": (angles <= _NEAR_VIEW).sum(axis=1) / max(len(earlier), 1),
            "obb_area_frac": seen.projected_areas(IDENTITY, self.camera) / pixels,
            "obb_corners_in_frac": self.camera.sees(seen.corners(), IDENTITY).mean(axis=1),
        }

    def of_move(self) -> dict[str, Array]:
        state = self.state
        move = compose(inverse(self.reference), self.poses)
        length = np.linalg.norm(centres(move), axis=1)
        turn = rotations(move)
        twist = turn - np.swapaxes(turn, 1, 2)
        sine2 = np.linalg.norm(twist[:, [2, 0, 1], [1, 2, 0]], axis=1)
        walked = np.diff(centres(state.poses[len(state.poses) - state.moves - 1 :]), axis=0)
        columns = {
            "trans_m": length,
            "rot_rad": np.arctan2(sine2, np.trace(turn, axis1=1, axis2=2) - 1),
            "path_len_m": length + np.linalg.norm(walked, axis=1).sum(),
        }
        axes = np.swapaxes(turn[:, :, :2], 1, 2).reshape(-1, 6)
        columns |= {f"pose_rel_ref_r{k}": axes[:, k] for k in range(6)}
        return columns | {f"pose_rel_ref_t{c}": move[:, 9 + k] for k, c in enumerate("xyz")}

    def of_map(self) -> dict[str, Array]:
        known = self.state.map.covering(self.target.corners()[0])
        rays = self.camera.resized(_CELLS, _CELLS).rays().astype(np.float64)
        sums = march(
            _marked(known, self.target),
            known.cells(centres(self.poses)),
            np.ascontiguousarray(rotations(self.poses)),
            rays / known.voxel_m,
            RAY_RANGE_M,
        )
        return dict(zip(RAY_COLUMNS, (sums / len(rays)).T, strict=True))

    def of_points(self) -> dict[str, Array]:
        state, camera = self.state, self.camera
        lens: Any = tuple(
            float(getattr(camera, name))
            for name in ("fx", "fy", "cx", "cy", "width", "height", "near_m", "far_m")
        )
        counts = seen_points(
            np.ascontiguousarray(np.concatenate([state.points, state.fused_points]).T),
            self.in_target,
            len(state.points),
            np.ascontiguousarray(centres(self.poses)),
            np.ascontiguousarray(rotations(self.poses)),
            lens,
            _CELLS,
        )
        return {
            "semidense_in_view": counts[:, 0] / max(len(state.points), 1),
            "semidense_in_target_in_view": counts[:, 1] / max(self.in_target.sum(), 1),
            "empty_pixel_frac": counts[:, 2] / _CELLS**2,
        }

    def of_state(self) -> dict[str, Array]:
        """Features that all candidates of a step share."""
        box = self.target
        semidense = int(self.in_target.sum())
        fused = int(box.contains(0, self.state.fused_points).sum())
        support = semidense + fused
        values = {
            "target_confidence": box.confidence[0],
            "target_ext_x": box.extents[0, 0],
            "target_ext_y": box.extents[0, 1],
            "target_ext_z": box.extents[0, 2],
            "target_sem_id": box.sem_id[0],
            "log_semidense_support": math.log1p(semidense),
            "log_fused_support": math.log1p(fused),
            "target_deficit": 1 - min(support / SUPPORT_SATURATION, 1),
            "n_prior_target_views": len(self.earlier_views),
            "own_progress": fused / max(support, 1),
        }
        return {name: np.array(value, np.float64) for name, value in values.items()}


def _unit(vectors: Array) -> Array:
    """Vectors of length 1; a vector of length 0 stays 0."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0))


def _marked(known: ActorMap, target: Boxes) -> NDArray[np.uint8]:
    """The map's voxels with a flag on those that the target's box touches, even if it is thinner than a voxel."""
    grid = known.grid.copy()
    corners = known.cells(target.corners()[0])
    shape = np.array(grid.shape)
    low = np.clip(np.floor(corners.min(axis=0)) - 1, 0, shape).astype(np.intp)
    past = np.clip(np.floor(corners.max(axis=0)) + 2, 0, shape).astype(np.intp)
    part = grid[tuple(slice(a, b) for a, b in zip(low, past, strict=True))]
    middles = np.moveaxis(np.indices(part.shape), 0, -1) + low + known.first + 0.5
    reached = target.contains(0, middles * known.voxel_m, margin_m=known.voxel_m / 2)
    part[reached] |= TARGET
    return grid


def _column(name: str, values: ArrayLike, usable: NDArray[np.bool_]) -> Array:
    column = np.asarray(values, np.float64)
    if column.shape != usable.shape:
        raise _invalid(name, f"of shape {list(column.shape)}", f"[{len(usable)}]")
    column = column[usable]
    if not np.isfinite(column).all():
        row = np.flatnonzero(usable)[~np.isfinite(column)][0]
        raise _invalid(f"{name}[{row}]", np.asarray(values)[row], "a finite number")
    return column


def _log_density(density: ArrayLike, usable: NDArray[np.bool_]) -> Array:
    column = _column("density", density, usable)
    if (column <= 0).any():
        raise _invalid(
            "density", f"{column.min()} for a candidate that was proposed", "more than 0"
        )
    return np.asarray(np.log(column))


def _check_target(target: Boxes) -> None:
    if len(target) != 1:
        raise InvalidBoxes(record="target", detail=f"{len(target)} boxes were given, expected one")
    numbers = (target.pose_world_object, target.extents, target.confidence)
    if not all(np.isfinite(each).all() for each in numbers) or not (target.extents > 0).all():
        detail = "its pose, extents and confidence have to be finite, its extents positive"
        raise InvalidBoxes(record="target", detail=detail)


def _invalid(field: str, value: object, expected: str) -> InvalidValue:
    return InvalidValue(
        record="candidate features", field=field, value=str(value), expected=expected
    )
