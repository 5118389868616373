"""Small views for target tests: a camera at the origin that looks along +x, boxes before it, points in them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.poses import look_at, moved, poses_of
from rollbook.generate.sources.reader import ActorView

PLACE: dict[str, Any] = {"scene_id": "flat-1", "snippet_id": "walk-2"}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def placed(centre: ArrayLike, yaw: float = 0.0) -> NDArray[np.float64]:
    turn = [[np.cos(yaw), -np.sin(yaw), 0], [np.sin(yaw), np.cos(yaw), 0], [0, 0, 1]]
    return poses_of(turn, centre)


def boxes_at(centres: ArrayLike, size: ArrayLike = 1.0, **columns: Any) -> Boxes:
    """Level boxes, of one class and one size unless said."""
    at = np.asarray(centres, np.float64).reshape(-1, 3)
    poses = np.array([placed(centre) for centre in at]).reshape(-1, 12)
    extents = np.broadcast_to(np.asarray(size, np.float64), (len(at), 3))
    return Boxes.build(poses, extents, columns.pop("sem_id", np.full(len(at), 7)), **columns)


def points_in(boxes: Boxes, counts: list[int], seed: int = 0) -> NDArray[np.float32]:
    """So many points in each box."""
    spread = rng(seed)
    clouds = [
        moved(
            boxes.pose_world_object[row], spread.uniform(-0.45, 0.45, (n, 3)) * boxes.extents[row]
        )
        for row, n in enumerate(counts)
    ]
    return np.concatenate([np.zeros((0, 3)), *clouds]).astype(np.float32)


def view_of(detections: Boxes, points: ArrayLike, frames: int = 1) -> ActorView:
    """The camera comes up from behind and stands at the origin in the last frame."""
    eyes = np.zeros((frames, 3))
    eyes[:, 0] = -0.25 * np.arange(frames)[::-1]
    cloud = np.asarray(points, np.float32).reshape(-1, 3)
    unknown = np.full(len(cloud), np.nan, np.float32)
    return ActorView(
        poses=look_at(eyes, eyes + np.array([1.0, 0.0, 0.0])).astype(np.float32),
        t_ns=np.arange(frames, dtype=np.int64),
        camera=Camera.square(120),
        points=cloud,
        point_frame=np.zeros(len(cloud), np.int32),
        inv_dist_std=unknown,
        dist_std=unknown,
        detections=detections,
    )


def random_view(seed: int, count: int) -> ActorView:
    """Detections of several classes at random places, some of them out of view, with random support."""
    spread = rng(seed)
    detections = Boxes.build(
        np.array(
            [
                placed(spread.uniform(-1, 5, 3) - [0, 2, 2], spread.uniform(0, 6))
                for _ in range(count)
            ]
        ),
        spread.uniform(0.3, 1.5, (count, 3)),
        spread.integers(0, 3, count),
        confidence=spread.uniform(0.1, 1, count),
        class_name=[f"class {row}" for row in range(count)],
    )
    return view_of(
        detections, points_in(detections, spread.integers(0, 120, count).tolist(), seed), 3
    )


def random_truth(seed: int, count: int) -> Boxes:
    spread = rng(seed)
    return Boxes.build(
        np.array(
            [
                placed(spread.uniform(-1, 5, 3) - [0, 2, 2], spread.uniform(0, 6))
                for _ in range(count)
            ]
        ).reshape(-1, 12),
        spread.uniform(0.3, 1.5, (count, 3)),
        spread.integers(0, 3, count),
        inst_id=np.arange(count),
    )
