"""Morton order sorts points along one line, so that neighbours on the line are neighbours in space."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BITS = 16
"""Bits per axis: 65536 cells along the longest side."""


def morton_order(points: NDArray[np.float32]) -> NDArray[np.intp]:
    """Indices that sort finite points [n, 3]. Points of one cell keep their order."""
    if not len(points):
        return np.zeros(0, np.intp)
    low = points.min(axis=0).astype(np.float64)
    side = float((points.max(axis=0) - low).max())
    scale = (2**_BITS - 1) / side if side > 0 else 0.0
    cells = ((points - low) * scale).astype(np.uint64)
    code = _spread(cells[:, 0]) | _spread(cells[:, 1]) << 1 | _spread(cells[:, 2]) << 2
    return np.argsort(code, kind="stable")


def _spread(cell: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Inserts two zero bits after every bit."""
    spread = cell
    for shift, mask in (
        (16, 0xFF0000FF),
        (8, 0xF00F00F00F00F),
        (4, 0xC30C30C30C30C3),
        (2, 0x249249249249249),
    ):
        spread = (spread | spread << np.uint64(shift)) & np.uint64(mask)
    return spread
