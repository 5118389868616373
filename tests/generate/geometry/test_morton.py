"""Points in one line, neighbours next to neighbours."""

from __future__ import annotations

import numpy as np

from rollbook.generate.geometry.morton import morton_order


def test_every_point_stands_in_the_order_once() -> None:
    points = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    assert sorted(morton_order(points)) == list(range(500))


def test_the_cells_of_a_cube_come_in_z_order() -> None:
    corners = np.array([[x, y, z] for z in (0, 1) for y in (0, 1) for x in (0, 1)], np.float32)
    shuffled = np.random.default_rng(1).permutation(8)
    assert (corners[shuffled][morton_order(corners[shuffled])] == corners).all()


def test_neighbours_in_the_order_are_near_each_other() -> None:
    points = np.random.default_rng(2).random((4000, 3), np.float32)
    ordered = points[morton_order(points)]
    steps = np.linalg.norm(np.diff(ordered, axis=0), axis=1)
    # a random order would take steps of 0.66
    assert steps.mean() < 0.1


def test_points_of_one_place_keep_their_order() -> None:
    assert list(morton_order(np.zeros((5, 3), np.float32))) == [0, 1, 2, 3, 4]
    assert len(morton_order(np.zeros((0, 3), np.float32))) == 0
