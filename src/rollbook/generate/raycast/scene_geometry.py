"""SceneGeometry: a mesh prepared for queries. Embree or our Bvh casts rays; distances always come from Bvh."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.disc import places_of_disc
from rollbook.generate.geometry.mesh import TriangleMesh
from rollbook.generate.raycast.bvh import Bvh, ray_columns, rows_of_three
from rollbook.generate.raycast.compiled import compiled

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Backend = Literal["auto", "embree", "bvh"]

_FEWEST = 4096
"""Fewest rays or points for which another thread pays off."""
_EMBREE_BYTES_PER_FACE = 100
"""Memory of Embree's own hierarchy: 85 to 90 bytes were measured on flats of 100 000 faces."""
OUTSIDE_MARGIN_M = 0.5
"""Space beyond recorded cameras that were outside the mesh."""
_PARTS = 4
"""Parts per thread, so that a slow part does not keep the other threads waiting."""


class RayTracer(Protocol):
    """What a backend must do. tests/generate/raycast/test_raycast.py specifies it in full."""

    def trace(
        self, origins: Floats, directions: Floats, t: Floats, face: Ints | None = None
    ) -> None:
        """`t` holds the greatest distance to search, and is overwritten where a ray hits. `face` is -1 elsewhere."""


class SceneGeometry:
    """Results do not depend on the number of threads. Several threads may query one geometry."""

    def __init__(self, mesh: TriangleMesh, *, backend: Backend = "auto", threads: int = 1) -> None:
        if threads < 1:
            raise ConfigurationError(message=f"geometry.threads is {threads}, expected at least 1")
        self.mesh = mesh
        self.backend = self.resolved_backend(backend)
        self.threads = threads
        self.bounds: NDArray[np.float64] = mesh.bounds
        self._tracer: RayTracer = EmbreeRays(mesh) if self.backend == "embree" else self._bvh

    @staticmethod
    def resolved_backend(backend: Backend) -> Literal["embree", "bvh"]:
        """The backend that is used on this machine: `auto` is Embree if embreex can be imported."""
        if backend not in ("auto", "embree", "bvh"):
            raise ConfigurationError(
                message=f"renderer is {backend!r}, expected auto, embree or bvh"
            )
        if backend == "bvh":
            return "bvh"
        try:
            import embreex.rtcore_scene  # noqa: F401
        except ImportError as error:
            if backend == "embree":
                message = (
                    "renderer embree needs embreex, which has no wheel for some machines: pip install "
                    f"'embreex>=4.4', or use renderer bvh, which gives the same images ({error})"
                )
                raise ConfigurationError(message=message) from error
            return "bvh"
        return "embree"

    @cached_property
    def _bvh(self) -> Bvh:
        """Built at the first use: rendering with Embree does not need it."""
        return Bvh(self.mesh.triangles)

    def widened(self, places: ArrayLike) -> SceneGeometry:
        """This geometry with `bounds` that also hold these places [n, 3], and a margin beyond each of them.

        Cameras that looked at a mesh from outside show that there is space around it. A side of the bounds that no
        place passes stays where it is.
        """
        given = rows_of_three(places, "places").astype(np.float64)
        low, high = self.bounds
        first, last = given.min(axis=0), given.max(axis=0)
        below, above = first < low, last > high
        if not (below.any() or above.any()):
            return self
        self._bvh  # noqa: B018 - built once, before the copy that shares it
        wide = copy.copy(self)
        wide.bounds = np.array(
            [
                np.where(below, first - OUTSIDE_MARGIN_M, low),
                np.where(above, last + OUTSIDE_MARGIN_M, high),
            ]
        )
        return wide

    # ---------------------------------------------------------------------------------------- rays

    def cast(self, origins: ArrayLike, directions: ArrayLike) -> tuple[Floats, Ints]:
        """Distance of the first hit of each ray, in lengths of its direction, and the face; inf and -1 for no hit.

        Both sides of a face stop a ray. A ray that is not finite or has no direction hits nothing.
        """
        starts, along = ray_columns(origins, directions)
        t, face = np.full(len(starts), np.inf, np.float32), np.empty(len(starts), np.int32)
        self._trace(starts, along, t, face)
        return t, face

    def _trace(self, origins: Floats, directions: Floats, t: Floats, face: Ints | None) -> None:
        def part(start: int, end: int) -> None:
            some = slice(start, end)
            faces = None if face is None else face[some]
            self._tracer.trace(origins[some], directions[some], t[some], faces)

        self._in_parts(len(t), _FEWEST, part)

    def depth(self, poses: ArrayLike, camera: Camera, *, every: int = 1) -> Floats:
        """[N, H, W]: depth along z; 0 where the first hit is not between near and far.

        A surface nearer than `near_m` still hides what is behind it: a camera inside an object sees nothing. With
        `every` above 1, only every so-many-th row and column of the images is rendered and returned.
        """
        return self._images(poses, camera, None, every)

    def depth_and_faces(self, poses: ArrayLike, camera: Camera) -> tuple[Floats, Ints]:
        """Depth, and the face in every pixel; -1 where the depth is 0."""
        faces = np.empty((len(np.asarray(poses)), camera.height, camera.width), np.int32)
        return self._images(poses, camera, faces), faces

    def _images(
        self, poses: ArrayLike, camera: Camera, faces: Ints | None, every: int = 1
    ) -> Floats:
        placed = _checked_poses(poses)
        rays = camera.rays()
        columns = rays[: camera.width : every, 0].copy()
        rows = rays[:: camera.width * every, 1].copy()
        size = (len(rows), len(columns))
        near, far = np.float32(camera.near_m), np.float32(camera.far_m)
        # rays end just beyond the far plane, so that a ray without a hit differs from one that hits the plane
        depth = np.full((len(placed), *size), np.nextafter(far, np.float32(np.inf)), np.float32)

        def render(start: int, end: int) -> None:
            origins, directions = np.empty((2, *size, 3), np.float32)
            for row in range(start, end):
                _aim(columns, rows, placed[row], origins, directions)
                image = depth[row].reshape(-1)
                face = None if faces is None else faces[row].reshape(-1)
                self._tracer.trace(origins.reshape(-1, 3), directions.reshape(-1, 3), image, face)
                _forget_outside(image, near, far)
                if face is not None:
                    face[image == 0] = -1

        self._in_parts(len(placed), 1, render)
        return depth

    def path_hits(self, start: ArrayLike, ends: ArrayLike) -> NDArray[np.bool_]:
        """[N]: which straight paths cross a face. A path to an end that is not finite crosses none."""
        here, there = _way(start, ends)
        with np.errstate(invalid="ignore"):
            rays = ray_columns(np.broadcast_to(here, there.shape), there - here)
        t = np.ones(len(there), np.float32)
        self._trace(*rays, t, None)
        return np.asarray(t < 1)

    def floor_below(self, point: ArrayLike, radius: float) -> float:
        """Height of the lowest surface under a disc around a point [3]; NaN if there is none.

        The lowest, because a camera is often held over the edge of a table, and its carrier stands beside the table.
        """
        below = self._heights_below(np.asarray(point, np.float64)[None], radius)
        return float(np.fmin.reduce(below[0]))

    def highest_below(self, points: ArrayLike, radius: float) -> Floats:
        """[N]: height of the highest surface under a disc of this radius at each point; NaN if there is none."""
        return np.asarray(np.fmax.reduce(self._heights_below(points, radius), axis=1))

    def _heights_below(self, points: ArrayLike, radius: float) -> Floats:
        """[N, 17]: heights of the first surface below places of each disc; NaN where there is none."""
        origins = places_of_disc(points, radius)
        t, _ = self.cast(
            origins.reshape(-1, 3), np.tile([0.0, 0.0, -1.0], (origins[..., 0].size, 1))
        )
        heights = origins[..., 2] - t.reshape(origins.shape[:2])
        return np.where(np.isfinite(heights), heights, np.nan).astype(np.float32)

    # ----------------------------------------------------------------------------------- distances

    def distance(self, points: ArrayLike, bound: float = math.inf) -> Floats:
        """Distance of points [n, 3] to the nearest surface, at most `bound`; NaN where a point is NaN."""
        places = rows_of_three(points, "points")
        found = np.empty(len(places), np.float32)

        def part(start: int, end: int) -> None:
            found[start:end] = self._bvh.distance(places[start:end], bound)

        self._in_parts(len(places), _FEWEST, part)
        return found

    def path_clearance(
        self, start: ArrayLike, ends: ArrayLike, samples: int, bound: float
    ) -> Floats:
        """[N]: least distance to a surface at evenly spaced points of each straight path, its end included.

        The start is excluded: the actor is already there, whatever is close to it.
        """
        if samples < 1:
            raise InvalidValue(
                record="path_clearance", field="samples", value=str(samples), expected="at least 1"
            )
        here, there = _way(start, ends)
        part = (np.arange(samples) + 1)[:, None] / samples
        with np.errstate(invalid="ignore"):
            points = here * (1 - part) + there[:, None] * part
        found = self.distance(points.reshape(-1, 3), bound)
        return np.asarray(found.reshape(len(there), samples).min(axis=1))

    # ------------------------------------------------------------------------------------- threads

    def _in_parts(self, count: int, fewest: int, work: Callable[[int, int], None]) -> None:
        """Calls `work` with ranges that make up 0 to `count`."""
        parts = min(_PARTS * self.threads, count // fewest)
        if self.threads == 1 or parts < 2:
            work(0, count)
            return
        edges = [count * k // parts for k in range(parts + 1)]
        with ThreadPoolExecutor(self.threads) as pool:
            # list() raises here what was raised in a thread
            list(pool.map(work, edges[:-1], edges[1:]))


class EmbreeRays:
    """Embree casts rays in float32 and releases the interpreter lock.

    Its scenes are robust: otherwise one in seven rays aimed exactly at an edge between two faces passes through.
    """

    def __init__(self, mesh: TriangleMesh) -> None:
        from embreex.mesh_construction import TriangleMesh as EmbreeMesh
        from embreex.rtcore_scene import EmbreeScene

        self.nbytes_outside_arrays = _EMBREE_BYTES_PER_FACE * len(mesh)
        self._scene: Any = EmbreeScene(robust=True)
        EmbreeMesh(self._scene, mesh.vertices, mesh.faces)
        # the first query builds the hierarchy, and two threads must not both build it
        self._scene.run(np.zeros((1, 3), np.float32), np.ones((1, 3), np.float32))

    def trace(
        self, origins: Floats, directions: Floats, t: Floats, face: Ints | None = None
    ) -> None:
        if face is None:
            found = self._scene.run(origins, directions, dists=t, query="DISTANCE")
        else:
            hits = self._scene.run(origins, directions, dists=t, output=True)
            found, face[:] = hits["tfar"], hits["primID"]
        if found is not t:
            t[:] = found


@compiled
def _aim(
    columns: Floats,
    rows: Floats,
    pose: NDArray[np.float64],
    origins: Floats,
    directions: Floats,
) -> None:
    """Fills in the rays of one image, [H, W, 3] each. numpy needed a tenth of the image's time for this."""
    for row in range(len(rows)):
        for axis in range(3):
            down = rows[row] * pose[3 * axis + 1] + pose[3 * axis + 2]
            for column in range(len(columns)):
                directions[row, column, axis] = columns[column] * pose[3 * axis] + down
                origins[row, column, axis] = pose[9 + axis]


@compiled
def _forget_outside(image: Floats, near: np.float32, far: np.float32) -> None:
    for pixel in range(len(image)):
        image[pixel] = image[pixel] if near <= image[pixel] <= far else np.float32(0)


def _checked_poses(poses: ArrayLike) -> NDArray[np.float64]:
    given = np.require(poses, np.float64, ("C", "W"))
    if given.ndim != 2 or given.shape[1] != 12:
        raise InvalidValue(
            record="poses", field="shape", value=str(list(given.shape)), expected="[N, 12]"
        )
    bad = np.flatnonzero(~np.isfinite(given).all(axis=1))
    if len(bad):
        raise InvalidValue(
            record="poses",
            field=f"poses[{bad[0]}]",
            value=str(given[bad[0]].tolist()),
            expected="finite numbers",
        )
    return given


def _way(start: ArrayLike, ends: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    here, there = np.asarray(start, np.float64), np.asarray(ends, np.float64)
    if here.shape != (3,) or there.ndim != 2 or there.shape[1] != 3:
        raise InvalidValue(
            record="path",
            field="start and ends",
            value=f"{list(here.shape)} and {list(there.shape)}",
            expected="[3] and [N, 3]",
        )
    return here, there
