"""Spans: runs of rows for which something holds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def spans(holds: NDArray[np.bool_]) -> NDArray[np.intp]:
    """[span, 2]: the first row of every run of true values, and the row after its last."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], holds, [False])).astype(np.int8)))
    return edges.reshape(-1, 2)


def longest(found: NDArray[np.intp]) -> tuple[int, int] | None:
    if not len(found):
        return None
    first, stop = found[np.argmax(found[:, 1] - found[:, 0])]
    return int(first), int(stop)


def seconds_text(value: float) -> str:
    """A duration as people write it: 118 ms, 2.6 s."""
    return f"{1000 * value:.0f} ms" if value < 0.9995 else f"{value:.1f} s"
