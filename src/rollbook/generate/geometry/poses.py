"""Poses as columns: [N, 12] = 9 row-major rotation values and 3 translation values, world from camera.

A camera looks along its +z; its x points right and its y down. The world's up is +Z. All results are float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.generate.geometry.coordinates import cross

Array = NDArray[np.float64]

UP = np.array([0.0, 0.0, 1.0])
IDENTITY = np.array([1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0], np.float64)


def rotations(poses: ArrayLike) -> Array:
    """[..., 3, 3]"""
    values = np.asarray(poses, np.float64)
    return values[..., :9].reshape(*values.shape[:-1], 3, 3)


def centres(poses: ArrayLike) -> Array:
    """[..., 3]"""
    return np.asarray(poses, np.float64)[..., 9:]


def forwards(poses: ArrayLike) -> Array:
    """[..., 3]: view directions."""
    return rotations(poses)[..., :, 2]


def poses_of(rotation: ArrayLike, centre: ArrayLike) -> Array:
    """[..., 12] from rotations [..., 3, 3] and centres [..., 3]."""
    turned, placed = np.asarray(rotation, np.float64), np.asarray(centre, np.float64)
    flat = turned.reshape(*turned.shape[:-2], 9)
    lead = np.broadcast_shapes(flat.shape[:-1], placed.shape[:-1])
    return np.concatenate(
        [np.broadcast_to(flat, (*lead, 9)), np.broadcast_to(placed, (*lead, 3))], axis=-1
    )


def compose(first: ArrayLike, second: ArrayLike) -> Array:
    """Applies `second`, then `first`: world-from-a and a-from-b give world-from-b."""
    turn = rotations(first)
    return poses_of(
        turn @ rotations(second), (turn @ centres(second)[..., None])[..., 0] + centres(first)
    )


def inverse(poses: ArrayLike) -> Array:
    turned = np.swapaxes(rotations(poses), -1, -2)
    return poses_of(turned, -(turned @ centres(poses)[..., None])[..., 0])


def moved(pose: ArrayLike, points: ArrayLike) -> Array:
    """Points [..., 3] transformed by one pose [12]."""
    return np.asarray(points, np.float64) @ rotations(pose).T + centres(pose)


def look_at(eyes: ArrayLike, at: ArrayLike) -> Array:
    """Level cameras at `eyes` that look at `at`. Cameras that look straight up or down head along +x."""
    eye = np.asarray(eyes, np.float64)
    return poses_of(looking_along(np.asarray(at, np.float64) - eye), eye)


def looking_along(directions: ArrayLike) -> Array:
    """Rotations [..., 3, 3] of level cameras that look along these directions."""
    given = np.asarray(directions, np.float64)
    length = np.linalg.norm(given, axis=-1, keepdims=True)
    # a direction of infinite or zero length has no rotation: NaN
    with np.errstate(invalid="ignore"):
        forward = np.divide(given, length, out=np.full_like(given, np.nan), where=length > 0)
    right = cross(forward, UP)
    size = np.linalg.norm(right, axis=-1, keepdims=True)
    vertical = size < 1e-9
    right = np.where(vertical, np.array([0.0, -1.0, 0.0]), right / np.where(vertical, 1.0, size))
    down = cross(forward, right)
    return np.stack([right, down, forward], axis=-1)


def headings(poses: ArrayLike) -> Array:
    """[...]: angle of the view direction about +Z, in radians from +x."""
    forward = forwards(poses)
    return np.asarray(np.arctan2(forward[..., 1], forward[..., 0]))


def wrapped(angles: ArrayLike) -> Array:
    """Angles in (-pi, pi]."""
    turned = np.pi - np.mod(np.pi - np.asarray(angles, np.float64), 2 * np.pi)
    # a remainder just below a full turn may be rounded up to the full turn
    return np.where(turned <= -np.pi, np.pi, turned)


def are_rigid(poses: ArrayLike, tolerance: float = 1e-4) -> NDArray[np.bool_]:
    """Which poses are finite and have a proper rotation."""
    turned = rotations(poses)
    with np.errstate(invalid="ignore", over="ignore"):
        square = np.abs(turned @ np.swapaxes(turned, -1, -2) - np.eye(3)).max(axis=(-1, -2))
        proper = np.linalg.det(np.nan_to_num(turned)) > 0
    found: NDArray[Any] = np.isfinite(poses).all(axis=-1) & (square < tolerance) & proper
    return found
