from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError, InvalidTrajectory, InvalidValue
from rollbook.generate.actor.actor import ActorMap, ActorState, surface_points
from rollbook.generate.actor.voxels import (
    FAR,
    FREE,
    OCCUPIED,
    UNKNOWN,
    carve,
    crossed,
    squared_distances,
)
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.poses import IDENTITY, look_at, poses_of
from rollbook.generate.sources.reader import SourceStore
from tests.generate.small_views import CAMERA, a_view, a_walk, inside, walked
from tests.generate.source_rows import write_store

SHAPE = (6, 5, 4)
AT_ORIGIN = poses_of(np.eye(3), np.zeros(3))
place = st.tuples(*[st.floats(-3, 9, allow_nan=False, width=32)] * 3).map(np.array)
lines = st.lists(st.tuples(place, place), min_size=1, max_size=6)


def at(known: ActorMap, point: tuple[float, float, float]) -> int:
    """The voxel this point lies in."""
    i, j, k = np.floor(known.cells(np.array(point))).astype(int)
    return int(known.grid[i, j, k])


def carved(pairs: list[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> NDArray[np.uint8]:
    grid = np.zeros(SHAPE, np.uint8)
    starts, ends = (np.array(each, np.float64) for each in zip(*pairs, strict=True))
    carve(grid, starts, ends)
    return grid


def same(a: ActorMap, b: ActorMap) -> bool:
    return (
        a.grid.tobytes() == b.grid.tobytes()
        and a.grid.shape == b.grid.shape
        and a.first.tolist() == b.first.tolist()
        and a.ignored_points == b.ignored_points
    )


# ---------------------------------------------------------------------------------------- carving


@settings(max_examples=150, deadline=None)
@given(lines)
def test_carving_marks_the_voxels_a_line_passes_and_no_others(
    pairs: list[tuple[NDArray[np.float64], NDArray[np.float64]]],
) -> None:
    grid = carved(pairs)
    ends = {tuple(np.floor(end).astype(int).tolist()) for _, end in pairs}
    passed = {voxel for pair in pairs for _, voxel in walked(*pair) if inside(voxel, SHAPE)}
    for voxel in passed - ends:
        assert grid[voxel] == FREE
    for i, j, k in np.argwhere(grid == FREE).tolist():
        assert (i, j, k) in passed or any(_touches(pair, (i, j, k)) for pair in pairs)
    assert {tuple(each) for each in np.argwhere(grid == OCCUPIED).tolist()} == {
        end for end in ends if inside(end, SHAPE)
    }


def _touches(
    pair: tuple[NDArray[np.float64], NDArray[np.float64]], voxel: tuple[int, int, int]
) -> bool:
    """Whether a line comes within rounding of a voxel: at edges either neighbour may be passed."""
    start, end = pair
    low, high = 0.0, 1.0
    for x, along, side in zip(start, end - start, voxel, strict=True):
        if abs(along) < 1e-12:
            if not side - 1e-6 <= x <= side + 1 + 1e-6:
                return False
            continue
        one, other = sorted(((side - 1e-6 - x) / along, (side + 1 + 1e-6 - x) / along))
        low, high = max(low, one), min(high, other)
    return bool(low <= high)


@settings(max_examples=50, deadline=None)
@given(lines, st.randoms(use_true_random=False))
def test_the_order_of_rays_does_not_matter(
    pairs: list[tuple[NDArray[np.float64], NDArray[np.float64]]], random: np.random.RandomState
) -> None:
    other = list(pairs)
    random.shuffle(other)
    assert carved(pairs).tobytes() == carved(other).tobytes()


def test_occupied_wins_over_a_ray_that_passes_whichever_comes_first() -> None:
    wall = (np.array([0.5, 2.5, 1.5]), np.array([2.5, 2.5, 1.5]))
    through = (np.array([0.5, 2.5, 1.5]), np.array([5.5, 2.5, 1.5]))
    for grid in (carved([wall, through]), carved([through, wall])):
        assert grid[:, 2, 1].tolist() == [FREE, FREE, OCCUPIED, FREE, FREE, OCCUPIED]
        assert grid.sum() == 4 * FREE + 2 * OCCUPIED


def test_ends_outside_are_counted_and_their_way_inside_is_free() -> None:
    grid = np.zeros(SHAPE, np.uint8)
    nan = [np.nan] * 3
    starts = np.array([[0.5, 0.5, 0.5], [0.5, 0.5, 0.5], [-9, 2.5, 2.5], nan, nan])
    ends = np.array([[50, 0.5, 0.5], nan, [-3, 2.5, 2.5], [1.5, 1.5, 1.5], nan])
    assert carve(grid, starts, ends) == 4
    assert (grid[:, 0, 0] == FREE).all()
    assert grid[1, 1, 1] == OCCUPIED
    assert grid.sum() == 6 * FREE + OCCUPIED


# -------------------------------------------------------------------------------------- from_view


def test_a_map_knows_free_space_up_to_each_point() -> None:
    known = ActorMap.from_view(a_view(AT_ORIGIN, [[0.05, 0.05, 1.05], [0.05, 0.05, -0.55]]))
    assert [at(known, (0.05, 0.05, z)) for z in (0.95, 1.05, 1.15)] == [FREE, OCCUPIED, UNKNOWN]
    assert [at(known, (0.05, 0.05, z)) for z in (-0.45, -0.55)] == [FREE, OCCUPIED]
    assert at(known, (0.05, 0.55, 0.05)) == UNKNOWN
    assert known.occupied_centres() == pytest.approx(
        np.array([[0.05, 0.05, -0.55], [0.05, 0.05, 1.05]])
    )
    low, high = known.bounds
    assert low.tolist() == pytest.approx([-1.0, -1.0, -1.6])
    assert high.tolist() == pytest.approx([1.1, 1.1, 2.1])


def test_a_point_of_no_frame_is_occupied_and_frees_nothing() -> None:
    known = ActorMap.from_view(a_view(AT_ORIGIN, [[0.05, 0.05, 1.05]], [-1]))
    assert at(known, (0.05, 0.05, 1.05)) == OCCUPIED
    assert np.count_nonzero(known.grid) == 1


def test_a_map_without_points_has_the_trajectory_and_nothing_in_the_way() -> None:
    known = ActorMap.from_view(a_view(AT_ORIGIN))
    assert not known.grid.any()
    assert known.distance([[0.0, 0.0, 0.0], [0.5, 0.0, 0.0]], 2.0).tolist() == [2.0, 2.0]
    assert known.distance([[0, 0, 0]]).tolist() == [np.inf]


def test_a_map_reaches_ten_metres_and_counts_what_lies_beyond() -> None:
    far = np.array([[500.0, 0, 0], [0, -40, 0], [0, 0, 5], [np.nan, 0, 0], [3, 0, 0]])
    known = ActorMap.from_view(a_view(AT_ORIGIN, far))
    assert known.ignored_points == 4
    assert known.bounds[0].tolist() == pytest.approx([-1, -10, -1])
    assert known.bounds[1].tolist() == pytest.approx([10.1, 1.1, 4.1])
    assert at(known, (9.95, 0.01, 0.01)) == FREE


def test_bad_views_are_refused_by_name() -> None:
    with pytest.raises(InvalidTrajectory, match="there is no pose"):
        ActorMap.from_view(a_view(np.zeros((0, 12))))
    with pytest.raises(InvalidTrajectory, match="pose 1 is not rigid"):
        ActorMap.from_view(a_view([AT_ORIGIN, np.zeros(12)]))
    with pytest.raises(InvalidValue, match=r"point_frame\[1\] is 1, expected a frame below 1"):
        ActorMap.from_view(a_view(AT_ORIGIN, np.zeros((2, 3)), [0, 1]))
    with pytest.raises(InvalidValue, match="point_frame is of length 1"):
        ActorMap.from_view(a_view(AT_ORIGIN, np.zeros((2, 3)), [0]))
    with pytest.raises(ConfigurationError, match="voxel_m is 0"):
        ActorMap.from_view(a_view(AT_ORIGIN), voxel_m=0.0)


# ------------------------------------------------------------------------------------------ fused


def a_wall(metres: float, camera: Camera = CAMERA) -> NDArray[np.float32]:
    return np.full((camera.height, camera.width), metres, np.float32)


def test_fusing_gives_another_map_and_leaves_the_first() -> None:
    known = ActorMap.from_view(a_walk(np.random.default_rng(0)))
    before = known.grid.copy()
    fused = known.fused(a_wall(1.5), look_at([0, -2, 0.5], [0, 0, 0.5]), CAMERA)
    assert (known.grid == before).all()
    assert not np.shares_memory(known.grid, fused.grid)
    assert not fused.grid.flags.writeable
    assert at(fused, (0.0, -0.45, 0.5)) == OCCUPIED
    assert at(fused, (0.0, -1.5, 0.5)) == FREE


def test_a_pixel_that_hit_nothing_says_nothing() -> None:
    known = ActorMap.from_view(a_view(AT_ORIGIN))
    assert same(known, known.fused(a_wall(0.0), AT_ORIGIN, CAMERA))


def test_images_can_be_fused_in_any_order_and_twice() -> None:
    known = ActorMap.from_view(a_walk(np.random.default_rng(1)))
    first = (a_wall(1.5), look_at([0, -2, 0.5], [0, 0, 0.5]), CAMERA)
    second = (a_wall(3.0), look_at([1, -2, 0.5], [5, 0, 0.5]), CAMERA)
    one = known.fused(*first).fused(*second)
    assert same(one, known.fused(*second).fused(*first))
    assert same(one, one.fused(*first))
    assert (one.bounds[1] > known.bounds[1]).any(), "the map grows with what is seen"


def test_large_images_are_thinned_evenly() -> None:
    large = Camera.square(240)
    points = surface_points(a_wall(2.0, large), AT_ORIGIN, large, 60)
    assert len(points) == 60 * 60
    assert points.mean(axis=0) == pytest.approx([0, 0, 2], abs=0.02)
    assert len(surface_points(a_wall(2.0), AT_ORIGIN, CAMERA, 60)) == 32 * 32


@pytest.mark.parametrize(
    ("depth", "pose", "message"),
    [
        (
            np.ones((3, 4), np.float32),
            AT_ORIGIN,
            r"depth is of shape \[3, 4\], expected \[32, 32\]",
        ),
        (a_wall(-1.0), AT_ORIGIN, "negative"),
        (a_wall(np.nan), AT_ORIGIN, "not finite"),
        (a_wall(1.0), np.full(12, np.nan), "proper rotation"),
    ],
)
def test_bad_images_are_refused(
    depth: NDArray[np.float32], pose: NDArray[np.float64], message: str
) -> None:
    with pytest.raises(InvalidValue, match=message):
        ActorMap.from_view(a_view(AT_ORIGIN)).fused(depth, pose, CAMERA)


def test_a_map_can_be_made_to_cover_more_and_knows_nothing_there() -> None:
    known = ActorMap.from_view(a_view(AT_ORIGIN, [[0.05, 0.05, 1.05]]))
    assert known.covering(np.zeros((1, 3))) is known
    larger = known.covering(np.array([[3.0, 0, 0], [0, -99, 0]]))
    assert larger.bounds[0].tolist() == pytest.approx([-1, -10, -1])
    assert larger.bounds[1].tolist() == pytest.approx([4.1, 1.1, 2.1])
    assert at(larger, (0.05, 0.05, 1.05)) == OCCUPIED
    assert (
        np.bincount(larger.grid.ravel())[1:].tolist()
        == np.bincount(known.grid.ravel())[1:].tolist()
    )


# -------------------------------------------------------------------------------------- distances


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(*[st.integers(1, 9)] * 3),
    st.floats(0, 0.3),
    st.integers(0, 2**32 - 1),
)
def test_squared_distances_are_exact(shape: tuple[int, int, int], share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    grid = np.where(rng.random(shape) < share, OCCUPIED, rng.integers(0, 2, shape)).astype(np.uint8)
    grid.flags.writeable = False
    occupied = np.argwhere(grid == OCCUPIED)
    every = np.indices(shape).reshape(3, -1).T
    apart = ((every[:, None] - occupied) ** 2).sum(axis=2)
    assert squared_distances(grid).ravel().tolist() == apart.min(axis=1, initial=FAR).tolist()


@settings(max_examples=60, deadline=None)
@given(st.floats(0.001, 0.4), st.floats(0, 0.2), st.integers(0, 2**32 - 1))
def test_a_short_bound_cuts_distances_off_and_changes_no_other(
    bound: float, share: float, seed: int
) -> None:
    """Short distances are searched around each point, long ones read from a field over the whole grid."""
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 12, 3))
    grid = np.where(rng.random(shape) < share, OCCUPIED, 0).astype(np.uint8)
    grid.flags.writeable = False
    known = ActorMap(grid, np.array([-3, 0, 2]), np.zeros(3, np.int64), 0.1)
    low, high = known.bounds
    points = rng.uniform(low - 0.3, high + 0.3, (50, 3))
    points[0] = np.nan
    whole = known.distance(points).astype(np.float64)
    np.testing.assert_array_equal(
        known.distance(points, bound), np.minimum(whole, bound).astype(np.float32)
    )


def test_distance_is_true_to_a_voxel_and_cautious_outside() -> None:
    rng = np.random.default_rng(2)
    known = ActorMap.from_view(a_walk(rng))
    low, high = known.bounds
    points = rng.uniform(low - 1, high + 1, (400, 3))
    apart = np.linalg.norm(points[:, None] - known.occupied_centres(), axis=2).min(axis=1)
    found = known.distance(points)
    half_diagonal = 0.05 * 3**0.5 + 1e-6
    within = ((points > low) & (points < high)).all(axis=1)
    assert 0 < within.sum() < 400
    assert (np.abs(found - apart)[within] <= half_diagonal).all()
    assert (found <= apart + half_diagonal).all()
    assert found.dtype == np.float32


def test_distance_is_zero_in_an_occupied_voxel_bounded_and_nan_for_nan() -> None:
    known = ActorMap.from_view(a_view(AT_ORIGIN, [[0.05, 0.05, 1.05]]))
    points = [[0.09, 0.01, 1.01], [0.05, 0.05, 0.75], [0.05, 0.05, 0.05], [np.nan, 0, 0]]
    assert known.distance(points, 0.5) == pytest.approx([0, 0.3, 0.5, np.nan], nan_ok=True)


def test_ways_are_blocked_by_what_is_occupied_and_not_by_what_is_unknown() -> None:
    known = ActorMap.from_view(a_view(AT_ORIGIN, [[0.05, 0.05, 1.05]]))
    start = [0.05, 0.05, 0.05]
    ends = [[0.05, 0.05, 2.0], [0.05, 0.05, 0.85], [0.05, 0.95, 2.0], [np.nan, 0, 0], start]
    assert known.path_hits(start, ends).tolist() == [True, False, False, False, False]
    clearance = known.path_clearance(start, ends, 20, 0.4)
    assert clearance == pytest.approx([0.0, 0.2, 0.4, np.nan, 0.4], nan_ok=True)


def test_the_end_of_a_way_counts_as_much_as_the_rest_of_it() -> None:
    """Only the last sample of each way, and only its last voxel, is near or in what is occupied."""
    known = ActorMap.from_view(a_view(AT_ORIGIN, [[0.05, 0.05, 1.05]]))
    start = [0.05, 0.05, 0.05]
    ends = [[0.05, 0.05, 1.01], [0.05, 0.05, 0.95], [0.05, 0.05, 0.55]]
    assert known.path_hits(start, ends).tolist() == [True, False, False]
    for samples in (1, 2, 3):
        clearance = known.path_clearance(start, ends, samples, 2.0)
        assert clearance == pytest.approx([0.0, 0.1, 0.5])


def test_the_voxel_one_stands_in_does_not_block_the_way() -> None:
    known = ActorMap.from_view(a_view(AT_ORIGIN, [[0.05, 0.05, 0.05]]))
    assert known.path_hits([0.02, 0.02, 0.02], [[0.5, 0.5, 0.5]]).tolist() == [False]
    assert known.path_hits([0.02, 0.02, -0.5], [[0.02, 0.02, 0.5]]).tolist() == [True]


@settings(max_examples=100, deadline=None)
@given(place, place, st.integers(0, 2**32 - 1))
def test_a_segment_is_crossed_where_the_slow_way_says(
    start: NDArray[np.float64], end: NDArray[np.float64], seed: int
) -> None:
    # off the lattice, where one voxel or its neighbour would both be right
    start = start + np.array([0.0123457, 0.0731913, 0.0417179])
    end = end + np.array([0.0345671, 0.0219341, 0.0618033])
    rng = np.random.default_rng(seed)
    grid = np.where(rng.random(SHAPE) < 0.1, OCCUPIED, FREE).astype(np.uint8)
    grid.flags.writeable = False
    home = tuple(np.floor(start).astype(int).tolist())
    passed = [voxel for _, voxel in walked(start, end) if inside(voxel, SHAPE) and voxel != home]
    assert crossed(grid, start, end[None])[0] == any(grid[voxel] == OCCUPIED for voxel in passed)


# ------------------------------------------------------------------------------------------ state


def test_a_move_adds_to_the_state_and_leaves_the_old_one() -> None:
    root = ActorState.from_view(a_walk(np.random.default_rng(3)))
    pose = look_at([0, -2, 0.5], [0, 0, 0.5])
    after = root.advanced(pose, a_wall(1.5), CAMERA)
    assert (len(root.poses), len(after.poses)) == (4, 5)
    assert (root.moves, after.moves) == (0, 1)
    assert (len(root.fused_points), len(after.fused_points)) == (0, 32 * 32)
    assert after.poses[-1].tolist() == pose.tolist()
    assert after.cameras == (CAMERA,) * 5
    assert same(after.map, root.map.fused(a_wall(1.5), pose, CAMERA))
    assert after.points is root.points


def test_points_that_are_nowhere_are_left_out() -> None:
    state = ActorState.from_view(a_view(AT_ORIGIN, [[np.nan, 0, 0], [0.5, 0, 0]]))
    assert state.points.tolist() == [[0.5, 0, 0]]
    assert state.map.ignored_points == 1


def test_states_are_the_same_on_every_thread_and_run() -> None:
    def run(_: int) -> ActorMap:
        state = ActorState.from_view(a_walk(np.random.default_rng(4)))
        return state.advanced(IDENTITY, a_wall(2.0), CAMERA).map

    first = run(0)
    with ThreadPoolExecutor(8) as pool:
        assert all(same(first, other) for other in pool.map(run, range(16)))


def test_a_row_gives_the_same_state_whether_or_not_the_oracle_is_open(tmp_path: Path) -> None:
    write_store(tmp_path / "store", scenes=1, rows=3)
    for index in range(3):
        whole, blind = (
            SourceStore.open(tmp_path / "store", actor_only=only).row(index)
            for only in (False, True)
        )
        assert whole.oracle is not None
        assert blind.oracle is None
        a, b = ActorState.from_view(whole.actor), ActorState.from_view(blind.actor)
        assert same(a.map, b.map)
        assert a.poses.tobytes() == b.poses.tobytes()
        assert a.points.tobytes() == b.points.tobytes()
        assert a.cameras == b.cameras
