"""Camera: a pinhole camera with its rays, its frustum and the points of a depth image. Depth is measured along z."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.errors import ConfigurationError
from rollbook.generate.geometry.coordinates import all_three
from rollbook.generate.geometry.poses import centres, rotations

_WELL_INSIDE_M = 1e-3
"""More than any rounding error of a corner's place."""


class Camera(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The centre of the pixel in column u and row v is at (u + 0.5, v + 0.5)."""

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    near_m: float = 0.05
    far_m: float = 20.0

    def __post_init__(self) -> None:
        numbers = (self.fx, self.fy, self.cx, self.cy, self.near_m, self.far_m)
        if self.width < 1 or self.height < 1:
            raise ConfigurationError(
                message=f"camera: {self.width}x{self.height} pixels, expected at least 1x1"
            )
        if not all(map(math.isfinite, numbers)) or self.fx <= 0 or self.fy <= 0:
            raise ConfigurationError(
                message="camera: focal lengths have to be positive, all numbers finite"
            )
        if not 0 < self.near_m < self.far_m:
            raise ConfigurationError(
                message=f"camera: near_m {self.near_m} and far_m {self.far_m}, expected 0 < near < far"
            )

    @classmethod
    def square(cls, size: int, field_of_view_deg: float = 90.0, **limits: float) -> Camera:
        if not 0 < field_of_view_deg < 180:
            raise ConfigurationError(
                message=f"camera: a field of view of {field_of_view_deg} degrees, expected between 0 and 180"
            )
        focal = size / 2 / math.tan(math.radians(field_of_view_deg) / 2)
        centre = size / 2
        return cls(width=size, height=size, fx=focal, fy=focal, cx=centre, cy=centre, **limits)

    def resized(self, width: int, height: int) -> Camera:
        """The same view with another number of pixels."""
        x, y = width / self.width, height / self.height
        return msgspec.structs.replace(
            self,
            width=width,
            height=height,
            fx=self.fx * x,
            fy=self.fy * y,
            cx=self.cx * x,
            cy=self.cy * y,
        )

    def rays(self) -> NDArray[np.float32]:
        """[H * W, 3], row by row, in the camera's frame. z is 1, so the parameter along a ray is its depth."""
        return _rays(self).copy()

    def world_rays(self, pose: ArrayLike) -> NDArray[np.float32]:
        """[H * W, 3]: the rays in world coordinates."""
        return np.asarray(self.rays() @ rotations(pose).T.astype(np.float32))

    def points(self, depth: NDArray[np.float32], pose: ArrayLike) -> NDArray[np.float32]:
        """[H, W, 3] in world coordinates; NaN where nothing was hit (depth 0)."""
        flat = np.where(depth > 0, depth, np.float32(np.nan)).reshape(-1, 1)
        placed = self.world_rays(pose) * flat + centres(pose).astype(np.float32)
        return placed.reshape(*depth.shape, 3).astype(np.float32, copy=False)

    def project(
        self, points: ArrayLike, pose: ArrayLike
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Pixels [..., 2] and depths [...] of world points. Pixels are meaningful only where depth > 0."""
        seen = (np.asarray(points, np.float64) - centres(pose)) @ rotations(pose)
        depth: NDArray[Any] = seen[..., 2]
        with np.errstate(divide="ignore", invalid="ignore"):
            pixels = seen[..., :2] / depth[..., None] * (self.fx, self.fy) + (self.cx, self.cy)
        return pixels, depth

    def sees(self, points: ArrayLike, pose: ArrayLike) -> NDArray[np.bool_]:
        """Which world points lie in the frustum, between near and far. Occlusion is ignored."""
        pixels, depth = self.project(points, pose)
        found: NDArray[Any] = (
            (depth >= self.near_m)
            & (depth <= self.far_m)
            & (pixels >= 0).all(axis=-1)
            & (pixels[..., 0] < self.width)
            & (pixels[..., 1] < self.height)
        )
        return found


@lru_cache(32)
def _rays(camera: Camera) -> NDArray[np.float32]:
    u = (np.arange(camera.width) + 0.5 - camera.cx) / camera.fx
    v = (np.arange(camera.height) + 0.5 - camera.cy) / camera.fy
    grid = np.ones((camera.height, camera.width, 3))
    grid[..., 0], grid[..., 1] = u, v[:, None]
    return grid.reshape(-1, 3).astype(np.float32)


def frustum_corners(camera: Camera) -> NDArray[np.float64]:
    """[8, 3] in the camera's frame: the four image corners at near, then at far."""
    u = (np.array([0, camera.width, camera.width, 0]) - camera.cx) / camera.fx
    v = (np.array([0, 0, camera.height, camera.height]) - camera.cy) / camera.fy
    rays = np.stack([u, v, np.ones(4)], axis=1)
    return np.concatenate([rays * camera.near_m, rays * camera.far_m])


def meets_box(
    poses: ArrayLike, camera: Camera, box_pose: ArrayLike, extents: ArrayLike
) -> NDArray[np.bool_]:
    """[N]: which of N views contain any part of one box between near and far. Occlusion is ignored.

    The test is exact: two convex bodies are apart only if a face normal, or the cross product of an edge of each,
    separates them.
    """
    half = np.asarray(extents, np.float64) / 2
    turn = rotations(box_pose).T @ rotations(poses)
    placed = (centres(poses) - centres(box_pose)) @ rotations(box_pose)
    corners = frustum_corners(camera)
    seen = corners @ np.swapaxes(turn, 1, 2) + placed[:, None]
    # a corner well inside the box is a common point, which most views of a scene's extent have: no axis can separate
    found = np.asarray(all_three(np.abs(seen) < half - _WELL_INSIDE_M).any(axis=1))
    rest = np.flatnonzero(~found)
    if len(rest):
        axes = _separating_axes(corners, turn[rest])
        along = axes @ np.swapaxes(seen[rest], 1, 2)
        reach = np.abs(axes) @ half
        apart = (along.min(axis=2) > reach) | (along.max(axis=2) < -reach)
        found[rest] = ~apart.any(axis=1)
    return found


def _separating_axes(
    corners: NDArray[np.float64], turn: NDArray[np.float64]
) -> NDArray[np.float64]:
    """[N, 26, 3]: the axes to test, in the box's frame."""
    rays = corners[4:]
    normals = np.concatenate([np.cross(rays, np.roll(rays, -1, axis=0)), [[0.0, 0.0, 1.0]]])
    edges = np.concatenate([rays, [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    turned = np.concatenate([normals, edges]) @ np.swapaxes(turn, 1, 2)
    crossed = np.cross(turned[:, 5:, None], np.eye(3)).reshape(-1, 18, 3)
    own = np.broadcast_to(np.eye(3), (len(turn), 3, 3))
    return np.concatenate([own, turned[:, :5], crossed], axis=1)
