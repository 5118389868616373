"""A mesh with fewer triangles, for pictures: the vertices of each cell of a grid become one vertex.

Where a surface is flat, cells are larger, so that most triangles are left for what is not. The new vertex lies where
the planes of all faces at its cell are closest to it, so that edges and corners of furniture stay sharp. The result is
for people to look at; nothing is measured on it.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Vertices: TypeAlias = NDArray[np.float32]
Faces: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

_MOST_TRIES = 12
_ENOUGH = 0.85
"""A cell size is taken when it leaves at least this share of the faces that are allowed."""
_UNKNOWN = 1e-3
"""A direction whose curvature is below this share of the largest one says nothing about the place of a vertex."""
_FLAT = 1e-4
"""A cell is flat when the curvature across the main direction of its faces is below this share."""
_LARGER = (8, 4, 2)
"""How much larger flat cells may be, the largest first."""


def decimated(vertices: Vertices, faces: Faces, most_faces: int) -> tuple[Vertices, Faces]:
    """At most `most_faces` triangles. A mesh that is small enough is returned as it is."""
    if len(faces) <= most_faces:
        return vertices, faces
    used, flat = np.unique(faces, return_inverse=True)
    surface = _Surface(vertices[used].astype(np.float64), flat.reshape(faces.shape))
    cells, kept = _fitting_cells(surface, most_faces)
    return _placed(surface, cells), kept.astype(np.int32)


class _Surface:
    """The points of a mesh, its faces, and how the faces at each corner lie."""

    def __init__(self, points: Floats, corners: Ints) -> None:
        self.points = points
        self.corners = corners
        a, b, c = (points[corners[:, k]] for k in range(3))
        self.normals: Floats = np.cross(b - a, c - a)
        """Of the faces, twice as long as the area of each."""
        self.area = float(np.linalg.norm(self.normals, axis=1).sum() / 2)
        outer = self.normals[:, :, None] * self.normals[:, None, :]
        self.curvature: Floats = outer.reshape(-1, 9)
        self.extent = float(np.ptp(points, axis=0).max())


class _Cells:
    """The cell of every point, and the lower corners of the occupied cells."""

    def __init__(self, surface: _Surface, size: float) -> None:
        self.size = size
        points = surface.points
        of_point, low = _grid(points, size)
        sizes = np.full(len(low), size)
        for larger in _LARGER:
            coarse, coarse_low = _grid(points, size * larger)
            flat = _is_flat(surface, coarse, len(coarse_low))[coarse]
            fresh = flat & (sizes[of_point] == size)
            # cells of a new kind are counted after all others
            of_point = np.where(fresh, coarse + len(low), of_point)
            low = np.concatenate([low, coarse_low])
            sizes = np.concatenate([sizes, np.full(len(coarse_low), size * larger)])
        present, self.of_point = np.unique(of_point, return_inverse=True)
        self.low: Floats = low[present]
        self.sizes: Floats = sizes[present]
        self.count = len(present)

    def faces(self, corners: Ints) -> Ints:
        """Faces between three different cells, each once."""
        joined = self.of_point[corners]
        a, b, c = joined.T
        joined = joined[(a != b) & (b != c) & (a != c)]
        ordered = np.sort(joined, axis=1)
        order = np.lexsort(ordered.T)
        ordered = ordered[order]
        new = np.ones(len(order), bool)
        new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        once: Ints = joined[np.sort(order[new])]
        return once

    def sums(self, of: Ints, values: Floats) -> Floats:
        return _sums(of, values, self.count)


def _grid(points: Floats, size: float) -> tuple[Ints, Floats]:
    """The cell of every point, counted from 0, and the lower corner of each cell."""
    low = points.min(axis=0)
    place = np.floor((points - low) / size).astype(np.int64)
    wide = place.max(axis=0) + 1
    keys = (place[:, 0] * wide[1] + place[:, 1]) * wide[2] + place[:, 2]
    _, first, of_point = np.unique(keys, return_index=True, return_inverse=True)
    return of_point, low + place[first] * size


def _sums(of: Ints, values: Floats, count: int) -> Floats:
    columns = values.reshape(len(of), -1).T
    return np.stack([np.bincount(of, weights=each, minlength=count) for each in columns], axis=1)


def _is_flat(surface: _Surface, of_point: Ints, count: int) -> NDArray[np.bool_]:
    """Whether all faces at the points of a cell look the same way."""
    owners = of_point[surface.corners].ravel()
    curvature = _sums(owners, np.repeat(surface.curvature, 3, axis=0), count)
    values = np.linalg.eigvalsh(curvature.reshape(-1, 3, 3))
    flat: NDArray[np.bool_] = values[:, 1] <= _FLAT * values[:, 2]
    return flat


def _fitting_cells(surface: _Surface, most_faces: int) -> tuple[_Cells, Ints]:
    """The smallest cells, about, that leave no more faces than allowed."""
    # a cell with a flat surface through it gives about two triangles
    size = min(float(np.sqrt(2 * surface.area / most_faces)) / 2, surface.extent)
    too_small, found = 0.0, None
    for _ in range(_MOST_TRIES):
        cells = _Cells(surface, size)
        kept = cells.faces(surface.corners)
        if len(kept) > most_faces:
            too_small = size
            size = (size + found[0].size) / 2 if found else size * 1.5
            continue
        found = (cells, kept)
        if len(kept) >= _ENOUGH * most_faces:
            break
        size = (size + too_small) / 2
    if found is None:
        cells = _Cells(surface, surface.extent * 2)
        found = (cells, cells.faces(surface.corners))
    return found


def _placed(surface: _Surface, cells: _Cells) -> Vertices:
    """One vertex per cell: the mean of its points, moved towards the planes of their faces."""
    points, corners = surface.points, surface.corners
    counts = np.bincount(cells.of_point, minlength=cells.count)
    means = cells.sums(cells.of_point, points) / counts[:, None]
    owners = cells.of_point[corners].ravel()
    normals = np.repeat(surface.normals, 3, axis=0)
    curvature = cells.sums(owners, np.repeat(surface.curvature, 3, axis=0))
    distance = (normals * (points[corners].reshape(-1, 3) - means[owners])).sum(axis=1)
    pull = cells.sums(owners, normals * distance[:, None])
    values, vectors = np.linalg.eigh(curvature.reshape(-1, 3, 3))
    known = values > np.maximum(_UNKNOWN * values[:, -1:], 1e-30)
    inverse = np.divide(1.0, values, out=np.zeros_like(values), where=known)
    along = np.einsum("nji,nj->ni", vectors, pull) * inverse
    moved = means + np.einsum("nij,nj->ni", vectors, along)
    # two nearly parallel planes can meet far away
    inside = np.clip(moved, cells.low, cells.low + cells.sizes[:, None])
    return np.asarray(inside, np.float32)
