"""Builds the nodes of a bounding volume hierarchy as columns.

A node holds the boxes of up to sixteen children side by side, so that the compiler can test them as vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.generate.raycast.compiled import compiled

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

WIDTH = 16
"""Most children of a node. LLVM vectorises a loop over them only from sixteen turns on."""
_LEAF = 4
"""Most triangles of a leaf."""
_BINS = 16
"""Bins per axis; splits are tried between them."""


@compiled
def build_nodes(low: Floats, high: Floats) -> tuple[Floats, Ints, Ints, Ints, int]:
    """Builds the tree from the lower and upper corners [F, 3] of the triangles.

    Returns the boxes of the children of each node [N, 6, 16]; for each child [N * 16] its node, or for a leaf its first
    triangle; the number of triangles of each leaf; the faces in the order of the leaves; and the number of levels.
    """
    faces = np.arange(len(low)).astype(np.int32)
    centre = (low + high) * np.float32(0.5)
    # a node has sixteen children, or only leaves that together hold more triangles than one leaf can
    most = len(low) // 3 + 2
    boxes = np.empty((most, 6, WIDTH), np.float32)
    links, counts = np.zeros((most, WIDTH), np.int32), np.zeros((most, WIDTH), np.int32)
    start, end, level = np.zeros(most, np.int64), np.zeros(most, np.int64), np.ones(most, np.int64)
    child_start, child_end = np.empty(WIDTH, np.int64), np.empty(WIDTH, np.int64)
    child_box = np.empty((WIDTH, 6), np.float32)
    end[0] = len(low)
    nodes, node = 1, 0
    while node < nodes:
        child_start[0], child_end[0] = start[node], end[node]
        children = _divide(low, high, centre, faces, child_start, child_end, child_box)
        for k in range(WIDTH):
            for side in range(6):
                # the box of a missing child is inverted: no ray enters it and no point is near it
                nowhere = np.inf if side < 3 else -np.inf
                boxes[node, side, k] = child_box[k, side] if k < children else nowhere
            if k >= children:
                continue
            count = child_end[k] - child_start[k]
            if count <= _LEAF:
                links[node, k], counts[node, k] = child_start[k], count
                continue
            links[node, k] = nodes
            start[nodes], end[nodes], level[nodes] = child_start[k], child_end[k], level[node] + 1
            nodes += 1
        node += 1
    kept = links[:nodes].copy().ravel(), counts[:nodes].copy().ravel()
    return boxes[:nodes].copy(), kept[0], kept[1], faces, level[nodes - 1]


@compiled
def _divide(
    low: Floats,
    high: Floats,
    centre: Floats,
    faces: Ints,
    child_start: NDArray[np.int64],
    child_end: NDArray[np.int64],
    child_box: Floats,
) -> int:
    """Splits the first child, then always the child with the largest surface; returns the number of children."""
    _surround(low, high, faces, child_start[0], child_end[0], child_box[0])
    children = 1
    while children < WIDTH:
        chosen, largest = -1, -1.0
        for k in range(children):
            area = _half_area(child_box[k])
            if child_end[k] - child_start[k] > _LEAF and area > largest:
                chosen, largest = k, area
        if chosen < 0:
            break
        middle = _split(low, high, centre, faces, child_start[chosen], child_end[chosen])
        child_start[children], child_end[children] = middle, child_end[chosen]
        child_end[chosen] = middle
        for k in (chosen, children):
            _surround(low, high, faces, child_start[k], child_end[k], child_box[k])
        children += 1
    return children


@compiled
def _surround(low: Floats, high: Floats, faces: Ints, start: int, end: int, box: Floats) -> None:
    _clear(box)
    for place in range(start, end):
        _include(box, low[faces[place]], high[faces[place]])


@compiled
def _clear(box: Floats) -> None:
    for k in range(3):
        box[k], box[3 + k] = np.inf, -np.inf


@compiled
def _include(box: Floats, low: Floats, high: Floats) -> None:
    for k in range(3):
        box[k], box[3 + k] = min(box[k], low[k]), max(box[3 + k], high[k])


@compiled
def _half_area(box: Floats) -> Any:
    x, y, z = box[3] - box[0], box[4] - box[1], box[5] - box[2]
    return x * y + y * z + z * x


@compiled
def _split(low: Floats, high: Floats, centre: Floats, faces: Ints, start: int, end: int) -> int:
    """Partitions a range into two parts by the surface area heuristic; returns the start of the second part."""
    spread = np.empty(6, np.float32)
    _surround(centre, centre, faces, start, end, spread)
    best_cost, best_axis, best_bin = np.inf, -1, 0
    for axis in range(3):
        cost, last = _best_cut(low, high, centre, faces, start, end, axis, spread)
        if cost < best_cost:
            best_cost, best_axis, best_bin = cost, axis, last
    if best_axis < 0:
        # all centres are equal: split in the middle
        return (start + end) // 2
    left, right = start, end - 1
    while left <= right:
        if _bin_of(centre[faces[left], best_axis], best_axis, spread) <= best_bin:
            left += 1
        else:
            faces[left], faces[right] = faces[right], faces[left]
            right -= 1
    return left


@compiled
def _bin_of(value: Any, axis: int, spread: Floats) -> int:
    share = (value - spread[axis]) / (spread[3 + axis] - spread[axis])
    return min(int(share * _BINS), _BINS - 1)


@compiled
def _best_cut(
    low: Floats,
    high: Floats,
    centre: Floats,
    faces: Ints,
    start: int,
    end: int,
    axis: int,
    spread: Floats,
) -> tuple[float, int]:
    """The least cost of a cut across this axis and the bin before the cut; infinite if one side would be empty."""
    best, best_bin = np.inf, 0
    if not spread[3 + axis] > spread[axis]:
        return best, best_bin
    held = np.zeros(_BINS, np.int64)
    bins = np.empty((_BINS, 6), np.float32)
    for k in range(_BINS):
        _clear(bins[k])
    for place in range(start, end):
        face = faces[place]
        into = _bin_of(centre[face, axis], axis, spread)
        held[into] += 1
        _include(bins[into], low[face], high[face])
    above = np.empty(_BINS, np.float64)
    box = np.empty(6, np.float32)
    _clear(box)
    count = 0
    for k in range(_BINS - 1, 0, -1):
        count += held[k]
        _include(box, bins[k, :3], bins[k, 3:])
        above[k - 1] = _half_area(box) * count if count > 0 else np.inf
    _clear(box)
    count = 0
    for k in range(_BINS - 1):
        count += held[k]
        _include(box, bins[k, :3], bins[k, 3:])
        cost = _half_area(box) * count + above[k] if count > 0 else np.inf
        if cost < best:
            best, best_bin = cost, k
    return best, best_bin
