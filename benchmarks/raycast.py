"""Depth images and distances in a furnished flat: rays per second beside plain Embree, points beside a KD-tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from benchmarks.stores import peer, turns
from benchmarks.timing import Claim, best
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.mesh import TriangleMesh
from rollbook.generate.geometry.poses import look_at
from rollbook.generate.raycast.bvh import Bvh
from rollbook.generate.raycast.scene_geometry import SceneGeometry
from rollbook.generate.scenes.scene import SceneConfig, make_scene

Floats = NDArray[np.float32]
Run = Callable[[], object]

_IMAGES, _SIZE_PX = 30, 120
_POINTS, _SAMPLES = 50_000, 500_000
_OFF_SURFACE_M = 0.02
_WAYS, _STOPS = 600, 32

_DEPTH, _OWN_DEPTH = "SceneGeometry.depth, embree", "SceneGeometry.depth, bvh"
_RAW, _RAW_LEAKY = "limit: embreex raw, robust scene", "embreex raw, default scene (leaks at edges)"
_DISTANCE, _KD = "Bvh.distance, exact", "scipy cKDTree on surface samples, not exact"


def main(scale: float = 1.0) -> list[Claim]:
    mesh = make_scene(SceneConfig(max_edge_m=0.25 if scale == 1 else 1.0)).mesh
    print(f"ray casting: {len(mesh):,} triangles, CPU time of one thread")
    return [*_rays(mesh, scale), *_distances(mesh, scale)]


# ----------------------------------------------------------------------------------------------- rays


def _rays(mesh: TriangleMesh, scale: float) -> list[Claim]:
    camera = Camera.square(_SIZE_PX)
    poses = _poses(mesh, max(2, int(_IMAGES * scale)))
    count = len(poses) * _SIZE_PX**2
    directions = [camera.world_rays(pose) for pose in poses]
    origins = [np.tile(pose[9:].astype(np.float32), (_SIZE_PX**2, 1)) for pose in poses]
    own, tree = SceneGeometry(mesh, backend="bvh"), Bvh(mesh.triangles)
    runs: dict[str, Run] = {
        _OWN_DEPTH: lambda: own.depth(poses, camera),
        "Bvh.cast, rays made before": lambda: [
            tree.cast(*rays) for rays in zip(origins, directions, strict=True)
        ],
    }
    if peer("embreex.rtcore_scene") is not None:
        embree = SceneGeometry(mesh, backend="embree")
        runs[_DEPTH] = lambda: embree.depth(poses, camera)
        runs[_RAW] = _raw(mesh, origins, directions, robust=True)
        runs[_RAW_LEAKY] = _raw(mesh, origins, directions, robust=False)
        apart = np.abs(own.depth(poses, camera) - embree.depth(poses, camera)) > 1e-4
        print(
            f"  backends differ by more than 0.1 mm in {np.count_nonzero(apart)} of {count:,} pixels"
        )
    seconds = _timed(runs, scale)
    for name, spent in seconds.items():
        print(f"  {name:44} {count / spent / 1e6:8.2f} M rays/s")
    return _ray_claims(seconds)


def _poses(mesh: TriangleMesh, count: int) -> NDArray[np.float64]:
    """Views of a person who walks through the flat."""
    rng = np.random.default_rng(0)
    low, high = mesh.bounds
    eyes, aims = rng.uniform(low, high, (2, count, 3))
    eyes[:, 2] = rng.uniform(1.4, 1.7, count)
    return look_at(eyes, aims)


def _raw(
    mesh: TriangleMesh, origins: list[Floats], directions: list[Floats], *, robust: bool
) -> Run:
    """The query with the smallest result, on rays that were prepared before."""
    scene: Any = peer("embreex.rtcore_scene").EmbreeScene(robust=robust)
    peer("embreex.mesh_construction").TriangleMesh(scene, mesh.vertices, mesh.faces)

    def run() -> None:
        for starts, along in zip(origins, directions, strict=True):
            scene.run(starts, along, query="DISTANCE")

    return run


def _ray_claims(seconds: dict[str, float]) -> list[Claim]:
    pairs = {
        "depth images vs embreex raw, robust scene": (_RAW, _DEPTH, 0.8),
        "depth images vs embreex raw, default scene": (_RAW_LEAKY, _DEPTH, 0.7),
        "our own caster vs embreex raw": (_RAW, _OWN_DEPTH, 0.4),
    }
    return [
        Claim(name, seconds[theirs] / seconds[ours] if theirs in seconds else None, bar, "x")
        for name, (theirs, ours, bar) in pairs.items()
    ]


# ------------------------------------------------------------------------------------------ distances


def _distances(mesh: TriangleMesh, scale: float) -> list[Claim]:
    rng = np.random.default_rng(1)
    points = _on_surface(mesh, max(1000, int(_POINTS * scale)), rng)
    points += rng.normal(0, _OFF_SURFACE_M, points.shape).astype(np.float32)
    samples = cKDTree(_on_surface(mesh, max(10_000, int(_SAMPLES * scale)), rng))
    geometry = SceneGeometry(mesh, backend="bvh")
    start, ends = mesh.bounds.mean(axis=0), rng.uniform(mesh.bounds[0], mesh.bounds[1], (_WAYS, 3))
    runs: dict[str, tuple[Run, int]] = {
        _DISTANCE: (lambda: geometry.distance(points), len(points)),
        "Bvh.distance, at most 0.1 m": (lambda: geometry.distance(points, 0.1), len(points)),
        "path_clearance, at most 2 m": (
            lambda: geometry.path_clearance(start, ends, _STOPS, 2.0),
            _WAYS * _STOPS,
        ),
        _KD: (lambda: samples.query(points), len(points)),
    }
    error = samples.query(points)[0] - geometry.distance(points)
    seconds = _timed({name: run for name, (run, _) in runs.items()}, scale)
    for name, spent in seconds.items():
        print(f"  {name:44} {runs[name][1] / spent / 1e3:8.0f} k points/s")
    print(
        f"  the samples are off by {error.mean() * 1e3:.1f} mm on average, {error.max() * 1e3:.0f} mm at most"
    )
    return [
        Claim("exact distances vs cKDTree on samples", seconds[_KD] / seconds[_DISTANCE], 2, "x")
    ]


def _on_surface(mesh: TriangleMesh, count: int, rng: np.random.Generator) -> Floats:
    """Points spread evenly over the area."""
    faces = rng.choice(len(mesh), count, p=mesh.areas / mesh.areas.sum())
    weights = rng.dirichlet([1, 1, 1], count)
    return np.asarray((mesh.triangles[faces] * weights[..., None]).sum(axis=1), np.float32)


def _timed(runs: dict[str, Run], scale: float) -> dict[str, float]:
    for run in runs.values():
        run()  # compiles the kernels and fills caches
    return best(runs, repeats=turns(scale))
