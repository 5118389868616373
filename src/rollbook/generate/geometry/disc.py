"""A level disc around a point: the floor under a body, seen from above."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_AROUND = 2 * np.pi * np.arange(8) / 8
_LEVEL = np.concatenate(
    [
        [[0.0, 0.0]],
        *(
            share * np.column_stack([np.cos(turn), np.sin(turn)])
            for share, turn in ((0.5, _AROUND), (1.0, _AROUND + np.pi / 8))
        ),
    ]
)
_PLACES = np.column_stack([_LEVEL, np.zeros(len(_LEVEL))])


def places_of_disc(points: ArrayLike, radius: float) -> NDArray[np.float64]:
    """[n, 17, 3]: the middle of the disc at each point [n, 3], eight places half-way out, and eight at its edge."""
    return np.asarray(points, np.float64).reshape(-1, 1, 3) + radius * _PLACES
