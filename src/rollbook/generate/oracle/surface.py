"""Surfaces to cover: samples spread evenly over triangles, or the triangles themselves, in blocks of sixteen.

Every sample stands for the same area, so a mean over samples does not depend on how the surface is cut into triangles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.coordinates import all_three
from rollbook.generate.geometry.mesh import TriangleMesh
from rollbook.generate.geometry.morton import morton_order
from rollbook.generate.geometry.poses import centres, moved, rotations
from rollbook.generate.raycast.vector_steps import LANES

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class SurfaceSamples:
    """Points on a surface; each stands for an equal share of its area."""

    points: Floats
    """[S, 3], in Morton order."""
    area_m2: float
    lanes: Floats
    """[B, 3, 16]: the points in blocks; the last point is repeated to fill the last block."""
    boxes: Floats
    """[B, 6]: the box around each block."""

    def __len__(self) -> int:
        return len(self.points)


@dataclass(frozen=True, slots=True, eq=False)
class SurfaceFaces:
    """Triangles; each counts once, whatever its size."""

    rows: NDArray[np.intp]
    """[F]: indices of the given triangles, in Morton order of their centres."""
    corners: Floats
    """[F, 9]"""
    lanes: Floats
    """[B, 6, 16]: their boxes in blocks; the last is repeated to fill the last block."""
    boxes: Floats
    """[B, 6]: the box around each block."""

    def __len__(self) -> int:
        return len(self.corners)


def sample_surface(
    triangles: NDArray[np.floating], count: int, rng: np.random.Generator
) -> SurfaceSamples:
    """Draws `count` samples at equal steps of area from a random start, each at a random place in its triangle."""
    a, b, c = (triangles[:, k].astype(np.float64) for k in range(3))
    covered = np.cumsum(np.linalg.norm(np.cross(b - a, c - a), axis=1) / 2)
    steps = (np.arange(count) + rng.random()) * (covered[-1] / count)
    row = np.minimum(np.searchsorted(covered, steps, side="right"), len(covered) - 1)
    u, v = rng.random((2, count, 1))
    u, v = np.where(u + v > 1, (1 - u, 1 - v), (u, v))
    points = (a[row] + u * (b - a)[row] + v * (c - a)[row]).astype(np.float32)
    points = points[morton_order(points)]
    filled = _in_blocks(points)
    lanes = np.ascontiguousarray(filled.transpose(0, 2, 1))
    return SurfaceSamples(points, float(covered[-1]), lanes, _around(filled, filled))


def surface_faces(triangles: Floats) -> SurfaceFaces:
    """A surface of all these triangles [F, 3, 3]."""
    rows = morton_order(triangles.mean(axis=1))
    ordered = triangles[rows]
    low, high = _in_blocks(ordered.min(axis=1)), _in_blocks(ordered.max(axis=1))
    lanes = np.concatenate([low, high], axis=2).transpose(0, 2, 1)
    return SurfaceFaces(
        rows, ordered.reshape(-1, 9), np.ascontiguousarray(lanes), _around(low, high)
    )


def faces_touching(
    mesh: TriangleMesh, boxes: Boxes, row: int, margin_m: float
) -> NDArray[np.bool_]:
    """[F]: the faces that have at least one corner in the box."""
    inside = boxes.contains(row, mesh.vertices, margin_m=margin_m)
    return np.asarray(inside[mesh.faces].any(axis=1))


def surface_inside(mesh: TriangleMesh, boxes: Boxes, row: int, margin_m: float) -> Doubles:
    """[T, 3, 3]: the part of the mesh inside the box, with faces cut at its sides. T may be 0.

    Unlike `faces_touching`, the result does not depend on how the mesh is cut into triangles.
    """
    pose = boxes.pose_world_object[row]
    half = boxes.extents[row].astype(np.float64) / 2 + margin_m
    local = (mesh.vertices - centres(pose)) @ rotations(pose)
    # corners below the upper sides and above the lower ones: a face that has none of a kind cannot touch the box
    below, above = (local <= half)[mesh.faces], (local >= -half)[mesh.faces]
    kept = local[mesh.faces[all_three(_any_corner(below) & _any_corner(above))]]
    for axis in range(3):
        kept = _cut(kept, half[axis] - kept[..., axis])
        kept = _cut(kept, half[axis] + kept[..., axis])
    area = np.linalg.norm(np.cross(kept[:, 1] - kept[:, 0], kept[:, 2] - kept[:, 0]), axis=1)
    return moved(pose, kept[area > 0])


def _any_corner(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[F, 3] from [F, 3 corners, 3 axes]."""
    found: NDArray[Any] = mask[:, 0] | mask[:, 1] | mask[:, 2]
    return found


def _cut(triangles: Doubles, inside: Doubles) -> Doubles:
    """The parts of triangles [T, 3, 3] on one side of a plane. `inside` [T, 3] is the depth of each corner."""
    corners_in = (inside >= 0).sum(axis=1)
    parts = [triangles[corners_in == 3]]
    for count in (1, 2):
        rows = np.flatnonzero(corners_in == count)
        # rotate the corner that is alone on its side to the first place
        alone = np.argmax((inside[rows] >= 0) == (count == 1), axis=1)
        turned = (alone[:, None] + np.arange(3)) % 3
        corner = np.take_along_axis(triangles[rows], turned[..., None], axis=1)
        depth = np.take_along_axis(inside[rows], turned, axis=1)
        share = depth[:, :1] / (depth[:, :1] - depth[:, 1:])
        met = corner[:, :1] + share[..., None] * (corner[:, 1:] - corner[:, :1])
        if count == 1:
            parts.append(np.concatenate([corner[:, :1], met], axis=1))
        else:
            parts.append(np.concatenate([met[:, :1], corner[:, 1:]], axis=1))
            parts.append(np.concatenate([met, corner[:, 2:]], axis=1))
    return np.concatenate(parts)


def _in_blocks(values: Floats) -> Floats:
    """[B, 16, 3], the last row repeated to fill the last block."""
    blocks = -(-len(values) // LANES)
    row = np.minimum(np.arange(blocks * LANES), len(values) - 1)
    return values[row].reshape(blocks, LANES, 3)


def _around(low: Floats, high: Floats) -> Floats:
    return np.ascontiguousarray(np.concatenate([low.min(axis=1), high.max(axis=1)], axis=1))
