"""ActorMap and ActorState: the map that the actor has made, and everything else that it knows.

Nothing here comes from the mesh, from ground-truth boxes or from labels. Depth is fused only after a move, at the pose
to which the actor moved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.errors import ConfigurationError, InvalidTrajectory, InvalidValue
from rollbook.generate.actor.voxels import (
    FAR,
    OCCUPIED,
    carve,
    crossed,
    near_squared_distances,
    squared_distances,
)
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.coordinates import all_finite, bounds_of
from rollbook.generate.geometry.disc import places_of_disc
from rollbook.generate.geometry.morton import morton_order
from rollbook.generate.geometry.poses import are_rigid, centres

if TYPE_CHECKING:
    from rollbook.generate.sources.reader import ActorView

Array = NDArray[np.float64]
Points = NDArray[np.float32]

_MARGIN_M = 1.0
"""The map reaches this far beyond everything that was seen."""
_REACH = np.array([100, 100, 40])
"""Most voxels to either side of the actor's first place: 10 m and 4 m at 10 cm."""
_RAYS_ACROSS = 120
"""Rays that are carved along the longer side of a depth image. Fewer rays leave holes in a wall 3 m away."""
_NEAR = 4
"""Distances of at most so many voxels are searched around each point; farther ones need the whole grid."""
_KEPT_ACROSS = 60
"""Points that are kept along the longer side of a depth image."""
_FLOOR_SEEN_M = 2.0
"""How far from its own place an actor looks for the height of the floor."""


@dataclass(frozen=True, eq=False)
class ActorMap:
    """Voxels that are unknown, free or occupied. A map never changes: fusing a depth image returns another map.

    A voxel is occupied if a ray ended in it, free if rays only passed through it, and unknown otherwise. Occupied
    overrides free, so the order of observations does not matter. Only occupied voxels block a move: if unknown ones
    did, the actor could never explore.
    """

    grid: NDArray[np.uint8]
    """[X, Y, Z] of voxels.UNKNOWN, FREE, OCCUPIED; read-only."""
    first: NDArray[np.int64]
    """Voxel (0, 0, 0) of the grid, counted from the world's origin: maps of one voxel size share one lattice."""
    home: NDArray[np.int64]
    """The voxel in which the actor began."""
    voxel_m: float
    ignored_points: int = 0
    """Number of ray ends that were not finite or beyond the reach of the map."""

    @classmethod
    def from_view(cls, view: ActorView, voxel_m: float = 0.1) -> ActorMap:
        """Carves a ray from the camera to every semidense point. A point without a frame (-1) only marks its voxel."""
        if not 0 < voxel_m < math.inf:
            raise ConfigurationError(
                message=f"actor map: voxel_m is {voxel_m}, expected more than 0"
            )
        eyes = _checked_centres(view)
        starts = np.full((len(view.points), 3), np.nan)
        known = _checked_frames(view) >= 0
        starts[known] = eyes[view.point_frame[known]]
        home = np.floor(eyes[-1] / voxel_m).astype(np.int64)
        nothing = cls(np.zeros((1, 1, 1), np.uint8), home, home, voxel_m)
        return nothing._carved(starts, view.points.astype(np.float64), eyes)

    def fused(self, depth: Points, pose: ArrayLike, camera: Camera) -> ActorMap:
        """This map with a depth image added. Pixels that hit nothing (0) are ignored."""
        return self.seen_from(centres(pose), surface_points(depth, pose, camera, _RAYS_ACROSS))

    def seen_from(self, eye: Array, points: Points) -> ActorMap:
        """This map with a ray from the eye to each of these points [n, 3]."""
        ends = points.astype(np.float64)
        return self._carved(np.broadcast_to(eye, ends.shape), ends, eye[None])

    def covering(self, points: Array) -> ActorMap:
        """This map, enlarged to contain these points [n, 3]. New voxels are unknown."""
        first, past = self._box_with(points)
        if (first == self.first).all() and (past - first == self.grid.shape).all():
            return self
        grid = np.zeros(past - first, np.uint8)
        at = self.first - first
        old = tuple(slice(low, low + size) for low, size in zip(at, self.grid.shape, strict=True))
        grid[old] = self.grid
        grid.flags.writeable = False
        return replace(self, grid=grid, first=first)

    def _carved(self, starts: Array, ends: Array, eyes: Array) -> ActorMap:
        larger = self.covering(np.concatenate([eyes, ends]))
        grid = larger.grid.copy()
        outside = carve(grid, larger.cells(starts), larger.cells(ends))
        grid.flags.writeable = False
        return replace(larger, grid=grid, ignored_points=self.ignored_points + outside)

    def _box_with(self, points: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First voxel, and the one past the last, of a grid that also contains these points, limited by `_REACH`."""
        lowest, highest = bounds_of(points[all_finite(points)])
        low = np.floor((lowest - _MARGIN_M) / self.voxel_m)
        high = np.floor((highest + _MARGIN_M) / self.voxel_m) + 1
        nearest, farthest = self.home - _REACH, self.home + _REACH + 1
        return (
            np.minimum(np.clip(low, nearest, farthest - 1).astype(np.int64), self.first),
            np.maximum(
                np.clip(high, nearest + 1, farthest).astype(np.int64), self.first + self.grid.shape
            ),
        )

    # -------------------------------------------------------------------------------- surroundings

    @property
    def bounds(self) -> Array:
        """[2, 3]: lower and upper corner of the grid."""
        return np.array([self.first, self.first + self.grid.shape]) * self.voxel_m

    def distance(self, points: ArrayLike, bound: float = math.inf) -> Points:
        """[n]: distance from the centre of each point's voxel to that of the nearest occupied one, at most `bound`.

        It is 0 in an occupied voxel and `bound` if no voxel is occupied. The true surface may be nearer or farther by
        one voxel diagonal. Outside the grid the result is a lower limit. A point that is not finite gives NaN.
        """
        given = np.asarray(points, np.float64).reshape(-1, 3)
        cell = self.cells(given)
        inside = np.clip(np.floor(cell), 0, np.array(self.grid.shape) - 1)
        beyond = np.maximum(np.maximum(inside - cell, cell - inside - 1), 0)
        known = all_finite(given)
        cells = np.where(known[:, None], inside, 0).astype(np.intp)
        reach = bound / self.voxel_m
        if reach <= _NEAR:
            squares = near_squared_distances(self.grid, cells, math.ceil(reach))
        else:
            squares = self._squares[tuple(cells.T)]
        with np.errstate(invalid="ignore", over="ignore"):
            far = np.sqrt(squares + (beyond**2).sum(axis=1)) * self.voxel_m
        far = np.where(squares == FAR, math.inf, far)
        return np.where(known, np.minimum(far, bound), math.nan).astype(np.float32)

    def path_clearance(
        self, start: ArrayLike, ends: ArrayLike, samples: int, bound: float
    ) -> Points:
        """[N]: least `distance` at evenly spaced points of each straight path, its end included, its start excluded."""
        here, there = np.asarray(start, np.float64), np.asarray(ends, np.float64).reshape(-1, 3)
        part = (np.arange(samples) + 1)[:, None] / samples
        with np.errstate(invalid="ignore"):
            points = here + part * (there[:, None] - here)
        return np.asarray(self.distance(points, bound).reshape(len(there), samples).min(axis=1))

    def path_hits(self, start: ArrayLike, ends: ArrayLike) -> NDArray[np.bool_]:
        """[N]: which straight paths cross an occupied voxel other than their first. Ends must be finite to hit."""
        there = self.cells(np.asarray(ends, np.float64).reshape(-1, 3))
        return crossed(self.grid, self.cells(np.asarray(start, np.float64)), there)

    def floor_below(self, point: ArrayLike, radius: float) -> float:
        """Upper side of the lowest occupied voxel near a point [3] and below it; NaN if there is none.

        Near is within `_FLOOR_SEEN_M` along x and y: an actor that walks rarely sees the floor under its own feet.
        """
        at = self.cells(np.asarray(point, np.float64))
        reach = max(radius, _FLOOR_SEEN_M) / self.voxel_m
        low = np.maximum(np.floor(at - reach), 0).astype(np.int64)
        high = np.maximum(np.floor(at + reach) + 1, 0).astype(np.int64)
        top = max(int(np.floor(at[2])), 0)
        around = self.grid[low[0] : high[0], low[1] : high[1], :top] == OCCUPIED
        filled = np.flatnonzero(around.any(axis=(0, 1)))
        if not len(filled):
            return math.nan
        return float((filled[0] + 1 + self.first[2]) * self.voxel_m)

    def highest_below(self, points: ArrayLike, radius: float) -> Points:
        """[n]: lower side of the highest occupied voxel under a disc of this radius at each point; NaN for none.

        A step is measured from the floor's upper side to here: only a step that the actor is sure of counts.
        """
        places = self.cells(places_of_disc(points, radius))
        cell = np.floor(places).astype(np.int64)
        inside = np.asarray(((cell >= 0) & (cell < self.grid.shape)).all(axis=2))
        i, j, k = np.where(inside[..., None], cell, 0).transpose(2, 0, 1)
        layers = np.arange(self.grid.shape[2])
        below = (self.grid[i, j] == OCCUPIED) & (layers < k[..., None]) & inside[..., None]
        highest = np.where(below, layers, -1).max(axis=(1, 2))
        heights = (highest + self.first[2]) * self.voxel_m
        return np.where(highest >= 0, heights, math.nan).astype(np.float32)

    def cells(self, points: Array) -> Array:
        """Points in units of the grid: voxel (i, j, k) reaches from (i, j, k) to (i + 1, j + 1, k + 1)."""
        return points / self.voxel_m - self.first

    def occupied_centres(self) -> Array:
        """[n, 3]: centres of the occupied voxels in world coordinates."""
        cells = np.argwhere(self.grid == OCCUPIED) + self.first
        return (cells.astype(np.float64) + 0.5) * self.voxel_m

    @cached_property
    def _squares(self) -> NDArray[np.int32]:
        return squared_distances(self.grid)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActorState:
    """Everything that the actor knows. A state never changes: a move returns another state."""

    map: ActorMap
    poses: Array
    """[K, 12]: all camera poses, first the recorded trajectory, then every pose to which the actor moved."""
    cameras: tuple[Camera, ...]
    """The camera of each pose."""
    points: Points
    """[P, 3]: semidense points of the recording."""
    fused_points: Points = field(default_factory=lambda: np.zeros((0, 3), np.float32))
    """[Q, 3]: points of the actor's own depth images, evenly thinned."""
    moves: int = 0

    @classmethod
    def from_view(cls, view: ActorView, voxel_m: float = 0.1) -> ActorState:
        """The state before the first move. Points that are not finite are left out; neighbours follow each other."""
        points = np.asarray(view.points[all_finite(view.points)])
        return cls(
            map=ActorMap.from_view(view, voxel_m),
            poses=view.poses.astype(np.float64),
            cameras=(view.camera,) * len(view.poses),
            points=points[morton_order(points)],
        )

    def advanced(self, pose: ArrayLike, depth: Points, camera: Camera) -> ActorState:
        """The state after a move to `pose`, where `depth` was seen."""
        taken = np.asarray(pose, np.float64).reshape(1, 12)
        points = _world_points(depth, taken[0], camera)
        ends, kept = (_thinned(points, depth, across) for across in (_RAYS_ACROSS, _KEPT_ACROSS))
        return replace(
            self,
            map=self.map.seen_from(centres(taken[0]), ends),
            poses=np.concatenate([self.poses, taken]),
            cameras=(*self.cameras, camera),
            fused_points=np.concatenate([self.fused_points, kept]),
            moves=self.moves + 1,
        )


def surface_points(depth: Points, pose: ArrayLike, camera: Camera, across: int) -> Points:
    """World points [n, 3] of the pixels that hit a surface, thinned to about `across` points per row."""
    return _thinned(_world_points(depth, pose, camera), depth, across)


def _world_points(depth: Points, pose: ArrayLike, camera: Camera) -> Points:
    if depth.shape != (camera.height, camera.width):
        raise _invalid(
            "depth", f"of shape {list(depth.shape)}", f"[{camera.height}, {camera.width}]"
        )
    if not (np.isfinite(depth).all() and (depth >= 0).all()):
        raise _invalid(
            "depth", "not finite or negative somewhere", "metres; 0 where nothing is hit"
        )
    if not are_rigid(pose):
        raise _invalid("pose", np.asarray(pose).tolist(), "finite, with a proper rotation")
    return camera.points(depth, pose)


def _thinned(points: Points, depth: Points, across: int) -> Points:
    step = max(1, max(depth.shape) // across)
    kept = np.s_[step // 2 :: step, step // 2 :: step]
    return points[kept][depth[kept] > 0]


def _checked_centres(view: ActorView) -> Array:
    bad = np.flatnonzero(~are_rigid(view.poses))
    if not len(view.poses) or len(bad):
        detail = f"pose {bad[0]} is not rigid" if len(bad) else "there is no pose"
        raise InvalidTrajectory(record="actor view", detail=detail)
    return centres(view.poses)


def _checked_frames(view: ActorView) -> NDArray[np.int32]:
    frames = np.asarray(view.point_frame)
    if frames.shape != (len(view.points),):
        raise _invalid(
            "point_frame", f"of length {len(frames)}", f"one for each of {len(view.points)} points"
        )
    bad = np.flatnonzero((frames < -1) | (frames >= len(view.poses)))
    if len(bad):
        expected = f"a frame below {len(view.poses)}, or -1"
        raise _invalid(f"point_frame[{bad[0]}]", frames[bad[0]], expected)
    return frames


def _invalid(field_name: str, value: object, expected: str) -> InvalidValue:
    return InvalidValue(record="actor view", field=field_name, value=str(value), expected=expected)
