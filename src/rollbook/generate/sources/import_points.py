"""Point clouds from files: Aria's semidense points with their uncertainties, or plain xyz as CSV, PLY or NPY."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.errors import InvalidMesh, InvalidPoints
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.poses import centres
from rollbook.generate.sources.import_mesh import Up, in_world
from rollbook.generate.sources.import_ply import read_ply
from rollbook.generate.sources.import_text import Refuse, csv_columns, read_text

if TYPE_CHECKING:
    from rollbook.generate.raycast.scene_geometry import SceneGeometry

_ARIA_POINT = ("px_world", "py_world", "pz_world")
_ARIA_STD = ("inv_dist_std", "dist_std")
_MOST_VIEWS = 64
_SURFACE_M = 0.1
"""Largest distance behind a surface at which a point still counts as visible."""


@dataclass(frozen=True, slots=True, eq=False)
class PointCloud:
    points: NDArray[np.float32]
    """[n, 3]"""
    inv_dist_std: NDArray[np.float32]
    """NaN if unknown, as in `dist_std`."""
    dist_std: NDArray[np.float32]
    dropped: int
    """Number of points that were left out because of their uncertainty."""

    def __len__(self) -> int:
        return len(self.points)

    def take(self, rows: NDArray[Any]) -> PointCloud:
        return PointCloud(
            self.points[rows], self.inv_dist_std[rows], self.dist_std[rows], self.dropped
        )


def load_points(
    path: str | Path,
    *,
    max_inv_dist_std: float = 0.005,
    max_dist_std: float = 0.05,
    up: Up = "z",
    scale: float = 1.0,
) -> PointCloud:
    """The points of a file in metres with +Z up. Points with an uncertainty above the limits are left out.

    Aria's files hold good and bad tracks, so limits are needed. They apply after scaling.
    """
    place = Path(path)
    refuse = _refusal(place)
    columns = _columns(place, refuse)
    points = in_world(columns[:, :3], up, scale)
    bad = np.flatnonzero(~np.isfinite(points).all(axis=1))
    if len(bad):
        raise refuse(f"point {bad[0]} is not finite; {len(bad)} are not")
    inverse, distance = columns[:, 3] / scale, columns[:, 4] * scale
    sure = ~((inverse > max_inv_dist_std) | (distance > max_dist_std))
    if not sure.any():
        detail = f"no point of {len(points)} is left" if len(points) else "there is no point in it"
        raise refuse(f"{detail}; the limits are {max_inv_dist_std} 1/m and {max_dist_std} m")
    cloud = PointCloud(
        points.astype(np.float32), inverse.astype(np.float32), distance.astype(np.float32), 0
    ).take(sure)
    return PointCloud(
        cloud.points, cloud.inv_dist_std, cloud.dist_std, int(np.count_nonzero(~sure))
    )


def _columns(place: Path, refuse: Refuse) -> NDArray[np.float64]:
    """[n, 5]: x, y, z and the two uncertainties."""
    suffix = place.suffix.lower()
    if suffix == ".npy":
        found = _from_npy(place, refuse)
    elif suffix == ".ply":
        found = _from_ply(place, refuse)
    else:
        found = _from_csv(read_text(place, refuse), refuse)
    unknown = np.full((len(found), 5 - found.shape[1]), np.nan)
    return np.concatenate([found, unknown], axis=1)


def _from_csv(text: str, refuse: Refuse) -> NDArray[np.float64]:
    header = [name.strip() for name in text.partition("\n")[0].split(",")]
    if set(_ARIA_POINT) <= set(header):
        names: tuple[str, ...] = (*_ARIA_POINT, *_ARIA_STD)
    elif {"x", "y", "z"} <= set(header):
        names = ("x", "y", "z")
    else:
        shown = ", ".join(header)[:80]
        raise refuse(f"line 1: expected columns {', '.join(_ARIA_POINT)} or x, y, z; found {shown}")
    return np.column_stack(list(csv_columns(text, names, refuse).values()))


def _from_npy(place: Path, refuse: Refuse) -> NDArray[np.float64]:
    try:
        found = np.load(place, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise refuse(f"cannot be read ({error})") from error
    if found.ndim != 2 or found.shape[1] != 3 or found.dtype.kind not in "fiu":
        raise refuse(f"it holds {found.dtype}{list(found.shape)}, expected float[n, 3]")
    return np.asarray(found, np.float64)


def _from_ply(place: Path, refuse: Refuse) -> NDArray[np.float64]:
    try:
        vertex = read_ply(place).get("vertex")
    except InvalidMesh as error:
        raise refuse(error.detail) from error
    except OSError as error:
        raise refuse(f"cannot be read ({error.strerror or error})") from error
    if vertex is None or not {"x", "y", "z"} <= vertex.columns.keys():
        raise refuse("it has no vertices with x, y and z")
    return np.column_stack([vertex.columns[axis] for axis in "xyz"]).astype(np.float64)


def _refusal(place: Path) -> Refuse:
    return lambda detail: InvalidPoints(record=place.name, detail=detail)


# ------------------------------------------------------------------------------------- visibility


def seeing_frames(
    points: NDArray[np.float32], poses: ArrayLike, camera: Camera, geometry: SceneGeometry
) -> NDArray[np.int32]:
    """The nearest frame that sees each point; -1 if none does.

    The point cloud of a recording also holds points seen after the root, which the robot does not know yet. A frame
    sees a point if no surface lies between the two.
    """
    given = np.asarray(poses, np.float64)
    places = centres(given)
    chosen = np.unique(np.linspace(0, len(given) - 1, min(len(given), _MOST_VIEWS)).round())
    nearest = np.full(len(points), np.inf)
    found = np.full(len(points), -1, np.int32)
    for frame in chosen.astype(int):
        distance = np.linalg.norm(points - places[frame], axis=1)
        rows = np.flatnonzero(camera.sees(points, given[frame]) & (distance < nearest))
        ways = (points[rows] - places[frame]).astype(np.float32)
        origins = np.broadcast_to(places[frame].astype(np.float32), ways.shape)
        reached, _ = geometry.cast(np.ascontiguousarray(origins), ways)
        seen = rows[reached >= 1 - _SURFACE_M / distance[rows]]
        nearest[seen], found[seen] = distance[seen], frame
    return found
