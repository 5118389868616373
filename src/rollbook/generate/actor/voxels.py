"""Straight lines through a grid of voxels, and how far every voxel is from an occupied one: compiled.

Everything is in voxel units: voxel (i, j, k) fills the cube from (i, j, k) to (i + 1, j + 1, k + 1). A line visits
each voxel it passes, in order; where it passes exactly through an edge, one of the voxels there is left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollbook.generate.raycast.compiled import compiled

Grid = NDArray[np.uint8]
Points = NDArray[np.float64]
Columns = NDArray[np.float32]
Cells = NDArray[np.int32]
Lens = tuple[float, float, float, float, float, float, float, float]
"""fx, fy, cx, cy, width, height, near, far."""
Squares = NDArray[np.int32]
Places = NDArray[np.int64]
Cell = tuple[int, int, int]
Place = tuple[float, float, float]
Walk = tuple[Cell, Cell, Place, Place]
"""The voxel one is in, and per axis: the way it goes on, when the voxel is left, how long each further one takes."""

UNKNOWN, FREE, OCCUPIED = 0, 1, 2
"""A voxel only ever goes up: what was seen as occupied stays so, whatever later passes through."""
TARGET = 4
"""Added to a voxel that the target's box reaches."""

FAR = np.iinfo(np.int32).max
"""The squared distance where nothing is occupied."""

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
"""What `march` adds up over the rays of a view, in order; named for the feature that its mean is."""


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
    """Where the line is at t: the voxel, the way it goes on, when it leaves, and how long each further one takes."""
    cell = min(max(int(np.floor(x + t * along)), 0), size - 1)
    if along > 0.0:
        return cell, 1, (cell + 1 - x) / along, 1.0 / along
    if along < 0.0:
        return cell, -1, (cell - x) / along, -1.0 / along
    return cell, 0, np.inf, np.inf


@compiled
def _entered(size: Cell, x: Place, along: Place, end: float) -> tuple[float, float, Walk]:
    """From which t to which a line is in the grid, at most from 0 to `end`, and the walk from there."""
    t, last = _cut(x[0], along[0], size[0], 0.0, end)
    t, last = _cut(x[1], along[1], size[1], t, last)
    t, last = _cut(x[2], along[2], size[2], t, last)
    i, di, ti, wi = _axis(x[0], along[0], t, size[0])
    j, dj, tj, wj = _axis(x[1], along[1], t, size[1])
    k, dk, tk, wk = _axis(x[2], along[2], t, size[2])
    return t, last, ((i, j, k), (di, dj, dk), (ti, tj, tk), (wi, wj, wk))


@compiled
def _next(size: Cell, walk: Walk) -> tuple[float, Walk]:
    """The next voxel and the t at which it is entered; infinite where the grid ends."""
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
    """Marks what lies between start and end as free and the end as occupied; how many ends were outside.

    Voxels only go up, so the order of the lines does not matter. Of a line that ends outside, the part inside is free.
    A line without a start (NaN) marks its end only.
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
    """Which segments from `start` pass an occupied voxel. The voxel they start in does not count: one is there."""
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
def _met(grid: Grid, x: Place, along: Place, far: float, sums: Points) -> None:
    """Adds what one ray meets to the sums of its view."""
    depth, unknown, met_target, was_free = far, 0, False, False
    t, last, walk = _entered(grid.shape, x, along, far)
    while t < last:
        voxel = grid[walk[0]]
        in_target, seen = voxel >= TARGET, voxel & 3
        met_target |= in_target
        if seen == OCCUPIED:
            depth = t
            sums[2] += in_target
            sums[3] += 1.0
            break
        if seen == UNKNOWN:
            unknown += 1
            sums[1] += in_target
            sums[6] += was_free
        was_free = seen == FREE
        t, walk = _next(grid.shape, walk)
    sums[0] += unknown
    sums[4] += unknown > 0
    sums[5] += depth
    sums[7] += met_target


@compiled
def march(grid: Grid, eyes: Points, turns: Points, rays: Points, far: float) -> Points:
    """[N, 8], see RAY_COLUMNS: what the rays of each view meet until the first occupied voxel, the edge, or `far`.

    `rays` are of one camera, in its frame, and in voxels per metre of depth, so that t is the depth in metres. A ray
    that ends at no occupied voxel counts `far` as its depth.
    """
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
            _met(grid, eye, along, far, sums[view])
    return sums


@compiled
def _image_cells(
    points: Columns, eye: Points, turn: Points, lens: Lens, cells: int, out: Cells
) -> None:
    """Which of `cells` x `cells` parts of the image each point [3, P] falls in, row by row; -1 out of view.

    No jumps and no sums, so that the compiler does many points at once.
    """
    fx, fy, cx, cy, width, height, near, far = lens
    across, down = cells / width, cells / height
    x0, y0, z0 = eye[0], eye[1], eye[2]
    xu, yu, zu = turn[0, 0] * fx, turn[1, 0] * fx, turn[2, 0] * fx
    xv, yv, zv = turn[0, 1] * fy, turn[1, 1] * fy, turn[2, 1] * fy
    xd, yd, zd = turn[0, 2], turn[1, 2], turn[2, 2]
    for point in range(points.shape[1]):
        x, y, z = points[0, point] - x0, points[1, point] - y0, points[2, point] - z0
        depth = xd * x + yd * y + zd * z
        u = ((xu * x + yu * y + zu * z) / depth + cx) * across
        v = ((xv * x + yv * y + zv * z) / depth + cy) * down
        inside = (u >= 0) & (v >= 0) & (u < cells) & (v < cells) & (depth >= near) & (depth <= far)
        out[point] = np.int32(v) * cells + np.int32(u) if inside else -1


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
    """[N, 3]: semidense points in each view, those of them in the target, and parts of the image without any point.

    The first `semidense` of the points [3, P] are so; the others only fill the image. Walls are not looked at.
    """
    counts = np.empty((len(eyes), 3))
    cell = np.empty(points.shape[1], np.int32)
    for view in range(len(eyes)):
        _image_cells(points, eyes[view], turns[view], lens, cells, cell)
        filled = np.zeros(cells * cells + 1, np.bool_)  # the last is for what is out of view
        for point in range(len(cell)):
            filled[cell[point]] = True
        seen, in_both = 0, 0
        for point in range(semidense):
            seen += cell[point] >= 0
            in_both += (cell[point] >= 0) & in_target[point]
        counts[view, 0], counts[view, 1] = seen, in_both
        counts[view, 2] = cells * cells - filled[:-1].sum()
    return counts


@compiled
def _least_along(squares: Squares, room: Places) -> None:
    """squares[q] becomes the least over p of squares[p] + (q - p)², exactly: up and down the lower envelope.

    `room` [3, n] is to work in: of each parabola in the envelope its place, its height, and where it begins to count.
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
            # the first whole place at which p's parabola lies below that of q
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
    """For every voxel, the square of the distance from its middle to that of the nearest occupied one, exactly.

    FAR where none is occupied. One axis after the other, since the least of sums is the sum of leasts.
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
