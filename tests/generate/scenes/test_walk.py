from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse.csgraph import dijkstra

from rollbook.errors import ConfigurationError
from rollbook.generate.geometry.poses import are_rigid, centres, forwards, headings, wrapped
from rollbook.generate.raycast.scene_geometry import SceneGeometry
from rollbook.generate.scenes.scene import Scene, SceneConfig, make_scene
from rollbook.generate.scenes.walk import Walk, WalkConfig, WalkGrid, take_walk

SEEDS = range(4)


@lru_cache(maxsize=16)
def scene(seed: int) -> Scene:
    return make_scene(SceneConfig(seed=seed, max_edge_m=1.0))


@lru_cache(maxsize=64)
def walk(seed: int, draw: int = 0) -> Walk:
    return take_walk(scene(seed).walkable, WalkConfig(), np.random.default_rng(draw))


def all_poses(taken: Walk) -> NDArray[np.float64]:
    return np.concatenate([taken.poses, taken.continuation]).astype(np.float64)


# ------------------------------------------------------------------------------------- the walk


@pytest.mark.parametrize("seed", SEEDS)
def test_a_walk_has_its_frames_steps_and_head_height(seed: int) -> None:
    taken = walk(seed)
    assert taken.poses.shape == (24, 12)
    assert taken.continuation.shape == (8, 12)
    poses = all_poses(taken)
    assert are_rigid(poses).all()
    at = centres(poses)
    steps = np.linalg.norm(np.diff(at[:, :2], axis=0), axis=1)
    assert steps.max() <= 0.12 + 1e-6
    assert np.median(steps) == pytest.approx(0.12, abs=0.002)
    assert steps.min() > 0.04
    assert ((at[:, 2] >= 1.45 - 1e-6) & (at[:, 2] <= 1.7 + 1e-6)).all()
    assert np.ptp(at[:, 2]) < 0.05


@pytest.mark.parametrize("seed", SEEDS)
def test_time_goes_on_at_walking_speed(seed: int) -> None:
    taken = walk(seed)
    t_ns = np.concatenate([taken.t_ns, taken.continuation_t_ns])
    assert t_ns.dtype == np.int64
    seconds = np.diff(t_ns) / 1e9
    assert (seconds > 0).all()
    speed = 0.12 / seconds
    assert speed.min() > 0.55
    assert speed.max() < 1.4


@pytest.mark.parametrize("seed", SEEDS)
def test_the_head_looks_where_it_goes_and_a_little_down(seed: int) -> None:
    for draw in range(3):
        poses = all_poses(walk(seed, draw))
        forward = forwards(poses)
        assert -30 < np.degrees(np.arcsin(forward[:, 2])).mean() < -5
        along = np.diff(centres(poses)[:, :2], axis=0)
        off = wrapped(headings(poses[1:]) - np.arctan2(along[:, 1], along[:, 0]))
        assert np.median(np.abs(off)) < np.radians(45)
        turns = np.abs(wrapped(np.diff(headings(poses))))
        assert turns.max() < np.radians(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_walks_into_a_wall_or_furniture(seed: int) -> None:
    geometry = SceneGeometry(scene(seed).mesh)
    for draw in range(4):
        at = centres(all_poses(walk(seed, draw)))
        assert geometry.distance(at, 1.0).min() > 0.15
        # the body below the head, and the way from frame to frame
        for height in (0.4, 0.9, 1.3):
            body = at.copy()
            body[:, 2] = height
            assert geometry.distance(body, 1.0).min() > 0.15
            steps = np.diff(body, axis=0)
            t, _ = geometry.cast(body[:-1].astype(np.float32), steps.astype(np.float32))
            assert (t > 1).all()


def test_walks_lead_through_doors() -> None:
    crossed = 0
    for seed in SEEDS:
        plan = scene(seed).plan
        for draw in range(6):
            at = centres(all_poses(walk(seed, draw)))[:, :2]
            rooms = {
                number
                for number, room in enumerate(plan.rooms)
                for x0, y0, x1, y1 in room.parts
                if ((at > (x0, y0)) & (at < (x1, y1))).all(axis=1).any()
            }
            assert rooms
            crossed += len(rooms) > 1
    assert crossed >= 6


def test_the_same_generator_gives_the_same_walk() -> None:
    grid = scene(0).walkable
    one, same = (take_walk(grid, WalkConfig(), np.random.default_rng(5)) for _ in range(2))
    np.testing.assert_array_equal(all_poses(one), all_poses(same))
    np.testing.assert_array_equal(one.t_ns, same.t_ns)
    other = take_walk(grid, WalkConfig(), np.random.default_rng(6))
    assert not np.array_equal(all_poses(one), all_poses(other))


def test_a_long_walk_goes_on_where_the_way_ends() -> None:
    grid = WalkGrid.over((2.0, 2.0), np.zeros((0, 4)))
    grid = grid.without(
        [[0, 1, 0.2, 2, 0], [2, 1, 0.2, 2, 0], [1, 0, 2, 0.2, 0], [1, 2, 2, 0.2, 0]]
    )
    taken = take_walk(grid, WalkConfig(frames=100, continuation_frames=0), np.random.default_rng(0))
    assert taken.poses.shape == (100, 12)
    assert taken.continuation.shape == (0, 12)
    assert (grid.clearance_at(centres(taken.poses)) >= 0.19).all()


def test_a_body_too_wide_for_the_floor_is_refused() -> None:
    grid = WalkGrid.over((2.0, 2.0), [[0.6, 0.0, 1.4, 2.0]])
    with pytest.raises(
        ConfigurationError, match=r"WalkConfig\.body_radius_m is 0\.9, .*free floor"
    ):
        take_walk(grid, WalkConfig(body_radius_m=0.9), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("frames", 1),
        ("continuation_frames", -1),
        ("step_m", 0.0),
        ("body_radius_m", 5.0),
        ("head_height_m", (1.7, 1.4)),
        ("speed_mps", (0.0, 1.0)),
        ("pitch_deg", 90.0),
        ("scan_deg", -1.0),
    ],
)
def test_a_bad_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"WalkConfig\.{field} is "):
        WalkConfig(**{field: value})


# ------------------------------------------------------------------------------------- the grid


def test_clearance_is_the_distance_to_the_nearest_footprint() -> None:
    grid = WalkGrid.over((3.0, 2.0), [[0.0, 0.0, 0.5, 2.0]]).without([[2.0, 1.0, 0.3, 0.1, 0.7]])
    assert grid.clearance.shape == (30, 20)
    rng = np.random.default_rng(0)
    inside = rng.uniform(-1, 1, (200_000, 2)) * (0.3, 0.1)
    turn = np.array([[np.cos(0.7), -np.sin(0.7)], [np.sin(0.7), np.cos(0.7)]])
    samples = inside @ turn.T + (2.0, 1.0)
    for i, j in ((10, 3), (20, 10), (25, 17), (14, 12)):
        centre = np.array([i + 0.5, j + 0.5]) * 0.1
        nearest = min(np.hypot(*(samples - centre).T).min(), max(centre[0] - 0.5, 0.0))
        assert grid.clearance[i, j] == pytest.approx(nearest, abs=0.01)


def test_clearance_between_cells_is_between_theirs_and_nothing_off_the_grid() -> None:
    grid = WalkGrid(0.1, np.arange(12.0).reshape(3, 4))
    centre = [[(i + 0.5) * 0.1, (j + 0.5) * 0.1] for i in range(3) for j in range(4)]
    np.testing.assert_allclose(grid.clearance_at(centre), np.arange(12.0))
    assert grid.clearance_at([0.1, 0.05]) == pytest.approx(2.0)
    np.testing.assert_array_equal(grid.clearance_at([[-0.2, 0.1], [0.2, 9.0], [np.nan, 0]]), 0)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 9), st.integers(2, 9), st.integers(0, 2**32 - 1))
def test_costs_are_those_of_the_cheapest_way(nx: int, ny: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    clearance = np.where(rng.random((nx, ny)) < 0.35, 0.0, rng.uniform(0.3, 1.0, (nx, ny)))
    clearance[0, 0] = 0.5
    grid = WalkGrid(0.1, clearance)
    costs = grid.costs_from((0, 0), 0.25)
    price = 0.1 * (1 + 2 * np.maximum(0, 1 - clearance / 0.5))
    steps = np.zeros((nx * ny, nx * ny))
    free = np.argwhere(clearance >= 0.25)
    for i, j in free.tolist():
        for k, m in free.tolist():
            if max(abs(i - k), abs(j - m)) == 1:
                length = np.hypot(i - k, j - m) * (price[i, j] + price[k, m]) / 2
                steps[i * ny + j, k * ny + m] = length
    np.testing.assert_allclose(costs.ravel(), dijkstra(steps, indices=0))


def test_a_way_leads_from_start_to_goal_over_free_neighbours() -> None:
    grid = scene(1).walkable
    floor = np.argwhere(grid.floor(0.25))
    start, goal = tuple(floor[0].tolist()), tuple(floor[-1].tolist())
    way = grid.way(grid.costs_from((start[0], start[1]), 0.25), (goal[0], goal[1]))
    assert grid.cell_of(way[0]) == start
    assert grid.cell_of(way[-1]) == goal
    assert np.abs(np.diff(way, axis=0)).max() <= 0.1 + 1e-9
    assert (grid.clearance_at(way) >= 0.25).all()


def test_the_floor_is_the_largest_connected_piece() -> None:
    clearance = np.zeros((5, 7))
    clearance[1:4, 0:2] = 1.0
    clearance[1:4, 3:7] = 1.0
    floor = WalkGrid(0.1, clearance).floor(0.25)
    assert floor[1:4, 3:7].all()
    assert np.count_nonzero(floor) == 12
    assert not WalkGrid(0.1, np.zeros((4, 4))).floor(0.25).any()
