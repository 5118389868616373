"""The way a recording went on, at the pace of rollouts: so that a chain can follow it step by step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollbook.generate.geometry.poses import centres

Array = NDArray[np.float64]


def at_pace(recorded: Array, root_pose: Array, step_m: float) -> Array:
    """Of poses [K, 12] after the root those that come nearest to every `step_m` of the way, [k, 12].

    Frames of a recording are centimetres apart, moves of a rollout are not: taken frame by frame, a chain would be
    far ahead of the recording it is to follow. Who never goes anywhere leaves nothing to follow.
    """
    places = np.concatenate([centres(root_pose)[None], centres(recorded)])
    walked = np.cumsum(np.linalg.norm(np.diff(places, axis=0), axis=1))
    if not len(walked):
        return recorded
    goals = step_m * (1 + np.arange(int(walked[-1] / step_m + 0.5)))
    nearest = np.abs(walked - goals[:, None]).argmin(axis=1)
    return np.asarray(recorded[np.unique(nearest)])
