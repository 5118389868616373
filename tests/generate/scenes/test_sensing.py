from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.geometry.camera import Camera
from rollbook.generate.geometry.poses import IDENTITY, centres, forwards
from rollbook.generate.raycast.scene_geometry import SceneGeometry
from rollbook.generate.scenes.scene import Scene, SceneConfig, make_scene
from rollbook.generate.scenes.sensing import (
    Recording,
    SensingConfig,
    detections_of,
    edges,
    record,
    semidense_points,
    visibility,
)
from rollbook.generate.scenes.structure import STRUCTURE
from rollbook.generate.scenes.walk import WalkConfig

SHARP: dict[str, float] = {
    "miss_rate": 0.0,
    "centre_sigma_m": 0.0,
    "extent_sigma": 0.0,
    "yaw_sigma_deg": 0.0,
    "confusion_rate": 0.0,
    "false_positives": 0.0,
}
"""A detector without faults, except that it may miss what is hidden."""


@lru_cache(maxsize=4)
def flat(seed: int) -> tuple[Scene, SceneGeometry]:
    made = make_scene(SceneConfig(seed=seed))
    return made, SceneGeometry(made.mesh)


@lru_cache(maxsize=16)
def recording(seed: int, draw: int = 0, **fields: Any) -> Recording:
    config = SensingConfig(**{"image_px": 120, "least_pixels": 10, **fields})
    return record(*flat(seed), np.random.default_rng(draw), sensing=config)


# ------------------------------------------------------------------------------ semidense points


def plain_wall(size: int = 64) -> tuple[NDArray[np.float32], NDArray[np.float32], Camera]:
    """Depth and normals of four frames before a wall 3 m away, the right half of it 1 m nearer."""
    depth = np.full((4, size, size), 3, np.float32)
    depth[:, :, size // 2 :] = 2
    normals = np.zeros((4, size, size, 3), np.float32)
    normals[..., 2] = -1
    return depth, normals, Camera.square(size)


def test_a_recording_has_the_points_it_should_have() -> None:
    kept = recording(0)
    assert kept.points.shape == (24 * 900, 3)
    assert kept.points.dtype == np.float32
    np.testing.assert_array_equal(np.bincount(kept.point_frame), np.full(24, 900))
    assert np.isfinite(kept.points).all()
    assert (kept.inv_dist_std > 0).all()
    assert (kept.dist_std > 0).all()


def test_noise_of_inverse_distance_is_what_each_point_says() -> None:
    depth, normals, camera = plain_wall(160)
    poses = np.tile(IDENTITY, (4, 1)).astype(np.float32)
    config = SensingConfig(points_per_frame=20_000, flat_weight=1.0)
    seen = semidense_points(depth, normals, poses, camera, config, np.random.default_rng(0))
    distance = np.linalg.norm(seen.points.astype(np.float64), axis=1)
    unit = seen.points / distance[:, None]
    # the wall is flat in depth: a ray meets it where its z is the depth, left of the middle farther away
    true = np.where(unit[:, 0] > 0, 2, 3) / unit[:, 2]
    error = (1 / distance - 1 / true) / seen.inv_dist_std
    assert abs(error.mean()) < 0.02
    assert error.std() == pytest.approx(1, abs=0.02)
    assert np.median(seen.inv_dist_std) == pytest.approx(0.004, rel=0.02)
    np.testing.assert_allclose(seen.dist_std, seen.inv_dist_std * distance**2, rtol=1e-4)


def test_without_noise_points_lie_on_the_surface() -> None:
    kept = recording(0, inv_dist_sigma=0.0)
    _, geometry = flat(0)
    assert geometry.distance(kept.points, 1.0).max() < 1e-3
    noisy = geometry.distance(recording(0).points, 1.0)
    assert 0.002 < np.median(noisy) < 0.05


def test_points_prefer_edges() -> None:
    depth, normals, camera = plain_wall()
    poses = np.tile(IDENTITY, (4, 1)).astype(np.float32)
    at_edge = edges(depth, normals)
    assert set(np.flatnonzero(at_edge[0].any(axis=0)).tolist()) == {31}
    config = SensingConfig(points_per_frame=200, inv_dist_sigma=0.0)
    seen = semidense_points(depth, normals, poses, camera, config, np.random.default_rng(0))
    pixels, _ = camera.project(seen.points, IDENTITY)
    share = (pixels[:, 0].astype(int) == 31).mean()
    # of one column in 64: weight 64 against 0.03 * 63 * 64
    assert 0.2 < share < 0.33


def test_edges_are_where_depth_jumps_or_the_surface_bends() -> None:
    depth, normals, _ = plain_wall(8)
    depth[:] = 2
    assert not edges(depth, normals).any()
    normals[:, 4:] = (0, 1, 0)
    assert set(np.argwhere(edges(depth, normals)[0])[:, 0].tolist()) == {3}


def test_no_pixel_gives_two_points_and_holes_give_none() -> None:
    depth, normals, camera = plain_wall(16)
    depth[:, :12] = 0
    poses = np.tile(IDENTITY, (4, 1)).astype(np.float32)
    config = SensingConfig(points_per_frame=900, inv_dist_sigma=0.0)
    seen = semidense_points(depth, normals, poses, camera, config, np.random.default_rng(0))
    assert len(seen.points) == 4 * 4 * 16
    pixels, _ = camera.project(seen.points, IDENTITY)
    cells = np.column_stack([seen.frame, pixels.astype(int)])
    assert len(np.unique(cells, axis=0)) == len(cells)
    assert (pixels[:, 1] > 12).all()


# ------------------------------------------------------------------------------------ detections


def nearest(found: Boxes, truth: Boxes) -> NDArray[np.intp]:
    away = np.linalg.norm(found.centres[:, None] - truth.centres, axis=2)
    return np.asarray(away.argmin(axis=1))


def test_detections_do_not_know_the_instance_and_are_not_the_truth() -> None:
    made, _ = flat(0)
    found = recording(0).detections
    assert len(found) >= 4
    assert (found.inst_id == -1).all()
    assert ((found.confidence >= 0.05) & (found.confidence <= 0.99)).all()
    assert (found.sem_id >= len(STRUCTURE)).all()
    assert all(
        made.class_names[sem] == name
        for sem, name in zip(found.sem_id, found.class_name, strict=True)
    )
    off = np.linalg.norm(found.centres[:, None] - made.boxes.centres, axis=2).min(axis=1)
    assert (off > 1e-4).all()
    assert np.median(off) < 0.25


def test_a_detector_without_faults_finds_exact_boxes_of_what_it_saw() -> None:
    made, _ = flat(0)
    kept, (_, quality) = recording(0, **SHARP), looked(0)
    rows = nearest(kept.detections, made.boxes)
    np.testing.assert_allclose(
        kept.detections.pose_world_object, made.boxes.pose_world_object[rows], atol=1e-5
    )
    sides = np.maximum(made.boxes.extents[rows], 0.02)  # no detector sees how thin a rug is
    np.testing.assert_allclose(kept.detections.extents, sides, atol=1e-5)
    np.testing.assert_array_equal(kept.detections.sem_id, made.boxes.sem_id[rows])
    assert (quality[rows] > 0).all()
    assert set(np.flatnonzero(quality > 0.6).tolist()) <= set(rows.tolist())
    # seen better, believed more
    best, worst = np.argmax(quality[rows]), np.argmin(quality[rows])
    assert kept.detections.confidence[best] > kept.detections.confidence[worst]


def test_what_is_behind_a_wall_is_not_detected() -> None:
    made, geometry = flat(0)
    kept = recording(0, **SHARP)
    _, face = geometry.depth_and_faces(kept.poses, kept.camera)
    shown = set(made.mesh.inst_id[face[face >= 0]].tolist())
    hidden = [row for row in range(len(made.boxes)) if row not in shown]
    assert hidden
    assert not set(nearest(kept.detections, made.boxes).tolist()) & set(hidden)


@lru_cache(maxsize=2)
def looked(seed: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Depth images of a recording, and how visible each object was."""
    made, geometry = flat(seed)
    kept = recording(seed)
    depth, face = geometry.depth_and_faces(kept.poses, kept.camera)
    return depth, visibility(made, face, kept.poses, kept.camera, 10)


def many(seed: int, **fields: Any) -> list[Boxes]:
    """What one look at a scene gives when it is repeated."""
    made, _ = flat(seed)
    config = SensingConfig(**fields)
    kept, (depth, quality) = recording(seed), looked(seed)
    return [
        detections_of(
            made, quality, depth, kept.poses, kept.camera, config, np.random.default_rng(draw)
        )
        for draw in range(30)
    ]


def test_more_is_missed_at_a_higher_miss_rate() -> None:
    def count(miss_rate: float) -> int:
        return sum(len(each) for each in many(0, **{**SHARP, "miss_rate": miss_rate}))

    assert count(1.0) == 0
    all_found, half_found = count(0.0), count(0.5)
    assert half_found == pytest.approx(all_found / 2, rel=0.2)


def test_jitter_has_the_size_it_is_given() -> None:
    made, _ = flat(0)
    fields = {**SHARP, "centre_sigma_m": 0.02}
    off = [
        (each.centres - made.boxes.centres[nearest(each, made.boxes)]) for each in many(0, **fields)
    ]
    # from once for what was seen whole to twice for what was hardly seen
    assert 0.02 < np.concatenate(off).std() < 0.04
    sizes = [
        np.log(each.extents / made.boxes.extents[nearest(each, made.boxes)])
        for each in many(0, **{**SHARP, "extent_sigma": 0.05})
    ]
    assert 0.045 < np.concatenate(sizes).std() < 0.1


def test_classes_are_confused_and_boxes_invented_as_often_as_asked_for() -> None:
    made, _ = flat(0)
    mixed = many(0, **{**SHARP, "confusion_rate": 0.5})
    wrong = [np.mean(each.sem_id != made.boxes.sem_id[nearest(each, made.boxes)]) for each in mixed]
    assert 0.35 < np.mean(wrong) < 0.62
    invented = many(0, **{**SHARP, "miss_rate": 1.0, "false_positives": 2.0})
    # a few fall on a window and are dropped
    assert 1.2 < np.mean([len(each) for each in invented]) < 2.6
    assert max(each.confidence.max() for each in invented if len(each)) < 0.5


def test_the_order_of_detections_does_not_tell_the_object() -> None:
    made, _ = flat(0)
    rows = [nearest(each, made.boxes) for each in many(0, **SHARP)]
    assert any((np.diff(each) < 0).any() for each in rows)


# ------------------------------------------------------------------------------- the whole of it


def test_a_recording_is_of_its_walk_and_repeats() -> None:
    one, other = (
        recording(1, 3),
        record(
            *flat(1), np.random.default_rng(3), sensing=SensingConfig(image_px=120, least_pixels=10)
        ),
    )
    for name in (
        "poses",
        "t_ns",
        "points",
        "point_frame",
        "inv_dist_std",
        "dist_std",
        "continuation",
        "continuation_t_ns",
    ):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    np.testing.assert_array_equal(
        one.detections.pose_world_object, other.detections.pose_world_object
    )
    assert one.camera == other.camera
    assert one.poses.shape == (24, 12)
    assert one.continuation.shape == (8, 12)
    assert one.continuation_t_ns[0] > one.t_ns[-1]


def test_noise_does_not_change_the_walk() -> None:
    np.testing.assert_array_equal(
        recording(0).poses, recording(0, inv_dist_sigma=0.1, miss_rate=0.9).poses
    )


def test_points_lie_before_the_camera_of_their_frame() -> None:
    kept = recording(0)
    away = kept.points - centres(kept.poses)[kept.point_frame]
    before = np.einsum("nk,nk->n", away, forwards(kept.poses)[kept.point_frame])
    assert (before > 0).all()
    assert kept.camera.sees(kept.points[kept.point_frame == 5], kept.poses[5]).mean() > 0.95


def test_a_short_walk_can_be_asked_for() -> None:
    config = WalkConfig(frames=5, continuation_frames=2)
    kept = record(
        *flat(0), np.random.default_rng(0), walk=config, sensing=SensingConfig(image_px=64)
    )
    assert kept.poses.shape == (5, 12)
    assert len(kept.points) == 5 * 900


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image_px", 4),
        ("field_of_view_deg", 179.0),
        ("near_m", 0.0),
        ("far_m", 5000.0),
        ("points_per_frame", -1),
        ("flat_weight", 0.0),
        ("inv_dist_sigma", -0.1),
        ("least_pixels", 0),
        ("miss_rate", 1.5),
        ("centre_sigma_m", -1.0),
        ("extent_sigma", float("nan")),
        ("yaw_sigma_deg", 400.0),
        ("confidence_sigma", -0.1),
        ("confusion_rate", 2.0),
        ("false_positives", -1.0),
    ],
)
def test_a_bad_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"SensingConfig\.{field} is "):
        SensingConfig(**{field: value})
