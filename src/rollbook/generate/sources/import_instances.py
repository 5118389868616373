"""Objects of an imported mesh: faces of one instance become one object with a tight, upright box."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import InvalidMesh
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.mesh import TriangleMesh
from rollbook.generate.geometry.poses import poses_of
from rollbook.generate.scenes.solids import about_z
from rollbook.generate.sources.import_mesh import InstanceMesh
from rollbook.lazy import needs

Instances: TypeAlias = Literal["nodes", "ids", "components"]
"""Where instances come from: nodes of a GLB file, ids of the faces or vertices of a PLY file, connected parts."""

UNNAMED = "object"
"""Class of an object without a name."""
_NUMBER_AT_END = re.compile(r"[ ._-]*\d*$")
_THINNEST_M = 0.01
"""A picture on a wall has no thickness; its box has this one."""


@dataclass(frozen=True, slots=True, eq=False)
class MeshObjects:
    """A mesh whose faces know their object, and the objects."""

    mesh: TriangleMesh
    """`inst_id` is the number of the object, from 0; -1 for faces that are part of no object."""
    poses: NDArray[np.float64]
    """[n, 12]"""
    extents: NDArray[np.float64]
    class_names: tuple[str, ...]
    left_out: str
    """How many instances are no objects, and why; empty if all are."""

    def boxes(self, classes: Sequence[str], name: str) -> Boxes:
        """The true boxes. `classes` are the class names by semantic id."""
        missing = sorted(set(self.class_names) - set(classes))
        if missing:
            detail = f"an object is a {missing[0]!r}, which is not among the classes"
            raise InvalidMesh(record=name, detail=detail)
        return Boxes.build(
            self.poses,
            self.extents,
            [classes.index(each) for each in self.class_names],
            inst_id=np.arange(len(self.class_names)),
            class_name=self.class_names,
            name=name,
        )


def objects_of(found: InstanceMesh, *, least_m: float, most_share: float) -> MeshObjects:
    """The instances whose longest side is at least `least_m` and at most `most_share` of the mesh's longest side.

    Larger instances are floors, walls and tables that hold everything. If there is nothing else, as in the scan of one
    object, they are the objects.
    """
    mesh = found.mesh
    order = np.argsort(mesh.inst_id, kind="stable")
    numbers, starts = np.unique(mesh.inst_id[order], return_index=True)
    corners = mesh.triangles[order]
    low = np.minimum.reduceat(corners.min(axis=1), starts)
    high = np.maximum.reduceat(corners.max(axis=1), starts)
    side = np.ptp(np.stack([low, high]), axis=0).max(axis=1)
    known = numbers >= 0
    small = known & (side < least_m)
    large = known & (side > most_share * np.ptp(mesh.bounds, axis=0).max())
    kept = np.flatnonzero(known & ~small & ~large)
    if not len(kept):
        large, kept = np.zeros_like(large), np.flatnonzero(known & ~small)
    if not len(kept):
        detail = f"none of its {known.sum()} instances is {least_m:g} m long; give a smaller least_object_m"
        raise InvalidMesh(record=mesh.name, detail=detail)
    ends = [*starts[1:], len(order)]
    fitted = [_upright_box(corners[starts[each] : ends[each]].reshape(-1, 3)) for each in kept]
    row_of = np.full(len(numbers), -1)
    row_of[kept] = np.arange(len(kept))
    rows = row_of[np.searchsorted(numbers, mesh.inst_id)]
    return MeshObjects(
        TriangleMesh(mesh.vertices, mesh.faces, mesh.sem_id, rows, name=mesh.name),
        np.array([pose for pose, _ in fitted]),
        np.array([extents for _, extents in fitted]),
        tuple(_class_name(found.names.get(int(numbers[each]), "")) for each in kept),
        _left_out(int(small.sum()), int(large.sum()), least_m, most_share),
    )


def _upright_box(points: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Pose [12] and extents of the smallest box around points that stands upright. One side follows the outline."""
    flat = points[:, :2].astype(np.float64)
    yaws = _outline_yaws(flat)
    axes = np.stack(
        [np.cos(yaws), np.sin(yaws)], axis=-1
    )  # [k, 2]; the other axis is turned by 90 degrees
    along, across = flat @ axes.T, flat @ np.stack([-axes[:, 1], axes[:, 0]])
    best = int(np.argmin(np.ptp(along, axis=0) * np.ptp(across, axis=0)))
    local = np.column_stack([along[:, best], across[:, best], points[:, 2]])
    low, high = local.min(axis=0), local.max(axis=0)
    turn = np.array(about_z(float(yaws[best])))
    return poses_of(turn, turn @ ((low + high) / 2)), np.maximum(high - low, _THINNEST_M)


def _outline_yaws(flat: NDArray[np.float64]) -> NDArray[np.float64]:
    """Directions of the sides of the convex outline; 0 alone where points lie on a line."""
    with needs("finding the parts of a mesh"):
        from scipy.spatial import ConvexHull, QhullError

    try:
        outline = flat[ConvexHull(flat).vertices]
    except (QhullError, ValueError):
        return np.zeros(1)
    sides = np.diff(outline, axis=0, append=outline[:1])
    return np.concatenate([[0.0], np.arctan2(sides[:, 1], sides[:, 0]) % (np.pi / 2)])


def _class_name(name: str) -> str:
    """The name of an instance without its number: `chair.012` is a `chair`."""
    return _NUMBER_AT_END.sub("", name)[:200] or UNNAMED


def _left_out(small: int, large: int, least_m: float, most_share: float) -> str:
    parts = []
    if small:
        parts.append(f"{small:,} are shorter than {least_m:g} m (least_object_m)")
    if large:
        parts.append(f"{large:,} span more than {most_share:.0%} of the mesh (most_object_share)")
    return " and ".join(parts)


def refuse_other_format(how: Instances, path: str) -> None:
    """Refuses a source of instances that the format of the file does not have."""
    suffix = Path(path).suffix.lower()
    fits = {"nodes": (".glb", ".gltf"), "ids": (".ply",)}.get(how, (suffix,))
    if suffix not in fits:
        detail = f"instances by {how} need a file that ends in {' or '.join(fits)}; try components"
        raise InvalidMesh(record=Path(path).name, detail=detail)
