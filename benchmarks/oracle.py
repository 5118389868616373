"""The oracle: reconstruction error after each of 60 views, compared with measuring the whole cloud again.

Same metric, same samples or faces, same points on both sides; rendering is part of every figure. Peers do one direction
only, from the surface to the points, and answer for the scene alone; ours answers for the target as well.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.stores import peer
from benchmarks.timing import Claim, best
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.poses import centres, look_at, rotations
from rollbook.generate.oracle.config import OracleConfig
from rollbook.generate.oracle.distance_field import Pixels
from rollbook.generate.oracle.naive import brute_squares
from rollbook.generate.oracle.oracle import Oracle
from rollbook.generate.oracle.surface import SurfaceFaces, SurfaceSamples
from rollbook.generate.raycast.scene_geometry import SceneGeometry
from rollbook.generate.scenes.scene import SceneConfig, make_scene
from rollbook.generate.scenes.sensing import record

Run = Callable[[], object]

_VIEWS = 60
_SAMPLES = 50_000
_BRUTE_FACES = 300
"""Brute force compares this many faces with all points; the time for all faces is scaled from it."""
_EDGES_M = (1.25, 0.6, 0.32, 0.15)
"""Longest edges of the same flat: 23 to 300 thousand triangles. All other measurements use the third."""


@dataclass(frozen=True, eq=False)
class _Room:
    geometry: SceneGeometry
    target: Boxes
    points: NDArray[np.float32]
    camera: Camera
    poses: NDArray[np.float64]

    def oracle(self, **config: Any) -> Oracle:
        return Oracle(self.geometry, self.target, 0, OracleConfig(**config))

    def depth(self, views: int) -> NDArray[np.float32]:
        return self.geometry.depth(self.poses[:views], self.camera)

    def cloud(self, view: int, depth: NDArray[np.float32]) -> NDArray[np.float32]:
        """All known points after one view, equal bit for bit to the points of the oracle."""
        pose, pixels = self.poses[view], Pixels.of(self.camera)
        tree = pixels.tree()
        tree.see(depth[view], rotations(pose), centres(pose), pixels)
        return np.concatenate([self.points, tree.points])


def main(scale: float = 1.0) -> list[Claim]:
    small = scale <= 0.1
    views, samples, repeats = (6, 2_000, 1) if small else (_VIEWS, _SAMPLES, 3)
    room = _room(_EDGES_M[0 if small else 2], views, 40 if small else 120)
    print(
        f"oracle: {len(room.geometry.mesh):,} triangles, {len(room.points):,} points known, {views} views of "
        f"{room.camera.width}x{room.camera.height} by {room.geometry.backend}"
    )
    return [
        *_against_tree(room, views, samples, repeats, "scipy.spatial", None, 15),
        *_against_tree(room, views, samples, repeats, "pykdtree.kdtree", 0.5, 2),
        *_against_brute(room, views, repeats, 20 if small else _BRUTE_FACES),
        *_default(room, views, repeats),
        *_by_views(room, views, samples, repeats),
        *_by_triangles(views, samples, repeats, _EDGES_M[:2] if small else _EDGES_M),
        *_by_threads(room, views, samples, repeats),
    ]


def _room(edge_m: float, views: int, size: int) -> _Room:
    scene = make_scene(SceneConfig(seed=3, max_edge_m=edge_m))
    geometry = SceneGeometry(scene.mesh)
    recording = record(scene, geometry, np.random.default_rng(0))
    held = [scene.boxes.contains(row, recording.points).sum() for row in range(len(scene.boxes))]
    target = scene.boxes.take([int(np.argmax(held))])
    rng = np.random.default_rng(1)
    eyes = recording.poses[-1, 9:] + rng.uniform([-0.8, -0.8, -0.2], [0.8, 0.8, 0.2], (views, 3))
    looked_at = scene.boxes.centres[rng.integers(len(scene.boxes), size=views)]
    camera = Camera.square(size)
    return _Room(geometry, target, recording.points, camera, look_at(eyes, looked_at))


def _ours(room: _Room, views: int, **config: Any) -> Run:
    oracle = room.oracle(**config)
    state = oracle.root(room.points)
    poses, camera = room.poses[:views], room.camera

    def run() -> None:
        oracle.score(state, room.geometry.depth(poses, camera), poses, camera)

    run()
    return run


def _show(name: str, each: float, note: str = "") -> None:
    print(f"  {name:44} {each * 1e3:12,.2f} ms per view  {1 / each:10,.2f} views/s  {note}")


# ------------------------------------------------------------------------------------------------ peers


def _against_tree(
    room: _Room, views: int, samples: int, repeats: int, name: str, limit: float | None, bar: float
) -> list[Claim]:
    """A tree of the whole cloud, rebuilt for every view; measured on some views only, because it takes long."""
    module = peer(name)
    label = "all distances" if limit is None else f"distances to {limit} m"
    claim = f"oracle vs {name}, whole cloud, {label}"
    if module is None:
        return [Claim(claim, None, bar, "x")]
    far = np.inf if limit is None else limit
    some = max(1, views // 10)
    config: dict[str, Any] = {"scene_samples": samples, "truncation_m": limit}
    oracle = room.oracle(**config)
    surface = oracle.surfaces["scene"]
    assert isinstance(surface, SurfaceSamples)

    def measure(view: int, depth: NDArray[np.float32]) -> NDArray[np.float64]:
        tree = module.KDTree(room.cloud(view, depth))
        distances = tree.query(surface.points, distance_upper_bound=far)[0]
        return np.asarray(np.minimum(distances, far), np.float64)

    def theirs() -> None:
        depth = room.depth(some)
        for view in range(some):
            measure(view, depth).mean()

    seconds = best({"ours": _ours(room, views, **config), "theirs": theirs}, repeats=repeats)
    ours, whole = seconds["ours"] / views, seconds["theirs"] / some
    depth = room.depth(some)
    state = oracle.root(room.points)
    d2, _ = oracle.distances(state, depth, room.poses[:some], room.camera, "scene")
    apart = max(np.abs(np.sqrt(d2[view]) - measure(view, depth)).max() for view in range(some))
    _show(f"ours, area, {label}", ours)
    _show(f"{name}, {label}", whole, f"greatest difference {apart:.1e} m")
    return [Claim(claim, whole / ours, bar, "x")]


def _against_brute(room: _Room, views: int, repeats: int, rows: int) -> list[Claim]:
    """Both directions at once, one face against all points; the time is scaled to all faces."""
    config: dict[str, Any] = {"metric": "face_sq", "truncation_m": None}
    oracle = room.oracle(**config)
    surface = oracle.surfaces["scene"]
    assert isinstance(surface, SurfaceFaces)
    chosen = np.random.default_rng(0).choice(len(surface), min(rows, len(surface)), replace=False)
    corners = surface.corners[chosen]
    depth = room.depth(1)
    cloud = room.cloud(0, depth)
    state = oracle.root(room.points)
    d2, _ = oracle.distances(state, depth, room.poses[:1], room.camera, "scene")
    apart = float(np.abs(d2[0, chosen] - brute_squares(cloud, corners)[0]).max())
    runs = {
        "ours, face_sq": _ours(room, views, **config),
        "brute force": lambda: brute_squares(cloud, corners),
        "rendering": lambda: room.depth(views),
    }
    seconds = best(runs, repeats=repeats)
    ours, rendering = seconds["ours, face_sq"] / views, seconds["rendering"] / views
    brute = seconds["brute force"] * len(surface) / len(chosen) + rendering
    _show("rendering alone", rendering)
    _show("ours, face_sq, all distances", ours)
    pairs = len(chosen) * len(cloud) / seconds["brute force"] / 1e6
    _show("brute force, scaled", brute, f"{pairs:.0f} Mpair/s, greatest difference {apart} m2")
    if apart:
        raise RuntimeError(f"face_sq differs from brute force by {apart} m2, expected not at all")
    return [Claim("oracle face_sq vs brute force", brute / ours, 1000, "x")]


# ---------------------------------------------------------------------------------------------- scaling


def _default(room: _Room, views: int, repeats: int) -> list[Claim]:
    seconds = best({"ours": _ours(room, views)}, repeats=repeats)
    _show("ours, as configured by default", seconds["ours"] / views)
    return [
        Claim(
            "oracle, default config, rendering included", views / seconds["ours"], 97, "views/cpu-s"
        )
    ]


def _by_views(room: _Room, views: int, samples: int, repeats: int) -> list[Claim]:
    counts = [max(1, views // 4), max(1, views // 2), views]
    runs = {str(count): _ours(room, count, scene_samples=samples) for count in counts}
    seconds = best(runs, repeats=repeats)
    each = [seconds[str(count)] / count for count in counts]
    for count, spent in zip(counts, each, strict=True):
        _show(f"ours, {count} views", spent)
    return [
        Claim("a view among all vs among a quarter", each[-1] / each[0], 1.25, "x", at_most=True)
    ]


def _by_triangles(views: int, samples: int, repeats: int, edges: tuple[float, ...]) -> list[Claim]:
    rooms = [_room(edge, views, 40 if len(edges) < 4 else 120) for edge in edges]
    claims = []
    for metric in ("area", "face_sq"):
        runs = {
            str(len(room.geometry.mesh)): _ours(room, views, metric=metric, scene_samples=samples)
            for room in rooms
        }
        seconds = best(runs, repeats=repeats)
        for count, spent in seconds.items():
            _show(f"ours, {metric}, {int(count):,} triangles", spent / views)
        (fewest, least), *_, (most, longest) = ((int(k), v) for k, v in seconds.items())
        power = max(math.log(longest / least) / math.log(most / fewest), 1e-3)
        name = f"oracle {metric}: time grows as triangles to the power of"
        claims.append(Claim(name, power, 1.0, "", at_most=True))
    return claims


def _by_threads(room: _Room, views: int, samples: int, repeats: int) -> list[Claim]:
    """Wall-clock time, which is meaningful only if the second core is idle."""
    geometry = SceneGeometry(room.geometry.mesh, threads=2)
    pair = _Room(geometry, room.target, room.points, room.camera, room.poses)
    runs = {
        "one": _ours(room, views, scene_samples=samples),
        "two": _ours(pair, views, scene_samples=samples),
    }
    seconds = best(runs, repeats=2 * repeats, clock=time.perf_counter)
    for name, spent in seconds.items():
        _show(f"ours, {name} thread(s), wall", spent / views)
    return [Claim("oracle, two threads vs one, wall", seconds["one"] / seconds["two"], 1.7, "x")]
