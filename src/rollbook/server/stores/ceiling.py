"""The ceiling over a camera: it hides a room from whoever looks at it from above."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_LEVEL = 0.95
"""The share of a face's area that is seen from straight above, for a face that counts as level."""
_COVERS = 0.3
"""The share of the ground plan that a ceiling covers at least; a cupboard covers less."""
_LAYER_M = 0.1
"""Faces of one ceiling lie in a layer of this thickness."""


def ceiling_over(
    camera: NDArray[np.floating[Any]],
    positions: NDArray[np.floating[Any]],
    faces: NDArray[np.integer[Any]],
) -> float | None:
    """The height of the lowest ceiling above a camera, or none: a camera that looks at an object from outside has
    nothing over it, however flat the object is."""
    if not len(faces):
        return None
    corners = positions[faces].astype(np.float64)
    lowest, highest = corners.min(axis=(0, 1))[:2], corners.max(axis=(0, 1))[:2]
    if not ((lowest <= camera[:2]) & (camera[:2] <= highest)).all():
        return None
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    heights = corners[:, :, 2].min(axis=1)
    level = np.abs(normals[:, 2]) >= _LEVEL * np.linalg.norm(normals, axis=1)
    above = level & (heights > camera[2])
    if not above.any():
        return None
    layers = np.floor(heights[above] / _LAYER_M).astype(np.int64)
    found, layer_of = np.unique(layers, return_inverse=True)
    # half of a normal's length is the area; a ceiling may lie astride two layers
    areas = np.bincount(layer_of, np.abs(normals[above, 2]) / 2, minlength=len(found))
    areas[1:] += np.where(np.diff(found) == 1, areas[:-1], 0.0)
    wide = np.flatnonzero(areas >= _COVERS * np.prod(highest - lowest))
    if not len(wide):
        return None
    ceiling = np.isin(layers, (found[wide[0]] - 1, found[wide[0]]))
    return float(heights[above][ceiling].min())
