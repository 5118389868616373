"""Poses: they compose and undo like the motions they stand for, and cameras made to look somewhere do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollbook.generate.geometry.poses import (
    IDENTITY,
    UP,
    are_rigid,
    centres,
    compose,
    forwards,
    headings,
    inverse,
    look_at,
    looking_along,
    moved,
    poses_of,
    rotations,
    wrapped,
)

Array = NDArray[np.float64]
QUICK = settings(max_examples=40, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)
NUMBERS = st.floats(-50, 50)
POINTS = st.tuples(NUMBERS, NUMBERS, NUMBERS)


def random_poses(seed: int, *shape: int) -> Array:
    """Turned any way, not only level: the rotation of a random quaternion."""
    spread = np.random.default_rng(seed)
    q = spread.normal(size=(*shape, 4))
    w, x, y, z = np.moveaxis(q / np.linalg.norm(q, axis=-1, keepdims=True), -1, 0)
    turn = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    rotation = np.moveaxis(np.array(turn), (0, 1), (-2, -1))
    return poses_of(rotation, spread.uniform(-9, 9, (*shape, 3)))


def test_a_pose_is_nine_of_rotation_row_by_row_then_the_centre() -> None:
    pose = poses_of(np.arange(9).reshape(3, 3), [10, 11, 12])
    np.testing.assert_array_equal(pose, [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12])
    np.testing.assert_array_equal(rotations(pose)[0], [0, 1, 2])
    np.testing.assert_array_equal(centres(pose), [10, 11, 12])
    np.testing.assert_array_equal(forwards(pose), [2, 5, 8])


@QUICK
@given(SEEDS)
def test_composing_is_associative_and_undone_by_the_inverse(seed: int) -> None:
    a, b, c = random_poses(seed, 3)
    np.testing.assert_allclose(compose(compose(a, b), c), compose(a, compose(b, c)), atol=1e-12)
    np.testing.assert_allclose(compose(a, inverse(a)), IDENTITY, atol=1e-12)
    np.testing.assert_allclose(compose(inverse(a), a), IDENTITY, atol=1e-12)
    np.testing.assert_allclose(compose(IDENTITY, a), a, atol=0)
    np.testing.assert_allclose(inverse(compose(a, b)), compose(inverse(b), inverse(a)), atol=1e-12)


@QUICK
@given(SEEDS)
def test_a_composed_pose_carries_points_as_one_after_the_other(seed: int) -> None:
    a, b = random_poses(seed, 2)
    points = np.random.default_rng(seed).uniform(-5, 5, (4, 2, 3))
    np.testing.assert_allclose(moved(compose(a, b), points), moved(a, moved(b, points)), atol=1e-11)
    apart = np.linalg.norm(points[0, 0] - points[1, 1])
    carried = moved(a, points)
    assert np.linalg.norm(carried[0, 0] - carried[1, 1]) == pytest.approx(apart)


def test_columns_of_poses_are_each_done_alone() -> None:
    many = random_poses(3, 4, 2)
    for row in np.ndindex(4, 2):
        np.testing.assert_array_equal(inverse(many)[row], inverse(many[row]))
        np.testing.assert_allclose(compose(many[0, 0], many)[row], compose(many[0, 0], many[row]))
    turn = rotations(many[0, 0])
    assert poses_of(turn, np.zeros((5, 3))).shape == (5, 12)


@QUICK
@given(POINTS, POINTS)
def test_a_camera_that_looks_at_a_point_has_it_straight_ahead_and_stands_level(
    eye: tuple[float, ...], at: tuple[float, ...]
) -> None:
    distance = float(np.linalg.norm(np.subtract(at, eye)))
    assume(distance > 1e-6)
    pose = look_at(eye, at)
    assert are_rigid(pose)
    np.testing.assert_allclose(
        moved(inverse(pose), at), [0, 0, distance], atol=1e-9 * max(distance, 1)
    )
    right, down = rotations(pose)[:, 0], rotations(pose)[:, 1]
    assert right @ UP == pytest.approx(0, abs=1e-9)
    assert down @ UP <= 1e-9


@pytest.mark.parametrize("height", [1.0, -1.0])
def test_straight_up_and_down_it_is_turned_as_if_it_headed_along_x(height: float) -> None:
    vertical = looking_along([0, 0, height])
    nearly = looking_along([1e-6, 0, height])
    np.testing.assert_allclose(vertical, nearly, atol=1e-5)


def test_no_direction_and_an_endless_one_have_no_rotation() -> None:
    found = looking_along([[0.0, 0, 0], [np.inf, 0, 0], [np.nan, 1, 0]])
    assert np.isnan(found).any(axis=(1, 2)).all()
    assert not are_rigid(poses_of(found, np.zeros(3))).any()


@QUICK
@given(st.floats(-3.1, 3.1), st.floats(-1.4, 1.4))
def test_a_heading_is_the_angle_about_up_whatever_the_pitch(yaw: float, pitch: float) -> None:
    along = [np.cos(yaw) * np.cos(pitch), np.sin(yaw) * np.cos(pitch), np.sin(pitch)]
    assert headings(look_at([1, 2, 3], np.add([1, 2, 3], along))) == pytest.approx(yaw)


@given(st.floats(-1e4, 1e4))
def test_a_wrapped_angle_is_the_same_angle_in_one_turn(angle: float) -> None:
    found = float(wrapped(angle))
    assert -np.pi < found <= np.pi
    turns = (angle - found) / (2 * np.pi)
    assert turns == pytest.approx(round(turns), abs=1e-9)


def test_the_ends_of_a_turn_wrap_to_plus_pi() -> None:
    ends = [np.pi, -np.pi, 3 * np.pi, np.nextafter(np.pi, 4), np.nextafter(-np.pi, -4)]
    found = wrapped(ends)
    assert (found > -np.pi).all()
    np.testing.assert_allclose(found, np.pi)


@QUICK
@given(SEEDS, st.floats(1.001, 3))
def test_only_proper_rotations_with_finite_places_are_rigid(seed: int, factor: float) -> None:
    pose = random_poses(seed)
    assert are_rigid(pose)
    assert are_rigid(pose.astype(np.float32))
    scaled, mirrored, lost = pose.copy(), pose.copy(), pose.copy()
    scaled[:9] *= factor
    mirrored[:9] *= -1
    lost[11] = np.inf
    zero = np.zeros(12)
    endless = np.full(12, np.inf)
    assert not are_rigid([scaled, mirrored, lost, zero, endless, pose * np.nan]).any()
