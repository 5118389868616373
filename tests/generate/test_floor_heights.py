"""A scene from above: the floor, what stands on it, and what the cut goes through."""

from __future__ import annotations

import numpy as np
import pytest

from rollbook.generate.geometry.mesh import TriangleMesh
from rollbook.generate.raycast.scene_geometry import SceneGeometry
from rollbook.generate.rollout_picture import heights_below
from tests.generate.source_rows import room


def test_from_above_one_sees_the_floor_and_what_the_cut_goes_through() -> None:
    floor, block = room((4.0, 3.0, 0.5)), room((1.0, 1.0, 2.0))
    corners = [floor.vertices - np.array([0, 0, 0.5]), block.vertices + np.array([1, 1, 0])]
    mesh = TriangleMesh(
        np.concatenate(corners),
        np.concatenate([floor.faces, block.faces + len(floor.vertices)]),
    )
    low, high = np.array([-1.0, 0.0]), np.array([4.0, 3.0])
    height, solid = heights_below(SceneGeometry(mesh), low, high, 1.5)
    rows, columns = height.shape

    def at(x: float, y: float) -> tuple[int, int]:
        return int(y / 3 * rows), int((x + 1) / 5 * columns)

    assert np.isnan(height[at(-0.5, 1.5)])
    assert height[at(3.5, 0.5)] == pytest.approx(0, abs=1e-6)
    assert solid[at(1.5, 1.5)]
    assert solid.mean() == pytest.approx(1 / 15, rel=0.02)


def test_a_room_that_is_inside_out_has_a_floor_all_the_same() -> None:
    """Of a mere box the outside is the front, so from within every face shows its back."""
    height, solid = heights_below(
        SceneGeometry(room()), np.array([0.1, 0.1]), np.array([3.9, 2.9]), 1.5
    )
    assert not solid.any()
    assert np.abs(height).max() < 1e-6
