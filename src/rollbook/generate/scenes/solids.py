"""Solid: a triangulated shape, and the basic shapes of furniture. No edge is longer than the given limit.

Shapes are cut into cells whose diagonal is at most `edge`. Normals point outwards. The vertex pattern of the faces
depends only on the numbers of cells, so it is computed once per combination and cached.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Faces = NDArray[np.int32]

_FEWEST_SEGMENTS = 16
"""Fewest segments of a circle. The number is always a multiple of four, so that the circle keeps its full width."""


@dataclass(frozen=True, slots=True, eq=False)
class Solid:
    vertices: Array
    """[V, 3]"""
    faces: Faces
    """[F, 3]"""

    def moved(self, offset: ArrayLike) -> Solid:
        return Solid(self.vertices + np.asarray(offset, np.float64), self.faces)

    def turned(self, yaw: float) -> Solid:
        """Rotated about +Z."""
        return Solid(self.vertices @ about_z(yaw).T, self.faces)

    def laid(self, axis: int) -> Solid:
        """Rotated so that its z axis lies along x (axis 0) or y (axis 1)."""
        order = ((2, 0, 1), (1, 2, 0))[axis]
        return Solid(self.vertices[:, order], self.faces)

    @property
    def bounds(self) -> Array:
        """[2, 3]"""
        return np.array([self.vertices.min(axis=0), self.vertices.max(axis=0)])


def joined(solids: Sequence[Solid]) -> Solid:
    """One solid of all solids, in their order."""
    starts = np.cumsum([0, *(len(each.vertices) for each in solids)])
    return Solid(
        np.concatenate([each.vertices for each in solids]),
        np.concatenate(
            [each.faces + np.int32(start) for each, start in zip(solids, starts, strict=False)]
        ),
    )


def about_z(yaw: float) -> Array:
    """Rotation [3, 3] about +Z."""
    c, s = math.cos(yaw), math.sin(yaw)
    return np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]])


def cells_along(length: float, edge: float) -> int:
    """Number of equal cells of a length, so that the diagonal of a square cell is at most `edge`."""
    return max(1, math.ceil(length * math.sqrt(2) / edge - 1e-9))


def cut_lines(stops: ArrayLike, edge: float) -> Array:
    """The sorted stops, with as many lines between them as `edge` requires."""
    given = np.unique(np.asarray(stops, np.float64))
    parts = [_even(low, high, edge)[:-1] for low, high in itertools.pairwise(given.tolist())]
    return np.concatenate([*parts, given[-1:]])


def _even(low: float, high: float, edge: float) -> Array:
    """The lines of equal cells from `low` to `high`."""
    count = cells_along(high - low, edge)
    lines = low + (high - low) * (np.arange(count + 1) / count)
    lines[-1] = high
    return np.asarray(lines)


def box(low: Sequence[float], high: Sequence[float], edge: float) -> Solid:
    """A box between two corners."""
    lines = [_even(low[k], high[k], edge) for k in range(3)]
    return _box_of(lines[0], lines[1], lines[2])


def rounded_box(low: Sequence[float], high: Sequence[float], radius: float, edge: float) -> Solid:
    """A box with round edges and corners, for cushions, mattresses and basins."""
    size = [high[k] - low[k] for k in range(3)]
    round_m = min(radius, *(side / 2 for side in size))
    rings = max(2, math.ceil(round_m * math.pi / 2 / edge * math.sqrt(2)))
    corner = np.linspace(0, round_m, rings + 1)
    lines = [cut_lines(np.concatenate([low[k] + corner, high[k] - corner]), edge) for k in range(3)]
    cube = _box_of(lines[0], lines[1], lines[2])
    core = np.clip(cube.vertices, np.add(low, round_m), np.subtract(high, round_m))
    out = cube.vertices - core
    # on the surface of a box the largest of the three offsets is the radius, so no length is 0
    unit = out / np.linalg.norm(out, axis=1, keepdims=True)
    return Solid(core + unit * round_m, cube.faces)


def revolve(profile: Sequence[tuple[float, float]], edge: float) -> Solid:
    """A profile of (radius, height) points turned about z, from bottom to top along the outside."""
    points = np.asarray(profile, np.float64)
    segments = _segments(float(points[:, 0].max()), edge)
    line = [points[:1]]
    for start, end in itertools.pairwise(points):
        count = cells_along(float(np.hypot(*(end - start))), edge)
        line.append(start + (end - start) * (np.arange(1, count + 1) / count)[:, None])
    rings = np.concatenate(line)
    angle = np.arange(segments) * (2 * math.pi / segments)
    vertices = np.empty((len(rings), segments, 3))
    vertices[..., 0] = rings[:, :1] * np.cos(angle)
    vertices[..., 1] = rings[:, :1] * np.sin(angle)
    vertices[..., 2] = rings[:, 1:]
    faces = _grid(len(rings), segments, False, True)
    # a ring of radius 0 is one point: drop triangles with two corners there
    at_pole = np.repeat(rings[:, 0] <= 0, segments)
    corner = np.where(
        at_pole, np.arange(len(at_pole)) // segments * segments, np.arange(len(at_pole))
    )
    met = corner[faces]
    kept = (met[:, 0] != met[:, 1]) & (met[:, 1] != met[:, 2]) & (met[:, 2] != met[:, 0])
    return Solid(vertices.reshape(-1, 3), met[kept].astype(np.int32))


def cylinder(radius: float, low: float, high: float, edge: float) -> Solid:
    """A closed cylinder from z = low to z = high."""
    return revolve([(0, low), (radius, low), (radius, high), (0, high)], edge)


def sphere(radius: float, edge: float) -> Solid:
    """A sphere about the origin."""
    return revolve(_arc(radius, 0.0, -90, 90, edge), edge)


def capsule(radius: float, length: float, edge: float) -> Solid:
    """A capsule that stands on z = 0, `length` from end to end."""
    top = length - radius
    return revolve([*_arc(radius, radius, -90, 0, edge), *_arc(radius, top, 0, 90, edge)], edge)


def torus(radius: float, thickness: float, edge: float) -> Solid:
    """A flat torus about the origin; `thickness` is the radius of the tube."""
    around, across = _segments(radius + thickness, edge), _segments(thickness, edge, 8)
    turn = np.arange(around) * (2 * math.pi / around)
    tube = np.arange(across) * (2 * math.pi / across)
    out = radius + thickness * np.cos(tube)[:, None]
    vertices = np.empty((across, around, 3))
    vertices[..., 0], vertices[..., 1] = out * np.cos(turn), out * np.sin(turn)
    vertices[..., 2] = thickness * np.sin(tube)[:, None]
    return Solid(vertices.reshape(-1, 3), _grid(across, around, True, True))


def lattice_surface(
    lines: Sequence[Array], masks: Sequence[NDArray[np.int8]]
) -> tuple[Solid, NDArray[np.intp]]:
    """The selected faces of a lattice of boxes, and for each triangle its index in the flattened masks.

    `masks[k]` has a value for every cell face across axis k: 1 for a normal along +k, -1 for a normal along -k, 0 for
    no face. The index continues from one axis to the next.
    """
    shape = tuple(len(each) for each in lines)
    corners, places, before = [], [], 0
    for axis in range(3):
        mask = masks[axis]
        found = np.argwhere(mask)
        forward = mask[mask != 0] > 0
        u, v = np.eye(3, dtype=np.intp)[[(axis + 1) % 3, (axis + 2) % 3]]
        square = np.stack([found, found + u, found + u + v, found + v], axis=1)
        index = np.ravel_multi_index(tuple(np.moveaxis(square, 2, 0)), shape)
        index = np.where(forward[:, None], index, index[:, ::-1])
        corners.append(np.stack([index[:, [0, 1, 2]], index[:, [0, 2, 3]]], axis=1).reshape(-1, 3))
        places.append(np.repeat(before + np.flatnonzero(mask), 2))
        before += mask.size
    used, flat = np.unique(np.concatenate(corners), return_inverse=True)
    at = np.unravel_index(used, shape)
    vertices = np.stack([lines[k][at[k]] for k in range(3)], axis=1)
    return Solid(vertices, flat.reshape(-1, 3).astype(np.int32)), np.concatenate(places)


def _segments(radius: float, edge: float, fewest: int = _FEWEST_SEGMENTS) -> int:
    """Number of segments of a circle."""
    return 4 * math.ceil(max(fewest, cells_along(2 * math.pi * radius, edge)) / 4)


def _arc(
    radius: float, centre_z: float, start_deg: float, end_deg: float, edge: float
) -> list[tuple[float, float]]:
    """Profile points of whole quarters of a circle. Its poles lie exactly on the axis."""
    span = math.radians(end_deg - start_deg)
    count = _segments(radius, edge) * round(end_deg - start_deg) // 360
    angles = np.radians(start_deg) + span * np.arange(count + 1) / count
    radii = np.where(np.abs(np.cos(angles)) < 1e-9, 0.0, radius * np.cos(angles))
    return list(zip(radii.tolist(), (centre_z + radius * np.sin(angles)).tolist(), strict=True))


def _box_of(x: Array, y: Array, z: Array) -> Solid:
    index, faces = _box_pattern(len(x), len(y), len(z))
    return Solid(np.stack([x[index[0]], y[index[1]], z[index[2]]], axis=1), faces)


@lru_cache(maxsize=4096)
def _box_pattern(nx: int, ny: int, nz: int) -> tuple[NDArray[np.intp], Faces]:
    """[3, V]: the line of each axis on which every vertex lies, and the faces of the six sides."""
    counts, index, faces, before = (nx, ny, nz), [], [], 0
    for axis in range(3):
        u, v = (axis + 1) % 3, (axis + 2) % 3
        grid = np.indices((counts[u], counts[v])).reshape(2, -1)
        pattern = _grid(counts[u], counts[v], False, False)
        for line, turned in ((0, pattern), (counts[axis] - 1, pattern[:, ::-1])):
            side = np.empty((3, grid.shape[1]), np.intp)
            side[axis], side[u], side[v] = line, grid[0], grid[1]
            index.append(side)
            faces.append(turned + np.int32(before))
            before += grid.shape[1]
    return np.concatenate(index, axis=1), np.concatenate(faces).astype(np.int32)


@lru_cache(maxsize=1024)
def _grid(rows: int, columns: int, wrap_rows: bool, wrap_columns: bool) -> Faces:
    """Two triangles per cell of a vertex grid, row by row. If wrapped, the last line joins the first."""
    r = np.arange(rows if wrap_rows else rows - 1)[:, None]
    c = np.arange(columns if wrap_columns else columns - 1)
    below, above = r * columns, (r + 1) % rows * columns
    right = (c + 1) % columns
    a, b, d, e = below + c, below + right, above + c, above + right
    return np.stack([a, b, e, a, e, d], axis=-1).reshape(-1, 3).astype(np.int32)
