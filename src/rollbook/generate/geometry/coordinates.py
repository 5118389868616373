"""Operations on coordinates [..., 3]. numpy's own reductions over an axis of three entries take ten times as long."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def all_three(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[...]: where all three entries of a mask [..., 3] are true."""
    found: NDArray[Any] = mask[..., 0] & mask[..., 1] & mask[..., 2]
    return found


def all_finite(points: ArrayLike) -> NDArray[np.bool_]:
    """[...]: which points [..., 3] are finite."""
    return all_three(np.isfinite(points))


def bounds_of(points: NDArray[Any]) -> NDArray[np.float64]:
    """[2, 3]: lower and upper corner of the box around points [n, 3], at least one."""
    columns = np.ascontiguousarray(points.T)
    return np.array([columns.min(axis=1), columns.max(axis=1)], np.float64)


def cross(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cross product [..., 3], the same numbers as np.cross gives."""
    a, b, c = first[..., 0], first[..., 1], first[..., 2]
    x, y, z = second[..., 0], second[..., 1], second[..., 2]
    return np.stack([b * z - c * y, c * x - a * z, a * y - b * x], axis=-1)
