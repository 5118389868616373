"""Samples spread evenly over a surface, and what of a mesh lies in a box."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollbook.generate.oracle.surface import (
    faces_touching,
    sample_surface,
    surface_faces,
    surface_inside,
)
from tests.generate.oracle_rooms import (
    about_z,
    box_around,
    box_triangles,
    mesh_of,
    plate,
    subdivided,
)

SKIN = 1e-3


def area_of(triangles: NDArray[np.float64]) -> float:
    sides = triangles[:, 1:] - triangles[:, :1]
    return float(np.linalg.norm(np.cross(sides[:, 0], sides[:, 1]), axis=1).sum() / 2)


def test_samples_are_shared_out_by_area_to_within_one() -> None:
    large, small = plate(2.0), plate(1.0, z=1.0)
    samples = sample_surface(np.concatenate([large, small]), 1000, np.random.default_rng(3))
    assert len(samples) == 1000
    assert samples.area_m2 == pytest.approx(5.0)
    assert abs(np.count_nonzero(samples.points[:, 2] == 0) - 800) <= 1


def test_samples_spread_over_each_triangle_evenly() -> None:
    points = sample_surface(plate(2.0), 4000, np.random.default_rng(0)).points
    counts = np.histogram2d(points[:, 0], points[:, 1], bins=4, range=[[-1, 1], [-1, 1]])[0]
    # 250 in each of 16 cells, with a standard deviation of at most 16
    assert abs(counts - 250).max() < 80
    assert (points[:, 2] == 0).all()


def test_one_seed_gives_one_set_of_samples() -> None:
    triangles = box_triangles([0, 0, 0], [1, 2, 3], 0.4)
    one, two, other = (
        sample_surface(triangles, 100, np.random.default_rng(seed)).points for seed in (7, 7, 8)
    )
    assert (one == two).all()
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("count", [1, 15, 16, 33])
def test_blocks_hold_every_sample_and_boxes_hold_their_blocks(count: int) -> None:
    samples = sample_surface(box_triangles([0, 0, 0], [1, 1, 1]), count, np.random.default_rng(0))
    in_blocks = samples.lanes.transpose(0, 2, 1)
    assert (in_blocks.reshape(-1, 3)[:count] == samples.points).all()
    assert (in_blocks.reshape(-1, 3)[count:] == samples.points[-1]).all()
    assert (in_blocks.min(axis=1) == samples.boxes[:, :3]).all()
    assert (in_blocks.max(axis=1) == samples.boxes[:, 3:]).all()


def test_faces_are_kept_whole_and_once() -> None:
    triangles = box_triangles([0, 0, 0], [1, 2, 3], 0.3).astype(np.float32)
    faces = surface_faces(triangles)
    assert sorted(faces.rows) == list(range(12))
    assert (faces.corners.reshape(-1, 3, 3) == triangles[faces.rows]).all()
    assert (triangles[faces.rows].min(axis=1) == faces.lanes[0, :3, :12].T).all()
    assert (triangles[faces.rows].max(axis=1) == faces.lanes[0, 3:, :12].T).all()


def test_a_face_touches_a_box_by_one_corner() -> None:
    mesh = mesh_of(plate(2.0), plate(2.0, z=5.0))
    corner = box_around([0.5, 0.5, -0.1], [1.5, 1.5, 0.1])
    # both triangles of the lower plate have the corner (1, 1)
    assert list(faces_touching(mesh, corner, 0, 0.0)) == [True, True, False, False]


def test_a_face_that_runs_through_a_box_is_cut_though_no_corner_is_inside() -> None:
    mesh = mesh_of(plate(10.0))
    box = box_around([-1, -0.5, -1], [1, 0.5, 1], 0.7)
    assert not faces_touching(mesh, box, 0, 0.0).any()
    inside = surface_inside(mesh, box, 0, 0.0)
    assert area_of(inside) == pytest.approx(2.0)
    assert np.ptp(inside[..., 2]) < 1e-9


def test_a_tight_box_holds_its_whole_object() -> None:
    low, high, yaw = [1.1, 2.3, 0.2], [1.8, 2.9, 1.7], 0.83
    mesh = mesh_of(box_triangles(low, high, yaw), plate(20.0, z=-1.0))
    inside = surface_inside(mesh, box_around(low, high, yaw), 0, SKIN)
    # its own area, and nothing of the floor
    assert area_of(inside) == pytest.approx(2 * (0.7 * 0.6 + 0.7 * 1.5 + 0.6 * 1.5), rel=1e-5)


def test_nothing_lies_in_a_box_of_air_or_of_no_size() -> None:
    mesh = mesh_of(plate(2.0))
    assert len(surface_inside(mesh, box_around([0, 0, 1], [1, 1, 2]), 0, SKIN)) == 0
    unknown = box_around([0, 0, -1], [1, 1, 1])
    unknown.extents[0] = np.nan
    assert len(surface_inside(mesh, unknown, 0, SKIN)) == 0
    assert not faces_touching(mesh, unknown, 0, SKIN).any()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_what_is_cut_lies_inside_and_does_not_depend_on_the_triangles(seed: int) -> None:
    rng = np.random.default_rng(seed)
    triangles = rng.uniform(-1, 1, (12, 3, 3))
    middle, half = rng.uniform(-0.5, 0.5, 3), rng.uniform(0.1, 0.8, 3)
    box = box_around(middle - half, middle + half, rng.uniform(0, 3))
    whole, finer = mesh_of(triangles), mesh_of(subdivided(triangles))
    inside = surface_inside(whole, box, 0, 0.0)
    assert box.contains(0, inside, margin_m=1e-6).all()
    # float32 corners: the finer mesh is the same surface to within 1e-7
    assert area_of(inside) == pytest.approx(area_of(surface_inside(finer, box, 0, 0.0)), abs=1e-5)


def test_what_is_cut_has_the_area_that_samples_say_it_has() -> None:
    triangles = box_triangles([0, 0, 0], [1, 1, 1]) @ about_z(0.3).T
    box = box_around([0.2, 0.1, 0.3], [0.9, 1.4, 1.2], 1.0)
    samples = sample_surface(triangles, 40_000, np.random.default_rng(0))
    share = box.contains(0, samples.points).mean()
    inside = surface_inside(mesh_of(triangles), box, 0, 0.0)
    assert area_of(inside) == pytest.approx(samples.area_m2 * share, rel=0.02)
