"""Meshes from files: GLB, OBJ, STL or PLY become one TriangleMesh in metres with +Z up."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError, InvalidMesh
from rollbook.generate.geometry.mesh import TriangleMesh
from rollbook.generate.sources.import_ply import Lists, PlyElement, read_ply

Up: TypeAlias = Literal["y", "z"]
MESH_SUFFIXES: Final = (".glb", ".gltf", ".obj", ".stl", ".ply")
_CORNER_NAMES = ("vertex_indices", "vertex_index")
_OBJECT_NAMES = ("object_id", "instance_id", "objectId")
_WIDEST_M, _NARROWEST_M = 200.0, 0.5
_UNITS = {
    "metres": 1.0,
    "millimetres": 0.001,
    "centimetres": 0.01,
    "inches": 0.0254,
    "kilometres": 1000.0,
}

Y_UP_TO_Z_UP = np.array([[1, 0, 0], [0, 0, -1], [0, 1, 0]], np.float64)
"""x stays, y becomes z, and z becomes -y: a rotation, which does not mirror."""


def load_mesh(
    path: str | Path, *, up: Up = "z", scale: float = 1.0, weld: bool = False
) -> TriangleMesh:
    """All geometries of a file as one mesh, each at its place in the file. Polygons are cut into triangles.

    `up` is the axis that points up in the file, `scale` the metres per unit. `weld` merges vertices with equal
    coordinates, which changes no surface. Faces keep the `object_id` of a PLY file.
    """
    place = Path(path)
    if place.suffix.lower() not in MESH_SUFFIXES:
        expected = ", ".join(MESH_SUFFIXES)
        raise InvalidMesh(record=place.name, detail=f"its name does not end in one of {expected}")
    if not (np.isfinite(scale) and scale > 0):
        raise ConfigurationError(message=f"mesh scale is {scale}, expected a number above 0")
    if not place.is_file():
        raise InvalidMesh(record=place.name, detail=f"there is no file {place}")
    try:
        if place.suffix.lower() == ".ply":
            vertices, faces, objects = _from_ply(read_ply(place), place.name)
        else:
            vertices, faces = _from_scene(place)
            objects = None
    except OSError as error:
        detail = f"cannot be read ({error.strerror or error})"
        raise InvalidMesh(record=place.name, detail=detail) from error
    placed = in_world(vertices, up, scale)
    if weld:
        placed, faces = _welded(placed, faces)
    mesh = TriangleMesh(placed, faces, None, objects, name=place.name)
    _refuse_implausible(mesh, scale)
    return mesh


def in_world(points: NDArray[Any], up: Up, scale: float) -> NDArray[np.float64]:
    """Points [n, 3] of a file in metres with +Z up."""
    placed = np.asarray(points, np.float64) * scale
    return placed @ Y_UP_TO_Z_UP.T if up == "y" else placed


def _from_scene(place: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Vertices and faces of all geometries, each with its own transform."""
    try:
        import trimesh
    except ImportError as error:
        message = "importing meshes needs trimesh: pip install 'rollbook[generate]'"
        raise ConfigurationError(message=message) from error
    try:
        scene: Any = trimesh.load_scene(str(place), process=False, skip_materials=True)
        parts = [
            (geometry.vertices @ transform[:3, :3].T + transform[:3, 3], geometry.faces)
            for transform, geometry in (
                (scene.graph[node][0], scene.geometry[scene.graph[node][1]])
                for node in sorted(scene.graph.nodes_geometry)
            )
            if len(getattr(geometry, "faces", ()))
        ]
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        NotImplementedError,
    ) as error:
        raise InvalidMesh(record=place.name, detail=f"cannot be read: {error}") from error
    if not parts:
        raise InvalidMesh(
            record=place.name, detail="there are no faces in it; give a triangle mesh"
        )
    starts = np.cumsum([0, *(len(vertices) for vertices, _ in parts)])
    return (
        np.concatenate([vertices for vertices, _ in parts]),
        np.concatenate([faces + start for (_, faces), start in zip(parts, starts, strict=False)]),
    )


def _from_ply(
    elements: dict[str, PlyElement], name: str
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    vertex = elements.get("vertex")
    if vertex is None or not {"x", "y", "z"} <= vertex.columns.keys():
        raise InvalidMesh(record=name, detail="it has no vertices with x, y and z")
    vertices = np.column_stack([vertex.columns[axis] for axis in "xyz"]).astype(np.float64)
    face = elements.get("face")
    corners = next(
        (face.lists[key] for key in _CORNER_NAMES if face is not None and key in face.lists), None
    )
    if "tristrips" in elements:
        detail = "its faces are triangle strips; save it with plain triangles"
        raise InvalidMesh(record=name, detail=detail)
    if face is None or corners is None or not len(corners.values):
        detail = (
            f"it holds {len(vertices)} points and no faces: a point cloud. "
            "Depth is rendered from triangles; give the mesh of the scene"
        )
        raise InvalidMesh(record=name, detail=detail)
    faces, polygon = _triangulated(corners)
    ids = next((face.columns[key] for key in _OBJECT_NAMES if key in face.columns), None)
    return vertices, faces, None if ids is None else ids[polygon].astype(np.int64)


def _triangulated(corners: Lists) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Triangle fans in the order of their polygons, and the polygon of each triangle."""
    counts, values = corners.counts, corners.values.astype(np.int64)
    starts = np.cumsum(counts) - counts
    parts, owners = [], []
    for count in np.unique(counts[counts >= 3]):
        polygons = np.flatnonzero(counts == count)
        rows = values[starts[polygons, None] + np.arange(count)]
        for second in range(1, count - 1):
            parts.append(rows[:, [0, second, second + 1]])
            owners.append(polygons)
    if not parts:
        return np.zeros((0, 3), np.int64), np.zeros(0, np.int64)
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    return np.concatenate(parts)[order], owner[order]


def _welded(
    vertices: NDArray[np.float64], faces: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[Any]]:
    used, index = np.unique(vertices.astype(np.float32), axis=0, return_inverse=True)
    return used.astype(np.float64), index.reshape(-1)[faces]


def _refuse_implausible(mesh: TriangleMesh, scale: float) -> None:
    """Refuses a mesh that is far too large or too small for rooms: the file then has another unit."""
    widest = float(np.ptp(mesh.bounds, axis=0).max())
    if _NARROWEST_M <= widest <= _WIDEST_M:
        return
    fitting = [
        f"--scale {metres:g} if it is in {unit}"
        for unit, metres in _UNITS.items()
        if _NARROWEST_M <= widest / scale * metres <= _WIDEST_M
    ]
    detail = (
        f"it is {widest:.3g} m wide, expected {_NARROWEST_M} to {_WIDEST_M:g} m; "
        f"give its unit: {'; '.join(fitting) or '--scale METRES_PER_UNIT'}"
    )
    raise InvalidMesh(record=mesh.name, detail=detail)
