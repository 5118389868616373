import subprocess
import sys
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError
from rollbook.generate.geometry.poses import rotations
from rollbook.generate.raycast.scene_geometry import SceneGeometry
from rollbook.generate.scenes.clutter import CLUTTER
from rollbook.generate.scenes.defects import DefectConfig
from rollbook.generate.scenes.floor_plan import FloorPlan, plan_of
from rollbook.generate.scenes.furniture import CLASSES, FURNITURE, build
from rollbook.generate.scenes.placement import BODY_RADIUS_M, overlaps
from rollbook.generate.scenes.scene import Scene, SceneConfig, make_scene
from rollbook.generate.scenes.structure import CEILING, DOOR, FLOOR, STRUCTURE, WALL, WINDOW_FRAME

SEEDS = range(5)
CROWDED = {"furniture": 1.0, "clutter": 1.0, "occlusion": 1.0}


@lru_cache(maxsize=64)
def scene(seed: int, **fields: Any) -> Scene:
    return make_scene(SceneConfig(seed=seed, **fields))


def coarse(seed: int, **fields: Any) -> Scene:
    """The same layout of few triangles."""
    return scene(seed, max_edge_m=1.0, **fields)


# ------------------------------------------------------------------------------------ the same


def test_the_same_config_gives_the_same_mesh_here_and_in_another_process() -> None:
    again = [make_scene(SceneConfig(seed=seed)).mesh.sha256 for seed in SEEDS]
    assert again == [scene(seed).mesh.sha256 for seed in SEEDS]
    assert len(set(again)) == len(SEEDS)
    program = (
        "from rollbook.generate.scenes.scene import SceneConfig, make_scene\n"
        f"print([make_scene(SceneConfig(seed=s)).mesh.sha256 for s in range({len(SEEDS)})])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == str(again)


def test_more_clutter_leaves_walls_and_furniture_as_they_were() -> None:
    few, many = coarse(3, clutter=0.0), coarse(3, clutter=1.0)
    standing = [name for name in few.boxes.class_name if name not in CLUTTER]
    assert len(standing) > 8
    np.testing.assert_array_equal(
        few.boxes.pose_world_object[: len(standing)], many.boxes.pose_world_object[: len(standing)]
    )
    assert few.plan.rooms == many.plan.rooms


def test_a_config_survives_the_way_through_a_file() -> None:
    config = SceneConfig.of_difficulty("hard", seed=7)
    assert msgspec.convert(msgspec.to_builtins(config), SceneConfig) == config


# ------------------------------------------------------------------------------ what is in it


@pytest.mark.parametrize("seed", SEEDS)
def test_a_scene_has_the_size_it_should_have(seed: int) -> None:
    made = scene(seed)
    assert 75_000 < len(made.mesh) < 160_000
    assert 20 <= len(made.boxes) <= 65
    assert made.mesh.degenerate_faces == 0
    objects = np.count_nonzero(made.mesh.inst_id >= 0)
    assert objects > 0.6 * len(made.mesh)


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_a_finer_scene_is_the_same_scene_of_more_triangles(seed: int) -> None:
    plain, crude = scene(seed), coarse(seed)
    assert plain.boxes.class_name == crude.boxes.class_name
    np.testing.assert_array_equal(plain.boxes.pose_world_object, crude.boxes.pose_world_object)
    np.testing.assert_allclose(plain.boxes.extents, crude.boxes.extents, atol=1e-6)
    # round things have a little more surface when they are rounder
    assert plain.mesh.areas.sum() == pytest.approx(crude.mesh.areas.sum(), rel=0.03)


def test_a_scene_can_be_as_fine_as_a_scan() -> None:
    fine = scene(0, max_edge_m=0.12)
    assert 250_000 < len(fine.mesh) < 550_000
    np.testing.assert_array_equal(fine.boxes.pose_world_object, scene(0).boxes.pose_world_object)


@pytest.mark.parametrize("max_edge_m", [0.12, 0.25, 1.0])
def test_no_edge_is_longer_than_the_config_says(max_edge_m: float) -> None:
    corners = scene(0, max_edge_m=max_edge_m).mesh.triangles.astype(np.float64)
    lengths = np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=2)
    assert lengths.max() <= max_edge_m + 1e-4


def test_there_are_many_classes_and_scenes_use_them() -> None:
    assert len(FURNITURE) + len(CLUTTER) >= 36
    assert len(set(CLASSES)) == len(CLASSES)
    used = {name for seed in SEEDS for name in coarse(seed).boxes.class_name}
    assert len(used) >= 24


@pytest.mark.parametrize("name", [*FURNITURE, *CLUTTER])
def test_every_class_can_be_built_and_stands_on_the_floor(name: str) -> None:
    piece = build(name, np.random.default_rng(1), 0.25)
    low, high = piece.solid.bounds
    np.testing.assert_allclose(low[2], 0, atol=1e-12)
    np.testing.assert_allclose((low + high)[:2], 0, atol=1e-12)
    assert piece.size.min() > 0.01
    assert piece.size.max() < 2.6
    for support in piece.supports:
        x0, y0, x1, y1 = support.rect
        assert x0 < x1
        assert y0 < y1
        assert (np.array([x0, y0]) >= low[:2] - 0.01).all()
        assert (np.array([x1, y1]) <= high[:2] + 0.01).all()


# ------------------------------------------------------------------------------- ids and boxes


def test_structure_has_classes_of_its_own_and_no_instance() -> None:
    mesh = scene(1).mesh
    structural = mesh.inst_id < 0
    assert set(mesh.sem_id[structural].tolist()) == set(range(len(STRUCTURE)))
    assert (mesh.sem_id[~structural] >= len(STRUCTURE)).all()
    up = mesh.normals[:, 2]
    np.testing.assert_allclose(up[mesh.sem_id == FLOOR], 1, atol=1e-5)
    np.testing.assert_allclose(up[mesh.sem_id == CEILING], -1, atol=1e-5)
    np.testing.assert_allclose(up[mesh.sem_id == WALL], 0, atol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_boxes_hold_their_faces_tightly_and_upright(seed: int) -> None:
    made = scene(seed)
    mesh, boxes = made.mesh, made.boxes
    assert boxes.inst_id.tolist() == list(range(len(boxes)))
    np.testing.assert_allclose(rotations(boxes.pose_world_object)[:, 2, 2], 1)
    for row in range(len(boxes)):
        faces = mesh.inst_id == boxes.inst_id[row]
        assert set(mesh.sem_id[faces].tolist()) == {int(boxes.sem_id[row])}
        assert CLASSES[boxes.sem_id[row]] == boxes.class_name[row]
        points = mesh.triangles[faces].reshape(-1, 3)
        assert boxes.contains(row, points).all()
        assert not boxes.contains(row, points, margin_m=-1e-3).all()
        for axis in range(3):
            thinner = boxes.extents[row].copy()
            thinner[axis] -= 2e-3
            local = (points - boxes.centres[row]) @ rotations(boxes.pose_world_object[row])
            assert (np.abs(local[:, axis]) > thinner[axis] / 2).any()


def footprints(made: Scene) -> NDArray[np.float64]:
    turn = rotations(made.boxes.pose_world_object)
    yaw = np.arctan2(turn[:, 1, 0], turn[:, 0, 0])
    half = made.boxes.extents[:, :2].astype(np.float64) / 2
    return np.column_stack([made.boxes.centres[:, :2], half, yaw])


@pytest.mark.parametrize("fields", [{}, CROWDED])
@pytest.mark.parametrize("seed", SEEDS[:3])
def test_no_object_stands_in_another(seed: int, fields: dict[str, float]) -> None:
    made = coarse(seed, **fields)
    feet, boxes = footprints(made), made.boxes
    low = boxes.centres[:, 2] - boxes.extents[:, 2] / 2
    high = boxes.centres[:, 2] + boxes.extents[:, 2] / 2
    level = (low[:, None] < high - 0.003) & (low < high[:, None] - 0.003)
    both = overlaps(feet, feet, -0.003) & level & ~np.eye(len(feet), dtype=bool)
    # what lies on a shelf or a seat is inside the box of the whole
    small = np.array([name in CLUTTER and name != "wall_shelf" for name in boxes.class_name])
    held = small[:, None] & ~small & (low[:, None] > low + 0.03)
    assert not np.argwhere(both & ~held & ~held.T).tolist()


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_no_object_reaches_into_a_wall(seed: int) -> None:
    made = coarse(seed, **CROWDED)
    low, high = made.plan.solid[:, :2], made.plan.solid[:, 2:]
    solid = np.column_stack([(low + high) / 2, (high - low) / 2, np.zeros(len(low))])
    assert not overlaps(footprints(made), solid, -0.002).any()
    corners = made.boxes.corners()
    assert (corners.min(axis=(0, 1)) >= -1e-3).all()
    assert (corners.max(axis=(0, 1)) <= [*made.plan.size, made.plan.ceiling_m]).all()


def test_nothing_reaches_through_a_low_ceiling() -> None:
    for seed in SEEDS[:2]:
        made = coarse(seed, ceiling_m=2.2, **CROWDED)
        assert 1.8 < made.boxes.corners()[..., 2].max() < 2.2


HUNG = {"picture", "clock", "wall_shelf"}


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_nothing_floats(seed: int) -> None:
    made = coarse(seed, **CROWDED)
    boxes, mesh = made.boxes, made.mesh
    bottoms = boxes.centres[:, 2] - boxes.extents[:, 2] / 2
    heights = mesh.triangles[:, :, 2].astype(np.float64)
    flat = np.ptp(heights, axis=1) < 1e-4
    raised = 0
    for row, bottom in enumerate(bottoms.tolist()):
        if boxes.class_name[row] in HUNG or bottom < 2e-4:
            continue
        raised += 1
        others = flat & (mesh.inst_id != row) & (np.abs(heights[:, 0] - bottom) < 1e-3)
        corners = mesh.triangles[others, :, :2]
        centre = boxes.centres[row, :2]
        # the middle may lie over the seam of two cushions
        under = (corners.min(axis=1) <= centre + 0.06).all(axis=1)
        under &= (corners.max(axis=1) >= centre - 0.06).all(axis=1)
        assert under.any(), boxes.class_name[row]
    assert raised > 3


# ----------------------------------------------------------------------------- walls and doors


@pytest.mark.parametrize(
    "fields", [{}, {"rooms": 1, "l_shaped": 1.0}, {"rooms": 5, "size_m": (10.0, 8.0)}]
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_light_leaves_a_flat_only_through_its_windows(seed: int, fields: dict[str, Any]) -> None:
    made = coarse(seed, **fields)
    rng = np.random.default_rng(seed)
    free = np.argwhere(made.walkable.floor(BODY_RADIUS_M))
    count = 20_000
    at = (free[rng.integers(len(free), size=count)] + 0.5) * made.walkable.cell_m
    origins = np.column_stack([at, rng.uniform(0.2, 2.0, count)])
    directions = rng.normal(size=(count, 3))
    t, _ = SceneGeometry(made.mesh).cast(origins.astype(np.float32), directions.astype(np.float32))
    lost = ~np.isfinite(t)
    through = np.zeros(count, bool)
    for window in made.plan.windows:
        across = 1 - window.axis
        with np.errstate(divide="ignore", invalid="ignore"):
            reach = (window.centre[window.axis] - origins[:, window.axis]) / directions[
                :, window.axis
            ]
            met = origins + reach[:, None] * directions
        within = (met[:, across] > window.rect[across]) & (met[:, across] < window.rect[across + 2])
        through |= within & (met[:, 2] > window.low_m) & (met[:, 2] < window.high_m) & (reach > 0)
    assert lost.any()
    assert not (lost & ~through).any()


@pytest.mark.parametrize("fields", [{}, CROWDED, {"rooms": 4, "size_m": (9.0, 8.0)}])
def test_every_doorway_can_be_walked_through(fields: dict[str, Any]) -> None:
    for seed in SEEDS[:3]:
        made = coarse(seed, **fields)
        floor = made.walkable.floor(BODY_RADIUS_M)
        ways = [door for door in made.plan.doors if not door.shut]
        assert len(ways) >= len(made.plan.rooms) - 1
        assert all(floor[made.walkable.cell_of(door.centre)] for door in ways)


def plan(seed: int, rooms: int = 2, l_shaped: float = 0.0, doors_ajar: float = 0.5) -> FloorPlan:
    return plan_of(
        np.random.default_rng(seed),
        rooms=rooms,
        size=(10.0, 8.0),
        ceiling_m=2.6,
        l_shaped=l_shaped,
        doors_ajar=doors_ajar,
    )


@pytest.mark.parametrize("rooms", [1, 2, 3, 6])
def test_rooms_are_as_many_as_asked_for_and_fill_the_flat(rooms: int) -> None:
    for seed in SEEDS:
        made = plan(seed, rooms)
        assert len(made.rooms) == rooms
        assert 0.85 * 80 < sum(room.area for room in made.rooms) <= 80 + 1e-6
        open_floor = 80 - sum(_area(rect) for rect in np.clip(made.solid, 0, (10, 8, 10, 8)))
        assert open_floor > sum(room.area for room in made.rooms) - 1e-6


def _area(rect: NDArray[np.float64]) -> float:
    return float((rect[2] - rect[0]) * (rect[3] - rect[1]))


def test_a_flat_may_have_a_room_that_is_an_l() -> None:
    for seed in SEEDS:
        room = max(plan(seed, l_shaped=1.0).rooms, key=lambda each: len(each.parts))
        x0, y0, x1, y1 = room.bounds
        assert room.area < (x1 - x0) * (y1 - y0) - 1
        assert len(room.walls) == 6
        assert all(len(each.parts) == 1 for each in plan(seed).rooms)


def test_doors_stand_ajar_as_often_as_asked_for() -> None:
    seeds = range(20)
    assert not any(len(plan(seed, doors_ajar=0.0).leaves()) for seed in seeds)
    # a leaf that could meet another door is left out
    assert sum(len(plan(seed, doors_ajar=1.0).leaves()) for seed in seeds) >= 12
    made = next(made for made in map(coarse, range(9)) if len(made.plan.leaves()))
    x, y, *_ = made.plan.leaves()[0].tolist()
    door = made.mesh.triangles[made.mesh.sem_id == DOOR].mean(axis=1)
    assert (np.hypot(door[:, 0] - x, door[:, 1] - y) < 0.5).any()


def test_windows_have_frames() -> None:
    made = coarse(0)
    frame = made.mesh.triangles[made.mesh.sem_id == WINDOW_FRAME].reshape(-1, 3)
    window = made.plan.windows[0]
    across = 1 - window.axis
    near = np.abs(frame[:, window.axis] - window.centre[window.axis]) < 0.2
    near &= (frame[:, across] > window.rect[across]) & (frame[:, across] < window.rect[across + 2])
    assert np.ptp(frame[near, 2]) == pytest.approx(window.high_m - window.low_m, abs=1e-3)


def test_wall_furniture_faces_the_room() -> None:
    for seed in SEEDS:
        made = coarse(seed)
        for row in np.flatnonzero(np.isin(made.boxes.class_name, ["sofa", "bed", "wardrobe"])):
            turn = rotations(made.boxes.pose_world_object[row])
            back = made.boxes.centres[row] + turn[:, 1] * (made.boxes.extents[row, 1] / 2 + 0.05)
            front = made.boxes.centres[row] - turn[:, 1] * (made.boxes.extents[row, 1] / 2 + 0.05)
            walls = made.plan.solid

            def in_wall(point: NDArray[np.float64], walls: NDArray[np.float64] = walls) -> bool:
                inside = (walls[:, :2] < point[:2]) & (walls[:, 2:] > point[:2])
                return bool(inside.all(axis=1).any())

            assert in_wall(back)
            assert not in_wall(front)


# ----------------------------------------------------------------------------------------- knobs


def objects(**fields: Any) -> int:
    return sum(len(coarse(seed, **fields).boxes) for seed in SEEDS[:2])


def test_more_clutter_and_more_furniture_mean_more_objects() -> None:
    assert objects(clutter=0.0) < objects() < objects(clutter=1.0)
    assert objects(furniture=0.0) < objects() < objects(furniture=1.0)


def test_occlusion_shortens_what_can_be_seen() -> None:
    def sight(occlusion: float) -> float:
        lengths = []
        for seed in SEEDS[:3]:
            made = coarse(seed, occlusion=occlusion)
            rng = np.random.default_rng(0)
            free = np.argwhere(made.walkable.floor(BODY_RADIUS_M))
            at = (free[rng.integers(len(free), size=4000)] + 0.5) * made.walkable.cell_m
            angle = rng.uniform(-np.pi, np.pi, 4000)
            origins = np.column_stack([at, np.full(4000, 1.3)]).astype(np.float32)
            along = np.column_stack([np.cos(angle), np.sin(angle), np.zeros(4000)]).astype(
                np.float32
            )
            t, _ = SceneGeometry(made.mesh).cast(origins, along)
            lengths.append(np.minimum(t, 8).mean())
        return float(np.mean(lengths))

    assert sight(1.0) < 0.92 * sight(0.0)


def test_presets_grow_harder_and_can_be_adjusted() -> None:
    easy, medium, hard = (
        make_scene(SceneConfig.of_difficulty(name, seed=2, max_edge_m=1.0))
        for name in ("easy", "medium", "hard")
    )
    assert len(easy.boxes) < len(medium.boxes) < len(hard.boxes)
    assert len(easy.plan.rooms) < len(hard.plan.rooms)
    assert SceneConfig.of_difficulty("medium") == SceneConfig()
    assert SceneConfig.of_difficulty("hard", rooms=3).rooms == 3
    with pytest.raises(ConfigurationError, match="'brutal'"):
        SceneConfig.of_difficulty("brutal")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", -1),
        ("rooms", 0),
        ("rooms", 99),
        ("size_m", (1.0, 5.0)),
        ("size_m", (5.0, float("nan"))),
        ("ceiling_m", 1.8),
        ("max_edge_m", 0.0),
        ("furniture", 1.2),
        ("clutter", -0.1),
        ("occlusion", float("nan")),
        ("l_shaped", 2.0),
        ("doors_ajar", -1.0),
    ],
)
def test_a_bad_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"SceneConfig\.{field} is "):
        SceneConfig(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"), [("holes", -1), ("hole_radius_m", 0.0), ("shards", -2), ("noise_m", 0.5)]
)
def test_a_bad_defect_is_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"DefectConfig\.{field} is "):
        DefectConfig(**{field: value})


def test_rooms_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"SceneConfig\.rooms is 6, expected at most"):
        make_scene(SceneConfig(rooms=6, size_m=(4.0, 4.0)))


def test_the_narrowest_flat_can_still_be_walked() -> None:
    for seed in SEEDS[:3]:
        made = coarse(seed, rooms=1, size_m=(2.1, 2.1), **CROWDED)
        assert np.count_nonzero(made.walkable.floor(BODY_RADIUS_M)) >= 25


# --------------------------------------------------------------------------------------- defects


def test_holes_take_surface_away_and_nothing_else() -> None:
    whole, torn = scene(0), scene(0, defects=DefectConfig(holes=30))
    assert 0.5 * len(whole.mesh) < len(torn.mesh) < len(whole.mesh)
    assert torn.mesh.areas.sum() < whole.mesh.areas.sum()
    np.testing.assert_array_equal(torn.mesh.vertices, whole.mesh.vertices)
    assert set(torn.boxes.inst_id.tolist()) <= set(torn.mesh.inst_id.tolist())


def test_shards_float_and_belong_to_nothing() -> None:
    torn = scene(0, defects=DefectConfig(shards=40)).mesh
    loose = torn.sem_id < 0
    assert np.count_nonzero(loose) == 40
    assert (torn.inst_id[loose] == -1).all()
    assert len(torn) == len(scene(0).mesh) + 40


def test_noise_moves_vertices_by_what_it_says() -> None:
    clean, noisy = scene(0).mesh, scene(0, defects=DefectConfig(noise_m=0.004)).mesh
    off = noisy.vertices.astype(np.float64) - clean.vertices
    assert np.abs(off).max() <= 0.0081
    # cut off at two sigma, a normal's deviation is 0.96 of what it was
    assert off.std() == pytest.approx(0.96 * 0.004, rel=0.03)
