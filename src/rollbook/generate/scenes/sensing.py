"""Recording: the data of a simulated walk through a scene: its path, sparse points and detected boxes.

Points lie where a tracker finds them, at edges of depth and shape, with noise along their rays. Detections show visible
objects. Some are missed, all are inexact, and none knows its object.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollbook.generate.config_checks import expect
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.poses import centres, poses_of, rotations
from rollbook.generate.scenes.scene import Scene
from rollbook.generate.scenes.solids import about_z
from rollbook.generate.scenes.walk import Walk, WalkConfig, take_walk

if TYPE_CHECKING:
    from rollbook.generate.geometry.mesh import TriangleMesh
    from rollbook.generate.raycast.scene_geometry import SceneGeometry

Array = NDArray[np.float64]
Rng = np.random.Generator


class SensingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    image_px: int = 240
    """Width and height of the recording camera."""
    field_of_view_deg: float = 90.0
    near_m: float = 0.05
    far_m: float = 20.0
    points_per_frame: int = 900
    flat_weight: float = 0.03
    """Weight of a point on a plain surface; a point at an edge has weight 1."""
    inv_dist_sigma: float = 0.004
    """Median noise of the inverse distance, 1/m; the noise of single points differs by about a third."""
    least_pixels: int = 40
    """An object with fewer pixels in every frame is never detected."""
    miss_rate: float = 0.08
    """Share of clearly visible objects that are missed; hidden objects are missed more often."""
    centre_sigma_m: float = 0.04
    """Noise of a detected centre along each axis; twice as much for objects that were hardly seen."""
    extent_sigma: float = 0.07
    """Relative noise of a detected side."""
    yaw_sigma_deg: float = 4.0
    confidence_sigma: float = 0.06
    confusion_rate: float = 0.03
    """Share of detections with a wrong class."""
    false_positives: float = 0.4
    """Mean number of boxes without an object per recording."""

    def __post_init__(self) -> None:
        expect(self, "image_px", 16 <= self.image_px <= 2048, "16 to 2048")
        expect(self, "field_of_view_deg", 10 <= self.field_of_view_deg <= 150, "10 to 150")
        expect(self, "near_m", 0 < self.near_m < self.far_m, "more than 0, less than far_m")
        expect(self, "far_m", self.far_m <= 1000, "at most 1000")
        expect(self, "points_per_frame", 0 <= self.points_per_frame <= 10**6, "0 to 10^6")
        expect(self, "flat_weight", 0 < self.flat_weight <= 1, "more than 0, at most 1")
        expect(self, "inv_dist_sigma", 0 <= self.inv_dist_sigma <= 1, "0 to 1")
        expect(self, "least_pixels", self.least_pixels >= 1, "at least 1")
        for name in ("miss_rate", "confusion_rate"):
            expect(self, name, 0 <= getattr(self, name) <= 1, "0 to 1")
        for name in ("centre_sigma_m", "extent_sigma", "confidence_sigma"):
            expect(self, name, 0 <= getattr(self, name) <= 1, "0 to 1")
        expect(self, "yaw_sigma_deg", 0 <= self.yaw_sigma_deg <= 180, "0 to 180")
        expect(self, "false_positives", 0 <= self.false_positives <= 100, "0 to 100")

    @property
    def camera(self) -> Camera:
        limits = {"near_m": self.near_m, "far_m": self.far_m}
        return Camera.square(self.image_px, self.field_of_view_deg, **limits)


class Detectable(Protocol):
    """A scene whose objects can be detected."""

    @property
    def mesh(self) -> TriangleMesh: ...

    @property
    def boxes(self) -> Boxes:
        """One box per object; `inst_id` is that of its faces."""

    @property
    def class_names(self) -> Sequence[str]:
        """Class names by sem id."""

    @property
    def first_object_class(self) -> int:
        """The sem id at which classes of objects begin; earlier ones are structure."""


@dataclass(frozen=True, slots=True, eq=False)
class Semidense:
    points: NDArray[np.float32]
    """[P, 3]"""
    frame: NDArray[np.int32]
    """The frame in which each point was seen."""
    inv_dist_std: NDArray[np.float32]
    """1/m"""
    dist_std: NDArray[np.float32]
    """m"""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    poses: NDArray[np.float32]
    """[F, 12]; the last is the root of rollouts."""
    t_ns: NDArray[np.int64]
    camera: Camera
    points: NDArray[np.float32]
    point_frame: NDArray[np.int32]
    inv_dist_std: NDArray[np.float32]
    dist_std: NDArray[np.float32]
    detections: Boxes
    continuation: NDArray[np.float32]
    """[K, 12]: poses of the walk after the root. The actor does not get them."""
    continuation_t_ns: NDArray[np.int64]


def record(
    scene: Scene,
    geometry: SceneGeometry,
    rng: np.random.Generator,
    *,
    walk: WalkConfig | None = None,
    sensing: SensingConfig | None = None,
) -> Recording:
    """Records one walk through a scene. `geometry` is the scene's mesh prepared for rays."""
    config = sensing or SensingConfig()
    walking, looking, detecting = rng.spawn(3)
    taken: Walk = take_walk(scene.walkable, walk or WalkConfig(), walking)
    camera = config.camera
    depth, face = geometry.depth_and_faces(taken.poses, camera)
    seen = semidense_points(depth, _normals(geometry, face), taken.poses, camera, config, looking)
    quality = visibility(scene, face, taken.poses, camera, config.least_pixels)
    found = detections_of(scene, quality, depth, taken.poses, camera, config, detecting)
    return Recording(
        taken.poses,
        taken.t_ns,
        camera,
        seen.points,
        seen.frame,
        seen.inv_dist_std,
        seen.dist_std,
        found,
        taken.continuation,
        taken.continuation_t_ns,
    )


# ------------------------------------------------------------------------------ semidense points


def semidense_points(
    depth: NDArray[np.float32],
    normals: NDArray[np.float32],
    poses: NDArray[np.float32],
    camera: Camera,
    config: SensingConfig,
    rng: Rng,
) -> Semidense:
    """Draws pixels without repetition, edges preferred, and moves each along its ray by inverse-distance noise.

    `depth` is [F, H, W], `normals` [F, H, W, 3]. A frame with fewer hits than requested gives all its hits.
    """
    frames = len(depth)
    flat = depth.reshape(frames, -1)
    weight = np.where(edges(depth, normals), 1.0, config.flat_weight).reshape(frames, -1)
    # the smallest of exponential times with these rates are a weighted draw without repetition
    time = np.where(flat > 0, rng.exponential(size=flat.shape) / weight, np.inf)
    count = min(config.points_per_frame, flat.shape[1])
    first = np.sort(np.argpartition(time, count - 1, axis=1)[:, :count], axis=1)
    frame, slot = np.nonzero(np.isfinite(np.take_along_axis(time, first, axis=1)))
    pixel = first[frame, slot]
    ray = np.einsum("nij,nj->ni", rotations(poses)[frame], camera.rays()[pixel].astype(np.float64))
    length = np.linalg.norm(ray, axis=1)
    distance = flat[frame, pixel] * length
    sigma = config.inv_dist_sigma * np.exp(rng.normal(0, 0.3, len(frame)))
    inverse = 1 / distance + sigma * rng.normal(size=len(frame))
    # a point that noise would move to infinity or behind the camera stays at the far distance
    moved = 1 / np.maximum(inverse, 1 / config.far_m)
    points = centres(poses)[frame] + ray / length[:, None] * moved[:, None]
    return Semidense(
        points.astype(np.float32),
        frame.astype(np.int32),
        sigma.astype(np.float32),
        (sigma * moved**2).astype(np.float32),
    )


def edges(depth: NDArray[np.float32], normals: NDArray[np.float32]) -> NDArray[np.bool_]:
    """[F, H, W]: pixels whose right or lower neighbour has another depth or another normal."""
    found = np.zeros(depth.shape, bool)
    for axis in (1, 2):
        here = [slice(None)] * 3
        there = [slice(None)] * 3
        here[axis], there[axis] = slice(None, -1), slice(1, None)
        a, b = tuple(here), tuple(there)
        jump = np.abs(depth[a] - depth[b]) > 0.06 * np.minimum(depth[a], depth[b])
        bend = np.einsum("fhwk,fhwk->fhw", normals[a], normals[b]) < 0.9
        found[a] |= jump | bend
    return found


def _normals(geometry: SceneGeometry, face: NDArray[np.int32]) -> NDArray[np.float32]:
    """[F, H, W, 3]: normals; arbitrary where nothing was hit, which the depth shows."""
    return np.asarray(geometry.mesh.normals[np.maximum(face, 0)])


# ------------------------------------------------------------------------------------ detections


def detections_of(
    scene: Detectable,
    quality: Array,
    depth: NDArray[np.float32],
    poses: NDArray[np.float32],
    camera: Camera,
    config: SensingConfig,
    rng: Rng,
) -> Boxes:
    """Detected boxes of objects in the frames, in random order. `quality` is the visibility of each object."""
    count = len(scene.boxes)
    draw, wrong = rng.random(count), rng.random(count) < config.confusion_rate
    chance = (1 - config.miss_rate) * (1 - np.exp(-quality / 0.12))
    rows = np.flatnonzero((quality > 0) & (draw < chance))
    boxes = _jittered(scene, quality, wrong, config, rng).take(rows)
    invented = _false_positives(scene, depth, poses, camera, config, rng)
    both = _stacked([boxes, invented])
    return both.take(rng.permutation(len(both)))


def visibility(
    scene: Detectable,
    face: NDArray[np.int32],
    poses: NDArray[np.float32],
    camera: Camera,
    least_pixels: int,
) -> Array:
    """[objects]: 0 for an object that was not seen, near 1 for one that some frame shows whole and large."""
    count = len(scene.boxes)
    best = np.zeros(count)
    row_of = np.full(int(max(scene.mesh.inst_id.max(), -1)) + 2, -1)
    row_of[scene.boxes.inst_id] = np.arange(count)
    instance = np.where(face >= 0, scene.mesh.inst_id[np.maximum(face, 0)], -1)
    for frame, pose in enumerate(poses):
        rows = row_of[instance[frame]]
        pixels = np.bincount(rows[rows >= 0], minlength=count)
        room = scene.boxes.projected_areas(pose, camera)
        # a box is larger in the image than its object: if half of it is filled, the object is fully visible
        share = np.minimum(1, 2 * pixels / np.maximum(room, 1))
        size = 1 - np.exp(-pixels / (0.004 * camera.width * camera.height))
        best = np.maximum(best, np.where(pixels >= least_pixels, share * size, 0))
    return best


def _jittered(
    scene: Detectable,
    quality: Array,
    wrong: NDArray[np.bool_],
    config: SensingConfig,
    rng: Rng,
) -> Boxes:
    """Every object with noise in place, size and rotation, and sometimes with a wrong class."""
    truth, class_names = scene.boxes, scene.class_names
    count = len(truth)
    spread = (2 - quality)[:, None]
    off = rng.normal(size=(count, 3)) * config.centre_sigma_m * spread
    scale = np.exp(rng.normal(size=(count, 3)) * config.extent_sigma * spread)
    turn = rng.normal(size=count) * math.radians(config.yaw_sigma_deg)
    other = rng.integers(scene.first_object_class, len(class_names), count)
    sem = np.where(wrong, other, truth.sem_id)
    confidence = 0.2 + 0.75 * np.sqrt(quality) + rng.normal(size=count) * config.confidence_sigma
    turned = rotations(truth.pose_world_object) @ np.array([about_z(t) for t in turn]).reshape(
        -1, 3, 3
    )
    return Boxes.build(
        poses_of(turned, truth.centres + off),
        np.maximum(truth.extents * scale, 0.02),
        sem,
        confidence=np.clip(confidence, 0.05, 0.99),
        class_name=[class_names[number] for number in sem],
        name="detections",
    )


def _false_positives(
    scene: Detectable,
    depth: NDArray[np.float32],
    poses: NDArray[np.float32],
    camera: Camera,
    config: SensingConfig,
    rng: Rng,
) -> Boxes:
    """Boxes with low confidence around seen surface that is no object of that class."""
    names = scene.class_names
    wanted = int(rng.poisson(config.false_positives))
    frame = rng.integers(len(depth), size=wanted)
    pixel = rng.integers(camera.width * camera.height, size=wanted)
    z = depth.reshape(len(depth), -1)[frame, pixel].astype(np.float64)
    ray = np.einsum("nij,nj->ni", rotations(poses)[frame], camera.rays()[pixel].astype(np.float64))
    turn = np.array([about_z(yaw) for yaw in rng.uniform(-math.pi, math.pi, wanted)])
    sem = rng.integers(scene.first_object_class, len(names), wanted)
    extents = rng.uniform(0.15, 0.8, (wanted, 3))
    confidence = rng.uniform(0.1, 0.45, wanted)
    kept = np.flatnonzero(z > 0)
    invented = Boxes.build(
        poses_of(turn.reshape(-1, 3, 3), centres(poses)[frame] + ray * z[:, None]),
        extents,
        sem,
        confidence=confidence,
        class_name=[names[number] for number in sem],
        name="detections",
    )
    return invented.take(kept)


def _stacked(parts: Sequence[Boxes]) -> Boxes:
    return Boxes.build(
        np.concatenate([part.pose_world_object for part in parts]),
        np.concatenate([part.extents for part in parts]),
        np.concatenate([part.sem_id for part in parts]),
        confidence=np.concatenate([part.confidence for part in parts]),
        class_name=[name for part in parts for name in part.class_name],
        name="detections",
    )
