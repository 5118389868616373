"""Our own hierarchy: the hits and distances are those of asking every triangle."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollbook.errors import InvalidMesh, InvalidValue
from rollbook.generate.raycast.bvh import Bvh

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


def triangle_soup(rng: np.random.Generator, count: int) -> Floats:
    """Of all sizes, some twice, some on a coarse grid so that many are coplanar and share edges."""
    centre = rng.normal(size=(count, 1, 3)) * rng.choice([0.0, 0.3, 3.0])
    triangles = centre + rng.normal(size=(count, 3, 3)) * rng.choice([0.05, 1.0], (count, 1, 1))
    if rng.random() < 0.5:
        triangles = np.round(triangles * 2) / 2
    triangles = triangles[rng.integers(0, count, count)].astype(np.float32)
    wide = triangles.astype(np.float64)
    area = np.linalg.norm(np.cross(wide[:, 1] - wide[:, 0], wide[:, 2] - wide[:, 0]), axis=1)
    return np.concatenate([triangles[area > 0], [[[9, 0, 0], [9, 1, 0], [9, 0, 1]]]], dtype="f4")


def every_hit(triangles: Floats, origins: Floats, directions: Floats) -> Doubles:
    """[R, F]: where the ray meets the plane of a triangle, inf unless that is inside: left of all three edges."""
    a, b, c = (triangles[None, :, k].astype(np.float64) for k in range(3))
    start, along = origins[:, None].astype(np.float64), directions[:, None].astype(np.float64)
    normal = np.cross(b - a, c - a)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = ((a - start) * normal).sum(-1) / (along * normal).sum(-1)
        place = start + t[..., None] * along
        inside = t > 0
        for here, there in ((a, b), (b, c), (c, a)):
            left = (np.cross(there - here, place - here) * normal).sum(-1)
            inside &= left >= -1e-9 * (normal**2).sum(-1)
    return np.where(inside, t, np.inf)


def every_distance(triangles: Floats, points: Floats) -> Doubles:
    """[P, F]: to the plane where the point lies before the inside, else to the nearest of three segments."""
    a, b, c = (triangles[None, :, k].astype(np.float64) for k in range(3))
    point = points[:, None].astype(np.float64)
    normal = np.cross(b - a, c - a)
    before = np.ones((len(points), len(triangles)), np.bool_)
    least = np.full(before.shape, np.inf)
    for here, there in ((a, b), (b, c), (c, a)):
        edge = there - here
        before &= (np.cross(edge, point - here) * normal).sum(-1) >= 0
        along = np.clip(((point - here) * edge).sum(-1) / (edge**2).sum(-1), 0, 1)
        least = np.minimum(least, np.linalg.norm(point - here - along[..., None] * edge, axis=-1))
    height = np.abs(((point - a) * normal).sum(-1)) / np.linalg.norm(normal, axis=-1)
    return np.where(before, height, least)


def rays_about(rng: np.random.Generator, triangles: Floats, count: int) -> tuple[Floats, Floats]:
    """Some at random, some along an axis, some aimed at a corner."""
    origins = rng.normal(size=(count, 3)) * 3
    directions = rng.normal(size=(count, 3)) * rng.choice([1e-3, 1.0, 1e3], (count, 1))
    directions[: count // 4] = np.eye(3)[rng.integers(0, 3, count // 4)]
    origins[: count // 8] = np.round(origins[: count // 8] * 2) / 2
    corners = triangles.reshape(-1, 3)[rng.integers(0, 3 * len(triangles), count // 4)]
    directions[-(count // 4) :] = corners - origins[-(count // 4) :]
    return origins.astype(np.float32), directions.astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 100_000), count=st.integers(1, 120))
def test_a_ray_stops_where_asking_every_triangle_says(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    triangles = triangle_soup(rng, count)
    origins, directions = rays_about(rng, triangles, 64)
    t, face = Bvh(triangles).cast(origins, directions)
    truth = every_hit(triangles, origins, directions)
    nearest = truth.min(axis=1)
    assert (np.isinf(t) == (face < 0)).all()
    # on an edge, or along a face, both answers are right: there the two may differ
    clear = unambiguous(triangles, origins, directions)
    assert t[clear] == pytest.approx(nearest[clear], rel=1e-5)
    hit = clear & (face >= 0)
    assert truth[hit, face[hit]] == pytest.approx(nearest[hit], rel=1e-6)


def unambiguous(triangles: Floats, origins: Floats, directions: Floats) -> NDArray[np.bool_]:
    """Rays that no triangle is met differently by when its size changes a little."""
    middle = triangles.mean(axis=1, keepdims=True)
    smaller, larger = (middle + (triangles - middle) * scale for scale in (1 - 1e-5, 1 + 1e-5))
    small, large = (
        np.isfinite(every_hit(each.astype(np.float32), origins, directions))
        for each in (smaller, larger)
    )
    return np.asarray((small == large).all(axis=1))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 100_000),
    count=st.integers(1, 120),
    bound=st.sampled_from([math.inf, 5.0, 0.2, 0.0]),
)
def test_a_distance_is_the_least_of_all_and_at_most_the_bound(
    seed: int, count: int, bound: float
) -> None:
    rng = np.random.default_rng(seed)
    triangles = triangle_soup(rng, count)
    points = rng.normal(size=(80, 3)) * rng.choice([0.1, 1.0, 100.0], (80, 1))
    points[:20] = triangles.reshape(-1, 3)[rng.integers(0, 3 * len(triangles), 20)]
    points = points.astype(np.float32)
    truth = every_distance(triangles, points).min(axis=1)
    found = Bvh(triangles).distance(points, bound)
    assert found == pytest.approx(np.minimum(truth, bound), rel=1e-6, abs=1e-9)
    assert (found <= np.float32(bound)).all()


def test_neither_the_order_of_points_nor_their_company_changes_a_distance() -> None:
    rng = np.random.default_rng(3)
    tree = Bvh(triangle_soup(rng, 500))
    points = rng.normal(size=(400, 3)).astype(np.float32)
    together = tree.distance(points)
    order = rng.permutation(400)
    assert (tree.distance(points[order]) == together[order]).all()
    assert (np.concatenate([tree.distance(point[None]) for point in points]) == together).all()


ONE = np.array([[[0, 0, 1], [1, 0, 1], [0, 1, 1]]], np.float32)


def test_one_triangle_is_a_whole_scene() -> None:
    tree = Bvh(ONE)
    t, face = tree.cast([[0.2, 0.2, 0], [0.2, 0.2, 3], [0.9, 0.9, 0]], np.array([[0, 0, 1]] * 3))
    assert (t[0], face.tolist()) == (1, [0, -1, -1])
    assert np.isinf(t[1:]).all()
    assert tree.distance([[0.2, 0.2, 0.0], [3.0, 0.0, 1.0], [0.0, 0.0, 1.0]]).tolist() == [1, 2, 0]


@pytest.mark.parametrize("count", [2, 5, 17, 300])
def test_triangles_in_one_place_are_split_all_the_same(count: int) -> None:
    same = np.repeat(ONE, count, axis=0)
    nested = (
        ONE.mean(axis=1, keepdims=True)
        + (same - same.mean(axis=1, keepdims=True))
        * (np.linspace(0.5, 1, count, dtype=np.float32)[:, None, None])
    )
    for triangles in (same, nested.astype(np.float32)):
        t, face = Bvh(triangles).cast([[0.33, 0.33, 0]], [[0, 0, 2]])
        assert t == pytest.approx([0.5])
        assert 0 <= face[0] < count
        assert Bvh(triangles).distance([[0.33, 0.33, 0]]) == pytest.approx([1.0])


def test_a_long_row_of_growing_triangles_does_not_run_out_of_room() -> None:
    """Each as large as all before it: splits take off a few at a time, and the tree grows deep."""
    size = 1.5 ** np.arange(80)
    triangles = (ONE * size[:, None, None]).astype(np.float32)
    t, face = Bvh(triangles).cast([[1e-6, 1e-6, 0]], [[0, 0, 1]])
    assert (t[0], face[0]) == (1, 0)
    t, face = Bvh(triangles).cast([[1e-6, 1e-6, 1.2e14]], [[0, 0, -1]])
    assert face[0] == 79


def test_two_walls_in_one_plane_are_hit_once_and_at_the_same_depth() -> None:
    wall = np.concatenate([ONE, ONE[:, ::-1], ONE + np.float32(0)])
    t, face = Bvh(wall).cast([[0.2, 0.2, 0], [0.2, 0.2, 2]], [[0, 0, 1], [0, 0, -1]])
    assert t.tolist() == [1, 1]
    assert (face >= 0).all()


def test_a_ray_in_the_plane_of_a_face_or_from_on_it_does_not_hit_that_face() -> None:
    t, _ = Bvh(ONE).cast([[-1, 0.2, 1], [0.2, 0.2, 1]], [[1, 0, 0], [0, 0, 1]])
    assert np.isinf(t).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rays_that_are_not_finite_meet_nothing(bad: float) -> None:
    good = np.array([[0.2, 0.2, 0.0], [0.0, 0.0, 1.0]])
    rays = np.repeat(good[None], 7, axis=0)
    for k in range(6):
        rays[k].reshape(-1)[k] = bad
    t, face = Bvh(ONE).cast(rays[:, 0], rays[:, 1])
    assert face.tolist() == [-1] * 6 + [0]
    assert np.isinf(t[:6]).all()


def test_a_ray_without_direction_meets_nothing() -> None:
    origins = [[0.2, 0.2, 1.0], [0.2, 0.2, 0.0]]
    assert Bvh(ONE).cast(origins, [[0.0, 0.0, 0.0], [-0.0, 0.0, -0.0]])[1].tolist() == [-1, -1]


def test_points_that_are_not_numbers_have_no_distance_and_others_keep_theirs() -> None:
    points = np.full((4, 3), 0.2)
    points[:, 2] = 0
    points[0, 1], points[2, 2], points[3, 0] = math.nan, math.inf, 1e30
    assert Bvh(ONE).distance(points) == pytest.approx([math.nan, 1, math.inf, 1e30], nan_ok=True)
    assert Bvh(ONE).distance(points, 0.5) == pytest.approx([math.nan, 0.5, 0.5, 0.5], nan_ok=True)


def test_no_rays_and_no_points_have_no_answers() -> None:
    none = np.zeros((0, 3))
    assert [len(each) for each in Bvh(ONE).cast(none, none)] == [0, 0]
    assert len(Bvh(ONE).distance(none)) == 0


def test_nothing_beyond_the_given_length_is_met_and_what_lies_on_it_is() -> None:
    origins = np.array([[0.2, 0.2, 0]] * 3, np.float32)
    directions = np.array([[0, 0, 1]] * 3, np.float32)
    t, face = np.array([0.99, 1, 2], np.float32), np.empty(3, np.int32)
    Bvh(ONE).trace(origins, directions, t, face)
    assert face.tolist() == [-1, 0, 0]
    assert t.tolist() == [np.float32(0.99), 1, 1]


@pytest.mark.parametrize(
    "triangles", [np.zeros((0, 3, 3)), np.zeros((3, 3)), np.full((1, 3, 3), np.nan), ONE * 1e20]
)
def test_what_is_not_a_set_of_triangles_is_refused(triangles: Floats) -> None:
    with pytest.raises(InvalidMesh):
        Bvh(triangles)


def test_questions_of_the_wrong_shape_are_refused_by_name() -> None:
    tree = Bvh(ONE)
    with pytest.raises(InvalidValue, match="points is float64"):
        tree.distance([0.0, 0.0, 0.0])
    with pytest.raises(InvalidValue, match="directions is 1 rows"):
        tree.cast([[0, 0, 0], [1, 1, 1]], [[0, 0, 1]])
    for bound in (-1.0, math.nan):
        with pytest.raises(InvalidValue, match="bound"):
            tree.distance([[0, 0, 0]], bound)
