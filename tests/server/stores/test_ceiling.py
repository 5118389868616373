"""The ceiling over a camera is found in rooms, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from rollbook.generate.scenes.scene import SceneConfig, make_scene
from rollbook.server.stores.ceiling import ceiling_over


def flat_room(height: float) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """The floor and the ceiling of a room of 4 m by 4 m, and a shelf of 1 m by 1 m at 1.8 m."""
    squares = [(0.0, 4.0), (height, 4.0), (1.8, 1.0)]
    vertices = [[x, y, z] for z, s in squares for x, y in ((0, 0), (s, 0), (s, s), (0, s))]
    faces = [[k, k + 1, k + 2] for k in (0, 4, 8)] + [[k, k + 2, k + 3] for k in (0, 4, 8)]
    return np.array(vertices, np.float32), np.array(faces, np.int32)


@pytest.mark.parametrize("height", [2.2, 2.39999, 2.4, 3.05])
def test_the_ceiling_of_a_room_is_found_and_no_shelf_is_one(height: float) -> None:
    assert ceiling_over(np.array([2, 2, 1.6]), *flat_room(height)) == pytest.approx(height)


def test_a_ceiling_that_slopes_over_two_layers_counts_as_one() -> None:
    vertices, faces = flat_room(2.35)
    vertices[4:6, 2], vertices[6:8, 2] = 2.38, 2.43
    assert ceiling_over(np.array([2, 2, 1.6]), vertices, faces) == pytest.approx(2.38)


def test_a_camera_outside_or_above_has_no_ceiling() -> None:
    vertices, faces = flat_room(2.4)
    assert ceiling_over(np.array([5, 2, 1.6]), vertices, faces) is None
    assert ceiling_over(np.array([2, 2, 2.5]), vertices, faces) is None
    assert ceiling_over(np.array([2, 2, np.nan]), vertices, faces) is None
    assert ceiling_over(np.array([2, 2, 1.6]), vertices, faces[:0]) is None


@pytest.mark.parametrize("seed", range(4))
def test_the_ceiling_of_a_furnished_flat_is_its_own(seed: int) -> None:
    mesh = make_scene(SceneConfig(seed=seed, rooms=1 + seed % 3, ceiling_m=2.3 + seed / 4)).mesh
    middle = np.append(mesh.vertices.mean(axis=0)[:2], 1.6)
    assert ceiling_over(middle, mesh.vertices, mesh.faces) == pytest.approx(
        2.3 + seed / 4, abs=1e-4
    )
