"""The candidates of one step are those of the store, and points of depth images lie where the camera saw them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rollbook.store.audit import candidate_audit_rows
from rollbook.store.audit.step_candidates import (
    candidate_rows,
    points_seen,
    poses_taken,
    step_candidates,
    target_of,
)
from tests.store.audited import opened, written
from tests.store.synthetic import make_records
from tests.store.tampering import edit


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stores") / "a.zarr"
    return small_store(place, rollouts=3)


def small_store(place: Path, rollouts: int) -> Path:
    """With depth images of 12 rows and 16 columns."""
    records = make_records(rollouts, seed=5, depth=(12, 16))
    return written(place, records, selected_depth_height_px=12, selected_depth_width_px=16)


def test_every_candidate_of_the_step_is_there_in_shell_order(store: Path) -> None:
    reader = opened(store)
    for step in (0, reader.num_steps - 1):
        found = step_candidates(reader, step)
        plain = candidate_audit_rows(reader, step_row_id=step)
        assert found.rows.tolist() == [row["candidate_row_id"] for row in plain]
        assert found.valid.tolist() == [row["actor_action"] for row in plain]
        assert found.taken.tolist() == [row["selected"] for row in plain]
        assert found.family.tolist() == [row["position"] for row in plain]
        assert found.reason.tolist() == [row["invalid_reason"] for row in plain]
        known = [row["target_root_gain"] for row in plain if row["target_root_gain"] is not None]
        assert found.gain[np.isfinite(found.gain)].tolist() == known
        np.testing.assert_array_equal(
            found.poses[:, 9], np.array([row["center_x"] for row in plain], np.float32)
        )


def test_the_best_come_first_and_the_invalid_last(store: Path) -> None:
    found = step_candidates(opened(store), 0)
    order = found.best_first()
    labelled = int(found.labelled.sum())
    assert sorted(order.tolist()) == list(range(len(found)))
    gains = found.gain[order[:labelled]]
    assert (np.diff(gains) <= 0).all()
    assert not found.valid[order[int(found.valid.sum()) :]].any()
    assert found.random_gain == pytest.approx(float(gains.astype(float).mean()))


def test_rows_of_some_candidates_are_those_of_the_audit_in_the_order_asked_for(store: Path) -> None:
    reader = opened(store)
    found = step_candidates(reader, 1)
    wanted = found.rows[[4, 0, 2]]
    plain = {row["candidate_row_id"]: row for row in candidate_audit_rows(reader, step_row_id=1)}
    assert candidate_rows(reader, wanted) == [plain[row] for row in wanted.tolist()]


def test_points_of_a_depth_image_lie_at_their_depth_before_the_camera(store: Path) -> None:
    reader = opened(store)
    points = points_seen(reader, 0, most=10**6)
    poses = poses_taken(reader, 0).astype(np.float64)
    images = [reader.selected_depth(step) for step in range(len(poses))]
    first = 0
    for pose, image in zip(poses, images, strict=True):
        assert image is not None
        depth = image["depth_m"][image["valid_mask"]].astype(np.float64)
        own = points[first : first + len(depth)]
        first += len(depth)
        in_camera = (own - pose[9:]) @ pose[:9].reshape(3, 3)
        np.testing.assert_allclose(in_camera[:, 2], depth, atol=2e-3)
        u = (
            in_camera[:, 0] / in_camera[:, 2] * image["focal_px"][0]
            + image["principal_point_px"][0]
        )
        assert (u > 0).all()
        assert (u < 16).all()
    assert first == len(points)
    assert len(points_seen(reader, 0, most=50)) <= 50


def test_a_step_that_names_no_candidate_takes_none(tmp_path: Path) -> None:
    damaged = small_store(tmp_path / "b.zarr", rollouts=1)
    edit(damaged, "steps/selected_candidate_row_id", lambda values, _: values.fill(10**9))
    edit(damaged, "rollouts/target_row_id", lambda values, _: values.fill(-1))
    reader = opened(damaged)
    assert not step_candidates(reader, 0).taken.any()
    assert np.isnan(poses_taken(reader, 0)).all()
    assert len(points_seen(reader, 0, most=100)) == 0
    assert target_of(reader, 0) is None


def test_a_target_has_its_class_and_its_box(store: Path) -> None:
    reader = opened(store)
    target = target_of(reader, 0)
    assert target is not None
    row = int(reader.array("rollouts/target_row_id")[0])
    assert target.class_name == reader.decoded("targets", "target_class_name_id")[row]
    np.testing.assert_array_equal(target.extents, reader.array("targets/target_extents")[row])
    assert target.is_drawable
