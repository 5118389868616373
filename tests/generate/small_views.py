"""Small actor views for tests, and the voxels a straight line passes, found the slow way."""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.poses import look_at, poses_of
from rollbook.generate.sources.reader import ActorView

Voxel = tuple[int, int, int]
CAMERA = Camera.square(32)


def a_view(poses: ArrayLike, points: ArrayLike = (), frames: ArrayLike | None = None) -> ActorView:
    """Points of frame 0 unless `frames` says otherwise."""
    placed = np.asarray(poses, np.float32).reshape(-1, 12)
    seen = np.asarray(points, np.float32).reshape(-1, 3)
    of_frame = np.zeros(len(seen), np.int32) if frames is None else np.asarray(frames, np.int32)
    nothing = np.full(len(seen), np.nan, np.float32)
    times = np.arange(len(placed), dtype=np.int64)
    return ActorView(placed, times, CAMERA, seen, of_frame, nothing, nothing, Boxes.none())


def a_walk(rng: np.random.Generator, frames: int = 4, points: int = 200) -> ActorView:
    """A walk past the origin, points all around it, seen by any of the frames."""
    eyes = np.stack([np.linspace(-1, 1, frames), np.full(frames, -2.0), np.full(frames, 0.5)], 1)
    eyes += rng.uniform(-0.04, 0.04, eyes.shape)
    cloud = rng.normal(0, 0.8, (points, 3))
    return a_view(look_at(eyes, np.zeros(3)), cloud, rng.integers(0, frames, points))


def a_box(
    centre: ArrayLike = (0, 0, 0), extents: ArrayLike = (1, 1, 1), turn: float = 0.0
) -> Boxes:
    """Turned about +Z."""
    c, s = math.cos(turn), math.sin(turn)
    pose = poses_of(np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]), np.asarray(centre, np.float64))
    return Boxes.build(pose[None], np.asarray(extents)[None], [7], confidence=[0.8])


def walked(start: NDArray[np.float64], end: NDArray[np.float64]) -> list[tuple[float, Voxel]]:
    """The voxels from start to end, each with the part of the way at which it is entered.

    Every plane between voxels is met at some part of the way; between two such parts, one is in one voxel.
    """
    parts = {0.0, 1.0}
    for x, y in zip(start.tolist(), end.tolist(), strict=True):
        if x != y:
            planes = range(math.floor(min(x, y)), math.ceil(max(x, y)) + 1)
            parts |= {(plane - x) / (y - x) for plane in planes}
    ordered = sorted(part for part in parts if 0 <= part <= 1)
    found = []
    for a, b in itertools.pairwise(ordered):
        if b - a > 1e-9:  # less is an edge, where either neighbour will do
            i, j, k = np.floor(start + (a + b) / 2 * (end - start)).astype(int).tolist()
            found.append((a, (i, j, k)))
    return found


def inside(voxel: Voxel, shape: tuple[int, ...]) -> bool:
    return all(0 <= at < size for at, size in zip(voxel, shape, strict=True))
