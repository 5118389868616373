"""Camera: a pinhole, its rays, and the points a depth image stands for. Depth is along z, not along the ray."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.errors import ConfigurationError
from rollbook.generate.geometry.poses import centres, rotations


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
        """The same view in other pixels."""
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
        """[H * W, 3], row by row, in the camera's frame, with z = 1: so a ray's parameter is its depth."""
        u = (np.arange(self.width) + 0.5 - self.cx) / self.fx
        v = (np.arange(self.height) + 0.5 - self.cy) / self.fy
        grid = np.ones((self.height, self.width, 3))
        grid[..., 0], grid[..., 1] = u, v[:, None]
        return grid.reshape(-1, 3).astype(np.float32)

    def world_rays(self, pose: ArrayLike) -> NDArray[np.float32]:
        """The same in the world, [H * W, 3]."""
        return np.asarray(self.rays() @ rotations(pose).T.astype(np.float32))

    def points(self, depth: NDArray[np.float32], pose: ArrayLike) -> NDArray[np.float32]:
        """[H, W, 3] in the world; NaN where nothing was hit (depth 0)."""
        flat = np.where(depth > 0, depth, np.float32(np.nan)).reshape(-1, 1)
        placed = self.world_rays(pose) * flat + centres(pose).astype(np.float32)
        return placed.reshape(*depth.shape, 3).astype(np.float32, copy=False)

    def project(
        self, points: ArrayLike, pose: ArrayLike
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Pixels [..., 2] and depths [...] of world points; pixels mean something only where depth > 0."""
        seen = (np.asarray(points, np.float64) - centres(pose)) @ rotations(pose)
        depth: NDArray[Any] = seen[..., 2]
        with np.errstate(divide="ignore", invalid="ignore"):
            pixels = seen[..., :2] / depth[..., None] * (self.fx, self.fy) + (self.cx, self.cy)
        return pixels, depth

    def sees(self, points: ArrayLike, pose: ArrayLike) -> NDArray[np.bool_]:
        """Which world points lie in the view's pyramid, between near and far; walls are not looked at."""
        pixels, depth = self.project(points, pose)
        found: NDArray[Any] = (
            (depth >= self.near_m)
            & (depth <= self.far_m)
            & (pixels >= 0).all(axis=-1)
            & (pixels[..., 0] < self.width)
            & (pixels[..., 1] < self.height)
        )
        return found
