"""Directions: what is drawn from a fan lies in it, as often as its density says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollbook.generate.geometry.directions import (
    Fans,
    bearings,
    power_spherical_cosines,
    spherical,
    walking_headings,
)
from rollbook.generate.geometry.poses import headings, looking_along, poses_of, wrapped

Array = NDArray[np.float64]


def fan(azimuth: float, width: float, low: float, high: float, kappa: float) -> Fans:
    return Fans(*(np.array([each]) for each in (azimuth, width, low, high, kappa)))


def grid(low: float, high: float, cells: int) -> Array:
    return low + (np.arange(cells) + 0.5) / cells * (high - low)


@st.composite
def fans(draw: st.DrawFn) -> Fans:
    low = draw(st.floats(-1, 0.9))
    return fan(
        draw(st.floats(-7, 7)),
        draw(st.floats(0.05, 2 * np.pi)),
        low,
        draw(st.floats(low + 0.05, 1)),
        draw(st.sampled_from([0.0, 0.5, 4.0, 8.0, 30.0])),
    )


@settings(max_examples=40, deadline=None)
@given(fans())
def test_a_density_integrates_to_one_over_its_fan(given_fan: Fans) -> None:
    half = given_fan.width[0] / 2
    azimuth, rise = np.meshgrid(
        given_fan.azimuth[0] + grid(-half, half, 400),
        grid(given_fan.low[0], given_fan.high[0], 400),
    )
    density = given_fan.densities(spherical(azimuth, rise).reshape(-1, 3))
    area = given_fan.width[0] * (given_fan.high[0] - given_fan.low[0])
    assert density.mean() * area == pytest.approx(1, abs=2e-3)


@settings(max_examples=40, deadline=None)
@given(fans(), st.integers(0, 2**32))
def test_what_is_drawn_lies_in_the_fan_and_has_a_density(given_fan: Fans, seed: int) -> None:
    drawn = given_fan.drawn(np.zeros(500, np.intp), np.random.default_rng(seed).random((500, 2)))
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1, atol=1e-12)
    turn = wrapped(np.arctan2(drawn[:, 1], drawn[:, 0]) - given_fan.azimuth[0])
    assert (np.abs(turn) <= given_fan.width[0] / 2 + 1e-6).all()
    assert (drawn[:, 2] >= given_fan.low[0] - 1e-9).all()
    assert (drawn[:, 2] <= given_fan.high[0] + 1e-9).all()
    density = given_fan.densities(drawn)
    assert np.isfinite(density).all()
    assert (density > 0).all()


@pytest.mark.parametrize("kappa", [0.0, 2.0, 8.0])
def test_draws_fall_into_cells_as_often_as_the_density_says(kappa: float) -> None:
    one = fan(0.7, 2.1, -0.2, 0.31, kappa)
    count, cells, fine = 200_000, 12, 8
    drawn = one.drawn(np.zeros(count, np.intp), np.random.default_rng(3).random((count, 2)))
    turn = wrapped(np.arctan2(drawn[:, 1], drawn[:, 0]) - 0.7)
    found = np.histogram2d(turn, drawn[:, 2], bins=cells, range=[[-1.05, 1.05], [-0.2, 0.31]])[0]
    azimuth, rise = np.meshgrid(
        0.7 + grid(-1.05, 1.05, cells * fine), grid(-0.2, 0.31, cells * fine), indexing="ij"
    )
    density = one.densities(spherical(azimuth, rise).reshape(-1, 3)).reshape(azimuth.shape)
    per_cell = density.reshape(cells, fine, cells, fine).mean(axis=(1, 3)) * (2.1 * 0.51 / cells**2)
    expected = count * per_cell
    usual = expected > 20
    chi_square = ((found - expected)[usual] ** 2 / expected[usual]).sum()
    degrees = np.count_nonzero(usual)
    assert degrees > 50
    assert chi_square < degrees + 5 * np.sqrt(2 * degrees)
    assert found[~usual].sum() <= expected[~usual].sum() + 5 * np.sqrt(expected[~usual].sum() + 1)


def test_without_concentration_every_direction_of_a_fan_is_as_likely() -> None:
    one = fan(0.0, 1.0, -0.5, 0.25, 0.0)
    inside = spherical(np.array([-0.4, 0.0, 0.49]), np.array([-0.4, 0.0, 0.2]))
    np.testing.assert_allclose(one.densities(inside)[:, 0], 1 / (1.0 * 0.75))


def test_outside_its_fan_a_direction_has_no_density() -> None:
    one = fan(3.0, 1.0, -0.1, 0.1, 8.0)
    outside = spherical(
        np.array([3.0 - 0.51, 3.51, 3.0, 3.0, 0.0]), np.array([0, 0, 0.11, -0.11, 0])
    )
    np.testing.assert_array_equal(one.densities(outside)[:, 0], 0)
    assert (one.densities(spherical(np.array([3.0, 3.0 - 2 * np.pi]), np.zeros(2))) > 0).all()


def test_greater_concentration_keeps_closer_to_the_middle() -> None:
    uniforms = np.random.default_rng(0).random((4000, 2))
    strayed = [
        np.abs(
            np.arctan2(
                *fan(0, 2, -0.2, 0.2, kappa).drawn(np.zeros(4000, np.intp), uniforms).T[1::-1]
            )
        ).mean()
        for kappa in (0.0, 2.0, 8.0, 40.0)
    ]
    assert strayed == sorted(strayed, reverse=True)
    assert strayed[0] > 3 * strayed[-1]


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 50), st.floats(0.01, np.pi), st.integers(0, 2**32))
def test_cosines_are_never_wider_than_asked_and_follow_their_law(
    kappa: float, widest: float, seed: int
) -> None:
    uniforms = np.sort(np.random.default_rng(seed).random(200))
    cosine = power_spherical_cosines(uniforms, kappa, widest)
    assert (cosine >= np.cos(widest) - 1e-9).all()
    assert (cosine <= 1).all()
    # the share that is wider, from the law itself: its integral over the cap, which is (1 + cosine)^(kappa + 1)
    floor = ((1 + np.cos(widest)) / 2) ** (kappa + 1)
    wider = (((1 + cosine) / 2) ** (kappa + 1) - floor) / (1 - floor)
    np.testing.assert_allclose(wider, 1 - uniforms, atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.floats(-3.1, 3.1), st.floats(-1.5, 1.5))
def test_one_faces_where_the_camera_looks(azimuth: float, elevation: float) -> None:
    pose = poses_of(looking_along(spherical(azimuth, np.sin(elevation))), np.zeros(3))
    assert walking_headings(pose) == pytest.approx(headings(pose), abs=1e-6)
    assert walking_headings(pose) == pytest.approx(azimuth, abs=1e-6)


@pytest.mark.parametrize("upward", [1.0, -1.0])
@pytest.mark.parametrize("azimuth", [0.0, 1.0, -2.5])
def test_a_camera_that_looks_straight_up_or_down_still_faces_somewhere(
    upward: float, azimuth: float
) -> None:
    nearly = looking_along(spherical(azimuth, upward * (1 - 1e-6)))
    tilt = upward * np.arccos(1 - 1e-6)
    turn = np.array([[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]])
    vertical = nearly @ turn
    np.testing.assert_allclose(vertical[:, 2], [0, 0, upward], atol=1e-9)
    assert walking_headings(poses_of(vertical, np.zeros(3))) == pytest.approx(azimuth, abs=1e-6)


def test_what_lies_straight_above_has_the_bearing_one_is_told() -> None:
    ends = np.array([[1.0, 2.0, 9.0], [1.0, 3.0, 0.0], [0.0, 2.0, 0.0]])
    np.testing.assert_allclose(bearings([1, 2, 3], ends, 0.5), [0.5, np.pi / 2, np.pi])
