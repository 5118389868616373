"""Meshes from files: GLB, OBJ, STL or PLY become one TriangleMesh in metres with +Z up."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError, InvalidMesh
from rollbook.generate.geometry.mesh import TriangleMesh
from rollbook.generate.sources.import_ply import Lists, PlyElement, read_ply
from rollbook.lazy import needs

Up: TypeAlias = Literal["y", "z"]
MESH_SUFFIXES: Final = (".glb", ".gltf", ".obj", ".stl", ".ply")
_CORNER_NAMES = ("vertex_indices", "vertex_index")
_OBJECT_NAMES = ("object_id", "instance_id", "objectId", "instanceId", "instance")
_WIDEST_M, _NARROWEST_M = 200.0, 0.5
_NARROWEST_OBJECT_M = 0.02
_UNITS = {
    "metres": 1.0,
    "millimetres": 0.001,
    "centimetres": 0.01,
    "inches": 0.0254,
    "kilometres": 1000.0,
}

Y_UP_TO_Z_UP = np.array([[1, 0, 0], [0, 0, -1], [0, 1, 0]], np.float64)
"""x stays, y becomes z, and z becomes -y: a rotation, which does not mirror."""


@dataclass(frozen=True, slots=True, eq=False)
class InstanceMesh:
    """A mesh whose `inst_id` numbers its instances; -1 for faces of none."""

    mesh: TriangleMesh
    names: dict[int, str]
    """Names of instances, where the file has them."""


@dataclass(slots=True, eq=False)
class _Parts:
    """The content of a file, in its own units."""

    vertices: NDArray[Any]
    faces: NDArray[Any]
    ids: NDArray[np.int64] | None = None
    """Instance of every face."""
    names: dict[int, str] = field(default_factory=dict)


def load_mesh(
    path: str | Path,
    *,
    up: Up = "z",
    scale: float = 1.0,
    weld: bool = False,
    one_object: bool = False,
) -> TriangleMesh:
    """All geometries of a file as one mesh, each at its place in the file. Polygons are cut into triangles.

    `up` is the axis that points up in the file, `scale` the metres per unit. `weld` merges vertices with equal
    coordinates, which changes no surface. Faces keep the `object_id` of a PLY file. `one_object` allows a mesh that is
    much smaller than a room.
    """
    parts = _read(Path(path), scale, faces_only=True)
    return _mesh(parts, Path(path).name, up, scale, weld, one_object)


def load_instances(
    path: str | Path,
    *,
    by_components: bool,
    up: Up = "z",
    scale: float = 1.0,
    weld: bool = False,
    one_object: bool = False,
) -> InstanceMesh:
    """A mesh with its instances: nodes of a GLB file, ids of faces or vertices of a PLY file, or connected parts."""
    place = Path(path)
    parts = _read(place, scale, faces_only=False)
    if by_components:
        parts.ids, parts.names = _components(parts.vertices, parts.faces), {}
    if parts.ids is None:
        detail = (
            f"neither its faces nor its vertices have a property {', '.join(_OBJECT_NAMES[:-1])} or "
            f"{_OBJECT_NAMES[-1]}; try components"
        )
        raise InvalidMesh(record=place.name, detail=detail)
    return InstanceMesh(_mesh(parts, place.name, up, scale, weld, one_object), parts.names)


def _read(place: Path, scale: float, *, faces_only: bool) -> _Parts:
    """The content of a file. `faces_only`: no instances but the ids that a file has for its faces."""
    if place.suffix.lower() not in MESH_SUFFIXES:
        expected = ", ".join(MESH_SUFFIXES)
        raise InvalidMesh(record=place.name, detail=f"its name does not end in one of {expected}")
    if not (np.isfinite(scale) and scale > 0):
        raise ConfigurationError(message=f"mesh scale is {scale}, expected a number above 0")
    if not place.is_file():
        raise InvalidMesh(record=place.name, detail=f"there is no file {place}")
    try:
        if place.suffix.lower() == ".ply":
            return _from_ply(read_ply(place), place.name, faces_only)
        parts = _from_scene(place)
        if faces_only:
            parts.ids = None
        return parts
    except OSError as error:
        detail = f"cannot be read ({error.strerror or error})"
        raise InvalidMesh(record=place.name, detail=detail) from error


def _mesh(
    parts: _Parts, name: str, up: Up, scale: float, weld: bool, one_object: bool
) -> TriangleMesh:
    placed, faces = in_world(parts.vertices, up, scale), parts.faces
    if weld:
        placed, faces = _welded(placed, faces)
    mesh = TriangleMesh(placed, faces, None, parts.ids, name=name)
    _refuse_implausible(mesh, scale, _NARROWEST_OBJECT_M if one_object else _NARROWEST_M)
    return mesh


def _components(vertices: NDArray[Any], faces: NDArray[Any]) -> NDArray[np.int64]:
    """The connected part of every face. Vertices with equal coordinates are one: many files repeat them."""
    with needs("finding the parts of a mesh"):
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

    joined, corners = _welded(np.asarray(vertices, np.float64), faces)
    ends = np.concatenate([corners[:, [0, 1]], corners[:, [1, 2]]])
    edges = coo_array(
        (np.ones(len(ends), np.int8), (ends[:, 0], ends[:, 1])), shape=(len(joined),) * 2
    )
    _, part = connected_components(edges, directed=False)
    return np.asarray(part[corners[:, 0]], np.int64)


def in_world(points: NDArray[Any], up: Up, scale: float) -> NDArray[np.float64]:
    """Points [n, 3] of a file in metres with +Z up."""
    placed = np.asarray(points, np.float64) * scale
    return placed @ Y_UP_TO_Z_UP.T if up == "y" else placed


def _from_scene(place: Path) -> _Parts:
    """Vertices and faces of all geometries, each with its own transform. Every node of the file is an instance."""
    with needs("importing a mesh"):
        import trimesh
    try:
        scene: Any = trimesh.load_scene(str(place), process=False, skip_materials=True)
        placed = [
            (instance, geometry, *_placed(scene, node, geometry))
            for node, instance, geometry in _named_nodes(scene.graph)
            if len(getattr(scene.geometry[geometry], "faces", ()))
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
    if not placed:
        raise InvalidMesh(
            record=place.name, detail="there are no faces in it; give a triangle mesh"
        )
    # trimesh gives some nodes random names, and neither numbers nor the order of faces may depend on them
    placed.sort(key=lambda part: part[:2])
    names = sorted({part[0] for part in placed})
    starts = np.cumsum([0, *(len(part[2]) for part in placed)])
    return _Parts(
        np.concatenate([part[2] for part in placed]),
        np.concatenate([part[3] + start for part, start in zip(placed, starts, strict=False)]),
        np.repeat(
            [names.index(part[0]) for part in placed], [len(part[3]) for part in placed]
        ).astype(np.int64),
        dict(enumerate(names)),
    )


def _placed(scene: Any, node: str, geometry: str) -> tuple[NDArray[Any], NDArray[Any]]:
    transform, mesh = scene.graph[node][0], scene.geometry[geometry]
    return mesh.vertices @ transform[:3, :3].T + transform[:3, 3], mesh.faces


def _named_nodes(graph: Any) -> list[tuple[str, str, str]]:
    """Every node with a geometry, the name of its instance, and the geometry.

    trimesh makes a node of its own for every material of a glTF node, under the glTF node and with a random end to its
    name. Together they are one instance.
    """
    nodes = list(graph.nodes_geometry)
    parents = {node: str(graph.transforms.parents.get(node, "")) for node in nodes}
    made = {
        node: parent
        for node, parent in parents.items()
        if re.fullmatch(re.escape(parent) + "_[A-Za-z0-9]{6}", node)
    }
    siblings = Counter(made.values())
    return [
        (node, made[node] if siblings[made.get(node, "")] > 1 else node, graph[node][1])
        for node in nodes
    ]


def _from_ply(elements: dict[str, PlyElement], name: str, faces_only: bool) -> _Parts:
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
    if ids is not None or faces_only:
        return _Parts(vertices, faces, None if ids is None else ids[polygon].astype(np.int64))
    ids = next((vertex.columns[key] for key in _OBJECT_NAMES if key in vertex.columns), None)
    return _Parts(vertices, faces, None if ids is None else _of_most_corners(ids, faces))


def _of_most_corners(ids: NDArray[Any], faces: NDArray[np.int64]) -> NDArray[np.int64]:
    """The id that most corners of each face have; the first corner's if all three differ."""
    first, second, third = ids[faces].astype(np.int64).T
    return np.asarray(np.where(second == third, second, first))


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


def _refuse_implausible(mesh: TriangleMesh, scale: float, narrowest: float) -> None:
    """Refuses a mesh that is far too large or too small for rooms: the file then has another unit."""
    widest = float(np.ptp(mesh.bounds, axis=0).max())
    if narrowest <= widest <= _WIDEST_M:
        return
    fitting = [
        f"--scale {metres:g} if it is in {unit}"
        for unit, metres in _UNITS.items()
        if narrowest <= widest / scale * metres <= _WIDEST_M
    ]
    detail = (
        f"it is {widest:.3g} m wide, expected {narrowest} to {_WIDEST_M:g} m; "
        f"give its unit: {'; '.join(fitting) or '--scale METRES_PER_UNIT'}"
    )
    raise InvalidMesh(record=mesh.name, detail=detail)
