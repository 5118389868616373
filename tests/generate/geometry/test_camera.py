"""Camera: pixels, rays and depth agree with each other, in whatever resolution."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.errors import ConfigurationError
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.poses import IDENTITY, look_at, moved, rotations

QUICK = settings(max_examples=40, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def cameras(draw: st.DrawFn) -> Camera:
    width, height = draw(st.integers(1, 24)), draw(st.integers(1, 24))
    focal = st.floats(3, 60)
    return Camera(
        width=width,
        height=height,
        fx=draw(focal),
        fy=draw(focal),
        cx=draw(st.floats(0, width)),
        cy=draw(st.floats(0, height)),
    )


def a_pose(seed: int) -> Any:
    eye, at = np.random.default_rng(seed).uniform(-5, 5, (2, 3))
    return look_at(eye, at)


@QUICK
@given(cameras(), SEEDS)
def test_the_point_of_a_pixel_lies_at_its_depth_in_the_middle_of_the_pixel(
    camera: Camera, seed: int
) -> None:
    spread = np.random.default_rng(seed)
    depth = spread.uniform(0.1, 20, (camera.height, camera.width)).astype(np.float32)
    pose = a_pose(seed)
    points = camera.points(depth, pose)
    assert points.dtype == np.float32
    pixels, found = camera.project(points, pose)
    np.testing.assert_allclose(found, depth, atol=1e-4)
    u, v = np.meshgrid(np.arange(camera.width) + 0.5, np.arange(camera.height) + 0.5)
    np.testing.assert_allclose(pixels[..., 0], u, atol=0.02)
    np.testing.assert_allclose(pixels[..., 1], v, atol=0.02)
    assert camera.sees(points[depth < 19], pose).all()


@QUICK
@given(cameras(), SEEDS)
def test_rays_have_depth_one_and_turn_with_the_camera(camera: Camera, seed: int) -> None:
    pose = a_pose(seed)
    rays = camera.rays()
    assert rays.shape == (camera.height * camera.width, 3)
    assert (rays[:, 2] == 1).all()
    np.testing.assert_allclose(camera.world_rays(pose), rays @ rotations(pose).T, atol=1e-4)


def test_x_is_to_the_right_and_y_is_down() -> None:
    camera = Camera.square(10)
    level = look_at([0, 0, 0], [1, 0, 0])
    pixels, depth = camera.project([[2.0, -1, 0], [2.0, 0, 1]], level)
    assert depth == pytest.approx(2)
    assert pixels[0] == pytest.approx([7.5, 5])  # looking along +x, -y is on the right
    assert pixels[1] == pytest.approx([5, 2.5])


def test_where_nothing_was_hit_there_is_no_point() -> None:
    depth = np.array([[1, 0], [np.nan, -1]], np.float32)
    points = Camera.square(2).points(depth, IDENTITY)
    assert np.isfinite(points).all(axis=-1).tolist() == [[True, False], [False, False]]


@QUICK
@given(cameras(), st.integers(1, 50), st.integers(1, 50), SEEDS)
def test_another_resolution_is_the_same_view(
    camera: Camera, width: int, height: int, seed: int
) -> None:
    other = camera.resized(width, height)
    spread = np.random.default_rng(seed)
    points = spread.uniform([-3, -3, 0.5], [3, 3, 9], (8, 3))
    here, _ = camera.project(points, IDENTITY)
    there, _ = other.project(points, IDENTITY)
    np.testing.assert_allclose(
        here / [camera.width, camera.height], there / [width, height], atol=1e-9
    )
    assert (other.near_m, other.far_m) == (camera.near_m, camera.far_m)


@QUICK
@given(st.floats(1, 179), st.integers(1, 300))
def test_a_square_camera_sees_its_field_of_view_edge_to_edge(degrees: float, size: int) -> None:
    camera = Camera.square(size, degrees)
    half = np.tan(np.radians(degrees / 2))
    pixels, _ = camera.project([[half, -half, 1], [-half, half, 1]], IDENTITY)
    np.testing.assert_allclose(pixels, [[size, 0], [0, size]], atol=1e-6 * size)


@QUICK
@given(SEEDS)
def test_seen_is_in_the_pyramid_between_near_and_far(seed: int) -> None:
    camera = Camera.square(8, near_m=0.5, far_m=4.0)
    local = np.random.default_rng(seed).uniform(-6, 6, (64, 3))
    pose = a_pose(seed)
    depth = local[:, 2]
    expected = (depth > 0.5) & (depth < 4) & (np.abs(local[:, :2]).max(axis=1) < depth)
    np.testing.assert_array_equal(camera.sees(moved(pose, local), pose), expected)


def test_what_is_nowhere_is_not_seen() -> None:
    points = [[0.0, 0, 0], [np.nan, 0, 1], [0.0, 0, -1], [0.0, 0, 1]]
    assert Camera.square(4).sees(points, IDENTITY).tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"width": 0}, "0x4 pixels"),
        ({"fx": 0.0}, "focal"),
        ({"cy": np.nan}, "finite"),
        ({"near_m": 0.0}, "near_m 0.0"),
        ({"far_m": 0.01}, "far_m 0.01"),
        ({"far_m": np.inf}, "finite"),
    ],
)
def test_a_camera_that_cannot_be_is_refused(changed: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"width": 4, "height": 4, "fx": 2.0, "fy": 2.0, "cx": 2.0, "cy": 2.0}
    Camera(**good)
    with pytest.raises(ConfigurationError, match=message):
        Camera(**{**good, **changed})


@pytest.mark.parametrize("degrees", [0.0, -10.0, 180.0, np.nan])
def test_a_field_of_view_that_cannot_be_is_refused(degrees: float) -> None:
    with pytest.raises(ConfigurationError, match="field of view"):
        Camera.square(10, degrees)


def test_a_camera_cannot_be_resized_to_nothing() -> None:
    with pytest.raises(ConfigurationError, match="0x3 pixels"):
        Camera.square(10).resized(0, 3)


def test_a_camera_is_plain_values_both_ways() -> None:
    camera = Camera.square(10, 70.0, near_m=0.1)
    assert msgspec.convert(msgspec.to_builtins(camera), Camera) == camera
