"""Oracle: measures how much a view improves the reconstruction of a target and of the scene around it.

The error d of a cloud is its accuracy (mean distance of its points from the mesh) plus its completeness (mean distance
of the surface from the points). A state holds, for every sample of the surface, the distance to the known points. A
view can only lower it, so measuring a view costs time only for what the view changes. The result is exact: it equals
measuring the whole cloud again, as naive.py does.

Rendered points lie on the mesh: they increase the number of points and add no distance. Gains are never below 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.digest import Plain, digest_of
from rollbook.errors import InvalidValue, TargetInvalid
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.coordinates import all_finite
from rollbook.generate.geometry.poses import centres, rotations
from rollbook.generate.oracle.config import OracleConfig
from rollbook.generate.oracle.distance_field import (
    CropBox,
    Pixels,
    PointTree,
    lower_distances,
    sums,
)
from rollbook.generate.oracle.surface import (
    SurfaceFaces,
    SurfaceSamples,
    faces_touching,
    sample_surface,
    surface_faces,
    surface_inside,
)
from rollbook.generate.raycast.scene_geometry import SceneGeometry
from rollbook.generate.raycast.vector_steps import LANES

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

SMALLEST_ERROR = 1e-12
"""Smaller errors count as this in divisions and logarithms."""
CROP_POLICIES = {
    "area": "gt_obb_oriented_clipped_v1",
    "face_sq": "gt_obb_oriented_any_vertex_v1",
}
"""The part of the mesh that is the target, by metric: all surface in the box, or all faces with a corner in it."""
_SKIN_M = 1e-3
"""The box is enlarged by this: the object touches the sides of its box, and float32 may round it outside."""
_STATE_DOMAIN = "rollbook.oracle_state.v1"


@dataclass(frozen=True, slots=True, eq=False)
class RegionState:
    """What is known of one region."""

    d2: Floats
    """[S]: squared distance of every sample or face to the nearest point, in the order of the region's surface."""
    accuracy_sum: float
    """Sum of the distances of the points from the mesh, squared for `face_sq`."""
    points: int
    completeness: float
    coverage: float
    """Share of samples or faces with a point within the coverage radius."""
    root_error: float
    """The error at the root of the rollout."""

    @property
    def accuracy(self) -> float:
        return self.accuracy_sum / self.points

    @property
    def error(self) -> float:
        return self.accuracy + self.completeness


@dataclass(frozen=True, slots=True, eq=False)
class OracleState:
    """Everything seen so far that the errors depend on. A state never changes: a view returns a new one."""

    target: RegionState
    scene: RegionState | None

    def key(self) -> str:
        """A digest that is equal for states that give equal results for every view."""
        parts: list[Plain] = [
            [state.d2.astype("<f4").tobytes(), state.accuracy_sum, state.points, state.root_error]
            for state in (self.target, self.scene)
            if state is not None
        ]
        return digest_of(_STATE_DOMAIN, parts)


class Oracle:
    """Measures views of one target of one mesh. Measuring does not change it."""

    def __init__(
        self,
        geometry: SceneGeometry,
        boxes: Boxes,
        row: int,
        config: OracleConfig,
        *,
        target_id: str = "target",
        beside: Oracle | None = None,
    ) -> None:
        """`boxes[row]` is the ground-truth box. Raises TargetInvalid if it is missing or contains no surface.

        `beside` is the oracle of another target of the same geometry and config: the two share the scene's surface.
        """
        if not 0 <= row < len(boxes):
            detail = f"no ground-truth box: row {row} of {len(boxes)}"
            raise TargetInvalid(target_id=target_id, reason="TARGET_GT_UNMATCHED", detail=detail)
        self.geometry, self.config, self.target_id = geometry, config, target_id
        self.crop_policy = CROP_POLICIES[config.metric]
        self._boxes, self._margin = boxes.take([row]), config.target_crop_margin_m + _SKIN_M
        self.crop = CropBox.of(self._boxes, 0, self._margin)
        self.surfaces = {"target": self._target_surface()}
        """By region: `target`, and `scene` if it is included."""
        if config.include_scene:
            self.surfaces["scene"] = (
                self._scene_surface() if beside is None else beside.surfaces["scene"]
            )

    def in_target(self, points: ArrayLike) -> NDArray[np.bool_]:
        """Which points [..., 3] belong to the target."""
        return self._boxes.contains(0, points, margin_m=self._margin)

    def root(self, points: ArrayLike, beside: OracleState | None = None) -> OracleState:
        """The state in which these points [n, 3] are known. Points that are not finite are left out.

        `beside` is the root state of another target for the same points: its scene region is reused.
        """
        given = np.asarray(points, np.float32).reshape(-1, 3)
        known = given[all_finite(given)]
        inside = known[self.in_target(known)]
        least = self.config.min_current_target_points
        if len(inside) < least:
            detail = f"{len(inside)} points in the box at the root, expected {least}"
            raise TargetInvalid(
                target_id=self.target_id, reason="TARGET_SUPPORT_TOO_LOW", detail=detail
            )
        scene = None if beside is None else beside.scene
        if scene is None and "scene" in self.surfaces:
            scene = self._root_region("scene", known)
        return OracleState(self._root_region("target", inside), scene)

    def score(
        self, state: OracleState, depth: ArrayLike, poses: ArrayLike, camera: Camera
    ) -> dict[str, Doubles]:
        """Labels of N views, given by depth [N, H, W] rendered at poses [N, 12]: one array [N] per label."""
        images, placed = _checked(depth, poses, camera)
        found = {region: np.empty((len(images), 3)) for region in self.surfaces}

        def measure(row: int, work: _Workspace) -> None:
            for region, (best, points) in work.seen(state, images[row], placed[row]).items():
                completeness, coverage = self._means(region, best)
                found[region][row] = completeness, coverage, points

        self._for_each_row(len(images), camera, measure)
        return self._labels(state, found)

    def score_taken(self, before: OracleState, after: OracleState) -> dict[str, Doubles]:
        """The labels [1] that `score` gives to the view between two states, of which `after` is fused from `before`."""
        found = {}
        for region in self.surfaces:
            now = self.known(after, region)
            added = now.points - self.known(before, region).points
            found[region] = np.array([[now.completeness, now.coverage, added]])
        return self._labels(before, found)

    def labels_are_finite(self, state: OracleState) -> bool:
        """Whether every view of this state gets finite labels in float32. A view can only lower the errors."""
        errors = [self.known(state, region).error for region in self.surfaces]
        return bool((np.abs(errors) < np.finfo(np.float32).max).all())

    def fuse(
        self, state: OracleState, depth: ArrayLike, pose: ArrayLike, camera: Camera
    ) -> OracleState:
        """The state after taking one view: depth [H, W] rendered at pose [12]."""
        images, placed = _checked(np.asarray(depth)[None], np.asarray(pose)[None], camera)
        seen = _Workspace(self, camera).seen(state, images[0], placed[0])
        states = {}
        for region, (best, points) in seen.items():
            before = self.known(state, region)
            states[region] = self._state(
                region, best, before.accuracy_sum, before.points + points, before.root_error
            )
        return OracleState(states["target"], states.get("scene"))

    def distances(
        self,
        state: OracleState,
        depth: ArrayLike,
        poses: ArrayLike,
        camera: Camera,
        region: str = "target",
    ) -> tuple[Floats, NDArray[np.int64]]:
        """The squared distances [N, S] after each of N views, and the number of points that each adds [N]."""
        images, placed = _checked(depth, poses, camera)
        size = len(self.known(state, region).d2)
        d2 = np.empty((len(images), size), np.float32)
        added = np.empty(len(images), np.int64)

        def keep(row: int, work: _Workspace) -> None:
            best, points = work.seen(state, images[row], placed[row])[region]
            d2[row], added[row] = best[:size], points

        self._for_each_row(len(images), camera, keep)
        return d2, added

    def known(self, state: OracleState, region: str) -> RegionState:
        """One region of a state. Raises InvalidValue if the state belongs to another oracle."""
        surface = self.surfaces.get(region)
        if surface is None:
            raise _refused("region", repr(region), f"one of {', '.join(self.surfaces)}")
        found = state.target if region == "target" else state.scene
        if found is None or len(found.d2) != len(surface):
            value = "missing" if found is None else f"{len(found.d2)} distances"
            raise _refused(
                f"state.{region}", value, f"{len(surface)} distances, as it gives itself"
            )
        return found

    # ------------------------------------------------------------------------------------- measuring

    def _labels(self, state: OracleState, found: dict[str, Doubles]) -> dict[str, Doubles]:
        """All labels from completeness, coverage and points added [N, 3] by region."""
        columns: dict[str, Doubles] = {}
        for region, measured in found.items():
            columns |= _columns(region, self.known(state, region), measured)
        added = found["target"][:, 2]
        columns["target_current_support"] = np.full(len(added), float(state.target.points))
        columns["target_candidate_support"] = added
        return columns

    @property
    def _farthest(self) -> np.float32:
        limit = self.config.truncation_m
        return np.float32(np.inf if limit is None else limit * limit)

    def _accuracies(self, points: Floats) -> Doubles:
        limit = self.config.truncation_m
        bound = np.inf if limit is None else limit
        distances: Doubles = self.geometry.distance(points, bound=bound).astype(np.float64)
        return distances**2 if self.config.metric == "face_sq" else distances

    def _means(self, region: str, best: Floats) -> tuple[float, float]:
        """Completeness and coverage."""
        count = len(self.surfaces[region])
        roots, squares, near = sums(best, count, self.config.coverage_radius_m)
        total = squares if self.config.metric == "face_sq" else roots
        return total / count, near / count

    def _root_region(self, region: str, points: Floats) -> RegionState:
        """The state of a region in which these points are known."""
        surface = self.surfaces[region]
        best = np.full(len(surface.boxes) * LANES, self._farthest, np.float32)
        lower_distances(PointTree.of_points(points), surface, best)
        accuracy_sum = float(self._accuracies(points).sum())
        error = accuracy_sum / len(points) + self._means(region, best)[0]
        return self._state(region, best, accuracy_sum, len(points), error)

    def _state(
        self, region: str, best: Floats, accuracy_sum: float, points: int, root_error: float
    ) -> RegionState:
        d2 = best[: len(self.surfaces[region])].copy()
        d2.flags.writeable = False
        completeness, coverage = self._means(region, best)
        return RegionState(d2, accuracy_sum, points, completeness, coverage, root_error)

    def _for_each_row(
        self, count: int, camera: Camera, work: Callable[[int, _Workspace], None]
    ) -> None:
        """Calls `work` for every row. Each thread takes the next row; rows are independent."""
        rows = iter(range(count))
        threads = min(self.geometry.threads, count)
        if threads <= 1:
            _process_rows(rows, _Workspace(self, camera), work)
            return
        with ThreadPoolExecutor(threads) as pool:
            done = [
                pool.submit(_process_rows, rows, _Workspace(self, camera), work)
                for _ in range(threads)
            ]
            for each in done:
                each.result()

    # -------------------------------------------------------------------------------------- surfaces

    def _target_surface(self) -> SurfaceSamples | SurfaceFaces:
        mesh, config = self.geometry.mesh, self.config
        if config.metric == "face_sq":
            found: NDArray[np.floating] = mesh.triangles[
                faces_touching(mesh, self._boxes, 0, self._margin)
            ]
        else:
            found = surface_inside(mesh, self._boxes, 0, self._margin)
        if not len(found):
            detail = f"nothing of {mesh.name} lies in the ground-truth box"
            raise TargetInvalid(target_id=self.target_id, reason="TARGET_CROP_EMPTY", detail=detail)
        if config.metric == "face_sq":
            return surface_faces(found)
        return sample_surface(found, config.target_samples, np.random.default_rng([config.seed, 0]))

    def _scene_surface(self) -> SurfaceSamples | SurfaceFaces:
        triangles, config = self.geometry.mesh.triangles, self.config
        if config.metric == "face_sq":
            return surface_faces(triangles)
        rng = np.random.default_rng([config.seed, 1])
        return sample_surface(triangles, config.scene_samples, rng)


class _Workspace:
    """Working memory for one view at a time. Every thread has its own."""

    def __init__(self, oracle: Oracle, camera: Camera) -> None:
        self._oracle = oracle
        self._pixels = Pixels.of(camera, oracle.config.backprojection_stride)
        self._trees = {"scene": self._pixels.tree(), "target": self._pixels.tree()}
        self._best = {
            region: np.zeros(len(surface.boxes) * LANES, np.float32)
            for region, surface in oracle.surfaces.items()
        }

    def seen(
        self, state: OracleState, depth: Floats, pose: Doubles
    ) -> dict[str, tuple[Floats, int]]:
        """By region: the squared distances after the view, valid until the next call, and the points it adds."""
        scene, target = self._trees["scene"], self._trees["target"]
        points = {"scene": scene.see(depth, rotations(pose), centres(pose), self._pixels)}
        points["target"] = target.take_inside(scene, self._oracle.crop)
        found = {}
        for region, surface in self._oracle.surfaces.items():
            best = self._best[region]
            best[: len(surface)] = self._oracle.known(state, region).d2
            lower_distances(self._trees[region], surface, best)
            found[region] = best, points[region]
        return found


def _process_rows(
    rows: Iterator[int], space: _Workspace, work: Callable[[int, _Workspace], None]
) -> None:
    for row in rows:
        work(row, space)


def _checked(depth: ArrayLike, poses: ArrayLike, camera: Camera) -> tuple[Floats, Doubles]:
    """Images and poses as compiled code needs them: contiguous, writable and of fixed types."""
    images = np.require(depth, np.float32, ["C", "W"])
    placed = np.require(poses, np.float64, ["C", "W"])
    expected = (len(placed), camera.height, camera.width)
    if images.shape != expected:
        raise _refused("depth", f"an array {list(images.shape)}", f"{list(expected)}")
    if placed.shape[1:] != (12,):
        raise _refused("poses", f"an array {list(placed.shape)}", "[N, 12]")
    bad = np.flatnonzero(~np.isfinite(placed).all(axis=1))
    if len(bad):
        raise _refused(f"poses[{bad[0]}]", "not finite", "a finite pose: leave out what is invalid")
    return images, placed


def _refused(field: str, value: str, expected: str) -> InvalidValue:
    return InvalidValue(record="oracle", field=field, value=value, expected=expected)


def _columns(region: str, before: RegionState, measured: Doubles) -> dict[str, Doubles]:
    """Labels from `measured` [N, 3]: completeness, coverage and points added."""
    completeness, coverage, added = measured.T
    accuracy = before.accuracy_sum / (before.points + added)
    error = accuracy + completeness
    gained = before.error - error
    same = np.ones(len(added))
    columns = {
        "rri": gained / max(before.error, SMALLEST_ERROR),
        "root_gain": gained / max(before.root_error, SMALLEST_ERROR),
        "log_error_gain": np.log(max(before.error, SMALLEST_ERROR))
        - np.log(np.maximum(error, SMALLEST_ERROR)),
        "pm_dist_before": before.error * same,
        "pm_dist_after": error,
        "accuracy_before": before.accuracy * same,
        "accuracy_after": accuracy,
        "completeness_before": before.completeness * same,
        "completeness_after": completeness,
        "coverage_before": before.coverage * same,
        "coverage_after": coverage,
    }
    return {f"{region}_{name}": values for name, values in columns.items()}
