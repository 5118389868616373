"""Frustums: the part of space a camera sees, between near and far. Walls are not looked at."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.poses import centres, rotations

Array = NDArray[np.float64]


def frustum_corners(camera: Camera) -> Array:
    """[8, 3] in the camera's frame: four at near, then the same four at far, around the image."""
    u = (np.array([0, camera.width, camera.width, 0]) - camera.cx) / camera.fx
    v = (np.array([0, 0, camera.height, camera.height]) - camera.cy) / camera.fy
    rays = np.stack([u, v, np.ones(4)], axis=1)
    return np.concatenate([rays * camera.near_m, rays * camera.far_m])


def meets_box(
    poses: ArrayLike, camera: Camera, box_pose: ArrayLike, extents: ArrayLike
) -> NDArray[np.bool_]:
    """Which of N views have any part of one box in them, [N]. Exact: two convex bodies are apart only if some
    normal of a face, or some edge of one crossed with an edge of the other, separates them."""
    half = np.asarray(extents, np.float64) / 2
    turn = rotations(box_pose).T @ rotations(poses)
    placed = (centres(poses) - centres(box_pose)) @ rotations(box_pose)
    corners = frustum_corners(camera)
    seen = corners @ np.swapaxes(turn, 1, 2) + placed[:, None]
    axes = _separating_axes(corners, turn)
    along = axes @ np.swapaxes(seen, 1, 2)
    reach = np.abs(axes) @ half
    apart = (along.min(axis=2) > reach) | (along.max(axis=2) < -reach)
    return np.asarray(~apart.any(axis=1))


def _separating_axes(corners: Array, turn: Array) -> Array:
    """[N, 26, 3] in the box's frame."""
    rays = corners[4:]
    normals = np.concatenate([np.cross(rays, np.roll(rays, -1, axis=0)), [[0.0, 0.0, 1.0]]])
    edges = np.concatenate([rays, [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    turned = np.concatenate([normals, edges]) @ np.swapaxes(turn, 1, 2)
    crossed = np.cross(turned[:, 5:, None], np.eye(3)).reshape(-1, 18, 3)
    own = np.broadcast_to(np.eye(3), (len(turn), 3, 3))
    return np.concatenate([own, turned[:, :5], crossed], axis=1)
