"""NaiveOracle: the reference for labels. It measures every cloud from scratch, in both directions.

It serves users who check labels, and our tests and benchmarks. `area` uses a KD-tree of all points; `face_sq` compares
every point with every face.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.generate.geometry.camera import Camera
from rollbook.generate.oracle.face_distance import TERMS, face_square, face_terms
from rollbook.generate.oracle.oracle import SMALLEST_ERROR, Oracle
from rollbook.generate.oracle.surface import SurfaceFaces
from rollbook.generate.raycast.compiled import compiled
from rollbook.lazy import needs

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


class NaiveOracle:
    """Measures the same samples or faces as an Oracle, without a state."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle

    def measure(self, points: ArrayLike, region: str = "target") -> tuple[float, float]:
        """Accuracy and completeness of a cloud [n, 3]. For the target, only points in its box count."""
        cloud = np.asarray(points, np.float32).reshape(-1, 3)
        cloud = cloud[np.isfinite(cloud).all(axis=1)]
        if region == "target":
            cloud = cloud[self.oracle.in_target(cloud)]
        surface = self.oracle.surfaces[region]
        limit = self.oracle.config.truncation_m
        bound = np.inf if limit is None else limit
        if isinstance(surface, SurfaceFaces):
            mesh = self.oracle.geometry.mesh
            _, to_mesh = brute_squares(cloud, mesh.triangles.reshape(-1, 9))
            to_points, _ = brute_squares(cloud, surface.corners)
            return _mean(np.minimum(to_mesh, bound**2)), _mean(np.minimum(to_points, bound**2))
        accuracy = self.oracle.geometry.distance(cloud, bound=bound)
        return _mean(accuracy), _mean(np.minimum(kd_distances(surface.points, cloud), bound))

    def score(
        self, points: ArrayLike, depth: ArrayLike, poses: ArrayLike, camera: Camera
    ) -> dict[str, Doubles]:
        """Errors before and after each of N views, and the RRI, if `points` [n, 3] are known before."""
        known = np.asarray(points, np.float32).reshape(-1, 3)
        images, stride = np.asarray(depth), self.oracle.config.backprojection_stride
        columns: dict[str, Doubles] = {}
        for region in self.oracle.surfaces:
            before = self.measure(known, region)
            after = np.empty((len(images), 2))
            for row, pose in enumerate(np.asarray(poses)):
                added = camera.points(images[row], pose)[::stride, ::stride].reshape(-1, 3)
                after[row] = self.measure(np.concatenate([known, added]), region)
            columns |= _columns(region, before, after)
        return columns


def brute_squares(points: Floats, corners: Floats) -> tuple[Floats, Floats]:
    """Compares every point [n, 3] with every face [F, 9]: least squared distance of each face and of each point."""
    of_faces = np.full(len(corners), np.inf, np.float32)
    of_points = np.full(len(points), np.inf, np.float32)
    _compare(np.ascontiguousarray(points), np.ascontiguousarray(corners), of_faces, of_points)
    return of_faces, of_points


def kd_distances(samples: Floats, points: Floats) -> Doubles:
    """Distance from each sample [S, 3] to the nearest point [n, 3]."""
    with needs("checking labels of the area metric"):
        from scipy.spatial import KDTree
    found: Doubles = KDTree(points).query(samples)[0]
    return found


@compiled
def _compare(points: Floats, corners: Floats, of_faces: Floats, of_points: Floats) -> None:
    terms = np.empty(TERMS, np.float64)
    for face in range(len(corners)):
        face_terms(corners[face], terms)
        best = of_faces[face]
        for point in range(len(points)):
            square = np.float32(
                face_square(points[point, 0], points[point, 1], points[point, 2], terms)
            )
            best = square if square < best else best
            of_points[point] = square if square < of_points[point] else of_points[point]
        of_faces[face] = best


def _mean(values: NDArray[Any]) -> float:
    return float(values.astype(np.float64).mean())


def _columns(region: str, before: tuple[float, float], after: Doubles) -> dict[str, Doubles]:
    error_before, error_after = sum(before), after.sum(axis=1)
    same = np.ones(len(after))
    columns = {
        "rri": (error_before - error_after) / max(error_before, SMALLEST_ERROR),
        "pm_dist_before": error_before * same,
        "pm_dist_after": error_after,
        "accuracy_before": before[0] * same,
        "accuracy_after": after[:, 0],
        "completeness_before": before[1] * same,
        "completeness_after": after[:, 1],
    }
    return {f"{region}_{name}": values for name, values in columns.items()}
