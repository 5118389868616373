"""What a camera has in its view: boxes, points and the points of its own image."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from rollbook.errors import InvalidValue
from rollbook.generate.candidates.view_counts import pixel_counts, points_in_view
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.camera import Camera, frustum_corners, meets_box
from rollbook.generate.geometry.poses import look_at, looking_along, moved, poses_of

Array = NDArray[np.float64]
CAMERA = Camera(width=40, height=24, fx=20, fy=22, cx=18, cy=13, near_m=0.2, far_m=3.0)


def turned(rng: np.random.Generator) -> Array:
    roll = rng.uniform(-3, 3)
    about_z = np.array(
        [[np.cos(roll), -np.sin(roll), 0], [np.sin(roll), np.cos(roll), 0], [0, 0, 1]]
    )
    return np.asarray(looking_along(rng.normal(size=3)) @ about_z)


def hulls_meet(first: Array, second: Array) -> bool:
    """Whether some point is a mean of the first corners and of the second: a linear programme says so."""
    count = len(first) + len(second)
    rows = np.concatenate([first.T, -second.T], axis=1)
    sums = np.zeros((2, count))
    sums[0, : len(first)], sums[1, len(first) :] = 1, 1
    found = linprog(
        np.zeros(count), A_eq=np.concatenate([rows, sums]), b_eq=[0, 0, 0, 1, 1], bounds=(0, None)
    )
    return bool(found.status == 0)


def test_a_box_is_in_view_exactly_when_the_two_bodies_meet() -> None:
    rng = np.random.default_rng(2)
    found, expected = [], []
    for _ in range(250):
        pose = poses_of(turned(rng), rng.uniform(-2, 2, 3))
        corners = moved(pose, frustum_corners(CAMERA))
        # sticks and plates about a place on the outside: often it is edges alone that keep them apart
        side = rng.choice([[0, 1, 5, 4], [1, 2, 6, 5], [2, 3, 7, 6], [4, 5, 6, 7], [0, 4, 4, 4]])
        at = rng.dirichlet(np.ones(4)) @ corners[side] + rng.normal(0, 0.5, 3)
        box = Boxes.build(poses_of(turned(rng), at), rng.choice([0.05, 0.3, 2.0], 3), [0])
        expected.append(hulls_meet(corners, box.corners()[0]))
        found += meets_box(pose[None], CAMERA, box.pose_world_object[0], box.extents[0]).tolist()
    assert found == expected
    assert 50 < sum(expected) < 200


def test_corners_are_at_the_edges_of_the_image() -> None:
    corners = frustum_corners(CAMERA)
    pixels, depth = CAMERA.project(corners, poses_of(np.eye(3), np.zeros(3)))
    np.testing.assert_allclose(depth, [0.2] * 4 + [3.0] * 4)
    np.testing.assert_allclose(pixels[:4], [[0, 0], [40, 0], [40, 24], [0, 24]], atol=1e-9)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_points_in_view_are_those_the_camera_sees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    poses = np.stack([poses_of(turned(rng), rng.uniform(-1, 1, 3)) for _ in range(3)])
    points = rng.uniform(-3, 3, (200, 3)).astype(np.float32)
    points[::17] = np.nan
    expected = [np.count_nonzero(CAMERA.sees(points, pose)) for pose in poses]
    np.testing.assert_array_equal(points_in_view(poses, CAMERA, points), expected)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_pixels_are_counted_as_their_points_say(seed: int, stride: int) -> None:
    rng = np.random.default_rng(seed)
    poses = np.stack([poses_of(turned(rng), rng.uniform(-1, 1, 3)) for _ in range(2)])
    depth = rng.uniform(0.2, 3, (2, 24, 40)).astype(np.float32)
    depth[rng.random(depth.shape) < 0.3] = 0
    box = Boxes.build(poses_of(turned(rng), rng.uniform(-1, 1, 3)), [[2, 1.5, 1]], [0])
    extent = np.array([[-1.0, -1.5, -1.0], [1.0, 1.0, 2.0]])
    found = pixel_counts(depth, poses, CAMERA, stride=stride, extent=extent, box=box)
    for row in range(2):
        points = CAMERA.points(depth[row], poses[row])
        kept = points[::stride, ::stride]
        within = ((kept >= extent[0]) & (kept <= extent[1])).all(axis=-1)
        expected = [
            np.count_nonzero(depth[row]),
            np.count_nonzero(within),
            np.count_nonzero(box.contains(0, points)),
        ]
        # points that lie on a limit may fall to either side of it in float32
        np.testing.assert_allclose(found[:, row], expected, atol=1)
    anywhere = pixel_counts(depth, poses, CAMERA, stride=1, extent=None, box=None)
    np.testing.assert_array_equal(anywhere[0], anywhere[1])
    np.testing.assert_array_equal(anywhere[2], 0)


def test_images_of_another_camera_are_refused() -> None:
    pose = look_at([0, 0, 0], [1, 0, 0])[None]
    for shape in ((1, 24, 24), (2, 24, 40), (24, 40)):
        with pytest.raises(InvalidValue, match="depth is of shape"):
            pixel_counts(np.ones(shape, np.float32), pose, CAMERA, stride=1, extent=None, box=None)
