"""Boxes: what lies in them, how they overlap, what of them is in view; checked against plain counting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollbook.errors import InvalidBoxes
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.poses import (
    IDENTITY,
    compose,
    look_at,
    looking_along,
    moved,
    poses_of,
)

QUICK = settings(max_examples=30, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)
NAN = float("nan")


def random_boxes(seed: int, count: int) -> Boxes:
    """Turned any way, of sides from 0.2 to 2 m, within a room."""
    spread = np.random.default_rng(seed)
    turns = looking_along(spread.normal(size=(count, 3)))
    return Boxes.build(
        poses_of(turns, spread.uniform(-2, 2, (count, 3))),
        spread.uniform(0.2, 2, (count, 3)),
        spread.integers(0, 4, count),
    )


def level(centre: Any, extents: Any) -> Boxes:
    return Boxes.build(poses_of(np.eye(3), centre), extents, [0])


def surface(boxes: Boxes, row: int, grown: float) -> NDArray[np.float64]:
    """Points on the faces of the box, grown about its centre."""
    steps = np.linspace(-0.5, 0.5, 9)
    grid = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(-1, 3)
    outer = grid[(np.abs(grid) == 0.5).any(axis=1)]
    return moved(boxes.pose_world_object[row], outer * grown * boxes.extents[row])


def edges(boxes: Boxes, row: int) -> NDArray[np.float64]:
    """Many points along each of the twelve edges."""
    along = np.linspace(-0.5, 0.5, 2001)
    ends = np.array([(a, b) for a in (-0.5, 0.5) for b in (-0.5, 0.5)])
    lines = [
        np.insert(np.repeat(end[None], 2001, axis=0), axis, along, axis=1)
        for axis in range(3)
        for end in ends
    ]
    return moved(boxes.pose_world_object[row], np.concatenate(lines) * boxes.extents[row])


# ----------------------------------------------------------------------------------------- columns


def test_what_is_not_said_is_not_known() -> None:
    boxes = Boxes.build([IDENTITY, IDENTITY], np.ones((2, 3)), [3, 4])
    assert boxes.inst_id.tolist() == [-1, -1]
    assert boxes.confidence.tolist() == [1, 1]
    assert boxes.class_name == ("unknown", "unknown")
    assert len(Boxes.none()) == len(Boxes.build([], [], [])) == 0


def test_rows_are_taken_by_number_or_by_mask() -> None:
    boxes = random_boxes(1, 4)
    named = replace(boxes, class_name=tuple("abcd"))
    assert named.take([3, 1]).class_name == ("d", "b")
    by_mask = named.take(np.array([False, True, False, True]))
    assert by_mask.class_name == ("b", "d")
    np.testing.assert_array_equal(by_mask.extents, boxes.extents[[1, 3]])
    assert len(named.take([])) == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pose_world_object": np.zeros((2, 3, 4))}, r"pose_world_object has shape \[2, 3, 4\]"),
        ({"pose_world_object": np.zeros(11)}, r"pose_world_object has shape \[11\]"),
        ({"extents": np.ones((3, 2))}, r"extents has shape \[3, 2\], expected \[B, 3\]"),
        ({"extents": np.ones((3, 3))}, "extents has 3 rows, the poses have 2"),
        ({"sem_id": [1]}, "sem_id has 1 rows"),
        ({"sem_id": [0.5, 1.5]}, "sem_id is not one whole number"),
        ({"inst_id": [0, 2**31]}, "inst_id is not one whole number of 32 bits"),
        ({"confidence": [1.0]}, "confidence has 1 rows"),
        ({"class_name": ["chair"]}, "class_name has 1 rows"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(changed: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "pose_world_object": np.tile(IDENTITY, (2, 1)),
        "extents": np.ones((2, 3)),
        "sem_id": [0, 1],
    }
    with pytest.raises(InvalidBoxes, match=f"detections: {message}"):
        Boxes.build(**{**good, **changed}, name="detections")


# ---------------------------------------------------------------------------------------- contains


@QUICK
@given(SEEDS)
def test_a_box_contains_what_lies_between_its_corners_and_nothing_else(seed: int) -> None:
    boxes = random_boxes(seed, 2)
    weights = np.random.default_rng(seed).dirichlet(np.ones(8), 50)
    for row in range(2):
        assert boxes.contains(row, weights @ boxes.corners()[row]).all()
        # a hair inside, because a rotation of 32 bits is not quite one
        assert boxes.contains(row, surface(boxes, row, 1 - 1e-5)).all()
        beyond = surface(boxes, row, 1.01)
        assert not boxes.contains(row, beyond).any()
        assert boxes.contains(row, beyond, scale=1.02).all()
        assert boxes.contains(row, beyond, margin_m=0.02).all()
    sides = np.linalg.norm(boxes.corners()[:, 0] - boxes.corners()[:, 7], axis=1)
    np.testing.assert_allclose(sides, np.linalg.norm(boxes.extents, axis=1), rtol=1e-5)


def test_a_turned_box_is_not_its_bounding_box() -> None:
    turned = Boxes.build(poses_of(looking_along([1, 1, 0]), np.zeros(3)), [0.2, 0.2, 2], [0])
    assert turned.contains(0, [0.6, 0.6, 0])
    assert not turned.contains(0, [0.6, -0.6, 0])


def test_faces_belong_to_the_box_and_what_is_nowhere_to_none() -> None:
    box = level([0, 0, 0], [1, 1, 1])
    points = [[0.5, 0.5, 0.5], [NAN, 0, 0], [np.inf, 0, 0], [0.5001, 0, 0]]
    assert box.contains(0, points).tolist() == [True, False, False, False]
    for broken in (level([NAN, 0, 0], [1, 1, 1]), level([np.inf, 0, 0], [1, 1, 1])):
        assert not broken.contains(0, np.zeros((2, 3))).any()
    assert box.contains(0, np.zeros((4, 5, 3))).shape == (4, 5)


# --------------------------------------------------------------------------------------------- iou


@QUICK
@given(SEEDS)
def test_overlap_is_one_with_itself_the_same_both_ways_and_moves_along(seed: int) -> None:
    boxes = random_boxes(seed, 4)
    table = np.array([boxes.iou(row, boxes) for row in range(4)])
    np.testing.assert_array_equal(np.diag(table), 1)
    np.testing.assert_array_equal(table, table.T)
    assert ((table >= 0) & (table <= 1)).all()
    move = poses_of(looking_along(np.random.default_rng(seed).normal(size=3)), [3, -1, 2])
    elsewhere = Boxes.build(compose(move, boxes.pose_world_object), boxes.extents, boxes.sem_id)
    np.testing.assert_allclose(elsewhere.iou(0, elsewhere), table[0], atol=0.02)


@QUICK
@given(st.floats(0, 1.2), st.floats(0, 1.2), st.floats(0.4, 1.5), st.sampled_from([4, 8, 24]))
def test_overlap_of_level_boxes_is_exact_but_for_one_cell_along_each_side(
    x: float, y: float, size: float, samples: int
) -> None:
    here, there = level([0, 0, 0], [1, 1, 1]), level([x, y, 0], [size, size, size])
    smaller = min(1.0, size)
    shared = np.array(
        [min(0.5, at + size / 2) - max(-0.5, at - size / 2) for at in (x, y, 0.0)]
    ).clip(0)
    cell = smaller / samples * (1 + 1e-5)
    least, most = (float(np.prod((shared + error).clip(0, smaller))) for error in (-cell, cell))
    found = here.iou(0, there, samples=samples)[0]
    assert least / (1 + size**3 - least) - 1e-5 <= found <= most / (1 + size**3 - most) + 1e-5


@QUICK
@given(SEEDS)
def test_overlap_of_boxes_of_one_size_is_the_same_both_ways(seed: int) -> None:
    boxes = random_boxes(seed, 2)
    near = boxes.pose_world_object.copy()
    near[1, 9:] = near[0, 9:] + np.float32(0.1)
    one, two = (Boxes.build(pose, boxes.extents[0], [0]) for pose in near)
    assert one.iou(0, two)[0] == two.iou(0, one)[0] > 0


def test_boxes_apart_do_not_overlap_and_without_volume_it_is_not_known() -> None:
    box = level([0, 0, 0], [1, 1, 1])
    others = Boxes.build(
        [placed(5, 0, 0), placed(0, 0, 0), placed(0, 0, 0), placed(NAN, 0, 0), placed(0, 0, 0)],
        [[1.0, 1, 1], [1.0, 1, 0], [1.0, -1, -1], [1.0, 1, 1], [np.inf, 1, 1]],
        np.zeros(5, int),
    )
    np.testing.assert_array_equal(box.iou(0, others), [0, NAN, NAN, NAN, NAN])
    np.testing.assert_array_equal(others.iou(1, box), [NAN])
    np.testing.assert_array_equal(others.iou(3, box), [NAN])
    assert others.have_volume().tolist() == [True, False, False, False, False]
    assert box.iou(0, Boxes.none()).shape == (0,)


def placed(*centre: float) -> NDArray[np.float64]:
    return poses_of(np.eye(3), centre)


# -------------------------------------------------------------------------------------- projection


@QUICK
@given(SEEDS)
def test_the_projected_rectangle_is_that_around_what_lies_before_the_camera(seed: int) -> None:
    boxes = random_boxes(seed, 3)
    camera = Camera.square(60, 80.0, near_m=0.3)
    pose = look_at(np.random.default_rng(seed).uniform(-3, 3, 3), [0, 0, 0])
    found = boxes.projected_areas(pose, camera)
    for row in range(3):
        pixels, depth = camera.project(edges(boxes, row), pose)
        seen = np.clip(pixels[depth >= camera.near_m], 0, 60)
        counted = float(np.prod(np.ptp(seen, axis=0))) if len(seen) else 0.0
        assert counted <= found[row] + 1e-6
        assert found[row] == pytest.approx(counted, abs=30)  # half a pixel along one side


def test_the_area_of_a_box_cut_at_the_near_plane_is_exact() -> None:
    camera = Camera.square(100, near_m=0.5)
    corridor = level(
        [2, 0, 0], [6, 0.4, 0.2]
    )  # from 1 m on one side of the camera to 5 m on the other
    sides = 100 * 0.4 / 2 / 0.5, 100 * 0.2 / 2 / 0.5
    for ahead in ([1, 0, 0], [-1, 0, 0]):
        found = corridor.projected_areas(look_at([0, 0, 0], ahead), camera)
        np.testing.assert_allclose(found, sides[0] * sides[1], rtol=1e-6)


def test_behind_beside_and_nowhere_project_to_nothing_and_around_to_everything() -> None:
    camera, pose = Camera.square(10), look_at([0, 0, 0], [1, 0, 0])
    boxes = Boxes.build(
        [
            placed(-3, 0, 0),
            placed(1, 9, 0),
            placed(NAN, 0, 0),
            placed(np.inf, 0, 0),
            placed(0, 0, 0),
        ],
        np.array([[1, 1, 1]] * 4 + [[8, 8, 8]]),
        np.zeros(5, int),
    )
    np.testing.assert_array_equal(boxes.projected_areas(pose, camera), [0, 0, 0, 0, 100])
    endless = level([3, 0, 0], [np.inf, 1, 1])
    assert endless.projected_areas(pose, camera).tolist() == [0]
    assert Boxes.none().projected_areas(pose, camera).shape == (0,)
