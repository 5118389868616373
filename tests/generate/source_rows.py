"""Small source rows for tests: a box for a room, a walk in it, points on its walls."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.mesh import TriangleMesh
from rollbook.generate.geometry.poses import look_at
from rollbook.generate.sources.documents import SourceManifest
from rollbook.generate.sources.reader import ActorView
from rollbook.generate.sources.writer import SourceStoreWriter

CAMERA = Camera.square(16)
_CORNERS = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], np.float32)
_SIDES = ((0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3))


class Row(NamedTuple):
    actor: ActorView
    continuation: NDArray[np.float32]
    continuation_t_ns: NDArray[np.int64]


def room(size: tuple[float, float, float] = (4.0, 3.0, 2.5), name: str = "room") -> TriangleMesh:
    """Twelve triangles; the faces of each side are one object."""
    faces = [corner for a, b, c, d in _SIDES for corner in ((a, b, c), (a, c, d))]
    ids = np.repeat(np.arange(6), 2)
    return TriangleMesh(_CORNERS * np.array(size, np.float32), faces, ids, ids, name=name)


def some_boxes(rng: np.random.Generator, count: int, *, inst: bool = True) -> Boxes:
    poses = look_at(rng.uniform(0.5, 2, (count, 3)), rng.uniform(2.5, 3, (count, 3)))
    return Boxes.build(
        poses.reshape(count, 12),
        rng.uniform(0.1, 1, (count, 3)),
        rng.integers(0, 9, count),
        inst_id=np.arange(count) if inst else None,
        confidence=rng.uniform(0, 1, count),
        class_name=[("chair", "Stuhl ü", "a long name of a thing")[k % 3] for k in range(count)],
    )


def some_row(
    rng: np.random.Generator,
    *,
    frames: int = 3,
    points: int = 20,
    detections: int = 2,
    continuation: int = 2,
    size: tuple[float, float, float] = (4.0, 3.0, 2.5),
) -> Row:
    """Poses inside the room of this size."""
    total = frames + continuation
    eyes = rng.uniform(0.2, 0.8, (total, 3)) * size
    poses = look_at(eyes, eyes + rng.normal(size=(total, 3))).astype(np.float32)
    times = np.cumsum(rng.integers(1, 10**8, total)).astype(np.int64)
    actor = ActorView(
        poses[:frames],
        times[:frames],
        CAMERA,
        (rng.uniform(0, 1, (points, 3)) * size).astype(np.float32),
        rng.integers(0, frames, points).astype(np.int32),
        rng.uniform(0, 0.01, points).astype(np.float32),
        rng.uniform(0, 0.1, points).astype(np.float32),
        some_boxes(rng, detections, inst=False),
    )
    return Row(actor, poses[frames:], times[frames:])


def write_store(
    path: Path, scenes: int = 3, rows: int = 2, *, seed: int = 0, **options: Any
) -> SourceManifest:
    """Scenes of different sizes, with a few rows each."""
    rng = np.random.default_rng(seed)
    with SourceStoreWriter(path, config={"seed": seed}, **options) as writer:
        for number in range(scenes):
            size = (4.0 + number, 3.0, 2.5)
            scene_id = f"scene-{number:03d}"
            writer.add_scene(scene_id, room(size, scene_id), some_boxes(rng, 4))
            for row in range(rows):
                made = some_row(rng, frames=2 + row, points=10 * row, size=size)
                writer.add_row(scene_id, f"row-{row:03d}", *made)
        return writer.finish()
