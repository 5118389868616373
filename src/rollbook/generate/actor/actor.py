"""What the actor knows: a map of the space it has seen, and everything it has gathered on its way.

Nothing here comes from the mesh, from ground-truth boxes or from labels. Depth is fused only after a move, at the pose
that was taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.errors import ConfigurationError, InvalidTrajectory, InvalidValue
from rollbook.generate.actor.voxels import FAR, OCCUPIED, carve, crossed, squared_distances
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.poses import are_rigid, centres

if TYPE_CHECKING:
    from rollbook.generate.sources.reader import ActorView

Array = NDArray[np.float64]
Points = NDArray[np.float32]

_MARGIN_M = 1.0
"""The map reaches this far beyond all that was seen."""
_REACH = np.array([100, 100, 40])
"""Voxels to either side of where the actor began: there the map ends, however far one sees. 10 m and 4 m at 10 cm."""
_RAYS_ACROSS = 120
"""Of a depth image about so many rays are carved along its longer side: fewer leave holes in a wall 3 m away."""
_KEPT_ACROSS = 60
"""And about so many of its points are kept."""


@dataclass(frozen=True, eq=False)
class ActorMap:
    """Voxels that are unknown, free or occupied. It never changes: fusing a depth image gives another map.

    A voxel is occupied when a ray ended in it, free when rays only passed through, unknown otherwise. Occupied wins,
    whichever came first, so the order of observations does not matter. For movement only occupied voxels are in the
    way; unknown ones are not, or the actor could never go anywhere new.
    """

    grid: NDArray[np.uint8]
    """[X, Y, Z] of voxels.UNKNOWN, FREE, OCCUPIED; read-only."""
    first: NDArray[np.int64]
    """Voxel (0, 0, 0) of the grid, counted from the world's origin: maps of one voxel size share one lattice."""
    home: NDArray[np.int64]
    """The voxel the actor began in."""
    voxel_m: float
    ignored_points: int = 0
    """Ends of rays that were not finite, or lay beyond the reach of the map."""

    @classmethod
    def from_view(cls, view: ActorView, voxel_m: float = 0.1) -> ActorMap:
        """Every semidense point is a ray from the camera that saw it. A point of no frame (-1) is only occupied."""
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
        """This map and what a depth image adds. Pixels that hit nothing (0) say nothing."""
        ends = surface_points(depth, pose, camera, _RAYS_ACROSS).astype(np.float64)
        eye = centres(pose)
        return self._carved(np.broadcast_to(eye, ends.shape), ends, eye[None])

    def covering(self, points: Array) -> ActorMap:
        """This map, made larger where it does not reach around these points [n, 3]; what is new is unknown."""
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
        grid, first = larger.grid.copy(), larger.first
        outside = carve(grid, starts / self.voxel_m - first, ends / self.voxel_m - first)
        grid.flags.writeable = False
        return replace(larger, grid=grid, ignored_points=self.ignored_points + outside)

    def _box_with(self, points: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First voxel and the one past the last of a grid that also holds these points, as far as the map may reach."""
        finite = points[np.isfinite(points).all(axis=1)]
        low = np.floor((finite.min(axis=0) - _MARGIN_M) / self.voxel_m)
        high = np.floor((finite.max(axis=0) + _MARGIN_M) / self.voxel_m) + 1
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
        """[2, 3]: least and greatest corner of the grid."""
        return np.array([self.first, self.first + self.grid.shape]) * self.voxel_m

    def distance(self, points: ArrayLike, bound: float = math.inf) -> Points:
        """From the middle of each point's voxel to the middle of the nearest occupied one, at most `bound`; [n].

        0 in an occupied voxel; `bound` where nothing is. The true surface may be nearer or farther by one diagonal of
        a voxel. Outside the grid it is the least that it can be. A point that is not finite gives NaN.
        """
        given = np.asarray(points, np.float64).reshape(-1, 3)
        cell = self.cells(given)
        inside = np.clip(np.floor(cell), 0, np.array(self.grid.shape) - 1)
        beyond = np.maximum(np.maximum(inside - cell, cell - inside - 1), 0)
        known = np.asarray(np.isfinite(given).all(axis=1))
        i, j, k = np.where(known[:, None], inside, 0).astype(np.intp).T
        squares = self._squares[i, j, k]
        with np.errstate(invalid="ignore", over="ignore"):
            far = np.sqrt(squares + (beyond**2).sum(axis=1)) * self.voxel_m
        far = np.where(squares == FAR, math.inf, far)
        return np.where(known, np.minimum(far, bound), math.nan).astype(np.float32)

    def path_clearance(
        self, start: ArrayLike, ends: ArrayLike, samples: int, bound: float
    ) -> Points:
        """The least `distance` at evenly spaced points of each straight way, its end among them; [N].

        Where the way starts is not asked: one is there already.
        """
        here, there = np.asarray(start, np.float64), np.asarray(ends, np.float64).reshape(-1, 3)
        part = (np.arange(samples) + 1)[:, None] / samples
        with np.errstate(invalid="ignore"):
            points = here + part * (there[:, None] - here)
        return np.asarray(self.distance(points, bound).reshape(len(there), samples).min(axis=1))

    def path_hits(self, start: ArrayLike, ends: ArrayLike) -> NDArray[np.bool_]:
        """Which straight ways lead through an occupied voxel, other than the one they start in; [N].

        An end that is not finite hits nothing.
        """
        there = self.cells(np.asarray(ends, np.float64).reshape(-1, 3))
        return crossed(self.grid, self.cells(np.asarray(start, np.float64)), there)

    def cells(self, points: Array) -> Array:
        """Points in the grid's own units: voxel (i, j, k) reaches from there to one more."""
        return points / self.voxel_m - self.first

    def occupied_centres(self) -> Array:
        """[n, 3] in the world: the middles of the occupied voxels."""
        cells = np.argwhere(self.grid == OCCUPIED) + self.first
        return (cells.astype(np.float64) + 0.5) * self.voxel_m

    @cached_property
    def _squares(self) -> NDArray[np.int32]:
        return squared_distances(self.grid)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActorState:
    """Everything the actor has gathered up to now. It never changes: a move gives another state."""

    map: ActorMap
    poses: Array
    """[K, 12]: where it looked from. The recorded trajectory first, then every pose it moved to."""
    cameras: tuple[Camera, ...]
    """What it looked with at each pose."""
    points: Points
    """[P, 3]: semidense points of the recording."""
    fused_points: Points = field(default_factory=lambda: np.zeros((0, 3), np.float32))
    """[Q, 3]: points of its own depth images, evenly thinned."""
    moves: int = 0

    @classmethod
    def from_view(cls, view: ActorView, voxel_m: float = 0.1) -> ActorState:
        """Before the first move. Points that are not finite are left out: they are nowhere."""
        return cls(
            map=ActorMap.from_view(view, voxel_m),
            poses=view.poses.astype(np.float64),
            cameras=(view.camera,) * len(view.poses),
            points=np.asarray(view.points[np.isfinite(view.points).all(axis=1)]),
        )

    def advanced(self, pose: ArrayLike, depth: Points, camera: Camera) -> ActorState:
        """After a move to `pose`, where `depth` was seen."""
        taken = np.asarray(pose, np.float64).reshape(1, 12)
        seen = surface_points(depth, taken[0], camera, _KEPT_ACROSS)
        return replace(
            self,
            map=self.map.fused(depth, taken[0], camera),
            poses=np.concatenate([self.poses, taken]),
            cameras=(*self.cameras, camera),
            fused_points=np.concatenate([self.fused_points, seen]),
            moves=self.moves + 1,
        )


def surface_points(depth: Points, pose: ArrayLike, camera: Camera, across: int) -> Points:
    """World points [n, 3] of the pixels that hit something; every few pixels, so that about `across` are in a row."""
    if depth.shape != (camera.height, camera.width):
        raise _wrong("depth", f"of shape {list(depth.shape)}", f"[{camera.height}, {camera.width}]")
    if not (np.isfinite(depth).all() and (depth >= 0).all()):
        raise _wrong("depth", "not finite or negative somewhere", "metres; 0 where nothing is hit")
    if not are_rigid(pose):
        raise _wrong("pose", np.asarray(pose).tolist(), "finite, with a proper rotation")
    step = max(1, max(depth.shape) // across)
    kept = np.s_[step // 2 :: step, step // 2 :: step]
    return camera.points(depth, pose)[kept][depth[kept] > 0]


def _checked_centres(view: ActorView) -> Array:
    bad = np.flatnonzero(~are_rigid(view.poses))
    if not len(view.poses) or len(bad):
        detail = f"pose {bad[0]} is not rigid" if len(bad) else "there is no pose"
        raise InvalidTrajectory(record="actor view", detail=detail)
    return centres(view.poses)


def _checked_frames(view: ActorView) -> NDArray[np.int32]:
    frames = np.asarray(view.point_frame)
    if frames.shape != (len(view.points),):
        raise _wrong(
            "point_frame", f"of length {len(frames)}", f"one for each of {len(view.points)} points"
        )
    bad = np.flatnonzero((frames < -1) | (frames >= len(view.poses)))
    if len(bad):
        expected = f"a frame below {len(view.poses)}, or -1"
        raise _wrong(f"point_frame[{bad[0]}]", frames[bad[0]], expected)
    return frames


def _wrong(field_name: str, value: object, expected: str) -> InvalidValue:
    return InvalidValue(record="actor view", field=field_name, value=str(value), expected=expected)
