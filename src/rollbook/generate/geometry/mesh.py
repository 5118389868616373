"""TriangleMesh: vertices, faces, and the class and object of every face."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.digest import digest_of
from rollbook.errors import InvalidMesh
from rollbook.generate.geometry.coordinates import bounds_of

_DOMAIN = "rollbook.mesh.v1"
_FARTHEST_M = 1e5
"""A larger coordinate means a wrong unit: float32 could not distinguish millimetres there."""


class TriangleMesh:
    """The constructor checks everything, and drops and counts triangles without area. A mesh never changes."""

    def __init__(
        self,
        vertices: ArrayLike,
        faces: ArrayLike,
        sem_id: ArrayLike | None = None,
        inst_id: ArrayLike | None = None,
        *,
        name: str = "mesh",
    ) -> None:
        """`sem_id` and `inst_id` have one value per face; -1 means none."""
        self.name = name
        self.vertices = _checked_vertices(vertices, name)
        corners = _checked_faces(faces, len(self.vertices), name)
        ids = [_checked_ids(each, len(corners), name) for each in (sem_id, inst_id)]
        kept = _areas(self.vertices, corners) > 0
        self.degenerate_faces = int(np.count_nonzero(~kept))
        if not kept.any():
            raise InvalidMesh(record=name, detail="every triangle has area 0")
        self.faces: NDArray[np.int32] = np.ascontiguousarray(corners[kept])
        self.sem_id: NDArray[np.int32] = ids[0][kept]
        self.inst_id: NDArray[np.int32] = ids[1][kept]
        for array in (self.vertices, self.faces, self.sem_id, self.inst_id):
            array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.faces)

    @cached_property
    def sha256(self) -> str:
        """Digest of vertices, faces and ids, as little-endian bytes."""
        parts = (self.vertices, self.faces, self.sem_id, self.inst_id)
        sums = [
            hashlib.sha256(part.astype(part.dtype.newbyteorder("<")).tobytes()).digest()
            for part in parts
        ]
        return digest_of(_DOMAIN, [len(self.vertices), len(self.faces), *sums])

    @cached_property
    def triangles(self) -> NDArray[np.float32]:
        """[F, 3, 3]"""
        return np.ascontiguousarray(self.vertices[self.faces])

    @cached_property
    def areas(self) -> NDArray[np.float64]:
        return _areas(self.vertices, self.faces)

    @cached_property
    def normals(self) -> NDArray[np.float32]:
        """[F, 3]: unit normals."""
        a, b, c = (self.triangles[:, k].astype(np.float64) for k in range(3))
        crossed = np.cross(b - a, c - a)
        unit = crossed / np.linalg.norm(crossed, axis=1, keepdims=True)
        return np.asarray(unit, np.float32)

    @cached_property
    def bounds(self) -> NDArray[np.float64]:
        """[2, 3]: lower and upper corner of the box around all faces."""
        used = np.zeros(len(self.vertices), np.bool_)
        used[self.faces] = True
        return bounds_of(self.vertices[used])

    def part(self, kept: NDArray[np.bool_]) -> TriangleMesh:
        """A mesh of the faces where `kept` is true, with only the vertices they use."""
        faces = self.faces[kept]
        if not len(faces):
            raise InvalidMesh(record=self.name, detail="no face is left")
        used, flat = np.unique(faces, return_inverse=True)
        return TriangleMesh(
            self.vertices[used],
            flat.reshape(faces.shape),
            self.sem_id[kept],
            self.inst_id[kept],
            name=self.name,
        )


def _checked_vertices(vertices: ArrayLike, name: str) -> NDArray[np.float32]:
    given = np.asarray(vertices)
    if given.ndim != 2 or given.shape[1] != 3 or given.dtype.kind not in "fiu":
        detail = f"vertices are {given.dtype}{list(given.shape)}, expected float[V, 3]"
        raise InvalidMesh(record=name, detail=detail)
    bad = np.flatnonzero(~np.isfinite(given).all(axis=1))
    if len(bad):
        detail = f"vertex {bad[0]} is {given[bad[0]].tolist()}; {len(bad)} are not finite"
        raise InvalidMesh(record=name, detail=detail)
    if len(given) and np.abs(given).max() > _FARTHEST_M:
        detail = (
            f"a vertex lies {np.abs(given).max():.3g} m out; the unit is the metre, give a scale"
        )
        raise InvalidMesh(record=name, detail=detail)
    return np.ascontiguousarray(given, np.float32).copy()


def _checked_faces(faces: ArrayLike, vertices: int, name: str) -> NDArray[np.int32]:
    given = np.asarray(faces)
    if given.size == 0:
        detail = "there are no faces; a point cloud cannot be rendered, give a triangle mesh"
        raise InvalidMesh(record=name, detail=detail)
    if given.ndim != 2 or given.shape[1] != 3 or given.dtype.kind not in "iu":
        detail = f"faces are {given.dtype}{list(given.shape)}, expected int[F, 3]"
        raise InvalidMesh(record=name, detail=detail)
    if given.min() < 0 or given.max() >= vertices:
        detail = (
            f"a face names vertex {given.max() if given.min() >= 0 else given.min()} of {vertices}"
        )
        raise InvalidMesh(record=name, detail=detail)
    return given.astype(np.int32)


def _checked_ids(given: ArrayLike | None, faces: int, name: str) -> NDArray[np.int32]:
    if given is None:
        return np.full(faces, -1, np.int32)
    ids = np.asarray(given)
    if ids.shape != (faces,) or ids.dtype.kind not in "iu":
        detail = f"ids are {ids.dtype}{list(ids.shape)}, expected int[{faces}], one per face"
        raise InvalidMesh(record=name, detail=detail)
    if ids.min() < -(2**31) or ids.max() >= 2**31:
        detail = f"an id is {ids.max() if ids.max() >= 2**31 else ids.min()}, expected 32 bits"
        raise InvalidMesh(record=name, detail=detail)
    return ids.astype(np.int32)


def _areas(vertices: NDArray[np.float32], faces: NDArray[np.int32]) -> NDArray[np.float64]:
    a, b, c = (vertices[faces[:, k]].astype(np.float64) for k in range(3))
    doubled: NDArray[Any] = np.linalg.norm(np.cross(b - a, c - a), axis=1)
    return np.asarray(doubled / 2)
