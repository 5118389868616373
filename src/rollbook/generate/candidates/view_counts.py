"""Counts of world points in a view, and of the points of a rendered image."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.errors import InvalidValue
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.poses import IDENTITY, centres, rotations
from rollbook.generate.raycast.compiled import compiled

Array = NDArray[np.float64]


def points_in_view(poses: ArrayLike, camera: Camera, points: ArrayLike) -> NDArray[np.int64]:
    """[N]: number of these world points in each of N views. NaN is in no view."""
    return np.asarray(
        _counted(
            np.ascontiguousarray(rotations(poses)),
            np.ascontiguousarray(centres(poses)),
            np.ascontiguousarray(points, np.float32).reshape(-1, 3),
            np.array([camera.fx, camera.fy, camera.cx, camera.cy], np.float64),
            np.array([camera.width, camera.height, camera.near_m, camera.far_m], np.float64),
        )
    )


@compiled
def _counted(
    turned: Array, placed: Array, points: NDArray[np.float32], lens: Array, limits: Array
) -> NDArray[np.int64]:
    found = np.zeros(len(turned), np.int64)
    for row in range(len(turned)):
        turn, place = turned[row], placed[row]
        for k in range(len(points)):
            x, y, z = points[k, 0] - place[0], points[k, 1] - place[1], points[k, 2] - place[2]
            depth = turn[0, 2] * x + turn[1, 2] * y + turn[2, 2] * z
            if not (depth >= limits[2] and depth <= limits[3]):
                continue
            u = (turn[0, 0] * x + turn[1, 0] * y + turn[2, 0] * z) / depth * lens[0] + lens[2]
            v = (turn[0, 1] * x + turn[1, 1] * y + turn[2, 1] * z) / depth * lens[1] + lens[3]
            if u >= 0 and u < limits[0] and v >= 0 and v < limits[1]:
                found[row] += 1
    return found


def pixel_counts(
    depth: NDArray[np.float32],
    poses: ArrayLike,
    camera: Camera,
    *,
    stride: int,
    extent: ArrayLike | None,
    box: Boxes | None,
    every: int = 1,
) -> NDArray[np.int64]:
    """[3, n]: for each image [n, H, W] the pixels that hit a surface; those in every `stride`-th row and column whose
    point lies in the `extent` [2, 3]; and those whose point lies in the one `box`, 0 without a box.

    With `every` above 1 the images hold only every so-many-th row and column, and only these are counted.
    """
    expected = (len(np.asarray(poses)), -(-camera.height // every), -(-camera.width // every))
    if depth.shape != expected:
        shapes = f"of shape {list(depth.shape)}", f"{list(expected)}, as the poses and the camera"
        raise InvalidValue(record="images", field="depth", value=shapes[0], expected=shapes[1])
    limits = np.array([[-np.inf] * 3, [np.inf] * 3]) if extent is None else np.asarray(extent)
    pose = IDENTITY if box is None else box.pose_world_object[0]
    half = np.full(3, -1.0) if box is None else box.extents[0].astype(np.float64) / 2
    return np.asarray(
        _count_pixels(
            np.ascontiguousarray(depth),
            np.ascontiguousarray(
                camera.rays().reshape(camera.height, camera.width, 3)[::every, ::every]
            ),
            np.ascontiguousarray(rotations(poses)),
            np.ascontiguousarray(centres(poses)),
            np.ascontiguousarray(limits, np.float64),
            stride,
            every,
            np.ascontiguousarray(rotations(pose)),
            np.ascontiguousarray(centres(pose)),
            half,
        )
    )


@compiled
def _count_pixels(
    depth: NDArray[np.float32],
    rays: NDArray[np.float32],
    turned: Array,
    placed: Array,
    limits: Array,
    stride: int,
    every: int,
    box_turn: Array,
    box_centre: Array,
    half: Array,
) -> NDArray[np.int64]:
    """A `half` below 0 means that there is no box."""
    low, high = limits[0], limits[1]
    counts = np.zeros((3, len(depth)), np.int64)
    for row in range(len(depth)):
        turn, place = turned[row], placed[row]
        for v in range(depth.shape[1]):
            for u in range(depth.shape[2]):
                far = depth[row, v, u]
                if not (far > 0 and far < np.inf):
                    continue
                counts[0, row] += 1
                thinned = v * every % stride == 0 and u * every % stride == 0
                x, y, z = rays[v, u, 0] * far, rays[v, u, 1] * far, rays[v, u, 2] * far
                wx = turn[0, 0] * x + turn[0, 1] * y + turn[0, 2] * z + place[0]
                wy = turn[1, 0] * x + turn[1, 1] * y + turn[1, 2] * z + place[1]
                wz = turn[2, 0] * x + turn[2, 1] * y + turn[2, 2] * z + place[2]
                if thinned and (
                    low[0] <= wx <= high[0] and low[1] <= wy <= high[1] and low[2] <= wz <= high[2]
                ):
                    counts[1, row] += 1
                if half[0] < 0:
                    continue
                wx, wy, wz = wx - box_centre[0], wy - box_centre[1], wz - box_centre[2]
                within = True
                for k in range(3):
                    along = box_turn[0, k] * wx + box_turn[1, k] * wy + box_turn[2, k] * wz
                    within = within and abs(along) <= half[k]
                if within:
                    counts[2, row] += 1
    return counts
