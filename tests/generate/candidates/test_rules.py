"""Rules: every reason that geometry can give is given where a scene was built for it, and nowhere else."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.reasons import (
    INVALID_REASON_CODES,
    VALID_BITSET,
    primary_reasons,
    reason_mask,
)
from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.generate.actor.actor import ActorMap
from rollbook.generate.candidates.families import CandidateMixtureConfig, Proposal, sample_shell
from rollbook.generate.candidates.rules import (
    RuleConfig,
    ShellCheck,
    check_depth,
    check_shell,
    guard_order,
    mark,
    proven_by_sparse_depth,
    sparse_step,
)
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.mesh import TriangleMesh
from rollbook.generate.geometry.poses import centres, look_at
from rollbook.generate.raycast.scene_geometry import SceneGeometry
from rollbook.store.schema import DIAGNOSTICS
from tests.generate.small_views import a_view

Array = NDArray[np.float64]

CAMERA = Camera.square(24)
WIDE = Camera.square(120, 110.0)
ANY_MOTION = RuleConfig.upper_bound_free_shell()
REFERENCE = look_at([1.0, 2.0, 1.5], [3.0, 2.0, 1.5])
TARGET = Boxes.build(
    [1, 0, 0, 0, 1, 0, 0, 0, 1, 3.0, 1.0, 0.4], [0.6, 0.6, 0.8], [1], class_name=["table"]
)


def images_checked(
    bitset: NDArray[np.uint32], depth: NDArray[np.float32], rules: RuleConfig, **given: Any
) -> NDArray[np.uint32]:
    placed = {"poses": np.tile(REFERENCE, (len(depth), 1)), "camera": CAMERA}
    return check_depth(bitset, depth, rules, **{**placed, **given})


def block(low: ArrayLike, high: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
    """Corners and triangles of an upright box."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    corners = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)])
    sides = np.array(
        [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]
    )
    return low + corners * (high - low), np.concatenate([sides[:, [0, 1, 2]], sides[:, [0, 2, 3]]])


def scene(*blocks: tuple[Array, NDArray[np.int64]]) -> SceneGeometry:
    vertices = np.concatenate([corners for corners, _ in blocks])
    faces = np.concatenate([sides + 8 * row for row, (_, sides) in enumerate(blocks)])
    return SceneGeometry(TriangleMesh(vertices, faces))


ROOM = block([0, 0, 0], [4, 4, 3])
TABLE = block([2.7, 0.7, 0.0], [3.3, 1.3, 0.8])
SCREEN = block([0.4, 3.0, 0.0], [2.5, 3.04, 3.0])
FURNISHED = scene(ROOM, TABLE, SCREEN)
EMPTY = scene(ROOM)


def proposed(poses: ArrayLike) -> Proposal:
    rows = np.asarray(poses, np.float64).reshape(-1, 12)
    ids = np.zeros(len(rows), np.int32)
    return Proposal(rows, ids, ids, ids, np.ones(len(rows)))


def check(
    poses: ArrayLike,
    rules: RuleConfig = ANY_MOTION,
    *,
    world: SceneGeometry = FURNISHED,
    target_box: Boxes | None = TARGET,
    **evidence: Any,
) -> ShellCheck:
    return check_shell(
        proposed(poses), REFERENCE, world, rules, target_box=target_box, camera=CAMERA, **evidence
    )


def reasons(bitset: NDArray[np.uint32], row: int = 0) -> set[str]:
    return {name for name, bit in INVALID_REASON_CODES.items() if int(bitset[row]) >> bit & 1}


def looking_ahead(eye: ArrayLike) -> Array:
    return look_at(eye, np.add(eye, [1.0, 0.0, 0.0]))


# -------------------------------------------------------------------------------- standing

SOFA = block([2.0, 1.5, 0.0], [3.0, 2.5, 0.4])
RUG = block([0.5, 0.5, 0.0], [1.5, 1.5, 0.02])
LIVING_ROOM = scene(ROOM, SOFA, RUG)
STANDING = msgspec.structs.replace(ANY_MOTION, require_floor=True)


def stands(eye: ArrayLike, world: Any = LIVING_ROOM, rules: RuleConfig = STANDING) -> bool:
    found = reasons(check(looking_ahead(eye), rules, world=world).bitset)
    assert found in ({"VALID"}, {"CARRIER_CANNOT_STAND"})
    return found == {"VALID"}


def test_a_carrier_stands_on_the_floor_or_a_rug_but_not_on_a_sofa() -> None:
    assert stands([1.0, 1.0, 1.5])
    assert not stands([2.5, 2.0, 1.5])
    # the body needs 20 cm of floor around it
    assert not stands([1.85, 2.0, 1.5])
    assert stands([1.75, 2.0, 1.5])
    assert stands([2.5, 2.0, 1.5], rules=ANY_MOTION)


def test_how_high_a_step_may_be_is_a_setting() -> None:
    climber = msgspec.structs.replace(STANDING, max_floor_step_m=0.41)
    assert stands([2.5, 2.0, 1.5], rules=climber)
    slim = msgspec.structs.replace(STANDING, standing_radius_m=0.1)
    assert stands([1.85, 2.0, 1.5], rules=slim)
    for field in ("standing_radius_m", "max_floor_step_m"):
        with pytest.raises(ConfigurationError, match=f"candidate_rules.{field} is -1"):
            msgspec.structs.replace(STANDING, **{field: -1})


def test_nobody_steps_into_a_stairwell_or_from_the_floor_below_a_table_onto_it() -> None:
    # the upper floor ends at x = 2; beyond it, the lower floor is 2 m further down
    storeys = scene(block([0, 0, -2], [4, 4, 3]), block([0, 0, -0.1], [2.0, 4, 0]))
    assert stands([1.5, 1.5, 1.5], world=storeys)
    assert not stands([2.5, 1.5, 1.5], world=storeys)
    # a camera held over the edge of the sofa is carried by someone who stands beside it
    beside = look_at([1.9, 2.0, 1.5], [3.0, 2.0, 1.5])
    moved = check_shell(
        proposed([looking_ahead([1.5, 2.0, 1.5]), looking_ahead([2.5, 2.0, 1.5])]),
        beside,
        LIVING_ROOM,
        STANDING,
        target_box=TARGET,
        camera=CAMERA,
    )
    assert moved.valid.tolist() == [True, False]


def test_where_no_floor_is_known_a_carrier_may_stand() -> None:
    """A scan of an object has no floor, and a scanned floor has holes."""
    table_alone = scene(TABLE, block([0, 0, 0], [0.1, 0.1, 3]), block([3.9, 3.9, 0], [4, 4, 3]))
    assert stands([1.5, 2.0, 1.5], world=table_alone)
    assert np.isnan(table_alone.floor_below([1.0, 2.0, 1.5], 0.2))
    assert np.isnan(table_alone.highest_below([[1.5, 2.0, 1.5]], 0.2)).all()


def test_the_actor_judges_by_what_it_has_seen() -> None:
    beside, over = looking_ahead([1.5, 1.0, 1.5]), looking_ahead([2.5, 2.0, 1.5])
    view = a_view(REFERENCE)
    blind = ActorMap.from_view(view)
    seen = blind.fused(LIVING_ROOM.depth(REFERENCE[None], WIDE)[0], REFERENCE, WIDE)

    def believed(world: ActorMap) -> list[bool]:
        shell = proposed([beside, over])
        checked = check_shell(shell, REFERENCE, world, STANDING, target_box=TARGET, camera=CAMERA)
        return [("CARRIER_CANNOT_STAND" in reasons(checked.bitset, row)) for row in range(2)]

    assert believed(blind) == [False, False]
    assert believed(seen) == [False, True]


# -------------------------------------------------------------------------------- before rendering


def test_a_pose_in_the_open_is_valid() -> None:
    checked = check(looking_ahead([1.5, 2.0, 1.5]), RuleConfig())
    assert reasons(checked.bitset) == {"VALID"}
    assert checked.valid.all()
    assert checked.bitset.dtype == np.uint32


def test_a_pose_that_is_not_finite_is_looked_at_no_further() -> None:
    poses = np.stack([looking_ahead([1.5, 2.0, 1.5])] * 4)
    poses[0, 10], poses[2, 4], poses[3, 9] = np.nan, np.inf, 1e39
    checked = check(poses)
    assert [reasons(checked.bitset, row) for row in range(4)] == [
        {"POSE_NONFINITE"},
        {"VALID"},
        {"POSE_NONFINITE"},
        {"POSE_NONFINITE"},
    ]
    for name, values in checked.diagnostics.items():
        if name == "path_collision_mask":
            assert not values.any()
        else:
            np.testing.assert_array_equal(np.isnan(values), [True, False, True, True], err_msg=name)
    nothing_finite = check(np.full((2, 12), np.nan))
    assert reasons(nothing_finite.bitset, 1) == {"POSE_NONFINITE"}


def test_a_centre_outside_the_extent_and_behind_a_wall_has_all_its_reasons() -> None:
    checked = check(looking_ahead([-0.5, 2.0, 1.5]))
    assert reasons(checked.bitset) == {"POSE_OUT_OF_EXTENT", "PATH_SEGMENT_COLLISION"}
    assert checked.diagnostics["free_space_margin_m"][0] == pytest.approx(-0.5)
    both_ways_out = check(looking_ahead([-0.3, -0.4, 1.5]))
    assert both_ways_out.diagnostics["free_space_margin_m"][0] == pytest.approx(-0.5)


def test_a_body_may_not_poke_out_of_the_extent_though_its_centre_is_inside() -> None:
    # nothing but a floor and a far post: the extent's sides are open, so only the extent can object
    world = scene(block([0, 0, -0.1], [4, 4, 0]), block([3.9, 3.9, 0], [4, 4, 3]))
    checked = check(looking_ahead([1.0, 0.05, 1.5]), world=world)
    assert reasons(checked.bitset) == {"CAMERA_OUT_OF_EXTENT"}
    assert checked.diagnostics["free_space_margin_m"][0] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        (0.05, {"COLLISION_MESH", "CLEARANCE_TOO_SMALL", "PATH_SEGMENT_COLLISION"}),
        (0.15, {"CLEARANCE_TOO_SMALL"}),
        (0.25, {"VALID"}),
    ],
)
def test_a_body_keeps_its_distance_from_the_mesh(gap: float, expected: set[str]) -> None:
    checked = check(looking_ahead([3.0, 1.0, 0.8 + gap]))
    assert reasons(checked.bitset) == expected
    assert checked.diagnostics["mesh_distance_m"][0] == pytest.approx(gap, abs=1e-5)


class AtDistance:
    """Everything is exactly so far away from a surface, and no path crosses one."""

    def __init__(self, distance_m: float) -> None:
        self._distance_m = distance_m
        self.bounds = np.array([[0.0, 0.0, 0.0], [4.0, 4.0, 3.0]])

    def distance(self, points: Array, bound: float, /) -> Array:
        return np.full(len(points), self._distance_m)

    def path_clearance(self, start: Array, ends: Array, samples: int, bound: float, /) -> Array:
        return np.full(len(ends), self._distance_m)

    def path_hits(self, start: Array, ends: Array, /) -> NDArray[np.bool_]:
        return np.zeros(len(ends), np.bool_)

    def floor_below(self, point: Array, radius: float, /) -> float:
        return 0.0

    def highest_below(self, points: Array, radius: float, /) -> Array:
        return np.zeros(len(points))


@pytest.mark.parametrize(
    ("distance_m", "expected"),
    [
        (0.0625, {"COLLISION_MESH", "CLEARANCE_TOO_SMALL", "PATH_SEGMENT_COLLISION"}),
        (0.125, {"CLEARANCE_TOO_SMALL", "PATH_SEGMENT_COLLISION"}),
        (0.1875, {"CLEARANCE_TOO_SMALL"}),
        (0.25, {"CLEARANCE_TOO_SMALL"}),
        (0.2500001, {"VALID"}),
    ],
)
def test_a_body_may_touch_its_radius_and_has_to_be_farther_than_the_least_distance(
    distance_m: float, expected: set[str]
) -> None:
    """At the limit itself: a sphere that only touches does not collide; a clearance that is only met is too small."""
    rules = msgspec.structs.replace(
        ANY_MOTION, body_radius_m=0.125, step_clearance_m=0.1875, min_distance_to_mesh_m=0.25
    )
    world = AtDistance(distance_m)
    poses = proposed(looking_ahead([2.0, 2.0, 1.5]))
    checked = check_shell(poses, REFERENCE, world, rules, target_box=None, camera=CAMERA)
    assert reasons(checked.bitset) == expected


def test_a_collision_is_too_little_clearance_whatever_clearance_is_asked_for() -> None:
    rules = msgspec.structs.replace(ANY_MOTION, min_distance_to_mesh_m=0.01, step_clearance_m=0.0)
    checked = check(looking_ahead([3.0, 1.0, 0.85]), rules)
    assert reasons(checked.bitset) == {"COLLISION_MESH", "CLEARANCE_TOO_SMALL"}


def test_a_way_through_a_screen_collides_though_both_ends_are_free() -> None:
    checked = check([looking_ahead([1.5, 3.5, 1.5]), looking_ahead([1.5, 2.5, 1.5])])
    assert reasons(checked.bitset) == {"PATH_SEGMENT_COLLISION"}
    np.testing.assert_array_equal(checked.diagnostics["path_collision_mask"], [True, False])
    # a stride between samples jumps over the screen: that the way crosses it is seen all the same
    few = msgspec.structs.replace(ANY_MOTION, path_samples=2, step_clearance_m=0.0)
    assert reasons(check(looking_ahead([1.5, 3.5, 1.5]), few).bitset) == {"PATH_SEGMENT_COLLISION"}


def test_a_way_too_close_to_a_surface_collides() -> None:
    # past the end of the screen at x = 2.5, from free to free
    eye = [3.4, 3.5, 1.5]
    checked = check(looking_ahead(eye))
    along = np.linspace(0, 1, 4000)[:, None] * (np.array(eye) - [1, 2, 1.5]) + [1, 2, 1.5]
    least = FURNISHED.distance(along.astype(np.float32)).min()
    assert 0.01 < least < 0.1
    assert reasons(checked.bitset) == {"PATH_SEGMENT_COLLISION"}
    assert checked.diagnostics["path_min_clearance_m"][0] == pytest.approx(least, abs=0.02)


def test_a_view_that_leaves_the_extent_behind_is_out_of_bounds() -> None:
    outward = look_at([-0.5, 2.0, 1.5], [-3.0, 2.0, 1.5])
    assert "FRUSTUM_OUT_OF_BOUNDS" in reasons(check(outward).bitset)
    assert "FRUSTUM_OUT_OF_BOUNDS" not in reasons(check(looking_ahead([-0.5, 2, 1.5])).bitset)


def test_a_view_without_the_target_is_out_of_bounds_if_that_is_asked_for() -> None:
    asked = msgspec.structs.replace(ANY_MOTION, require_target_in_view=True)
    away = look_at([1.5, 2.0, 1.5], [0.0, 3.0, 1.5])
    # only a corner of the box is in this view, not its centre
    corner = look_at([1.5, 2.0, 1.5], [2.7, 3.9, 1.4])
    towards = look_at([1.5, 2.0, 1.5], [3.0, 1.0, 0.4])
    assert not CAMERA.sees([3.0, 1.0, 0.4], corner)
    checked = check([away, corner, towards], asked)
    assert reasons(checked.bitset, 0) == {"FRUSTUM_OUT_OF_BOUNDS"}
    assert reasons(checked.bitset, 2) == {"VALID"}
    assert reasons(check(away).bitset) == {"VALID"}
    with pytest.raises(ConfigurationError, match="require_target_in_view"):
        check(away, asked, target_box=None)


def test_a_pose_that_was_proposed_before_is_a_duplicate() -> None:
    first, turned = looking_ahead([1.5, 2.0, 1.5]), look_at([1.5, 2.0, 1.5], [3.0, 3.0, 1.5])
    nearly = looking_ahead([1.5, 2.0, 1.5004])
    checked = check([first, turned, nearly, REFERENCE, looking_ahead([1.5, 2.0, 1.51])])
    assert [sorted(reasons(checked.bitset, row)) for row in range(5)] == [
        ["VALID"],
        ["VALID"],
        ["CANDIDATE_DUPLICATE"],
        ["CANDIDATE_DUPLICATE"],
        ["VALID"],
    ]


@pytest.mark.parametrize(
    ("pose", "limit", "column", "value"),
    [
        (looking_ahead([2.2, 2.0, 1.5]), "max_step_length_m", "motion_step_length_m", 1.2),
        (looking_ahead([1.3, 2.0, 1.9]), "max_height_delta_m", "motion_height_delta_m", 0.4),
        (looking_ahead([1.3, 2.0, 1.1]), "max_height_delta_m", "motion_height_delta_m", -0.4),
        (looking_ahead([0.6, 2.0, 1.5]), "max_backward_step_m", "motion_backward_step_m", 0.4),
        (look_at([1.5, 2, 1.5], [1.5, 3, 1.5]), "max_yaw_delta_deg", "motion_yaw_delta_deg", 90),
        (look_at([1.5, 2, 1.5], [1.5, 1, 1.5]), "max_yaw_delta_deg", "motion_yaw_delta_deg", -90),
    ],
)
def test_a_move_no_person_makes_is_rejected_by_its_own_limit(
    pose: Array, limit: str, column: str, value: float
) -> None:
    checked = check(pose, RuleConfig.reference())
    assert reasons(checked.bitset) == {"SAMPLER_RULE_REJECTED"}
    assert checked.diagnostics[column][0] == pytest.approx(value, abs=1e-5)
    without = msgspec.structs.replace(RuleConfig.reference(), **{limit: None})
    assert reasons(check(pose, without).bitset) == {"VALID"}


def test_by_default_an_actor_turns_round_and_steps_back() -> None:
    rules = RuleConfig()
    assert (rules.max_yaw_delta_deg, rules.max_backward_step_m) == (180.0, 1.0)
    behind = look_at([0.3, 2.0, 1.5], [0.0, 2.0, 1.5])
    assert reasons(check(behind, rules).bitset) == {"VALID"}
    assert reasons(check(behind, RuleConfig.reference()).bitset) == {"SAMPLER_RULE_REJECTED"}


def test_height_is_along_the_worlds_up_and_backward_along_the_ground() -> None:
    # the reference looks steeply down: to rise is no step back, to go aside is no change of height
    steep = look_at([1.0, 2.0, 1.5], [1.2, 2.0, 0.5])
    poses = [looking_ahead([1.0, 2.0, 1.9]), looking_ahead([1.0, 1.3, 1.5])]
    checked = check_shell(
        proposed(poses), steep, FURNISHED, ANY_MOTION, target_box=TARGET, camera=CAMERA
    )
    found = checked.diagnostics
    np.testing.assert_allclose(found["motion_height_delta_m"], [0.4, 0], atol=1e-6)
    np.testing.assert_allclose(found["motion_backward_step_m"], [0, 0], atol=1e-6)
    np.testing.assert_allclose(found["motion_step_length_m"], [0.4, 0.7], atol=1e-6)


def test_every_failed_rule_leaves_its_bit() -> None:
    pose = look_at([-0.05, 3.5, 2.0], [-3.0, 3.5, 2.0])
    found = reasons(check([pose, pose], RuleConfig()).bitset, 1)
    assert found == {
        "POSE_OUT_OF_EXTENT",
        "COLLISION_MESH",
        "CLEARANCE_TOO_SMALL",
        "PATH_SEGMENT_COLLISION",
        "FRUSTUM_OUT_OF_BOUNDS",
        "CANDIDATE_DUPLICATE",
        "SAMPLER_RULE_REJECTED",
    }


def test_too_few_semidense_points_in_view_are_a_reason_if_asked_for() -> None:
    points = np.array([[3.0, 2.0, 1.5], [3.0, 2.1, 1.5], [0.2, 2.0, 1.5], [np.nan, 2.0, 1.5]])
    pose = looking_ahead([1.5, 2.0, 1.5])
    for least, expected in ((2, "VALID"), (3, "SEMIDENSE_SUPPORT_TOO_LOW")):
        rules = msgspec.structs.replace(ANY_MOTION, min_semidense_points=least)
        assert reasons(check(pose, rules, points=points).bitset) == {expected}
    with pytest.raises(ConfigurationError, match="min_semidense_points is 3"):
        check(pose, rules)


def test_a_target_of_which_nothing_was_observed_is_a_reason_if_asked_for() -> None:
    rules = msgspec.structs.replace(ANY_MOTION, require_target_evidence=True)
    pose = look_at([1.5, 2.0, 1.5], [3.0, 1.0, 0.4])
    away = look_at([1.5, 2.0, 1.5], [0.0, 3.0, 1.5])
    elsewhere, on_it = np.array([[3.0, 2.0, 0.7]]), np.array([[2.8, 1.0, 0.7]])
    assert reasons(check(pose, rules, observed=on_it).bitset) == {"VALID"}
    for voxels, at in ((elsewhere, pose), (on_it, away), (np.zeros((0, 3)), pose)):
        checked = check(at, rules, observed=voxels)
        assert reasons(checked.bitset) == {"EVL_EVIDENCE_MISSING"}
    with pytest.raises(ConfigurationError, match="require_target_evidence"):
        check(pose, rules)


def test_the_same_rules_run_on_any_surroundings() -> None:
    behind_screen = looking_ahead([1.5, 3.5, 1.5])
    assert reasons(check(behind_screen).bitset) == {"PATH_SEGMENT_COLLISION"}
    assert reasons(check(behind_screen, world=EMPTY).bitset) == {"VALID"}


@pytest.mark.parametrize("wrong", [np.full(12, np.nan), np.zeros(7)])
def test_a_reference_has_to_be_a_finite_pose(wrong: Array) -> None:
    with pytest.raises(InvalidValue, match="reference_pose"):
        check_shell(proposed(REFERENCE), wrong, EMPTY, ANY_MOTION, target_box=None, camera=CAMERA)


def test_a_target_box_has_to_be_one_box_with_volume() -> None:
    flat = Boxes.build(TARGET.pose_world_object, [[0.6, 0.0, 0.8]], [1])
    for wrong in (Boxes.none(), flat):
        with pytest.raises(InvalidValue, match="target_box"):
            check(REFERENCE, target_box=wrong)


# ------------------------------------------------------------------------------------ diagnostics


def test_diagnostics_are_the_columns_the_store_keeps() -> None:
    checked = check(looking_ahead([1.5, 2.0, 1.5]))
    assert set(checked.diagnostics) == {
        *("mesh_distance_m", "path_min_clearance_m", "path_collision_mask", "free_space_margin_m"),
        *("motion_step_length_m", "motion_height_delta_m", "motion_backward_step_m"),
        *("motion_yaw_delta_deg", "target_distance_m", "target_bearing_yaw_deg"),
    }
    for name, values in checked.diagnostics.items():
        assert values.dtype == DIAGNOSTICS.columns[name].numpy, name
        assert values.shape == (1,)


def test_the_targets_bearing_is_seen_from_where_a_candidate_faces() -> None:
    left = look_at([2.0, 1.0, 1.5], [2.0, 2.0, 1.5])
    checked = check([left, looking_ahead([2.0, 1.0, 1.5])])
    np.testing.assert_allclose(checked.diagnostics["target_bearing_yaw_deg"], [-90, 0], atol=1e-4)
    np.testing.assert_allclose(
        checked.diagnostics["target_distance_m"], np.hypot(1.0, 1.1), rtol=1e-6
    )
    without = check(left, target_box=None)
    assert np.isnan(without.diagnostics["target_distance_m"]).all()
    assert np.isnan(without.diagnostics["target_bearing_yaw_deg"]).all()


def test_distances_are_measured_no_farther_than_asked() -> None:
    rules = msgspec.structs.replace(ANY_MOTION, distance_range_m=0.5)
    far, near = looking_ahead([2.0, 2.0, 1.5]), looking_ahead([2.0, 0.3, 1.5])
    checked = check([far, near], rules)
    np.testing.assert_allclose(checked.diagnostics["mesh_distance_m"], [0.5, 0.3], atol=1e-5)
    assert (checked.diagnostics["path_min_clearance_m"] <= 0.5).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["default", "rich", "radial", "free"]))
def test_rules_hold_for_whatever_is_proposed(seed: int, preset: str) -> None:
    mixture, rules = {
        "default": (CandidateMixtureConfig(), RuleConfig()),
        "rich": (
            CandidateMixtureConfig.rich_local_five_family(),
            RuleConfig.rich_local_five_family(),
        ),
        "radial": (
            CandidateMixtureConfig.radial_target_backtrack_family(),
            RuleConfig.radial_target_backtrack_family(),
        ),
        "free": (CandidateMixtureConfig.upper_bound_free_shell(), ANY_MOTION),
    }[preset]
    rng = np.random.default_rng(seed)
    proposal = sample_shell(mixture, REFERENCE, TARGET.centres[0], centres(REFERENCE)[None], rng)
    checked = check(proposal.poses, rules)
    bits, found = checked.bitset, checked.diagnostics
    assert ((bits == VALID_BITSET) == (bits & 1 == 1)).all()
    assert (bits != 0).all()
    np.testing.assert_array_equal(
        found["path_collision_mask"], bits & reason_mask("PATH_SEGMENT_COLLISION") != 0
    )
    valid = checked.valid
    assert (found["mesh_distance_m"][valid] > rules.min_distance_to_mesh_m).all()
    assert (found["free_space_margin_m"][valid] >= rules.body_radius_m).all()
    assert (found["path_min_clearance_m"][valid] >= rules.step_clearance_m).all()
    # a looser rule takes reasons away, and adds none
    looser = check(
        proposal.poses, msgspec.structs.replace(rules, min_distance_to_mesh_m=0.1)
    ).bitset
    assert ((looser & ~np.uint32(VALID_BITSET)) & ~bits == 0).all()
    primary_reasons(bits)  # every row has one to show


# ------------------------------------------------------------------------------------------ images


def images(*poses: Array, world: SceneGeometry = FURNISHED) -> NDArray[np.float32]:
    return world.depth(np.stack(poses), CAMERA)


VALID = np.full(1, VALID_BITSET, np.uint32)


def test_an_image_of_a_room_is_no_reason() -> None:
    pose = looking_ahead([1.5, 2.0, 1.5])
    depth = images(pose)
    assert reasons(images_checked(VALID, depth, RuleConfig())) == {"VALID"}
    placed = images_checked(
        VALID, depth, RuleConfig(), poses=pose[None], camera=CAMERA, bounds=FURNISHED.bounds
    )
    assert reasons(placed) == {"VALID"}


def test_an_image_without_a_hit_says_so() -> None:
    post = scene(block([3.0, 1.9, 1.4], [3.1, 2.1, 1.6]))
    away = images(look_at([1.5, 2.0, 1.5], [0.0, 2.0, 1.5]), world=post)
    assert reasons(images_checked(VALID, away, RuleConfig())) == {
        "DEPTH_NO_HIT",
        "DEPTH_TOO_SPARSE",
    }
    lenient = RuleConfig(min_hit_fraction=0.0)
    assert reasons(images_checked(VALID, away, lenient)) == {"DEPTH_NO_HIT"}


def test_an_image_with_few_hits_is_too_sparse() -> None:
    post = scene(block([3.0, 1.9, 1.4], [3.1, 2.1, 1.6]))
    depth = images(looking_ahead([1.5, 2.0, 1.5]), world=post)
    assert 0 < np.count_nonzero(depth) < 0.05 * depth.size
    assert reasons(images_checked(VALID, depth, RuleConfig())) == {"DEPTH_TOO_SPARSE"}


def test_hits_of_which_no_point_is_left_are_said_apart_from_no_hits() -> None:
    depth = np.zeros((1, 24, 24), np.float32)
    depth[0, 1::2, 1::2] = 2.0
    strided = RuleConfig(backprojection_stride=2)
    assert reasons(images_checked(VALID, depth, strided)) == {"BACKPROJECT_EMPTY"}
    assert reasons(images_checked(VALID, depth, RuleConfig())) == {"VALID"}
    # all that is hit lies 3 m away, outside the extent and its margin
    pose = looking_ahead([1.5, 2.0, 1.5])
    depth = np.full((1, 24, 24), 3.0, np.float32)
    bounds = np.array([[0, 0, 0], [4.35, 4, 3]])
    for margin, expected in ((0.1, "BACKPROJECT_EMPTY"), (0.2, "VALID")):
        rules = RuleConfig(extent_margin_m=margin)
        given_extent = images_checked(
            VALID, depth, rules, poses=pose[None], camera=CAMERA, bounds=bounds
        )
        assert reasons(given_extent) == {expected}


def test_depths_that_are_no_numbers_are_no_hits() -> None:
    depth = np.full((2, 24, 24), np.nan, np.float32)
    depth[1] = np.inf
    both = np.full(2, VALID_BITSET, np.uint32)
    poses = np.stack([REFERENCE, REFERENCE])
    for found in (
        images_checked(both, depth, RuleConfig()),
        images_checked(both, depth, RuleConfig(), poses=poses, camera=CAMERA, bounds=EMPTY.bounds),
    ):
        assert "DEPTH_NO_HIT" in reasons(found, 0) & reasons(found, 1)


def test_too_few_pixels_on_the_target_are_a_reason_if_asked_for() -> None:
    towards = look_at([1.5, 2.0, 1.5], [3.0, 1.0, 0.4])
    away = look_at([1.5, 2.0, 1.5], [0.0, 2.0, 1.5])
    depth = images(towards, away)
    box = Boxes.build(TARGET.pose_world_object, TARGET.extents * 1.05, [1])
    on_box = np.count_nonzero(box.contains(0, CAMERA.points(depth[0], towards)))
    assert on_box > 10
    both = np.full(2, VALID_BITSET, np.uint32)
    for least, first in ((on_box, "VALID"), (on_box + 1, "TARGET_VISIBILITY_TOO_LOW")):
        rules = RuleConfig(min_target_pixels=int(least))
        given_box = images_checked(
            both, depth, rules, poses=[towards, away], camera=CAMERA, target_box=box
        )
        assert reasons(given_box, 0) == {first}
        assert reasons(given_box, 1) == {"TARGET_VISIBILITY_TOO_LOW"}
    with pytest.raises(ConfigurationError, match="min_target_pixels"):
        images_checked(both, depth, rules)
    with pytest.raises(ConfigurationError, match="min_target_pixels"):
        images_checked(
            both, depth, rules, poses=[towards, away], camera=CAMERA, bounds=EMPTY.bounds
        )


def test_images_are_those_of_the_rows_still_valid() -> None:
    bitset = np.array([1, reason_mask("COLLISION_MESH"), 1], np.uint32)
    depth = np.ones((2, 24, 24), np.float32)
    depth[1] = 0
    checked = images_checked(bitset, depth, RuleConfig())
    assert reasons(checked, 0) == {"VALID"}
    assert reasons(checked, 1) == {"COLLISION_MESH"}
    assert reasons(checked, 2) == {"DEPTH_NO_HIT", "DEPTH_TOO_SPARSE"}
    np.testing.assert_array_equal(bitset, [1, reason_mask("COLLISION_MESH"), 1])
    with pytest.raises(InvalidValue, match="depth is of 3 rows"):
        images_checked(bitset, np.ones((3, 24, 24), np.float32), RuleConfig())
    nothing_left = images_checked(bitset[1:2], np.zeros((0, 24, 24), np.float32), RuleConfig())
    assert reasons(nothing_left) == {"COLLISION_MESH"}


def test_a_renderer_that_changes_order_or_shape_is_found_out() -> None:
    bitset = np.array([1, 1, reason_mask("COLLISION_MESH"), 1], np.uint32)
    depth = np.ones((3, 24, 24), np.float32)
    np.testing.assert_array_equal(guard_order(bitset, [0, 1, 3], depth, CAMERA), bitset)
    swapped = guard_order(bitset, [1, 0, 3], depth, CAMERA)
    assert [sorted(reasons(swapped, row)) for row in range(4)] == [
        ["CANDIDATE_ORDER_GUARD_FAILED"],
        ["CANDIDATE_ORDER_GUARD_FAILED"],
        ["COLLISION_MESH"],
        ["VALID"],
    ]
    for rows, wrong in (([0, 1], depth), ([0, 1, 3], depth[:, :20]), ([0, 1, 3], depth[:2])):
        guarded = guard_order(bitset, rows, wrong, CAMERA)
        assert [1 in (int(bits) & 1,) for bits in guarded] == [False] * 4


# ----------------------------------------------------------------------------------------- bitsets


def test_rows_are_marked_by_number_or_by_mask() -> None:
    bitset = np.full(3, VALID_BITSET, np.uint32)
    expected = [1, reason_mask("RUNTIME_ERROR"), 1]
    for rows in ([1], np.array([False, True, False]), np.array([1, 1])):
        np.testing.assert_array_equal(mark(bitset, rows, "RUNTIME_ERROR"), expected)
    np.testing.assert_array_equal(mark(bitset, [], "RUNTIME_ERROR"), bitset)
    with pytest.raises(InvalidValue, match="name"):
        mark(bitset, [1], "TIRED")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"body_radius_m": -0.1}, "body_radius_m is -0.1"),
        ({"min_distance_to_mesh_m": np.nan}, "min_distance_to_mesh_m is nan"),
        ({"min_distance_to_mesh_m": 2.0}, "min_distance_to_mesh_m is 2.0, expected less than"),
        ({"distance_range_m": np.inf}, "distance_range_m is inf"),
        ({"max_step_length_m": -1.0}, "max_step_length_m is -1.0"),
        ({"max_yaw_delta_deg": np.nan}, "max_yaw_delta_deg is nan"),
        ({"path_samples": 1}, "path_samples is 1, expected at least 2"),
        ({"backprojection_stride": 0}, "backprojection_stride is 0"),
        ({"min_hit_fraction": 1.5}, "min_hit_fraction is 1.5"),
        ({"min_target_pixels": -1}, "min_target_pixels is -1"),
    ],
)
def test_rules_that_cannot_be_are_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"candidate_rules\.{message}"):
        RuleConfig(**wrong)


# ------------------------------------------------------------------------- verdicts with less work


@settings(max_examples=60, deadline=None)
@given(
    filled=st.floats(0, 1),
    hits=st.sampled_from([0.0, 0.02, 0.05, 0.3, 1.0]),
    stride=st.integers(1, 4),
    on_target=st.sampled_from([0, 1, 40]),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_a_sparse_image_proves_holds_for_the_whole_one(
    filled: float, hits: float, stride: int, on_target: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rules = RuleConfig(
        min_hit_fraction=hits, backprojection_stride=stride, min_target_pixels=on_target
    )
    depth = np.where(rng.random((8, 24, 24)) < filled, rng.uniform(0.5, 3, (8, 24, 24)), 0)
    depth = depth.astype(np.float32)
    poses, every = np.tile(REFERENCE, (8, 1)), sparse_step(rules)
    limits: dict[str, Any] = {"bounds": FURNISHED.bounds, "target_box": TARGET}
    proven = proven_by_sparse_depth(
        depth[:, ::every, ::every], rules, poses=poses, camera=CAMERA, every=every, **limits
    )
    whole = images_checked(np.full(8, VALID_BITSET, np.uint32), depth, rules, **limits)
    assert (whole[proven] == VALID_BITSET).all()
    if every == 1:
        assert (proven == (whole == VALID_BITSET)).all()


def test_an_image_full_of_surfaces_is_proven_by_a_sixteenth_of_it() -> None:
    poses = np.tile(REFERENCE, (2, 1))
    rules = RuleConfig()
    every = sparse_step(rules)
    depth = EMPTY.depth(poses, CAMERA, every=every)
    assert every == 4
    assert proven_by_sparse_depth(depth, rules, poses=poses, camera=CAMERA, every=every).all()


@settings(max_examples=40, deadline=None)
@given(
    radius=st.floats(0, 0.5),
    least=st.floats(0, 0.5),
    clearance=st.floats(0, 0.5),
    seed=st.integers(0, 2**32 - 1),
)
def test_verdicts_need_no_long_distances(
    radius: float, least: float, clearance: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rules = RuleConfig(
        body_radius_m=radius, min_distance_to_mesh_m=least, step_clearance_m=clearance
    )
    poses = look_at(rng.uniform(-0.2, 4.2, (40, 3)), rng.uniform(0, 4, (40, 3)))
    assert rules.for_verdicts().distance_range_m < rules.distance_range_m
    assert (check(poses, rules.for_verdicts()).bitset == check(poses, rules).bitset).all()


def test_a_distance_exactly_at_a_limit_keeps_its_verdict() -> None:
    """The middle of the room is 1.5 m from floor and ceiling, and float32 holds these numbers exactly."""
    rules = msgspec.structs.replace(ANY_MOTION, min_distance_to_mesh_m=1.5)
    poses = look_at([[2.0, 2.0, 1.5]], [2.0, 4.0, 1.5])
    for each in (rules, rules.for_verdicts()):
        assert reasons(check(poses, each, world=EMPTY).bitset) == {"CLEARANCE_TOO_SMALL"}
