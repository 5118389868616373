"""The oracle's errors and gains: right by hand, equal to measuring everything again, and lawful."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.errors import ConfigurationError, InvalidValue, TargetInvalid
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.poses import compose, look_at, moved, poses_of
from rollbook.generate.oracle.config import OracleConfig
from rollbook.generate.oracle.naive import NaiveOracle
from rollbook.generate.oracle.oracle import Oracle, OracleState
from rollbook.generate.raycast.scene_geometry import SceneGeometry
from tests.generate.oracle_rooms import (
    Room,
    about_z,
    box_around,
    box_triangles,
    make_room,
    mesh_of,
    plate,
    subdivided,
)

SMALL: dict[str, Any] = {"scene_samples": 400, "target_samples": 150}
METRICS = pytest.mark.parametrize("metric", ["area", "face_sq"])


def oracle_of(room: Room, *, threads: int = 1, **config: Any) -> Oracle:
    return Oracle(room.geometry(threads), room.boxes, 0, OracleConfig(**{**SMALL, **config}))


def fused(oracle: Oracle, state: OracleState, room: Room, views: list[int]) -> OracleState:
    for view in views:
        state = oracle.fuse(state, room.depth[view], room.poses[view], room.camera)
    return state


@lru_cache(maxsize=4)
def room_of(seed: int) -> Room:
    return make_room(seed)


# ------------------------------------------------------------------------------------------- by hand


def test_a_floor_and_a_box_by_hand() -> None:
    """A floor of 2 m x 2 m, a cube of 1 m beside it, distances cut at 0.1 m, area metric.

    Root: one point, 0.5 m above the floor. It is 0.5 m off, which counts 0.1; all surface is at least 0.5 m from it,
    which counts 0.1. So d = 0.1 + 0.1 = 0.2, for the target (the floor) and for the scene.

    View: from 1 m above the middle of the floor, straight down, 90 degrees, 40 x 40 pixels. It sees just the floor, as
    a grid of points h = 2 / 40 = 0.05 m apart. A place in a square of side h is on average
    h (sqrt 2 + ln(1 + sqrt 2)) / 6 = 0.05 * 0.382598 = 0.019130 m from its middle, at most 0.0354 m.

    Target: completeness 0.019130, accuracy 0.1 / (1 + 1600) = 0.0000625, d = 0.0191925;
    RRI = (0.2 - 0.0191925) / 0.2 = 0.904038.
    Scene: the floor is 4 of 10 m2, the cube (6 m2, unseen) stays at 0.1; completeness 0.4 * 0.019130 + 0.6 * 0.1 =
    0.067652, d = 0.0677145, RRI = 0.661428. Covered within 0.05 m: all of the target, 0.4 of the scene.
    """
    mesh = mesh_of(plate(2.0), box_triangles([5, 0, 0], [6, 1, 1]))
    config = OracleConfig(truncation_m=0.1, render_size_px=40)
    oracle = Oracle(SceneGeometry(mesh), box_around([-1, -1, -1], [1, 1, 1]), 0, config)
    state = oracle.root(np.array([[0, 0, 0.5]]))
    pose = look_at([0.0, 0.0, 1.0], [0.0, 0.0, 0.0])[None]
    depth = oracle.geometry.depth(pose, config.camera)
    found = oracle.score(state, depth, pose, config.camera)
    mean = 0.05 * (math.sqrt(2) + math.log(1 + math.sqrt(2))) / 6
    assert mean == pytest.approx(0.019130, abs=1e-6)
    # what is left is the scatter of the samples: 0.0075 / sqrt(4000) metres
    near = 3e-3
    assert state.target.error == pytest.approx(0.2, abs=1e-7)
    assert found["target_pm_dist_after"][0] == pytest.approx(0.0191925, abs=4e-4)
    assert found["target_accuracy_after"][0] == pytest.approx(0.1 / 1601, rel=1e-6)
    assert found["target_rri"][0] == pytest.approx(0.904038, abs=near)
    assert found["target_root_gain"][0] == found["target_rri"][0]
    assert found["target_log_error_gain"][0] == pytest.approx(math.log(0.2 / 0.0191925), abs=0.02)
    assert found["scene_rri"][0] == pytest.approx(0.661428, abs=near)
    assert found["target_coverage_before"][0] == found["scene_coverage_before"][0] == 0
    assert found["target_coverage_after"][0] == 1
    assert found["scene_coverage_after"][0] == pytest.approx(0.4, abs=1e-3)
    assert found["target_current_support"][0] == 1
    assert found["target_candidate_support"][0] == 1600


def test_two_triangles_by_hand() -> None:
    """A floor of 1 m x 1 m in two triangles, cut from (-.5, -.5) to (.5, .5); one point at (.25, -.25, 2); face_sq.

    The point is above the first triangle: 4 m2. The other is nearest at the cut, sqrt(1/8) m aside: 4 + 1/8 m2.
    So completeness is (4 + 4.125) / 2 = 4.0625, accuracy 4, d = 8.0625.
    After a view of 10 x 10 points from above, both triangles have points on them: completeness 0, accuracy 4 / 101,
    RRI = 1 - 4 / 101 / 8.0625 = 0.995088.
    """
    config = OracleConfig(metric="face_sq", truncation_m=None, render_size_px=10)
    box = box_around([-1, -1, -1], [1, 1, 3])
    oracle = Oracle(SceneGeometry(mesh_of(plate(1.0))), box, 0, config)
    state = oracle.root(np.array([[0.25, -0.25, 2.0]]))
    assert state.target.completeness == pytest.approx(4.0625)
    assert state.target.error == pytest.approx(8.0625)
    pose = look_at([0.0, 0.0, 0.5], [0.0, 0.0, 0.0])[None]
    depth = oracle.geometry.depth(pose, config.camera)
    found = oracle.score(state, depth, pose, config.camera)
    assert found["target_candidate_support"][0] == 100
    assert found["target_rri"][0] == pytest.approx(1 - 4 / 101 / 8.0625, abs=1e-9)
    assert found["target_coverage_after"][0] == 1


# -------------------------------------------------------------------------------- the naive truth


@METRICS
@pytest.mark.parametrize("truncation", [None, 0.4])
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_it_equals_measuring_everything_again(
    metric: str, truncation: float | None, seed: int
) -> None:
    room = make_room(seed, views=3, size=16)
    oracle = oracle_of(room, metric=metric, truncation_m=truncation)
    state = fused(oracle, oracle.root(room.points), room, [0])
    scored = oracle.score(state, room.depth, room.poses, room.camera)
    seen = room.camera.points(room.depth[0], room.poses[0]).reshape(-1, 3)
    known = np.concatenate([room.points, seen])
    truth = NaiveOracle(oracle).score(known, room.depth, room.poses, room.camera)
    for name, values in truth.items():
        # rendered points are some 1e-7 m off the mesh, which the oracle counts as 0
        np.testing.assert_allclose(scored[name], values, atol=2e-6, err_msg=name)
    assert scored["scene_rri"].max() > 0.01


def test_every_so_many_th_pixel_is_used() -> None:
    room = room_of(0)
    oracle = oracle_of(room, backprojection_stride=3)
    scored = oracle.score(oracle.root(room.points), room.depth, room.poses, room.camera)
    truth = NaiveOracle(oracle).score(room.points, room.depth, room.poses, room.camera)
    for name in ("target_pm_dist_after", "scene_pm_dist_after"):
        np.testing.assert_allclose(scored[name], truth[name], atol=2e-6)
    whole = oracle_of(room).score(oracle.root(room.points), room.depth, room.poses, room.camera)
    assert 0 < scored["target_candidate_support"].sum() < whole["target_candidate_support"].sum()


# ------------------------------------------------------------------------------------------- laws


@METRICS
def test_what_a_view_is_said_to_do_is_what_taking_it_does(metric: str) -> None:
    room = room_of(1)
    oracle = oracle_of(room, metric=metric)
    state = oracle.root(room.points)
    scored = oracle.score(state, room.depth, room.poses, room.camera)
    for view in range(len(room.poses)):
        after = fused(oracle, state, room, [view])
        assert after.scene is not None
        assert after.target.error == scored["target_pm_dist_after"][view]
        assert after.scene.error == scored["scene_pm_dist_after"][view]
        assert after.target.coverage == scored["target_coverage_after"][view]
        assert after.target.points - state.target.points == scored["target_candidate_support"][view]


@METRICS
def test_taking_a_view_twice_changes_no_distance(metric: str) -> None:
    room = room_of(2)
    oracle = oracle_of(room, metric=metric)
    once = fused(oracle, oracle.root(room.points), room, [0])
    twice = fused(oracle, once, room, [0])
    assert once.scene is not None
    assert twice.scene is not None
    assert (once.target.d2 == twice.target.d2).all()
    assert (once.scene.d2 == twice.scene.d2).all()
    assert once.target.completeness == twice.target.completeness


@METRICS
def test_the_order_of_views_does_not_matter(metric: str) -> None:
    room = room_of(3)
    oracle = oracle_of(room, metric=metric)
    root = oracle.root(room.points)
    ends = [fused(oracle, root, room, order) for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0])]
    assert len({end.key() for end in ends}) == 1
    assert len({end.target.error for end in ends}) == 1


@METRICS
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_view_never_makes_it_worse(metric: str, seed: int) -> None:
    room = make_room(seed, views=4, size=12)
    oracle = oracle_of(room, metric=metric)
    state = oracle.root(room.points)
    for view in range(4):
        scored = oracle.score(state, room.depth, room.poses, room.camera)
        for region in ("target", "scene"):
            gone = scored[f"{region}_completeness_before"] - scored[f"{region}_completeness_after"]
            more = scored[f"{region}_coverage_after"] - scored[f"{region}_coverage_before"]
            assert gone.min() >= 0
            assert more.min() >= 0
            assert scored[f"{region}_rri"].min() >= 0
        state = fused(oracle, state, room, [view])


@METRICS
def test_root_gains_add_up_to_the_gain_of_the_whole_way(metric: str) -> None:
    room = room_of(4)
    oracle = oracle_of(room, metric=metric)
    root = state = oracle.root(room.points)
    gained = {"target": 0.0, "scene": 0.0}
    logs = 0.0
    for view in range(len(room.poses)):
        scored = oracle.score(state, room.depth, room.poses, room.camera)
        for region in gained:
            gained[region] += scored[f"{region}_root_gain"][view]
        logs += scored["target_log_error_gain"][view]
        state = fused(oracle, state, room, [view])
    assert root.scene is not None
    assert state.scene is not None
    assert state.target.root_error == root.target.error
    whole = (root.target.error - state.target.error) / root.target.error
    assert gained["target"] == pytest.approx(whole, rel=1e-12)
    whole = (root.scene.error - state.scene.error) / root.scene.error
    assert gained["scene"] == pytest.approx(whole, rel=1e-12)
    assert logs == pytest.approx(math.log(root.target.error / state.target.error), rel=1e-12)


@METRICS
def test_cutting_distances_off_is_clipping_them(metric: str) -> None:
    room = room_of(5)
    whole = oracle_of(room, metric=metric, truncation_m=None)
    cut = oracle_of(room, metric=metric, truncation_m=0.3)
    far, near = (fused(each, each.root(room.points), room, [0, 1]) for each in (whole, cut))
    limit = np.float32(0.3 * 0.3)
    assert far.scene is not None
    assert near.scene is not None
    for one, other in ((far.target, near.target), (far.scene, near.scene)):
        assert (np.minimum(one.d2, limit) == other.d2).all()
    assert (far.scene.d2 > limit).any()
    # the points' own distances are cut off too
    assert near.scene.accuracy < far.scene.accuracy


@METRICS
def test_threads_change_nothing(metric: str) -> None:
    room = room_of(6)
    one, two = (oracle_of(room, threads=threads, metric=metric) for threads in (1, 2))
    state = one.root(room.points)
    alone = one.score(state, room.depth, room.poses, room.camera)
    shared = two.score(state, room.depth, room.poses, room.camera)
    assert alone.keys() == shared.keys()
    for name, values in alone.items():
        assert values.tobytes() == shared[name].tobytes(), name


def test_triangles_may_be_cut_as_one_likes() -> None:
    room = make_room(7, views=4, size=40)
    finer = mesh_of(subdivided(subdivided(room.triangles)))
    config = OracleConfig(scene_samples=10_000)
    scored = []
    for geometry in (room.geometry(), SceneGeometry(finer)):
        oracle = Oracle(geometry, room.boxes, 0, config)
        state = oracle.root(room.points)
        scored.append(oracle.score(state, room.depth, room.poses, room.camera))
    for name in ("target_rri", "scene_rri"):
        assert scored[0][name].max() > 0.2
        # what is left is the scatter of 4,000 and 10,000 samples
        assert np.abs(scored[0][name] - scored[1][name]).max() < 0.01


def test_the_world_may_be_moved_and_turned() -> None:
    room = room_of(8)
    carry = poses_of(about_z(0.9) @ look_at([0, 0, 0], [1, 2, 3])[:9].reshape(3, 3), [7, -4, 2])
    triangles = moved(carry, room.triangles)
    boxes = box_around([0, 0, 0], [1, 1, 1])
    boxes.pose_world_object[0] = compose(carry, room.boxes.pose_world_object)[0]
    boxes.extents[0] = room.boxes.extents[0]
    poses = compose(carry, room.poses)
    geometry = SceneGeometry(mesh_of(triangles))
    config = OracleConfig(**SMALL)
    there = Oracle(geometry, boxes, 0, config)
    depth = geometry.depth(poses, room.camera)
    state = there.root(moved(carry, room.points))
    scored = there.score(state, depth, poses, room.camera)
    here = oracle_of(room)
    expected = here.score(here.root(room.points), room.depth, room.poses, room.camera)
    for name in ("target_rri", "scene_rri"):
        # a few pixels at the edges of things see the other side of the edge
        np.testing.assert_allclose(scored[name], expected[name], atol=5e-3)
    state_here = here.root(room.points)
    assert state.target.error == pytest.approx(state_here.target.error, abs=1e-5)


# ------------------------------------------------------------------------------- edges and refusals


def test_a_view_of_nothing_gains_nothing() -> None:
    room = room_of(0)
    oracle = oracle_of(room)
    state = oracle.root(room.points)
    nothing = np.zeros((2, room.camera.height, room.camera.width), np.float32)
    scored = oracle.score(state, nothing, room.poses[:2], room.camera)
    for region in ("target", "scene"):
        for name in ("rri", "root_gain", "log_error_gain"):
            assert (scored[f"{region}_{name}"] == 0).all()
    assert (scored["target_candidate_support"] == 0).all()
    assert fused(oracle, state, room, []).key() == state.key()


def test_no_views_give_empty_columns() -> None:
    room = room_of(0)
    oracle = oracle_of(room)
    size = (0, room.camera.height, room.camera.width)
    scored = oracle.score(
        oracle.root(room.points), np.zeros(size, np.float32), np.zeros((0, 12)), room.camera
    )
    assert {len(values) for values in scored.values()} == {0}


def test_everything_known_already_leaves_gains_of_zero() -> None:
    """An error of exactly 0: the only face has a point on it, and the point is on it."""
    mesh = mesh_of(np.array([[[0, 0, 0], [4, 0, 0], [0, 4, 0]]], np.float64))
    config = OracleConfig(metric="face_sq", render_size_px=8)
    oracle = Oracle(SceneGeometry(mesh), box_around([-1, -1, -1], [5, 5, 1]), 0, config)
    state = oracle.root(np.array([[1.0, 1.0, 0.0]]))
    assert state.target.error == 0
    pose = look_at([1.0, 1.0, 1.0], [1.0, 1.0, 0.0])[None]
    depth = oracle.geometry.depth(pose, config.camera)
    scored = oracle.score(state, depth, pose, config.camera)
    for name in ("target_rri", "target_root_gain", "target_log_error_gain"):
        assert scored[name][0] == 0


@METRICS
def test_targets_of_a_scene_may_share_it(metric: str) -> None:
    room = room_of(1)
    first, alone = oracle_of(room, metric=metric), oracle_of(room, metric=metric)
    other = Oracle(first.geometry, room.boxes, 0, first.config, beside=first)
    state = other.root(room.points, beside=first.root(room.points))
    assert state.key() == alone.root(room.points).key()
    assert other.surfaces["scene"] is first.surfaces["scene"]


def test_columns_without_the_scene() -> None:
    room = room_of(0)
    oracle = oracle_of(room, include_scene=False)
    state = oracle.root(room.points)
    assert state.scene is None
    scored = oracle.score(state, room.depth, room.poses, room.camera)
    assert not [name for name in scored if name.startswith("scene")]
    both = oracle_of(room)
    with_scene = both.score(both.root(room.points), room.depth, room.poses, room.camera)
    assert (scored["target_rri"] == with_scene["target_rri"]).all()
    with pytest.raises(InvalidValue, match=r"state\.scene is missing"):
        both.score(state, room.depth, room.poses, room.camera)
    with pytest.raises(InvalidValue, match="region is 'scene', expected one of target"):
        oracle.distances(state, room.depth, room.poses, room.camera, "scene")


def test_the_state_of_another_oracle_is_refused() -> None:
    room = room_of(0)
    other = oracle_of(room, target_samples=33).root(room.points)
    with pytest.raises(InvalidValue, match=r"state\.target is 33 distances, expected 150"):
        oracle_of(room).fuse(other, room.depth[0], room.poses[0], room.camera)


def test_a_state_cannot_be_changed() -> None:
    room = room_of(0)
    oracle = oracle_of(room)
    state = oracle.root(room.points)
    before = state.key()
    with pytest.raises(ValueError, match="read-only"):
        state.target.d2[0] = 1
    after = fused(oracle, state, room, [0])
    assert state.key() == before != after.key()


def test_points_that_are_not_finite_are_left_out() -> None:
    room = room_of(0)
    oracle = oracle_of(room)
    with_gaps = np.concatenate([room.points, np.full((3, 3), np.nan), [[np.inf, 0, 0]]])
    assert oracle.root(with_gaps).key() == oracle.root(room.points).key()


def test_a_box_of_air_is_refused() -> None:
    room = room_of(0)
    air = box_around([1, 1, 2.1], [1.2, 1.2, 2.3])
    for metric in ("area", "face_sq"):
        with pytest.raises(TargetInvalid) as refusal:
            Oracle(room.geometry(), air, 0, OracleConfig(metric=metric), target_id="lamp")
        assert refusal.value.reason == "TARGET_CROP_EMPTY"
        assert refusal.value.target_id == "lamp"


def test_a_target_without_ground_truth_is_refused() -> None:
    room = room_of(0)
    with pytest.raises(TargetInvalid) as refusal:
        Oracle(room.geometry(), room.boxes, -1, OracleConfig())
    assert refusal.value.reason == "TARGET_GT_UNMATCHED"


def test_too_few_points_on_the_target_are_refused() -> None:
    room = room_of(0)
    oracle = oracle_of(room, min_current_target_points=4)
    inside = oracle.in_target(room.points)
    assert inside.sum() >= 3
    few = np.concatenate([room.points[inside][:3], room.points[~inside]])
    with pytest.raises(TargetInvalid) as refusal:
        oracle.root(few)
    assert refusal.value.reason == "TARGET_SUPPORT_TOO_LOW"
    with pytest.raises(TargetInvalid):
        oracle.root(np.zeros((0, 3)))


def test_images_of_another_size_and_poses_that_are_not_finite_are_refused() -> None:
    room = room_of(0)
    oracle = oracle_of(room)
    state = oracle.root(room.points)
    with pytest.raises(InvalidValue, match="depth"):
        oracle.score(state, room.depth[:, 1:], room.poses, room.camera)
    with pytest.raises(InvalidValue, match="depth"):
        oracle.score(state, room.depth[1:], room.poses, room.camera)
    with pytest.raises(InvalidValue, match="poses"):
        oracle.score(state, room.depth, room.poses[:, :11], room.camera)
    broken = room.poses.copy()
    broken[2, 4] = np.nan
    with pytest.raises(InvalidValue, match=r"poses\[2\]"):
        oracle.score(state, room.depth, broken, room.camera)


def test_images_may_be_read_only_or_of_another_type() -> None:
    room = room_of(0)
    oracle = oracle_of(room)
    state = oracle.root(room.points)
    expected = oracle.score(state, room.depth, room.poses, room.camera)
    frozen = room.depth.copy()
    frozen.flags.writeable = False
    for depth in (frozen, np.asfortranarray(room.depth), room.depth.astype(np.float64)):
        found = oracle.score(state, depth, room.poses, room.camera)
        assert (found["scene_rri"] == expected["scene_rri"]).all()


def test_the_crop_policy_says_how_the_target_was_cut() -> None:
    room = room_of(0)
    assert oracle_of(room).crop_policy == "gt_obb_oriented_clipped_v1"
    assert oracle_of(room, metric="face_sq").crop_policy == "gt_obb_oriented_any_vertex_v1"


# ------------------------------------------------------------------------------------------ config


@pytest.mark.parametrize(
    "wrong",
    [
        {"metric": "chamfer"},
        {"truncation_m": 0.0},
        {"truncation_m": math.nan},
        {"truncation_m": math.inf},
        {"truncation_m": 0.05},
        {"scene_samples": 0},
        {"target_samples": 0},
        {"coverage_radius_m": 0.0},
        {"render_size_px": 0},
        {"field_of_view_deg": 180.0},
        {"near_m": 0.0},
        {"far_m": 0.01},
        {"backprojection_stride": 0},
        {"target_crop_margin_m": -0.1},
        {"min_current_target_points": 0},
        {"root_points": "all"},
        {"seed": -1},
    ],
)
def test_a_config_that_cannot_be_is_refused_by_name(wrong: dict[str, Any]) -> None:
    field = "near_m" if "far_m" in wrong else next(iter(wrong))
    with pytest.raises(ConfigurationError, match=f"OracleConfig.{field} is"):
        OracleConfig(**wrong)


def test_the_camera_of_a_config() -> None:
    config = OracleConfig(render_size_px=64, field_of_view_deg=90.0, near_m=0.1, far_m=5.0)
    camera = config.camera
    assert camera == Camera.square(64, 90.0, near_m=0.1, far_m=5.0)
    assert camera.fx == pytest.approx(32)
