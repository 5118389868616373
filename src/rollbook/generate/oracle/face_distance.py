"""Squared distance between a point and a triangle: one formula for one point and for sixteen at once.

The formula has no branches, so that it can process sixteen points together. It is the least of the distances to the
three sides and, for a point above the triangle, to its plane. It computes in float64 from float32 input: the relative
error is about 1e-15 of the squared distance to the first corner, which is 1e-7 m at a wall of 5 m.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.generate.raycast.compiled import compiled, inlined
from rollbook.generate.raycast.vector_steps import FLOAT32, Vector, least, loaded_rows, step, where

TERMS = 25
"""Number of values that are computed once per triangle, for all points."""


@compiled
def face_terms(corners: NDArray[np.float32], terms: NDArray[np.float64]) -> None:
    """Computes the terms of a triangle [9]: first corner, sides b and c, their products, and its box relative to it."""
    for axis in range(3):
        first = np.float64(corners[axis])
        b, c = corners[3 + axis] - first, corners[6 + axis] - first
        terms[axis], terms[3 + axis], terms[6 + axis] = first, b, c
        terms[18 + axis] = min(min(b, c), 0.0)
        terms[21 + axis] = max(max(b, c), 0.0)
    bx, by, bz, cx, cy, cz = terms[3], terms[4], terms[5], terms[6], terms[7], terms[8]
    bb, bc, cc = (
        bx * bx + by * by + bz * bz,
        bx * cx + by * cy + bz * cz,
        cx * cx + cy * cy + cz * cz,
    )
    nx, ny, nz = by * cz - bz * cy, bz * cx - bx * cz, bx * cy - by * cx
    flat = _inverse(nx * nx + ny * ny + nz * nz)
    terms[9], terms[10], terms[11] = bb, bc, cc
    ee = (bb - bc) + (cc - bc)
    terms[12], terms[13], terms[14] = _inverse(bb), _inverse(cc), _inverse(ee)
    terms[15], terms[16], terms[17] = bb * flat, bc * flat, cc * flat
    terms[24] = ee


@compiled
def _inverse(value: float) -> float:
    return 1.0 / value if value > 0 else 0.0


def _formula(choose: Callable[..., Any]) -> Callable[..., Any]:
    """Squared distance between (x, y, z) and the triangle of these terms, for numbers or for vectors, as `choose` is.

    It is never below the distance to the triangle's box: a search that skips boxes finds the same as a full search.
    """

    def square(x: Any, y: Any, z: Any, terms: Any) -> Any:
        px, py, pz = x - terms[0], y - terms[1], z - terms[2]
        bb, bc, cc = terms[9], terms[10], terms[11]
        pp = px * px + py * py + pz * pz
        pb = px * terms[3] + py * terms[4] + pz * terms[5]
        pc = px * terms[6] + py * terms[7] + pz * terms[8]

        along = pb * terms[12]
        along = choose(along > 0.0, along, 0.0)
        along = choose(along < 1.0, along, 1.0)
        found = pp - along * (pb + pb - along * bb)

        along = pc * terms[13]
        along = choose(along > 0.0, along, 0.0)
        along = choose(along < 1.0, along, 1.0)
        other = pp - along * (pc + pc - along * cc)
        found = choose(other < found, other, found)

        # from the second corner to the third
        side = (pc - bc) - (pb - bb)
        along = side * terms[14]
        along = choose(along > 0.0, along, 0.0)
        along = choose(along < 1.0, along, 1.0)
        other = (pp - pb - pb + bb) - along * (side + side - along * terms[24])
        found = choose(other < found, other, found)

        v, w = pb * terms[17] - pc * terms[16], pc * terms[15] - pb * terms[16]
        other = pp - v * pb - w * pc
        over = (v > 0.0) & (w > 0.0) & (v + w < 1.0)
        found = choose(over & (other < found), other, found)

        gx = choose(px < terms[18], px - terms[18], choose(px > terms[21], px - terms[21], 0.0))
        gy = choose(py < terms[19], py - terms[19], choose(py > terms[22], py - terms[22], 0.0))
        gz = choose(pz < terms[20], pz - terms[20], choose(pz > terms[23], pz - terms[23], 0.0))
        box = gx * gx + gy * gy + gz * gz
        return choose(found > box, found, box)

    return square


@inlined
def _choose(condition: bool, one: float, other: float) -> float:
    return one if condition else other


face_square: Any = inlined(_formula(_choose))
"""(x, y, z, terms): squared distance of one point."""

_face_squares = _formula(where)


def _least_square(builder: Any, points: Any, terms: Any, best: Any) -> Any:
    x, y, z = (row.widened() for row in loaded_rows(builder, points))
    given = [Vector.spread_at(builder, terms, place) for place in range(TERMS)]
    squares = _face_squares(x, y, z, given).narrowed()
    return least(squares, Vector.spread(builder, best)).best(least)


least_square: Any = step(FLOAT32, _least_square)
"""(points[3, 16], terms, best): the least of `best` and the squared distances of sixteen points."""
