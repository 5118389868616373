"""Bvh: a tree of boxes over triangles. It finds the first hit of a ray and the exact distance to the surface.

It casts rays on machines for which Embree has no wheel, and measures distances everywhere. Boxes are tested in float32
with a safety margin. Triangles are tested in float64, so that a ray through a shared edge cannot pass between the two.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.errors import InvalidMesh, InvalidValue
from rollbook.generate.raycast.bvh_nodes import WIDTH, build_nodes
from rollbook.generate.raycast.compiled import compiled, inlined

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Tree = tuple[Floats, Ints, Ints, Floats]
"""Boxes of the nodes, links and counts of their children, corners of the triangles."""
Number = Any
"""A float32 or float64: compiled code distinguishes them, Python's types do not."""
Triple = tuple[Number, Number, Number]

_CELLS = 32
"""Cells per axis. The number of a cell fits into 16 bits, which numpy sorts in linear time."""

_FARTHEST_CORNER = 1e15
"""The squares of larger coordinates do not fit into float32."""
_ZERO = np.float32(0)
_FARTHEST = np.float32(3e38)
"""Means "no hit": no ray is followed farther."""
_SHORTEST, _LONGEST = np.float32(1e-18), np.float32(1e18)
"""Limits of the largest component of a direction; other directions are ignored."""
_SAFE = np.float32(1 + 2e-6)
"""Factor larger than any rounding error of the distance to a box."""
_EDGE = 1e-9
"""A hit this far outside of a triangle, as a share of its size, still counts as a hit on its edge."""


class Bvh:
    """Built once and never changed. Several threads may query it at a time."""

    def __init__(self, triangles: Floats) -> None:
        """`triangles` are float32[F, 3, 3] as TriangleMesh gives them, each with an area above 0."""
        given = np.ascontiguousarray(triangles, np.float32)
        if given.ndim != 3 or given.shape[1:] != (3, 3) or not len(given):
            detail = f"triangles are {list(given.shape)}, expected [F, 3, 3], at least one"
            raise InvalidMesh(record="bvh", detail=detail)
        if not np.abs(given).max() < _FARTHEST_CORNER:
            detail = f"a corner is not finite, or beyond {_FARTHEST_CORNER:g}"
            raise InvalidMesh(record="bvh", detail=detail)
        a, b, c = given[:, 0], given[:, 1], given[:, 2]
        low, high = np.minimum(np.minimum(a, b), c), np.maximum(np.maximum(a, b), c)
        boxes, links, counts, self._faces, levels = build_nodes(low, high)
        self._tree: Tree = (boxes, links, counts, given[self._faces].reshape(-1, 9))
        self._most_waiting = levels * (WIDTH - 1) + 1
        self._low = low.min(axis=0)
        self._cells_per_m = _CELLS / max(float((high.max(axis=0) - self._low).max()), 1e-30)

    def cast(self, origins: ArrayLike, directions: ArrayLike) -> tuple[Floats, Ints]:
        """First hit of each ray on either side of a triangle: its parameter and the face; inf and -1 for no hit.

        The parameter is in lengths of the direction and above 0. A ray that is not finite or has no direction hits
        nothing.
        """
        starts, along = ray_columns(origins, directions)
        t, face = np.full(len(starts), np.inf, np.float32), np.empty(len(starts), np.int32)
        self.trace(starts, along, t, face)
        return t, face

    def trace(
        self, origins: Floats, directions: Floats, t: Floats, face: Ints | None = None
    ) -> None:
        """`cast` into given arrays. `t` holds the greatest distance to search, and stays unchanged without a hit."""
        found = np.empty(len(t), np.int32) if face is None else face
        _trace(self._tree, self._faces, self._most_waiting, origins, directions, t, found)

    def distance(self, points: ArrayLike, bound: float = math.inf) -> Floats:
        """Distance of each point to the nearest triangle, at most `bound`; NaN where a point is NaN."""
        if not bound >= 0:
            raise InvalidValue(
                record="distance", field="bound", value=str(bound), expected="at least 0"
            )
        places = rows_of_three(points, "points")
        order = self._cell_order(places)
        in_order = np.empty(len(places), np.float32)
        _distance(self._tree, self._most_waiting, places[order], float(bound), in_order)
        found = np.empty_like(in_order)
        found[order] = in_order
        return found

    def _cell_order(self, places: Floats) -> NDArray[np.intp]:
        """Sorts points by cell: neighbouring points visit the same nodes, which are then still in the cache."""
        with np.errstate(over="ignore", invalid="ignore"):
            cells = (places - self._low) * np.float32(self._cells_per_m)
        x, y, z = np.fmax(np.fmin(cells, _CELLS - 1), 0).astype(np.uint16).T
        return np.argsort((x * _CELLS + y) * _CELLS + z, kind="stable")


def rows_of_three(values: ArrayLike, name: str) -> Floats:
    """float32[n, 3], contiguous and writeable: for other arrays numba would compile the kernels again."""
    given = np.asarray(values)
    if given.ndim != 2 or given.shape[1] != 3 or given.dtype.kind not in "fiu":
        raise InvalidValue(
            record="geometry",
            field=name,
            value=f"{given.dtype}{list(given.shape)}",
            expected="numbers [n, 3]",
        )
    with np.errstate(over="ignore"):  # values beyond float32 become infinite
        return np.require(given, np.float32, ("C", "W"))


def ray_columns(origins: ArrayLike, directions: ArrayLike) -> tuple[Floats, Floats]:
    """Origins and directions as float32 columns of equal length."""
    starts, along = rows_of_three(origins, "origins"), rows_of_three(directions, "directions")
    if len(starts) != len(along):
        raise InvalidValue(
            record="geometry",
            field="directions",
            value=f"{len(along)} rows",
            expected=f"one for each of {len(starts)} origins",
        )
    return starts, along


# ----------------------------------------------------------------------------------------------- rays


@compiled
def _trace(
    tree: Tree,
    faces: Ints,
    most_waiting: int,
    origins: Floats,
    directions: Floats,
    t: Floats,
    face: Ints,
) -> None:
    boxes, links, counts, corners = tree
    waiting = np.empty(most_waiting, np.int32)
    entered = np.empty(most_waiting, np.float32)
    near = np.empty(WIDTH, np.float32)
    for ray in range(len(t)):
        origin = origins[ray, 0], origins[ray, 1], origins[ray, 2]
        along = directions[ray, 0], directions[ray, 1], directions[ray, 2]
        face[ray] = -1
        if _is_ray(origin, along):
            best, hit = _first_hit(
                boxes, links, counts, corners, origin, along, t[ray], waiting, entered, near
            )
            if hit >= 0:
                t[ray], face[ray] = best, faces[hit]


@inlined
def _is_ray(origin: Triple, along: Triple) -> bool:
    """Checks all values at once: a sum is finite only if every term is."""
    finite = math.isfinite(origin[0] + origin[1] + origin[2] + along[0] + along[1] + along[2])
    return finite and _SHORTEST < max(abs(along[0]), abs(along[1]), abs(along[2])) < _LONGEST


@inlined
def _first_hit(
    boxes: Floats,
    links: Ints,
    counts: Ints,
    corners: Floats,
    origin: Triple,
    along: Triple,
    longest: Number,
    waiting: Ints,
    entered: Floats,
    near: Floats,
) -> tuple[Number, int]:
    inverse = _inverse(along[0]), _inverse(along[1]), _inverse(along[2])
    best, hit = np.float64(min(longest, _FARTHEST)), -1
    limit = np.float32(best) * _SAFE
    node, count, held = 0, 0, 0
    while True:
        for place in range(node, node + count):
            found = _meets(corners, place, origin, along)
            if found > 0 and (found < best or (found == best and hit < 0)):
                best, hit = found, place
                limit = np.float32(best) * _SAFE
        if count == 0:
            _enter_children(boxes, node, origin, inverse, limit, near)
            held = _push_in_order(near, node, waiting, entered, held)
        while held > 0 and entered[held - 1] > limit:
            held -= 1
        if held == 0:
            return best, hit
        held -= 1
        node, count = links[waiting[held]], counts[waiting[held]]


@inlined
def _inverse(value: Number) -> Number:
    """1 / value, but never infinite: a ray along the side of a box must not give 0 * inf."""
    if abs(value) > np.float32(1e-37):
        return np.float32(1) / value
    return np.float32(1e37) if value >= 0 else np.float32(-1e37)


@inlined
def _enter_children(
    boxes: Floats, node: int, origin: Triple, inverse: Triple, limit: Number, near: Floats
) -> None:
    """Parameter at which the ray enters each box of a node; _FARTHEST if it does not enter within the limit."""
    ox, oy, oz = origin
    ix, iy, iz = inverse
    # the sides through which a ray of this direction enters and leaves
    x0, y0, z0 = 0 if ix > 0 else 3, 1 if iy > 0 else 4, 2 if iz > 0 else 5
    x1, y1, z1 = 3 - x0, 5 - y0, 7 - z0
    for k in range(WIDTH):
        into_x, into_y, into_z = (
            (boxes[node, x0, k] - ox) * ix,
            (boxes[node, y0, k] - oy) * iy,
            (boxes[node, z0, k] - oz) * iz,
        )
        out_x, out_y, out_z = (
            (boxes[node, x1, k] - ox) * ix,
            (boxes[node, y1, k] - oy) * iy,
            (boxes[node, z1, k] - oz) * iz,
        )
        into = max(max(into_x, into_y), max(into_z, _ZERO))
        out = min(min(out_x, out_y), min(out_z, limit))
        near[k] = into if into <= out * _SAFE else _FARTHEST


@inlined
def _push_in_order(near: Floats, node: int, waiting: Ints, entered: Floats, held: int) -> int:
    """Pushes the children that a ray enters, the nearest on top; returns the number of waiting entries."""
    floor = held
    for k in range(WIDTH):
        if near[k] < _FARTHEST:
            at = held
            while at > floor and entered[at - 1] < near[k]:
                entered[at], waiting[at] = entered[at - 1], waiting[at - 1]
                at -= 1
            entered[at], waiting[at] = near[k], node * WIDTH + k
            held += 1
    return held


@inlined
def _meets(corners: Floats, place: int, origin: Triple, along: Triple) -> Number:
    """Parameter at which a ray hits a triangle (Möller and Trumbore); -1 for no hit."""
    (ax, ay, az), (ux, uy, uz), (vx, vy, vz) = _corner_and_edges(corners, place)
    dx, dy, dz = along
    px, py, pz = dy * vz - dz * vy, dz * vx - dx * vz, dx * vy - dy * vx
    volume = ux * px + uy * py + uz * pz
    if volume == 0:
        return -1.0
    scale = 1.0 / volume
    sx, sy, sz = origin[0] - ax, origin[1] - ay, origin[2] - az
    u = (sx * px + sy * py + sz * pz) * scale
    if u < -_EDGE or u > 1 + _EDGE:
        return -1.0
    qx, qy, qz = sy * uz - sz * uy, sz * ux - sx * uz, sx * uy - sy * ux
    v = (dx * qx + dy * qy + dz * qz) * scale
    if v < -_EDGE or u + v > 1 + _EDGE:
        return -1.0
    return (vx * qx + vy * qy + vz * qz) * scale


@inlined
def _corner_and_edges(corners: Floats, place: int) -> tuple[Triple, Triple, Triple]:
    """One corner and two edges in float64, where the differences are exact."""
    x, y, z = (
        np.float64(corners[place, 0]),
        np.float64(corners[place, 1]),
        np.float64(corners[place, 2]),
    )
    return (
        (x, y, z),
        (corners[place, 3] - x, corners[place, 4] - y, corners[place, 5] - z),
        (corners[place, 6] - x, corners[place, 7] - y, corners[place, 8] - z),
    )


# ------------------------------------------------------------------------------------------ distances


@compiled
def _distance(tree: Tree, most_waiting: int, points: Floats, bound: float, found: Floats) -> None:
    boxes, links, counts, corners = tree
    waiting = np.empty(most_waiting, np.int32)
    least = np.empty(most_waiting, np.float32)
    near = np.empty(WIDTH, np.float32)
    nearest = 0
    for row in range(len(points)):
        point = points[row, 0], points[row, 1], points[row, 2]
        if math.isfinite(point[0] + point[1] + point[2]):
            # the triangle nearest to the last point is a good first guess
            square, nearest = _nearest(
                boxes, links, counts, corners, point, bound * bound, nearest, waiting, least, near
            )
            found[row] = min(math.sqrt(square), bound)
        else:
            unknown = math.isnan(point[0]) or math.isnan(point[1]) or math.isnan(point[2])
            found[row] = np.nan if unknown else bound


@inlined
def _nearest(
    boxes: Floats,
    links: Ints,
    counts: Ints,
    corners: Floats,
    point: Triple,
    most: Number,
    guess: int,
    waiting: Ints,
    least: Floats,
    near: Floats,
) -> tuple[Number, int]:
    """The least squared distance and its triangle, or `most` and the guess."""
    best, nearest = min(most, _square_to(corners, guess, point)), guess
    # a finite limit excludes children that do not exist: those are infinitely far
    limit = min(np.float32(best) * _SAFE, _FARTHEST)
    node, count, held = 0, 0, 0
    while True:
        for place in range(node, node + count):
            square = _square_to(corners, place, point)
            if square < best:
                best, nearest = square, place
                limit = np.float32(best) * _SAFE
        if count == 0:
            _approach_children(boxes, node, point, near)
            held = _push_closest(near, limit, node, waiting, least, held)
        while held > 0 and least[held - 1] > limit:
            held -= 1
        if held == 0:
            return best, nearest
        held -= 1
        node, count = links[waiting[held]], counts[waiting[held]]


@inlined
def _approach_children(boxes: Floats, node: int, point: Triple, near: Floats) -> None:
    """Squared distance to each box of a node; a missing child is infinitely far."""
    x, y, z = point
    for k in range(WIDTH):
        gx = max(max(boxes[node, 0, k] - x, x - boxes[node, 3, k]), _ZERO)
        gy = max(max(boxes[node, 1, k] - y, y - boxes[node, 4, k]), _ZERO)
        gz = max(max(boxes[node, 2, k] - z, z - boxes[node, 5, k]), _ZERO)
        near[k] = gx * gx + gy * gy + gz * gz


@inlined
def _push_closest(
    near: Floats, limit: Number, node: int, waiting: Ints, least: Floats, held: int
) -> int:
    """Pushes the children within the limit, the closest on top; returns the number of waiting entries.

    The others are not sorted: after a visit to the closest, most of them are beyond the limit.
    """
    first, closest = -1, np.float32(np.inf)
    for k in range(WIDTH):
        if near[k] <= limit:
            least[held], waiting[held] = near[k], node * WIDTH + k
            if near[k] < closest:
                first, closest = held, near[k]
            held += 1
    if first >= 0:
        last = held - 1
        least[first], least[last] = least[last], least[first]
        waiting[first], waiting[last] = waiting[last], waiting[first]
    return held


@inlined
def _square_to(corners: Floats, place: int, point: Triple) -> Number:
    """Squared distance to a triangle: to its nearest corner, edge or inner point."""
    (ax, ay, az), (ux, uy, uz), (vx, vy, vz) = _corner_and_edges(corners, place)
    px, py, pz = point[0] - ax, point[1] - ay, point[2] - az
    # position along both edges, from each of the three corners
    au, av = ux * px + uy * py + uz * pz, vx * px + vy * py + vz * pz
    if au <= 0 and av <= 0:
        return px * px + py * py + pz * pz
    uv = ux * vx + uy * vy + uz * vz
    bu, bv = au - (ux * ux + uy * uy + uz * uz), av - uv
    cu, cv = au - uv, av - (vx * vx + vy * vy + vz * vz)
    across_a, across_b, across_c = bu * cv - cu * bv, cu * av - au * cv, au * bv - bu * av
    u, v = 0.0, 0.0
    if bu >= 0 and bv <= bu:
        u = 1.0
    elif cv >= 0 and cu <= cv:
        v = 1.0
    elif across_c <= 0 and au >= 0 and bu <= 0:
        u = au / (au - bu)
    elif across_b <= 0 and av >= 0 and cv <= 0:
        v = av / (av - cv)
    elif across_a <= 0 and bv >= bu and cu >= cv:
        v = (bv - bu) / ((bv - bu) + (cu - cv))
        u = 1.0 - v
    else:
        scale = 1.0 / (across_a + across_b + across_c)
        u, v = across_b * scale, across_c * scale
    gx, gy, gz = px - u * ux - v * vx, py - u * uy - v * vy, pz - u * uz - v * vz
    return gx * gx + gy * gy + gz * gz
