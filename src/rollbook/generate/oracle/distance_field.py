"""Distance fields: exact distances between a surface and a point cloud, recomputed only where they can change.

A depth image is its own search tree. 4 x 4 pixels are a leaf, 2 x 2 leaves are a node, and so on. Any other cloud is
sorted into Morton order and divided the same way. Leaves are in Z order, so node n has the children 4n + 1 to 4n + 4. A
surface (surface.py) consists of blocks of sixteen samples or faces. Every block descends the tree, nearest node first,
and skips nodes that cannot lower its distances. A view that shows little new surface therefore costs little time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.morton import morton_order
from rollbook.generate.geometry.poses import centres, rotations
from rollbook.generate.oracle.face_distance import TERMS, face_terms, least_square
from rollbook.generate.oracle.surface import SurfaceFaces, SurfaceSamples
from rollbook.generate.raycast.compiled import compiled
from rollbook.generate.raycast.vector_steps import (
    LANES,
    boxes_near,
    lower,
    points_near,
    points_within,
)

Floats = NDArray[np.float32]

_SIDE = 4
"""Pixels along a side of a leaf, which holds LANES pixels."""
_WAITING = 64
"""Most nodes that wait during a descent: three per level, and one."""
_SLACK = np.float32(1 - 1e-6)
"""Safety margin: boxes are compared in float32 but faces are measured in float64."""


@dataclass(frozen=True, slots=True, eq=False)
class Pixels:
    """The used pixels of an image, every `stride`-th row and column, and the directions of their rays."""

    across: NDArray[np.float64]
    """x of the used columns, at depth 1."""
    down: NDArray[np.float64]
    """y of the used rows, at depth 1."""
    stride: int

    @classmethod
    def of(cls, camera: Camera, stride: int = 1) -> Pixels:
        columns = np.arange(0, camera.width, stride, dtype=np.float64)
        rows = np.arange(0, camera.height, stride, dtype=np.float64)
        across, down = (columns + 0.5 - camera.cx) / camera.fx, (rows + 0.5 - camera.cy) / camera.fy
        return cls(across, down, stride)

    def tree(self) -> PointTree:
        """An empty tree with room for the points of these pixels. Its leaves are in Z order on a square."""
        side = -(-max(len(self.across), len(self.down)) // _SIDE)
        return PointTree.with_leaves(4 ** (side - 1).bit_length())


@dataclass(frozen=True, slots=True, eq=False)
class CropBox:
    """One oriented box in the form that compiled code needs."""

    rotation: NDArray[np.float64]
    """[3, 3], world from box."""
    centre: NDArray[np.float64]
    half: NDArray[np.float64]
    """Half the side lengths, margin included."""
    bounds: Floats
    """[1, 6]: an axis-aligned box around it, slightly enlarged."""

    @classmethod
    def of(cls, boxes: Boxes, row: int, margin_m: float) -> CropBox:
        pose = boxes.pose_world_object[row]
        turned, centre = np.ascontiguousarray(rotations(pose)), centres(pose).copy()
        half = boxes.extents[row].astype(np.float64) / 2 + margin_m
        reach = np.abs(turned) @ half * (1 + 1e-6) + 1e-6
        bounds = np.concatenate([centre - reach, centre + reach]).astype(np.float32)[None]
        return cls(turned, centre, half, bounds)


@dataclass(frozen=True, slots=True, eq=False)
class PointTree:
    """Points in leaves of sixteen, with a box around each leaf and around every four boxes."""

    leaves: Floats
    """[L, 3, 16], L a power of four; infinite where there is no point."""
    boxes: Floats
    """[(4L - 1) / 3, 6], the root first, the leaves last."""

    @classmethod
    def with_leaves(cls, count: int) -> PointTree:
        """An empty tree with at least `count` leaves."""
        leaves = 1
        while leaves < count:
            leaves *= 4
        empty = np.full((leaves, 3, LANES), np.inf, np.float32)
        boxes = np.empty(((4 * leaves - 1) // 3, 6), np.float32)
        boxes[:, :3], boxes[:, 3:] = np.inf, -np.inf
        return cls(empty, boxes)

    @classmethod
    def of_points(cls, points: Floats) -> PointTree:
        """A tree of finite points [n, 3]."""
        tree = cls.with_leaves(-(-len(points) // LANES))
        placed = np.full((len(tree.leaves) * LANES, 3), np.inf, np.float32)
        placed[: len(points)] = points[morton_order(points)]
        tree.leaves[:] = placed.reshape(-1, LANES, 3).transpose(0, 2, 1)
        _grow(tree.leaves, tree.boxes)
        return tree

    @property
    def points(self) -> Floats:
        """[n, 3], in the tree's order."""
        placed = self.leaves.transpose(0, 2, 1).reshape(-1, 3)
        return placed[np.isfinite(placed[:, 0])]

    def see(
        self,
        depth: Floats,
        rotation: NDArray[np.float64],
        centre: NDArray[np.float64],
        pixels: Pixels,
    ) -> int:
        """Replaces the tree's points by those of a depth image; returns their number."""
        count: int = _place(
            depth, rotation, centre, pixels.across, pixels.down, pixels.stride, self.leaves
        )
        _grow(self.leaves, self.boxes)
        return count

    def take_inside(self, whole: PointTree, box: CropBox) -> int:
        """Replaces the tree's points by those points of `whole` that lie in a box; returns their number."""
        count: int = _keep_inside(
            whole.leaves, whole.boxes, box.rotation, box.centre, box.half, box.bounds, self.leaves
        )
        _grow(self.leaves, self.boxes)
        return count


def lower_distances(tree: PointTree, surface: SurfaceSamples | SurfaceFaces, best: Floats) -> None:
    """Lowers `best` [blocks * 16] to the squared distances to the tree's points where those are smaller."""
    lanes = best.reshape(-1, LANES)
    if isinstance(surface, SurfaceFaces):
        _lower_faces(tree.leaves, tree.boxes, surface.lanes, surface.corners, surface.boxes, lanes)
    else:
        _lower_samples(tree.leaves, tree.boxes, surface.lanes, surface.boxes, lanes)


@compiled
def sums(best: Floats, count: int, radius: float) -> tuple[float, float, int]:
    """Of the first `count` squared distances: the sum of their roots, their sum, and how many are within the radius."""
    roots, squares, near = 0.0, 0.0, 0
    for place in range(count):
        roots += np.float64(np.sqrt(best[place]))
        squares += np.float64(best[place])
        if np.float64(best[place]) <= radius * radius:
            near += 1
    return roots, squares, near


# ------------------------------------------------------------------------------------------------ the tree


@compiled
def _place(
    depth: Floats,
    rotation: NDArray[np.float64],
    centre: NDArray[np.float64],
    across: NDArray[np.float64],
    down: NDArray[np.float64],
    stride: int,
    leaves: Floats,
) -> int:
    height, width = len(down), len(across)
    count = 0
    for row in range(0, height, _SIDE):
        for column in range(0, width, _SIDE):
            leaf = leaves[_z_order(row // _SIDE, column // _SIDE)]
            for lane in range(LANES):
                v, u = row + lane // _SIDE, column + lane % _SIDE
                far = np.inf
                if v < height and u < width:
                    far = np.float64(depth[v * stride, u * stride])
                if far > 0 and far < np.inf:
                    count += 1
                    for axis in range(3):
                        along = rotation[axis, 0] * across[u] + rotation[axis, 1] * down[v]
                        leaf[axis, lane] = centre[axis] + far * (along + rotation[axis, 2])
                else:
                    for axis in range(3):
                        leaf[axis, lane] = np.inf
    return count


@compiled
def _z_order(row: int, column: int) -> int:
    place, bit = 0, 0
    while row >> bit or column >> bit:
        place |= ((column >> bit & 1) | (row >> bit & 1) << 1) << 2 * bit
        bit += 1
    return place


@compiled
def _grow(leaves: Floats, boxes: Floats) -> None:
    first = len(boxes) - len(leaves)
    for leaf in range(len(leaves)):
        for axis in range(3):
            low, high = np.float32(np.inf), np.float32(-np.inf)
            for lane in range(LANES):
                value = leaves[leaf, axis, lane]
                if value < np.inf:
                    low, high = min(low, value), max(high, value)
            boxes[first + leaf, axis], boxes[first + leaf, 3 + axis] = low, high
    for node in range(first - 1, -1, -1):
        for axis in range(3):
            low, high = np.float32(np.inf), np.float32(-np.inf)
            for child in range(4 * node + 1, 4 * node + 5):
                low, high = min(low, boxes[child, axis]), max(high, boxes[child, 3 + axis])
            boxes[node, axis], boxes[node, 3 + axis] = low, high


@compiled
def _keep_inside(
    leaves: Floats,
    boxes: Floats,
    rotation: NDArray[np.float64],
    centre: NDArray[np.float64],
    half: NDArray[np.float64],
    bounds: Floats,
    kept: Floats,
) -> int:
    first = len(boxes) - len(leaves)
    count = 0
    for leaf in range(len(leaves)):
        kept[leaf] = np.inf
        if not _square_between(boxes, first + leaf, bounds, 0) <= 0:
            continue
        for lane in range(LANES):
            inside = leaves[leaf, 0, lane] < np.inf
            for axis in range(3):
                along = 0.0
                for world in range(3):
                    along += (leaves[leaf, world, lane] - centre[world]) * rotation[world, axis]
                inside = inside and abs(along) <= half[axis]
            if inside:
                count += 1
                for axis in range(3):
                    kept[leaf, axis, lane] = leaves[leaf, axis, lane]
    return count


# --------------------------------------------------------------------------------------------- the descent


@compiled
def _square_between(boxes: Floats, row: int, others: Floats, other: int) -> np.float32:
    """Squared distance of two boxes, by the arithmetic of vector_steps.py; never above that of their contents."""
    zero = np.float32(0)
    x = max(max(boxes[row, 0] - others[other, 3], others[other, 0] - boxes[row, 3]), zero)
    y = max(max(boxes[row, 1] - others[other, 4], others[other, 1] - boxes[row, 4]), zero)
    z = max(max(boxes[row, 2] - others[other, 5], others[other, 2] - boxes[row, 5]), zero)
    square: np.float32 = (x * x + y * y) + z * z
    return square


@compiled
def _greatest(values: Floats) -> np.float32:
    found: np.float32 = values[0]
    for value in values:
        found = max(found, value)
    return found


@compiled
def _push_children(
    boxes: Floats,
    node: int,
    blocks: Floats,
    block: int,
    bound: np.float32,
    waiting: NDArray[np.int64],
    least: Floats,
    held: int,
) -> int:
    """Pushes the children that may be closer than the bound, the nearest last; returns the number of waiting nodes."""
    bottom = held
    for child in range(4 * node + 1, 4 * node + 5):
        square = _square_between(boxes, child, blocks, block) * _SLACK
        if square < bound:
            place = held
            while place > bottom and least[place - 1] < square:
                least[place], waiting[place] = least[place - 1], waiting[place - 1]
                place -= 1
            least[place], waiting[place] = square, child
            held += 1
    return held


@compiled
def _lower_samples(
    leaves: Floats, boxes: Floats, samples: Floats, blocks: Floats, best: Floats
) -> None:
    waiting, least = np.empty(_WAITING, np.int64), np.empty(_WAITING, np.float32)
    first = len(boxes) - len(leaves)
    for block in range(len(blocks)):
        points, distances = samples[block], best[block]
        bound = _greatest(distances)
        waiting[0], least[0], held = 0, _square_between(boxes, 0, blocks, block) * _SLACK, 1
        while held > 0:
            held -= 1
            node = waiting[held]
            if least[held] >= bound or points_near(points, distances, boxes[node]) == 0:
                continue
            if node >= first:
                bound = lower(points, leaves[node - first], distances)
            else:
                held = _push_children(boxes, node, blocks, block, bound, waiting, least, held)


@compiled
def _lower_faces(
    leaves: Floats, boxes: Floats, faces: Floats, corners: Floats, blocks: Floats, best: Floats
) -> None:
    waiting, least = np.empty(_WAITING, np.int64), np.empty(_WAITING, np.float32)
    bounds, box = np.empty(LANES, np.float32), np.empty(6, np.float32)
    terms = np.empty(TERMS, np.float64)
    first = len(boxes) - len(leaves)
    for block in range(len(blocks)):
        distances = best[block]
        bound = _greatest(distances)
        for lane in range(LANES):
            bounds[lane] = distances[lane] / _SLACK
        waiting[0], least[0], held = 0, _square_between(boxes, 0, blocks, block) * _SLACK, 1
        while held > 0:
            held -= 1
            node = waiting[held]
            if least[held] >= bound:
                continue
            near = boxes_near(faces[block], bounds, boxes[node])
            if near == 0:
                continue
            if node < first:
                held = _push_children(boxes, node, blocks, block, bound, waiting, least, held)
                continue
            points = leaves[node - first]
            for lane in range(LANES):
                if near >> lane & 1:
                    for side in range(6):
                        box[side] = faces[block, side, lane]
                    if points_within(points, bounds[lane], box):
                        face_terms(corners[block * LANES + lane], terms)
                        distances[lane] = least_square(points, terms, distances[lane])
                        bounds[lane] = distances[lane] / _SLACK
            bound = _greatest(distances)
