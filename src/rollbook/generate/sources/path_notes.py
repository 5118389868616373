"""Crossings: where a recorded path passes through a surface. A note for people, not a violation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollbook.generate.geometry.poses import centres
from rollbook.generate.raycast.scene_geometry import SceneGeometry

_MOST_NAMED = 5


def crossings(geometry: SceneGeometry, poses: NDArray[np.floating]) -> NDArray[np.intp]:
    """The frames after which the straight way to the next frame passes through a face."""
    places = centres(poses)
    reached, _ = geometry.cast(places[:-1], np.diff(places, axis=0))
    return np.flatnonzero(reached < 1)


def crossing_note(name: str, frames: NDArray[np.intp]) -> str | None:
    """A sentence that names the frames; None if there are none."""
    if not len(frames):
        return None
    named = ", ".join(f"{frame}-{frame + 1}" for frame in frames[:_MOST_NAMED])
    more = f" and {len(frames) - _MOST_NAMED} more" if len(frames) > _MOST_NAMED else ""
    return f"{name}: the path passes through a surface between frames {named}{more}"
