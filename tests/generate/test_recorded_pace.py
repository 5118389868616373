"""The recorded way, at the pace of rollouts."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from rollbook.generate.geometry.poses import centres, poses_of
from rollbook.generate.row_rollouts import at_pace


def along_x(*places: float) -> NDArray[np.float64]:
    at = np.array(places)
    return poses_of(np.eye(3), np.stack([at, 0 * at, 0 * at], axis=1))


@pytest.mark.parametrize(
    ("recorded", "step_m", "followed"),
    [
        ((0.12, 0.24, 0.36, 0.48, 0.6, 0.72, 0.84, 0.96), 0.25, (0.24, 0.48, 0.72, 0.96)),
        ((0.1, 0.2, 0.3), 0.1, (0.1, 0.2, 0.3)),
        ((0.1, 0.2), 0.5, ()),
        ((0.1, 0.2, 0.3), 0.5, (0.3,)),
        ((1.0, 2.0), 0.25, (1.0, 2.0)),
        ((0.3, 0.0, 0.3), 0.3, (0.3, 0.0, 0.3)),
        ((0.0, 0.0), 0.25, ()),
        ((), 0.25, ()),
    ],
    ids=["as made", "frame by frame", "too short", "just", "sparse", "to and fro", "still", "none"],
)
def test_goals_are_a_move_apart(
    recorded: tuple[float, ...], step_m: float, followed: tuple[float, ...]
) -> None:
    goals = at_pace(along_x(*recorded), along_x(0.0)[0], step_m)
    assert centres(goals)[:, 0].tolist() == pytest.approx(followed)
