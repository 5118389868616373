from __future__ import annotations

import inspect
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rollbook.errors import InvalidBoxes, InvalidValue
from rollbook.generate.actor.actor import ActorState
from rollbook.generate.actor.features import (
    FEATURE_MEANINGS,
    FEATURES,
    RAY_RANGE_M,
    candidate_features,
)
from rollbook.generate.actor.voxels import FREE, OCCUPIED, RAY_COLUMNS, TARGET, UNKNOWN, march
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.poses import compose, look_at, poses_of, rotations
from rollbook.generate.sources.reader import SourceStore
from rollbook.generate.sources.writer import SourceStoreWriter
from tests.generate.small_views import CAMERA, a_box, a_view, a_walk, inside, walked
from tests.generate.source_rows import room, some_boxes, some_row

AHEAD = look_at([-2.0, 0.0, 0.0], [0.0, 0.0, 0.0])
"""Two metres from the origin, looking at it along +x."""
FINE = Camera.square(120)
"""Its pixels are small enough to leave no holes in a wall."""


def features_of(
    state: ActorState, poses: Any, *, target: Boxes | None = None, **changed: Any
) -> dict[str, NDArray[np.float32]]:
    """Columns by name; the reference is the last pose of the state."""
    given = np.asarray(poses, np.float64).reshape(-1, 12)
    options: dict[str, Any] = {
        "reference_pose": state.poses[-1],
        "target": a_box() if target is None else target,
        "camera": CAMERA,
        "strategy_id": np.full(len(given), 3),
        "mixture_id": np.full(len(given), 1),
        "density": np.full(len(given), math.e),
        "valid_actor": np.ones(len(given), np.bool_),
        "step_index": 0,
        "horizon": 3,
        **changed,
    }
    table = candidate_features(state, given, **options)
    assert table.shape == (len(given), len(FEATURES))
    assert table.dtype == np.float32
    return dict(zip(FEATURES, table.T, strict=True))


def some_candidates(rng: np.random.Generator, count: int = 12) -> NDArray[np.float64]:
    eyes = rng.uniform((-1, -3, -0.5), (1, -1, 1.5), (count, 3))
    return look_at(eyes, rng.normal(0, 0.3, (count, 3)))


# ------------------------------------------------------------------------------------ known scenes


def test_a_box_straight_ahead_has_the_bearing_distance_and_area_it_should() -> None:
    state = ActorState.from_view(a_view(AHEAD))
    found = features_of(state, AHEAD, target=a_box(extents=(2, 1, 1)))
    diagonal = math.sqrt(6)
    assert found["rel_pos_target_x"][0] == pytest.approx(-2 / diagonal)
    assert [found[f"rel_pos_target_{c}"][0] for c in "yz"] == [0, 0]
    assert found["dist_target"][0] == 2
    assert found["cos_bearing"][0] == pytest.approx(1)
    assert found["elev_sin"][0] == pytest.approx(0)
    # its near face is 1 m away and 1 m wide; a view of 90 degrees is 2 m wide there
    assert found["obb_area_frac"][0] == pytest.approx(0.25)
    assert found["obb_corners_in_frac"][0] == 1
    assert [found[f"target_ext_{c}"][0] for c in "xyz"] == [2, 1, 1]
    assert found["target_confidence"][0] == pytest.approx(0.8)
    assert found["target_sem_id"][0] == 7
    assert found["sampler_log_density"][0] == pytest.approx(1)
    assert (found["step_index"][0], found["remaining"][0]) == (0, 3)


def test_bearing_and_elevation_have_the_right_sign() -> None:
    state = ActorState.from_view(a_view(AHEAD))
    away = look_at([-2.0, 0, 0], [-5.0, 0, 0])
    above = look_at([0.0, -1.0, 1.0], [0.0, 0.0, 0.0])
    found = features_of(state, [away, above])
    assert found["cos_bearing"] == pytest.approx([-1, 1])
    assert found["elev_sin"] == pytest.approx([0, math.sqrt(0.5)])
    assert found["obb_area_frac"][0] == 0
    assert found["obb_corners_in_frac"][0] == 0


def test_moves_are_measured_from_the_reference() -> None:
    state = ActorState.from_view(a_view(AHEAD))
    turned = look_at([-2.0, 0.5, 0.0], [-2.0, 5.0, 0.0])
    found = features_of(state, [AHEAD, turned])
    assert found["trans_m"] == pytest.approx([0, 0.5])
    assert found["rot_rad"] == pytest.approx([0, math.pi / 2])
    relative = np.array([found[f"pose_rel_ref_{c}"] for c in FEATURES_OF_POSE])
    assert relative[:, 0] == pytest.approx([1, 0, 0, 0, 1, 0, 0, 0, 0], abs=1e-7)
    # half a metre to the left of the reference; its x axis points back along the reference's z
    assert relative[:, 1] == pytest.approx([0, 0, 1, 0, 1, 0, -0.5, 0, 0], abs=1e-7)


FEATURES_OF_POSE = ("r0", "r1", "r2", "r3", "r4", "r5", "tx", "ty", "tz")


def test_the_path_grows_with_every_move() -> None:
    state = ActorState.from_view(a_view([look_at([-9.0, 0, 0], [0.0, 0, 0]), AHEAD]))
    depth = np.zeros((32, 32), np.float32)
    one = look_at([-2.0, 1.0, 0], [0.0, 0, 0])
    two = look_at([-1.0, 1.0, 0], [0.0, 0, 0])
    after = state.advanced(one, depth, CAMERA).advanced(two, depth, CAMERA)
    found = features_of(after, look_at([-1.0, 0.5, 0], [0.0, 0, 0]))
    assert found["path_len_m"][0] == pytest.approx(2.5)
    assert found["trans_m"][0] == pytest.approx(0.5)


def test_rays_tell_free_unknown_and_occupied_apart() -> None:
    """A wall at x = 1, seen from x = -2; what was not looked at is unknown."""
    root = ActorState.from_view(a_view(AHEAD))
    before = features_of(root, AHEAD)
    assert before["hit_occ_frac"][0] == 0
    assert before["hit_unknown_frac"][0] == 1
    assert before["mean_hit_depth"][0] == RAY_RANGE_M
    assert before["unknown_per_ray"][0] > 10
    assert before["frontier_per_ray"][0] == 0, "nothing is free yet"
    state = root.advanced(AHEAD, np.full((120, 120), 3, np.float32), FINE)
    after = features_of(state, [AHEAD, look_at([-2.0, 0, 0], [-9.0, 0, 0])])
    assert after["hit_occ_frac"][0] > 0.9
    assert after["mean_hit_depth"][0] == pytest.approx(3, abs=0.2)
    assert after["unknown_per_ray"][0] < 1
    assert after["hit_occ_frac"][1] == 0
    assert after["hit_unknown_frac"][1] == 1
    assert after["frontier_per_ray"][1] > 0, "rays leave the free voxel the camera is in"
    assert after["target_unknown_per_ray"][1] == 0, "the target is behind"


def test_a_wall_hides_the_target_from_rays() -> None:
    """The box is 1 m wide and 2 m away: a quarter of the image's width and height, at most a third."""
    free = ActorState.from_view(a_view(AHEAD))
    open_view = features_of(free, AHEAD)
    assert 1 / 16 <= open_view["target_ray_frac"][0] <= 1 / 6
    assert open_view["target_unknown_per_ray"][0] > 0
    assert open_view["target_occ_per_ray"][0] == 0
    walled = free.advanced(AHEAD, np.full((120, 120), 1, np.float32), FINE)
    hidden = features_of(walled, AHEAD)
    assert hidden["target_ray_frac"][0] == 0
    assert hidden["target_unknown_per_ray"][0] == 0
    seen = free.advanced(AHEAD, np.full((120, 120), 1.5, np.float32), FINE)
    assert features_of(seen, AHEAD)["target_occ_per_ray"][0] > 0.05


def test_points_in_view_are_those_the_camera_sees() -> None:
    rng = np.random.default_rng(0)
    state = ActorState.from_view(a_walk(rng))
    poses, box = some_candidates(rng), a_box(extents=(1.5, 1, 2))
    camera = Camera(width=40, height=24, fx=21.0, fy=17.0, cx=18.0, cy=13.0, near_m=0.8, far_m=2.5)
    found = features_of(state, poses, target=box, camera=camera)
    seen = np.array([camera.sees(state.points, pose) for pose in poses])
    in_box = box.contains(0, state.points)
    assert in_box.any()
    assert found["semidense_in_view"] == pytest.approx(seen.mean(axis=1))
    assert found["semidense_in_target_in_view"] == pytest.approx(seen[:, in_box].mean(axis=1))
    for pose, points, empty in zip(poses, seen, found["empty_pixel_frac"], strict=True):
        pixels, _ = camera.project(state.points[points], pose)
        cells = {tuple(each) for each in np.floor(pixels * 16 / (40, 24)).astype(int).tolist()}
        assert empty == pytest.approx(1 - len(cells) / 256)


def test_support_grows_with_the_actors_own_depth() -> None:
    points = [[0.0, 0, 0], [0.1, 0.1, 0.1], [3.0, 0, 0]]
    root = ActorState.from_view(a_view(AHEAD, points))
    before = features_of(root, AHEAD)
    assert before["log_semidense_support"][0] == pytest.approx(math.log(3))
    assert before["log_fused_support"][0] == 0
    assert before["own_progress"][0] == 0
    assert before["target_deficit"][0] == pytest.approx(1 - 2 / 128)
    state = root.advanced(AHEAD, np.full((32, 32), 1.6, np.float32), CAMERA)
    after = features_of(state, AHEAD, step_index=1)
    in_box = int(a_box().contains(0, state.fused_points).sum())
    assert in_box > 50
    assert after["log_fused_support"][0] == pytest.approx(math.log1p(in_box))
    assert after["own_progress"][0] == pytest.approx(in_box / (in_box + 2))
    assert after["target_deficit"][0] == pytest.approx(max(0, 1 - (in_box + 2) / 128))
    assert after["empty_pixel_frac"][0] == 0
    assert (after["step_index"][0], after["remaining"][0]) == (1, 2)


# ---------------------------------------------------------------------------------- earlier views


def test_novelty_is_the_angle_to_the_nearest_earlier_view_of_the_target() -> None:
    east = look_at([2.0, 0, 0], [0.0, 0, 0])
    south_looking_away = look_at([0.0, -2, 0], [0.0, -5, 0])
    state = ActorState.from_view(a_view([AHEAD, east, south_looking_away]))
    again_from_farther = look_at([-3.0, 0, 0], [0.0, 0, 0])
    south = look_at([0.0, -2, 0], [0.0, 0, 0])
    found = features_of(state, [AHEAD, again_from_farther, south])
    assert found["view_novelty_rad"] == pytest.approx([0, 0, math.pi / 2], abs=1e-3)
    assert found["prior_view_density_30deg"] == pytest.approx([0.5, 0.5, 0])
    assert found["n_prior_target_views"].tolist() == [2, 2, 2]


def test_a_target_never_seen_is_as_new_as_can_be() -> None:
    state = ActorState.from_view(a_view(look_at([-2.0, 0, 0], [-9.0, 0, 0])))
    found = features_of(state, AHEAD)
    assert found["view_novelty_rad"][0] == pytest.approx(math.pi)
    assert found["prior_view_density_30deg"][0] == 0
    assert found["n_prior_target_views"][0] == 0


def test_each_earlier_view_counts_with_the_camera_it_was_made_with() -> None:
    state = ActorState.from_view(a_view(AHEAD))
    nearly = look_at([0.0, -2, 0], [1.0, 0, 0])
    depth = np.zeros((32, 32), np.float32)
    narrow = Camera.square(32, field_of_view_deg=20)
    assert features_of(state.advanced(nearly, depth, CAMERA), AHEAD)["n_prior_target_views"] == 2
    assert features_of(state.advanced(nearly, depth, narrow), AHEAD)["n_prior_target_views"] == 1


# ------------------------------------------------------------------------------------- invariance


def moved_along(state: ActorState, by: NDArray[np.float64]) -> ActorState:
    """The same actor in a world that was moved as a whole. Its map is made again."""
    rotation, offset = rotations(by), by[9:]
    points = (state.points.astype(np.float64) @ rotation.T + offset).astype(np.float32)
    view = a_view(compose(by, state.poses), points)
    return replace(
        ActorState.from_view(view), poses=compose(by, state.poses), cameras=state.cameras
    )


@pytest.mark.parametrize("seed", range(3))
def test_moving_the_whole_world_changes_no_feature(seed: int) -> None:
    """By whole voxels and right angles, so that the lattice of the map comes to lie on itself."""
    rng = np.random.default_rng(seed)
    walk = a_walk(rng)
    state = moved_along(ActorState.from_view(walk), poses_of(np.eye(3), np.zeros(3)))
    poses, box = some_candidates(rng), a_box((0.1, 0.2, 0.3), (0.7, 0.5, 0.9), 0.4)
    quarter = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    by = poses_of(quarter, np.array([4.0, -3.0, 1.0]))
    here = features_of(state, poses, target=box)
    placed = compose(by, box.pose_world_object.astype(np.float64))
    there_box = Boxes.build(placed, box.extents, box.sem_id, confidence=box.confidence)
    there = features_of(moved_along(state, by), compose(by, poses), target=there_box)
    for name in FEATURES:
        assert there[name] == pytest.approx(here[name], abs=2e-4), name


def test_turning_the_whole_world_changes_no_feature_that_needs_no_map() -> None:
    rng = np.random.default_rng(5)
    state = moved_along(ActorState.from_view(a_walk(rng)), poses_of(np.eye(3), np.zeros(3)))
    poses, box = some_candidates(rng), a_box((0.1, 0.2, 0.3), (0.7, 0.5, 0.9), 0.4)
    by = poses_of(rotations(look_at([0.0, 0, 0], [1.0, 2.0, 0.7])), np.array([0.3, 0.2, -0.1]))
    placed = compose(by, box.pose_world_object.astype(np.float64))
    there_box = Boxes.build(placed, box.extents, box.sem_id, confidence=box.confidence)
    here = features_of(state, poses, target=box)
    there = features_of(moved_along(state, by), compose(by, poses), target=there_box)
    for name in set(FEATURES) - {*RAY_COLUMNS, "elev_sin"}:
        assert there[name] == pytest.approx(here[name], abs=2e-4), name


def test_marching_agrees_with_the_slow_way() -> None:
    rng = np.random.default_rng(6)
    shape, far = (9, 8, 7), 5.0
    for _ in range(8):
        state = rng.choice([UNKNOWN, FREE, OCCUPIED], shape, p=[0.3, 0.6, 0.1])
        grid = (state + TARGET * (rng.random(shape) < 0.2)).astype(np.uint8)
        eyes = rng.uniform(-2, 10, (3, 3))
        turns = np.ascontiguousarray(rotations(look_at(eyes, rng.uniform(2, 6, (3, 3)))))
        rays = Camera.square(4).rays().astype(np.float64) / 0.5
        found = march(grid, eyes, turns, rays, far)
        for eye, turn, sums in zip(eyes, turns, found, strict=True):
            slow = sum(_slowly(grid, eye, turn @ ray, far) for ray in rays)
            assert sums == pytest.approx(slow, abs=1e-9)


def _slowly(
    grid: NDArray[np.uint8], eye: NDArray[np.float64], along: NDArray[np.float64], far: float
) -> NDArray[np.float64]:
    found = dict.fromkeys(RAY_COLUMNS, 0.0) | {"mean_hit_depth": far}
    before = None
    for part, voxel in walked(eye, eye + far * along):
        if not inside(voxel, grid.shape):
            continue
        of_target, seen = bool(grid[voxel] & TARGET), grid[voxel] & 3
        found["target_ray_frac"] = max(found["target_ray_frac"], of_target)
        if seen == OCCUPIED:
            found |= {"hit_occ_frac": 1, "mean_hit_depth": part * far}
            found["target_occ_per_ray"] = of_target
            break
        if seen == UNKNOWN:
            found["unknown_per_ray"] += 1
            found["target_unknown_per_ray"] += of_target
            found["hit_unknown_frac"] = 1
            found["frontier_per_ray"] += before == FREE
        before = seen
    return np.array([found[name] for name in RAY_COLUMNS])


# ------------------------------------------------------------------------------ what may and may not


def test_a_row_is_nan_where_its_pose_is_not_finite_and_only_there() -> None:
    rng = np.random.default_rng(7)
    state = ActorState.from_view(a_walk(rng))
    poses = some_candidates(rng)
    poses[3, 2], poses[8, 10] = np.nan, np.inf
    inside_target = look_at([0.0, 0, 0], [1.0, 0, 0])
    far_away = look_at([300.0, 0, 0], [0.0, 0, 0])
    every = np.concatenate([poses, [inside_target, far_away, np.zeros(12)]])
    density = np.ones(len(every))
    density[3] = np.nan
    table = np.stack(list(features_of(state, every, density=density).values()), axis=1)
    bad = np.isin(np.arange(len(every)), [3, 8])
    assert np.isnan(table[bad]).all()
    assert np.isfinite(table[~bad]).all()


def test_a_shell_of_nothing_has_no_rows() -> None:
    state = ActorState.from_view(a_view(AHEAD))
    assert len(features_of(state, np.zeros((0, 12)))["trans_m"]) == 0
    nothing = features_of(state, np.full((2, 12), np.nan))
    assert np.isnan(nothing["trans_m"]).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"density": [0.0]}, "density is 0.0 for a candidate"),
        ({"density": [np.nan]}, r"density\[0\] is nan"),
        ({"strategy_id": [1, 2]}, r"strategy_id is of shape \[2\], expected \[1\]"),
        ({"reference_pose": np.zeros(12)}, "reference_pose"),
        ({"step_index": 3}, "step_index is 3, expected 0 or more, and less than the horizon 3"),
    ],
)
def test_bad_input_is_refused_by_name(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        features_of(ActorState.from_view(a_view(AHEAD)), AHEAD, **changed)


@pytest.mark.parametrize(
    "target", [Boxes.none(), a_box(extents=(1, 0, 1)), a_box(centre=(np.nan, 0, 0))]
)
def test_a_target_that_is_not_one_sound_box_is_refused(target: Boxes) -> None:
    with pytest.raises(InvalidBoxes, match="target"):
        features_of(ActorState.from_view(a_view(AHEAD)), AHEAD, target=target)


def test_features_are_the_same_on_every_thread_and_run() -> None:
    rng = np.random.default_rng(8)
    state = ActorState.from_view(a_walk(rng))
    poses = some_candidates(rng)

    def run(_: int) -> bytes:
        return np.stack(list(features_of(state, poses).values())).tobytes()

    first = run(0)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(run, range(24))) == {first}


def test_a_candidate_owes_nothing_to_the_others() -> None:
    rng = np.random.default_rng(9)
    state = ActorState.from_view(a_walk(rng))
    poses = some_candidates(rng)
    together = features_of(state, poses)
    for row in (0, 5, 11):
        alone = features_of(state, poses[row])
        assert [alone[name][0] for name in FEATURES] == pytest.approx(
            [together[name][row] for name in FEATURES], rel=1e-6, abs=1e-7
        )


def test_every_feature_has_a_meaning() -> None:
    assert len(set(FEATURES)) == len(FEATURES) == 49
    assert all(FEATURE_MEANINGS.values())


def test_no_oracle_comes_in_by_the_signature() -> None:
    kinds = {
        str(each.annotation) for each in inspect.signature(candidate_features).parameters.values()
    }
    assert kinds == {"ActorState", "ArrayLike", "Boxes", "Camera", "int"}
    held = {field.name for field in fields(ActorState)}
    assert held == {"map", "poses", "cameras", "points", "fused_points", "moves"}


def test_features_do_not_change_when_everything_the_oracle_knows_does(tmp_path: Path) -> None:
    """Two stores with the same actor rows; mesh, true boxes and continuation differ."""
    row = some_row(np.random.default_rng(10), frames=3, points=40)
    found = set()
    for seed, size in ((0, (4.0, 3.0, 2.5)), (1, (9.0, 8.0, 7.0))):
        rng = np.random.default_rng(seed)
        path = tmp_path / f"store-{seed}"
        later = row.continuation[::-1] if seed else row.continuation
        with SourceStoreWriter(path, config={}) as writer:
            writer.add_scene("scene", room(size), some_boxes(rng, 5))
            writer.add_row("scene", "row", row.actor, later, row.continuation_t_ns)
            writer.finish()
        for actor_only in (False, True):
            actor = SourceStore.open(path, actor_only=actor_only).row(0).actor
            poses = some_candidates(np.random.default_rng(11))
            columns = features_of(
                ActorState.from_view(actor), poses, target=actor.detections.take([0])
            )
            found.add(np.stack(list(columns.values())).tobytes())
    assert len(found) == 1
