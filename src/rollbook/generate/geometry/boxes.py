"""Boxes: oriented boxes as columns. They test points, measure their overlap and project themselves into an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.errors import InvalidBoxes
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.coordinates import all_three
from rollbook.generate.geometry.poses import centres, moved, rotations

_SIGNS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]) / 2
_EDGES = np.array([(a, b) for a in range(8) for b in (a ^ 1, a ^ 2, a ^ 4) if a < b])
"""Pairs of corners that an edge joins: their numbers differ in one bit."""


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """B boxes. Values may be non-finite and extents may be 0 or negative; target selection reports such boxes."""

    pose_world_object: NDArray[np.float32]
    """[B, 12]"""
    extents: NDArray[np.float32]
    """[B, 3], full side lengths."""
    sem_id: NDArray[np.int32]
    inst_id: NDArray[np.int32]
    """-1 where it is unknown, as in detections."""
    confidence: NDArray[np.float32]
    class_name: tuple[str, ...]

    @classmethod
    def build(
        cls,
        pose_world_object: ArrayLike,
        extents: ArrayLike,
        sem_id: ArrayLike,
        *,
        inst_id: ArrayLike | None = None,
        confidence: ArrayLike | None = None,
        class_name: Sequence[str] | None = None,
        name: str = "boxes",
    ) -> Boxes:
        poses = _floats(pose_world_object, 12, "pose_world_object", name)
        count = len(poses)
        boxes = cls(
            poses,
            _floats(extents, 3, "extents", name),
            _ids(sem_id, "sem_id", name),
            np.full(count, -1, np.int32) if inst_id is None else _ids(inst_id, "inst_id", name),
            np.ones(count, np.float32)
            if confidence is None
            else _floats(confidence, 1, "confidence", name).reshape(-1),
            ("unknown",) * count if class_name is None else tuple(class_name),
        )
        for field in ("extents", "sem_id", "inst_id", "confidence", "class_name"):
            if len(getattr(boxes, field)) != count:
                detail = f"{field} has {len(getattr(boxes, field))} rows, the poses have {count}"
                raise InvalidBoxes(record=name, detail=detail)
        return boxes

    @classmethod
    def none(cls) -> Boxes:
        return cls.build(np.zeros((0, 12)), np.zeros((0, 3)), np.zeros(0, np.int32))

    def __len__(self) -> int:
        return len(self.extents)

    @property
    def centres(self) -> NDArray[np.float64]:
        return centres(self.pose_world_object)

    def take(self, rows: ArrayLike) -> Boxes:
        """The boxes at these row numbers, or where a mask is true."""
        wanted = np.asarray(rows)
        index = np.flatnonzero(wanted) if wanted.dtype == np.bool_ else wanted.astype(np.intp)
        index = index.reshape(-1)
        return Boxes(
            self.pose_world_object[index],
            self.extents[index],
            self.sem_id[index],
            self.inst_id[index],
            self.confidence[index],
            tuple(self.class_name[row] for row in index),
        )

    def have_volume(self) -> NDArray[np.bool_]:
        """[B]: which boxes are finite with every side longer than 0."""
        finite = np.isfinite(np.hstack([self.pose_world_object, self.extents])).all(axis=1)
        return np.asarray(finite & (self.extents > 0).all(axis=1))

    def corners(self) -> NDArray[np.float64]:
        """[B, 8, 3] in world coordinates."""
        turned = np.swapaxes(rotations(self.pose_world_object), 1, 2)
        with np.errstate(invalid="ignore"):
            local = _SIGNS[None] * self.extents[:, None].astype(np.float64)
            return local @ turned + self.centres[:, None]

    def contains(
        self, row: int, points: ArrayLike, *, margin_m: float = 0.0, scale: float = 1.0
    ) -> NDArray[np.bool_]:
        """Which points [..., 3] lie in one box, its faces included. NaN lies in no box."""
        pose, half = self.pose_world_object[row], self.extents[row].astype(np.float64) / 2
        with np.errstate(invalid="ignore"):
            local = (np.asarray(points, np.float64) - centres(pose)) @ rotations(pose)
        return all_three(np.abs(local) <= half * scale + margin_m)

    def iou(self, row: int, others: Boxes, *, samples: int = 8) -> NDArray[np.float64]:
        """[O]: intersection over union of one box with each of `others`; NaN where either box has no volume.

        The shared volume is counted on a grid of `samples`³ cell centres in the smaller of the two boxes. Boxes of
        equal size are both counted and averaged, so that the result is symmetric.
        """
        steps = (np.arange(samples) + 0.5) / samples - 0.5
        grid = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), axis=-1).reshape(-1, 3)
        with np.errstate(invalid="ignore"):
            own = moved(self.pose_world_object[row], grid * self.extents[row])
        volume = float(np.prod(self.extents[row].astype(np.float64)))
        found = np.full(len(others), np.nan)
        for other in np.flatnonzero(others.have_volume() & self.have_volume()[row]).tolist():
            theirs = moved(others.pose_world_object[other], grid * others.extents[other])
            their_volume = float(np.prod(others.extents[other].astype(np.float64)))
            counted = []
            if volume <= their_volume:
                counted.append(volume * others.contains(other, own).mean())
            if their_volume <= volume:
                counted.append(their_volume * self.contains(row, theirs).mean())
            shared = sum(counted) / len(counted)
            found[other] = min(shared / (volume + their_volume - shared), 1.0)
        return found

    def projected_areas(self, pose: ArrayLike, camera: Camera) -> NDArray[np.float64]:
        """Area in pixels of the rectangle around each box, clipped to the image; 0 where the box is out of view."""
        with np.errstate(divide="ignore", invalid="ignore"):
            seen = (self.corners() - centres(pose)) @ rotations(pose)
            ends = seen[:, _EDGES]  # [B, 12, 2, 3]
            start, along = ends[:, :, 0], ends[:, :, 1] - ends[:, :, 0]
            # where each edge crosses the near plane; the part behind it is cut off
            cross = (camera.near_m - start[..., 2]) / along[..., 2]
            met = start + np.clip(cross, 0, 1)[..., None] * along
            corner = np.where((ends[..., 2:] >= camera.near_m), ends, met[:, :, None])
            pixel = corner[..., :2] / corner[..., 2:] * (camera.fx, camera.fy)
        kept = (corner[..., 2] >= camera.near_m * (1 - 1e-9)) & np.isfinite(pixel).all(axis=-1)
        pixel = pixel + np.array([camera.cx, camera.cy])
        low = np.where(kept[..., None], pixel, np.inf).min(axis=(1, 2))
        high = np.where(kept[..., None], pixel, -np.inf).max(axis=(1, 2))
        size = np.array([camera.width, camera.height], np.float64)
        sides = np.clip(high, 0, size) - np.clip(low, 0, size)
        return np.asarray(np.maximum(sides, 0).prod(axis=1))


def _floats(given: ArrayLike, width: int, field: str, name: str) -> NDArray[np.float32]:
    """[B, width]. Other shapes are refused: a pose given as 3 rows of 4 has its numbers in another order."""
    with np.errstate(over="ignore"):
        values = np.asarray(given, np.float32)
    if values.size % width or (values.ndim > 1 and values.shape[-1] != width and width > 1):
        detail = f"{field} has shape {list(values.shape)}, expected [B, {width}]"
        raise InvalidBoxes(record=name, detail=detail)
    return values.reshape(-1, width)


def _ids(given: ArrayLike, field: str, name: str) -> NDArray[np.int32]:
    ids = np.asarray(given)
    if ids.size and (ids.dtype.kind not in "iu" or ids.min() < -(2**31) or ids.max() >= 2**31):
        detail = f"{field} is not one whole number of 32 bits for each box"
        raise InvalidBoxes(record=name, detail=detail)
    return ids.astype(np.int32).reshape(-1)
