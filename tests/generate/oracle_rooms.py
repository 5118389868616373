"""Small meshes, clouds and views for the oracle's tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.mesh import TriangleMesh
from rollbook.generate.geometry.poses import look_at, poses_of
from rollbook.generate.raycast.scene_geometry import SceneGeometry

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

_CORNERS = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], np.float64)
_SIDES = np.array(
    [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]
)


def box_triangles(low: object, high: object, yaw: float = 0.0) -> Doubles:
    """[12, 3, 3], turned about its middle."""
    start, end = np.asarray(low, np.float64), np.asarray(high, np.float64)
    corners = (_CORNERS - 0.5) * (end - start) @ about_z(yaw).T + (start + end) / 2
    quads = corners[_SIDES]
    return np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])


def plate(side: float, z: float = 0.0) -> Doubles:
    """[2, 3, 3]: a level square around the z axis."""
    a, b, c, d = np.array([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]]) * side / 2 + [0, 0, z]
    return np.array([[a, b, c], [a, c, d]])


def about_z(yaw: float) -> Doubles:
    return np.array([[np.cos(yaw), -np.sin(yaw), 0], [np.sin(yaw), np.cos(yaw), 0], [0, 0, 1]])


def subdivided(triangles: Doubles) -> Doubles:
    """Each triangle cut into four, the same surface."""
    a, b, c = triangles[:, 0], triangles[:, 1], triangles[:, 2]
    ab, bc, ca = (a + b) / 2, (b + c) / 2, (c + a) / 2
    parts = [(a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca)]
    return np.concatenate([np.stack(part, axis=1) for part in parts])


def mesh_of(*triangles: Doubles) -> TriangleMesh:
    corners = np.concatenate(triangles).reshape(-1, 3)
    return TriangleMesh(corners, np.arange(len(corners)).reshape(-1, 3))


def box_around(low: object, high: object, yaw: float = 0.0) -> Boxes:
    start, end = np.asarray(low, np.float64), np.asarray(high, np.float64)
    pose = poses_of(about_z(yaw), (start + end) / 2)
    return Boxes.build(pose, end - start, [0])


@dataclass(frozen=True, eq=False)
class Room:
    """A room with a few boxes in it, the first of which is the target, and views of it."""

    triangles: Doubles
    boxes: Boxes
    points: Floats
    """Known at the start; some of them on the target."""
    camera: Camera
    poses: Doubles
    depth: Floats

    def geometry(self, threads: int = 1) -> SceneGeometry:
        return SceneGeometry(mesh_of(self.triangles), threads=threads)


def make_room(seed: int, *, views: int = 6, size: int = 24, items: int = 4) -> Room:
    rng = np.random.default_rng(seed)
    parts = [box_triangles([0, 0, 0], [4, 3, 2.5])]
    sizes = rng.uniform(0.2, 0.8, (items, 3))
    places = rng.uniform([0.5, 0.5, 0.0], [2.7, 1.7, 0.3], (items, 3))
    yaws = rng.uniform(0, np.pi, items)
    for place, extent, yaw in zip(places, sizes, yaws, strict=True):
        parts.append(box_triangles(place, place + extent, yaw))
    triangles = np.concatenate(parts)
    # the target stands on nothing: it is seen from all around, and its box holds no floor
    boxes = box_around(places[0], places[0] + sizes[0], yaws[0])
    eyes = rng.uniform([0.3, 0.3, 0.9], [3.7, 2.7, 2.2], (views, 3))
    poses = look_at(eyes, places[0] + sizes[0] / 2 + rng.normal(0, 0.3, (views, 3)))
    camera = Camera.square(size)
    geometry = SceneGeometry(mesh_of(triangles))
    on_target = (places[0] + sizes[0] / 2) + rng.uniform(-0.1, 0.1, (3, 3)) * sizes[0]
    around = rng.uniform([0, 0, 0], [4, 3, 1.5], (60, 3))
    points = np.concatenate([on_target, around]).astype(np.float32)
    return Room(triangles, boxes, points, camera, poses, geometry.depth(poses, camera))
