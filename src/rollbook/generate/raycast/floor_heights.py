"""Floor heights: a scene as one sees it from above, cut open at a height so that ceilings do not hide it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollbook.generate.raycast.scene_geometry import SceneGeometry

Array = NDArray[np.float64]


def heights_below(
    geometry: SceneGeometry, low: Array, high: Array, top: float, *, cells_across: int = 700
) -> tuple[Array, NDArray[np.bool_]]:
    """[y, x]: the height of the first surface under `top`, NaN for none, and where `top` is inside something.

    From `low` to `high`, x and y each, with so many cells along the longer side.
    """
    size = high - low
    across = np.maximum((size / size.max() * cells_across).astype(int), 1)
    x, y = (low[k] + (np.arange(across[k]) + 0.5) * size[k] / across[k] for k in (0, 1))
    places = np.full((len(y), len(x), 3), top, np.float32)
    places[..., 0], places[..., 1] = x, y[:, None]
    below, floors, backs = _looked(geometry, places, -1.0)
    _, ceilings, backs_above = _looked(geometry, places, 1.0)
    # from inside, a solid shows the backs of its faces; a mesh that is inside out shows backs nearly everywhere
    inside_out = 2 * backs.sum() > floors.sum()
    solid = (floors & (backs != inside_out)) | (ceilings & (backs_above != inside_out))
    return np.where(floors & ~solid, top - below, np.nan), solid


def _looked(
    geometry: SceneGeometry, places: NDArray[np.float32], up: float
) -> tuple[Array, NDArray[np.bool_], NDArray[np.bool_]]:
    """Straight up or down from places [y, x, 3]: how far one sees, whether to a face, and whether to its back."""
    along = np.zeros_like(places)
    along[..., 2] = up
    far, face = geometry.cast(places.reshape(-1, 3), along.reshape(-1, 3))
    hit = face >= 0
    back = hit & (geometry.mesh.normals[face, 2] * up > 0)
    shape = places.shape[:2]
    return far.astype(np.float64).reshape(shape), hit.reshape(shape), back.reshape(shape)
