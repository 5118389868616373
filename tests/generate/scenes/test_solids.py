import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.generate.scenes.solids import (
    Solid,
    box,
    capsule,
    cut_lines,
    cylinder,
    joined,
    lattice_surface,
    revolve,
    rounded_box,
    sphere,
    torus,
)

SHAPES: list[tuple[Callable[[float], Solid], float]] = [
    (lambda edge: box((0, 0, 0), (1, 2, 0.5), edge), 1.0),
    (lambda edge: rounded_box((0, 0, 0), (1, 1, 1), 0.5, edge), math.pi / 6),
    (lambda edge: cylinder(0.5, 0.2, 1.2, edge), math.pi / 4),
    (lambda edge: sphere(0.5, edge), math.pi / 6),
    (lambda edge: capsule(0.2, 1.0, edge), math.pi * 0.04 * 0.6 + 4 / 3 * math.pi * 0.008),
    (lambda edge: torus(0.5, 0.3, edge), 2 * math.pi**2 * 0.5 * 0.09),
    (lambda edge: revolve([(0, 0), (1, 0), (0, 1)], edge), math.pi / 3),
]


def volume(solid: Solid) -> float:
    """Signed: positive only where the normals point out."""
    a, b, c = (solid.vertices[solid.faces[:, k]] for k in range(3))
    return float(np.einsum("ij,ij->", a, np.cross(b, c)) / 6)


def longest_edge(solid: Solid) -> float:
    corners = solid.vertices[solid.faces]
    return float(np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=2).max())


def edges_with_one_side(solid: Solid) -> int:
    """Sides of triangles that no other triangle goes along in the other direction."""
    _, index = np.unique(np.round(solid.vertices, 9), axis=0, return_inverse=True)
    faces = index.reshape(-1)[solid.faces]
    sides = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    forward = set(map(tuple, sides.tolist()))
    return sum((b, a) not in forward for a, b in forward)


@pytest.mark.parametrize(("shape", "expected"), SHAPES)
def test_a_shape_is_closed_has_its_volume_and_normals_that_point_out(
    shape: Callable[[float], Solid], expected: float
) -> None:
    solid = shape(0.05)
    assert edges_with_one_side(solid) == 0
    assert volume(solid) == pytest.approx(expected, rel=0.02)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, len(SHAPES) - 1), st.floats(0.03, 2.0))
def test_no_triangle_has_an_edge_longer_than_asked_for(which: int, edge: float) -> None:
    assert longest_edge(SHAPES[which][0](edge)) <= edge * (1 + 1e-9)


@pytest.mark.parametrize(("shape", "expected"), SHAPES)
def test_a_shape_has_no_triangle_without_area(
    shape: Callable[[float], Solid], expected: float
) -> None:
    solid = shape(0.2)
    a, b, c = (solid.vertices[solid.faces[:, k]] for k in range(3))
    assert (np.linalg.norm(np.cross(b - a, c - a), axis=1) > 1e-12).all()


def test_a_joined_solid_keeps_the_faces_of_its_parts() -> None:
    one, other = box((0, 0, 0), (1, 1, 1), 0.5), sphere(0.3, 0.2).moved((3, 0, 0))
    both = joined([one, other])
    assert volume(both) == pytest.approx(volume(one) + volume(other))
    np.testing.assert_allclose(both.bounds, [[0, -0.3, -0.3], [3.3, 1, 1]], atol=0.01)


def test_turning_and_laying_keep_the_inside_inside() -> None:
    solid = capsule(0.1, 0.6, 0.05)
    for each in (solid.turned(1.1), solid.laid(0), solid.laid(1)):
        assert volume(each) == pytest.approx(volume(solid))
    np.testing.assert_allclose(np.ptp(solid.laid(0).bounds, axis=0), [0.6, 0.2, 0.2], atol=0.01)
    np.testing.assert_allclose(np.ptp(solid.laid(1).bounds, axis=0), [0.2, 0.6, 0.2], atol=0.01)


def test_cut_lines_keep_every_stop_once() -> None:
    lines = cut_lines([2.0, 0.0, 0.5, 0.5], 0.4)
    assert {0.0, 0.5, 2.0} <= set(lines.tolist())
    assert (np.diff(lines) > 0).all()
    assert np.diff(lines).max() * math.sqrt(2) <= 0.4


def test_a_lattice_gives_the_faces_asked_for_the_way_they_face() -> None:
    lines = [np.array([0.0, 1.0, 3.0]), np.array([0.0, 2.0]), np.array([0.0, 1.0])]
    masks = [
        np.zeros((3, 1, 1), np.int8),
        np.zeros((2, 2, 1), np.int8),
        np.zeros((2, 1, 2), np.int8),
    ]
    masks[0][1] = 1
    masks[2][1, 0, 0] = -1
    solid, places = lattice_surface(lines, masks)
    a, b, c = (solid.vertices[solid.faces[:, k]] for k in range(3))
    doubled = np.cross(b - a, c - a)
    np.testing.assert_allclose(doubled[:2], [[2, 0, 0]] * 2)
    np.testing.assert_allclose(doubled[2:], [[0, 0, -4]] * 2)
    assert places.tolist() == [1, 1, 3 + 4 + 2, 3 + 4 + 2]
