"""Distances from a surface to points: exactly those of trying everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.poses import centres, look_at, rotations
from rollbook.generate.oracle.distance_field import (
    CropBox,
    Pixels,
    PointTree,
    lower_distances,
    sums,
)
from rollbook.generate.oracle.naive import brute_squares
from rollbook.generate.oracle.surface import (
    SurfaceFaces,
    SurfaceSamples,
    sample_surface,
    surface_faces,
)
from tests.generate.oracle_rooms import box_around, box_triangles

Floats = NDArray[np.float32]


def lowered(
    points: Floats, surface: SurfaceSamples | SurfaceFaces, start: float | Floats = np.inf
) -> Floats:
    best = np.zeros(len(surface.boxes) * 16, np.float32)
    best[: len(surface)] = start
    lower_distances(PointTree.of_points(points), surface, best)
    assert (best[len(surface) :] == 0).all()
    return best[: len(surface)]


def every_pair(samples: Floats, points: Floats) -> Floats:
    """[S, P] squared distances, summed as the kernel sums them."""
    x, y, z = (samples[:, None, axis] - points[None, :, axis] for axis in range(3))
    return np.asarray((x * x + y * y) + z * z)


def cloud(rng: np.random.Generator, count: int) -> Floats:
    """Clusters, single points, and some of them twice."""
    spread = rng.choice([0.01, 0.3, 3.0], (count, 1))
    points = rng.normal(size=(count, 3)) * spread
    return np.asarray(points[rng.integers(0, count, count)], np.float32)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), points=st.integers(1, 300), samples=st.integers(1, 200))
def test_samples_get_the_least_of_all_distances(seed: int, points: int, samples: int) -> None:
    rng = np.random.default_rng(seed)
    triangles = rng.normal(size=(5, 3, 3)) * rng.choice([0.1, 2.0])
    surface, known = sample_surface(triangles, samples, rng), cloud(rng, points)
    truth = every_pair(surface.points, known).min(axis=1)
    assert (lowered(known, surface) == truth).all()
    start = rng.uniform(0, 1, samples).astype(np.float32) ** 2
    assert (lowered(known, surface, start) == np.minimum(start, truth)).all()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), points=st.integers(1, 150), faces=st.integers(1, 60))
def test_faces_get_the_least_of_all_distances(seed: int, points: int, faces: int) -> None:
    rng = np.random.default_rng(seed)
    middle = rng.normal(size=(faces, 1, 3)) * rng.choice([0.1, 2.0])
    # needles and slivers among them
    shape = rng.normal(size=(faces, 3, 3)) * rng.choice([1e-4, 0.1, 1.0], (faces, 1, 3))
    surface = surface_faces((middle + shape).astype(np.float32))
    known = cloud(rng, points)
    truth = brute_squares(known, surface.corners)[0]
    assert np.abs(lowered(known, surface) - truth).max() == 0
    start = rng.uniform(0, 1, faces).astype(np.float32) ** 2
    assert (lowered(known, surface, start) == np.minimum(start, truth)).all()


@pytest.mark.parametrize("distance", [0.95, 0.9999, 0.999999])
def test_a_point_that_is_just_a_little_nearer_is_found(distance: float) -> None:
    tiny = np.array([[[0, 0, 0], [0, 1e-6, 0], [0, 0, 1e-6]]])
    point = np.array([[distance, 0, 0]], np.float32)
    expected = point[0, 0] * point[0, 0]
    for surface in (
        sample_surface(tiny, 20, np.random.default_rng(0)),
        surface_faces(tiny.astype(np.float32)),
    ):
        assert (lowered(point, surface, 1.0) == expected).all()


def test_points_on_a_face_are_found_at_no_distance_from_it() -> None:
    rng = np.random.default_rng(0)
    triangles = rng.normal(size=(50, 3, 3)).astype(np.float32)
    weights = rng.dirichlet([1, 1, 1], 50)
    on_them = np.einsum("fk,fkc->fc", weights, triangles).astype(np.float32)
    squares, _ = brute_squares(on_them, triangles.reshape(-1, 9))
    assert np.sqrt(squares.max()) < 1e-6


def test_faces_are_as_far_as_another_library_says() -> None:
    trimesh = pytest.importorskip("trimesh")
    rng = np.random.default_rng(1)
    triangles = (rng.normal(size=(40, 3, 3)) * [1, 0.1, 1]).astype(np.float32)
    points = rng.normal(size=(30, 3)).astype(np.float32)
    pairs = [(face, point) for face in range(40) for point in range(30)]
    near = trimesh.triangles.closest_point(
        triangles[[face for face, _ in pairs]].astype(np.float64),
        points[[point for _, point in pairs]].astype(np.float64),
    )
    truth = np.linalg.norm(near - points[[point for _, point in pairs]], axis=1).reshape(40, 30)
    of_faces, of_points = brute_squares(points, triangles.reshape(-1, 9))
    np.testing.assert_allclose(np.sqrt(of_faces), truth.min(axis=1), atol=1e-6)
    np.testing.assert_allclose(np.sqrt(of_points), truth.min(axis=0), atol=1e-6)


def test_a_tree_holds_the_points_it_was_given() -> None:
    points = cloud(np.random.default_rng(2), 77)
    held = PointTree.of_points(points).points
    assert sorted(map(tuple, held.tolist())) == sorted(map(tuple, points.tolist()))


def test_no_points_change_no_distance() -> None:
    nothing = np.zeros((0, 3), np.float32)
    surface = sample_surface(box_triangles([0, 0, 0], [1, 1, 1]), 40, np.random.default_rng(0))
    assert np.isinf(lowered(nothing, surface)).all()
    assert (lowered(nothing, surface, 0.25) == 0.25).all()


@pytest.mark.parametrize(("width", "height", "stride"), [(1, 1, 1), (9, 5, 1), (30, 17, 4)])
def test_an_image_becomes_the_points_the_camera_places(
    width: int, height: int, stride: int
) -> None:
    camera = Camera(width=width, height=height, fx=8, fy=9, cx=width / 3, cy=height / 2)
    rng = np.random.default_rng(3)
    depth = rng.uniform(0.5, 4, (height, width)).astype(np.float32)
    depth[rng.random(depth.shape) < 0.2] = 0
    depth[0, 0] = 1.0
    if width > 1:
        depth[0, 1], depth[-1, -1] = np.nan, np.inf
    pose = look_at([0.3, -1.0, 1.5], [2.0, 1.0, 0.4])
    pixels = Pixels.of(camera, stride)
    tree = pixels.tree()
    count = tree.see(depth, rotations(pose), centres(pose).copy(), pixels)
    placed = camera.points(depth, pose)[::stride, ::stride].reshape(-1, 3)
    placed = placed[np.isfinite(placed).all(axis=1)]
    assert count == len(tree.points) == len(placed)
    apart = every_pair(placed, tree.points)
    assert np.sqrt(apart.min(axis=0).max()) < 1e-5
    assert np.sqrt(apart.min(axis=1).max()) < 1e-5


def test_a_tree_can_be_used_again_for_another_image() -> None:
    camera, pose = Camera.square(10), look_at([0, 0, 1], [1, 0.2, 1])
    pixels = Pixels.of(camera)
    used, fresh = pixels.tree(), pixels.tree()
    first, second = np.full((2, 10, 10), 2, np.float32)
    second[:, 3:] = 0
    for tree, images in ((used, (first, second)), (fresh, (second,))):
        for image in images:
            count = tree.see(image, rotations(pose), centres(pose).copy(), pixels)
    assert count == 30
    assert (used.leaves == fresh.leaves).all()
    assert (used.boxes == fresh.boxes).all()


def test_a_box_keeps_the_points_in_it() -> None:
    rng = np.random.default_rng(4)
    points = rng.uniform(-1, 1, (500, 3)).astype(np.float32)
    boxes = box_around([-0.3, -0.5, -0.2], [0.5, 0.2, 0.7], 0.6)
    whole = PointTree.of_points(points)
    kept = PointTree.with_leaves(len(whole.leaves))
    count = kept.take_inside(whole, CropBox.of(boxes, 0, 0.05))
    inside = points[boxes.contains(0, points, margin_m=0.05)]
    assert count == len(inside) > 20
    assert sorted(map(tuple, kept.points.tolist())) == sorted(map(tuple, inside.tolist()))


def test_sums_leave_out_what_fills_the_last_block() -> None:
    best = np.array([0.25, 4.0, 0.0, 9.0], np.float32)
    assert sums(best, 3, 0.5) == (2.5, 4.25, 2)
