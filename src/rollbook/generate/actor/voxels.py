"""Compiled kernels on a voxel grid: straight lines through it, and distances to occupied voxels.

All lengths are in voxels: voxel (i, j, k) fills the cube from (i, j, k) to (i + 1, j + 1, k + 1). A line visits its
voxels in order. Where it passes exactly through an edge, one of the voxels at that edge is skipped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollbook.generate.raycast.compiled import compiled

Grid = NDArray[np.uint8]
Points = NDArray[np.float64]
Columns = NDArray[np.float32]
Column = NDArray[np.float32]
Cells = NDArray[np.int32]
Lens = tuple[float, float, float, float, float, float, float, float]
"""fx, fy, cx, cy, width, height, near, far."""
Squares = NDArray[np.int32]
Places = NDArray[np.int64]
Cell = tuple[int, int, int]
Place = tuple[float, float, float]
Walk = tuple[Cell, Cell, Place, Place]
"""The current voxel, and per axis: the direction of the next step, the t of that step, and the t between steps."""

UNKNOWN, FREE, OCCUPIED = 0, 1, 2
"""The value of a voxel never decreases: an occupied voxel stays occupied."""
TARGET = 4
"""Flag that is added to voxels that the target's box touches."""
_BLOCK = 128
"""Points that are tested for being out of view together."""
OUTSIDE = 8
"""Flag of the border that is put around a grid."""

FAR = np.iinfo(np.int32).max
"""The squared distance if no voxel is occupied."""

RAY_COLUMNS = (
    "unknown_per_ray",
    "target_unknown_per_ray",
    "target_occ_per_ray",
    "hit_occ_frac",
    "hit_unknown_frac",
    "mean_hit_depth",
    "frontier_per_ray",
    "target_ray_frac",
)
"""The columns that `march` sums over the rays of a view. The mean of each is the feature of the same name."""


@compiled
def _cut(x: float, along: float, size: int, start: float, end: float) -> tuple[float, float]:
    """The part of [start, end] in which x + t * along lies in [0, size]; start > end where there is none."""
    if along == 0.0:
        if x < 0.0 or x >= size:
            return 1.0, 0.0
        return start, end
    one, other = -x / along, (size - x) / along
    return max(start, min(one, other)), min(end, max(one, other))


@compiled
def _axis(x: float, along: float, t: float, size: int) -> tuple[int, int, float, float]:
    """The line at t, for one axis: the voxel, the direction of the next step, its t, and the t between steps."""
    cell = min(max(int(np.floor(x + t * along)), 0), size - 1)
    if along > 0.0:
        return cell, 1, (cell + 1 - x) / along, 1.0 / along
    if along < 0.0:
        return cell, -1, (cell - x) / along, -1.0 / along
    return cell, 0, np.inf, np.inf


@compiled
def _entered(size: Cell, x: Place, along: Place, end: float) -> tuple[float, float, Walk]:
    """The first and last t in [0, `end`] at which the line is in the grid, and its walk from the first one."""
    t, last = _cut(x[0], along[0], size[0], 0.0, end)
    t, last = _cut(x[1], along[1], size[1], t, last)
    t, last = _cut(x[2], along[2], size[2], t, last)
    i, di, ti, wi = _axis(x[0], along[0], t, size[0])
    j, dj, tj, wj = _axis(x[1], along[1], t, size[1])
    k, dk, tk, wk = _axis(x[2], along[2], t, size[2])
    return t, last, ((i, j, k), (di, dj, dk), (ti, tj, tk), (wi, wj, wk))


@compiled
def _next(size: Cell, walk: Walk) -> tuple[float, Walk]:
    """The walk at the next voxel, and the t at which the line enters it; infinite at the end of the grid."""
    (i, j, k), way, (ti, tj, tk), wait = walk
    if ti <= tj and ti <= tk:
        t, i, ti = ti, i + way[0], ti + wait[0]
    elif tj <= tk:
        t, j, tj = tj, j + way[1], tj + wait[1]
    else:
        t, k, tk = tk, k + way[2], tk + wait[2]
    if i < 0 or j < 0 or k < 0 or i >= size[0] or j >= size[1] or k >= size[2]:
        t = np.inf
    return t, ((i, j, k), way, (ti, tj, tk), wait)


@compiled
def carve(grid: Grid, starts: Points, ends: Points) -> int:
    """Marks voxels between start and end as free and the end as occupied; returns the number of ends outside.

    Values never decrease, so the order of the lines does not matter. If a line ends outside, its part inside is free.
    A line without a start (NaN) marks only its end.
    """
    outside = 0
    for ray in range(len(ends)):
        x = (starts[ray, 0], starts[ray, 1], starts[ray, 2])
        end = (ends[ray, 0], ends[ray, 1], ends[ray, 2])
        if np.isfinite(end[0] + end[1] + end[2] + x[0] + x[1] + x[2]):
            along = (end[0] - x[0], end[1] - x[1], end[2] - x[2])
            t, last, walk = _entered(grid.shape, x, along, 1.0)
            while t < last:
                if grid[walk[0]] == UNKNOWN:
                    grid[walk[0]] = FREE
                t, walk = _next(grid.shape, walk)
        if (
            0 <= end[0] < grid.shape[0]
            and 0 <= end[1] < grid.shape[1]
            and 0 <= end[2] < grid.shape[2]
        ):
            grid[int(end[0]), int(end[1]), int(end[2])] = OCCUPIED
        else:
            outside += 1
    return outside


@compiled
def crossed(grid: Grid, start: Points, ends: Points) -> NDArray[np.bool_]:
    """Which segments from `start` cross an occupied voxel. Their first voxel does not count."""
    found = np.zeros(len(ends), np.bool_)
    x = (start[0], start[1], start[2])
    home = (int(np.floor(x[0])), int(np.floor(x[1])), int(np.floor(x[2])))
    for ray in range(len(ends)):
        along = (ends[ray, 0] - x[0], ends[ray, 1] - x[1], ends[ray, 2] - x[2])
        if not np.isfinite(along[0] + along[1] + along[2]):
            continue
        t, last, walk = _entered(grid.shape, x, along, 1.0)
        while t < last and not found[ray]:
            found[ray] = grid[walk[0]] == OCCUPIED and walk[0] != home
            t, walk = _next(grid.shape, walk)
    return found


@compiled
def _bordered(grid: Grid) -> Grid:
    """The grid with one voxel more on every side, in which OUTSIDE is set: a ray that gets there has left the grid."""
    larger = np.full((grid.shape[0] + 2, grid.shape[1] + 2, grid.shape[2] + 2), OUTSIDE, np.uint8)
    larger[1:-1, 1:-1, 1:-1] = grid
    return larger


@compiled
def _met(
    voxels: Grid, strides: Cell, size: Cell, x: Place, along: Place, far: float, sums: Points
) -> None:
    """Adds the voxels that one ray meets to the sums of its view. `voxels` is a bordered grid as one row."""
    depth, unknown, of_target, frontier, flags, was_free = far, 0, 0, 0, 0, 0
    t, last, walk = _entered(size, x, along, far)
    (i, j, k), way, (ti, tj, tk), (wi, wj, wk) = walk
    at = (i + 1) * strides[0] + (j + 1) * strides[1] + (k + 1) * strides[2]
    di, dj, dk = way[0] * strides[0], way[1] * strides[1], way[2] * strides[2]
    while t < last:
        voxel = voxels[at]
        if voxel & (OCCUPIED | OUTSIDE):
            if voxel & OCCUPIED:
                depth = t
                flags |= voxel
                sums[2] += voxel >> 2
                sums[3] += 1
            break
        flags |= voxel
        is_unknown = 1 - (voxel & FREE)
        unknown += is_unknown
        of_target += is_unknown & (voxel >> 2)
        frontier += is_unknown & was_free
        was_free = 1 - is_unknown
        # a choice between values instead of branches: which axis comes next cannot be predicted
        first, second = ti <= tj and ti <= tk, tj <= tk
        t = ti if first else (tj if second else tk)
        at += di if first else (dj if second else dk)
        later_i, later_j, later_k = ti + wi, tj + wj, tk + wk
        ti = later_i if first else ti
        if not first:
            tj = later_j if second else tj
            tk = tk if second else later_k
    sums[0] += unknown
    sums[1] += of_target
    sums[4] += unknown > 0
    sums[5] += depth
    sums[6] += frontier
    sums[7] += flags >> 2


@compiled
def march(grid: Grid, eyes: Points, turns: Points, rays: Points, far: float) -> Points:
    """[N, 8]: sums of RAY_COLUMNS over the rays of each view, up to the first occupied voxel, the edge, or `far`.

    `rays` are in the camera's frame and in voxels per metre of depth, so that t is the depth in metres. A ray without
    an occupied voxel has the depth `far`.
    """
    bordered = _bordered(grid)
    voxels, size = bordered.ravel(), grid.shape
    strides = (bordered.shape[1] * bordered.shape[2], bordered.shape[2], 1)
    sums = np.zeros((len(eyes), 8))
    for view in range(len(eyes)):
        eye = (eyes[view, 0], eyes[view, 1], eyes[view, 2])
        turn = turns[view]
        for ray in range(len(rays)):
            x, y, z = rays[ray, 0], rays[ray, 1], rays[ray, 2]
            along = (
                turn[0, 0] * x + turn[0, 1] * y + turn[0, 2] * z,
                turn[1, 0] * x + turn[1, 1] * y + turn[1, 2] * z,
                turn[2, 0] * x + turn[2, 1] * y + turn[2, 2] * z,
            )
            _met(voxels, strides, size, eye, along, far, sums[view])
    return sums


@compiled
def _image_cells(
    xs: Column,
    ys: Column,
    zs: Column,
    eye: Points,
    turn: Points,
    lens: Lens,
    cells: int,
    out: Cells,
) -> None:
    """The one of `cells` x `cells` image parts that each point falls in, row by row; -1 out of view.

    The loop has no branches and no sums, so that the compiler can vectorise it.
    """
    fx, fy, cx, cy, width, height, near, far = lens
    across, down = cells / width, cells / height
    x0, y0, z0 = eye[0], eye[1], eye[2]
    xu, yu, zu = turn[0, 0] * fx, turn[1, 0] * fx, turn[2, 0] * fx
    xv, yv, zv = turn[0, 1] * fy, turn[1, 1] * fy, turn[2, 1] * fy
    xd, yd, zd = turn[0, 2], turn[1, 2], turn[2, 2]
    for point in range(len(xs)):
        x, y, z = xs[point] - x0, ys[point] - y0, zs[point] - z0
        depth = xd * x + yd * y + zd * z
        u = ((xu * x + yu * y + zu * z) / depth + cx) * across
        v = ((xv * x + yv * y + zv * z) / depth + cy) * down
        inside = (u >= 0) & (v >= 0) & (u < cells) & (v < cells) & (depth >= near) & (depth <= far)
        out[point] = np.int32(v) * cells + np.int32(u) if inside else -1


@compiled
def _block_boxes(points: Columns, size: int) -> Points:
    """[B, 6]: centre and half extents of the box around each block of `size` points, a little enlarged."""
    boxes = np.empty((-(-points.shape[1] // size), 6))
    for block in range(len(boxes)):
        for axis in range(3):
            some = points[axis, block * size : (block + 1) * size]
            low, high = np.float64(some.min()), np.float64(some.max())
            boxes[block, axis] = (low + high) / 2
            # far more than the rounding errors of the test that uses it
            boxes[block, 3 + axis] = (high - low) / 2 + 1e-3 + 1e-5 * max(abs(low), abs(high))
    return boxes


@compiled
def _sides(turn: Points, lens: Lens, sides: Points) -> None:
    """Fills in the inward normals [5, 3] of the sides of a view, and of the plane through the eye across it."""
    fx, fy, cx, cy, width, height, _, _ = lens
    for axis in range(3):
        x, y, z = turn[axis, 0], turn[axis, 1], turn[axis, 2]
        sides[0, axis] = x * fx + z * cx
        sides[1, axis] = -x * fx + z * (width - cx)
        sides[2, axis] = y * fy + z * cy
        sides[3, axis] = -y * fy + z * (height - cy)
        sides[4, axis] = z


@compiled
def _is_beyond(box: Points, eye: Points, sides: Points) -> bool:
    """Whether a box lies wholly beyond one of these planes through the eye."""
    x, y, z = box[0] - eye[0], box[1] - eye[1], box[2] - eye[2]
    for k in range(5):
        a, b, c = sides[k, 0], sides[k, 1], sides[k, 2]
        if a * x + b * y + c * z + abs(a) * box[3] + abs(b) * box[4] + abs(c) * box[5] < 0:
            return True
    return False


@compiled
def seen_points(
    points: Columns,
    in_target: NDArray[np.bool_],
    semidense: int,
    eyes: Points,
    turns: Points,
    lens: Lens,
    cells: int,
) -> Points:
    """[N, 3]: semidense points in each view, those of them in the target, and image parts without any point.

    The first `semidense` of the points [3, P] are semidense; the others only fill the image. Occlusion is ignored.
    Blocks of points that are out of view are skipped, which is quick if neighbouring points follow each other.
    """
    counts = np.zeros((len(eyes), 3))
    cell, sides = np.empty(_BLOCK, np.int32), np.empty((5, 3))
    boxes = _block_boxes(points, _BLOCK)
    xs, ys, zs = points[0], points[1], points[2]
    for view in range(len(eyes)):
        filled = np.zeros(cells * cells + 1, np.bool_)  # the last entry is for points out of view
        seen, in_both = 0, 0
        _sides(turns[view], lens, sides)
        for block in range(len(boxes)):
            if _is_beyond(boxes[block], eyes[view], sides):
                continue
            start, end = block * _BLOCK, min((block + 1) * _BLOCK, len(xs))
            _image_cells(
                xs[start:end],
                ys[start:end],
                zs[start:end],
                eyes[view],
                turns[view],
                lens,
                cells,
                cell,
            )
            for point in range(end - start):
                filled[cell[point]] = True
            for point in range(min(end, semidense) - start):
                seen += cell[point] >= 0
                in_both += (cell[point] >= 0) & in_target[start + point]
        counts[view, 0], counts[view, 1] = seen, in_both
        counts[view, 2] = cells * cells - filled[:-1].sum()
    return counts


@compiled
def _least_along(squares: Squares, room: Places) -> None:
    """Sets squares[q] to the least squares[p] + (q - p)² over all p, exactly, by the lower envelope of parabolas.

    `room` [3, n] is working memory: the place, the height and the first q of each parabola of the envelope.
    """
    places, heights, starts = room[0], room[1], room[2]
    top = -1
    for p in range(len(squares)):
        height = np.int64(squares[p])
        if height == FAR:
            continue
        start = np.int64(0)
        while top >= 0:
            q = places[top]
            # the first integer place at which the parabola of p is below that of q
            start = (height - heights[top] + p * p - q * q) // (2 * (p - q)) + 1
            if start > starts[top]:
                break
            top, start = top - 1, np.int64(0)
        if start < len(squares):
            top += 1
            places[top], heights[top], starts[top] = p, height, start
    if top < 0:
        return
    for q in range(len(squares) - 1, -1, -1):
        while starts[top] > q:
            top -= 1
        squares[q] = heights[top] + (q - places[top]) * (q - places[top])


@compiled
def squared_distances(grid: Grid) -> NDArray[np.int32]:
    """Exact squared distance between the centre of every voxel and that of the nearest occupied one.

    FAR if none is occupied. The axes are processed one after the other, because squared distances add up over axes.
    """
    sx, sy, sz = grid.shape
    squares = np.empty(grid.shape, np.int32)
    longest = max(sx, sy, sz)
    line, room = np.empty(longest, np.int32), np.empty((3, longest), np.int64)
    for i in range(sx):
        for j in range(sy):
            for k in range(sz):
                squares[i, j, k] = 0 if grid[i, j, k] == OCCUPIED else FAR
            _least_along(squares[i, j], room)
        for k in range(sz):
            for j in range(sy):
                line[j] = squares[i, j, k]
            _least_along(line[:sy], room)
            for j in range(sy):
                squares[i, j, k] = line[j]
    for j in range(sy):
        for k in range(sz):
            for i in range(sx):
                line[i] = squares[i, j, k]
            _least_along(line[:sx], room)
            for i in range(sx):
                squares[i, j, k] = line[i]
    return squares


@compiled
def near_squared_distances(grid: Grid, cells: Places, reach: int) -> NDArray[np.int32]:
    """[n]: what `squared_distances` holds in these voxels [n, 3], if it is at most `reach` squared; FAR elsewhere.

    It looks at the neighbours of each voxel only. Neighbouring points on a path often lie in the same voxel.
    """
    found = np.full(len(cells), FAR, np.int32)
    sx, sy, sz = grid.shape
    for row in range(len(cells)):
        x, y, z = cells[row, 0], cells[row, 1], cells[row, 2]
        if row > 0 and x == cells[row - 1, 0] and y == cells[row - 1, 1] and z == cells[row - 1, 2]:
            found[row] = found[row - 1]
            continue
        least = reach * reach + 1
        for i in range(max(x - reach, 0), min(x + reach + 1, sx)):
            for j in range(max(y - reach, 0), min(y + reach + 1, sy)):
                across = (i - x) * (i - x) + (j - y) * (j - y)
                if across >= least:
                    continue
                for k in range(max(z - reach, 0), min(z + reach + 1, sz)):
                    square = across + (k - z) * (k - z)
                    if square < least and grid[i, j, k] == OCCUPIED:
                        least = square
        if least <= reach * reach:
            found[row] = least
    return found
