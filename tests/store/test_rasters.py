"""Images: what goes in comes out, frame by frame, here and through zarr-python."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.digest import checksum
from rollbook.errors import InvalidValue, StorageError
from rollbook.store.rasters import FrameReader, FrameWriter
from rollbook.store.records import RolloutStep, SelectedDepth
from tests.store.plain_rows import with_steps, written
from tests.store.synthetic import make_records, spec_fixture_records

SMALL: dict[str, Any] = {
    "selected_depth_enabled": True,
    "selected_depth_height_px": 6,
    "selected_depth_width_px": 10,
}

POOL = ThreadPoolExecutor(2)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 5),
    st.sampled_from([np.dtype("<f2"), np.dtype("|b1"), np.dtype("<f4")]),
    st.integers(0, 1000),
)
def test_zarr_reads_the_frames_that_were_written(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    per_shard: int,
    dtype: np.dtype[Any],
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("frames") / "array"
    frames = np.random.default_rng(seed).normal(0, 1, (count, 3, 5)).astype(dtype)
    writer = FrameWriter(folder, dtype, (3, 5), 0, per_shard, POOL)
    for frame in frames:
        writer.append(partial(np.asarray, frame))
    files = writer.close()
    np.testing.assert_array_equal(np.asarray(zarr.open_array(folder, mode="r")[...]), frames)
    reader = FrameReader(folder)
    for row in reversed(range(count)):
        np.testing.assert_array_equal(reader.frame(row), frames[row])
    np.testing.assert_array_equal(np.stack([reader.frame(row) for row in range(count)]), frames)
    stored = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert files == {name: (len(data), checksum(data)) for name, data in stored.items()}
    assert len(files) == 1 + -(-count // per_shard)


def test_an_array_without_frames_is_readable(tmp_path: Path) -> None:
    FrameWriter(tmp_path / "array", np.dtype("<f2"), (4, 5), 0, 16, POOL).close()
    assert zarr.open_array(tmp_path / "array", mode="r").shape == (0, 4, 5)


def test_a_store_keeps_one_image_per_step() -> None:
    with written(spec_fixture_records(crops=False), selected_depth_enabled=True) as reader:
        table = reader.table("selected_depth")
        assert table["depth_m"].dtype == np.float16
        assert table["depth_m"].shape == table["valid_mask"].shape == (6, 240, 240)
        np.testing.assert_array_equal(table["step_row_id"], reader.array("steps/step_row_id"))
        np.testing.assert_array_equal(
            table["candidate_row_id"], reader.array("steps/selected_candidate_row_id")
        )
        assert (table["depth_m"] == 1 + reader.array("steps/step_index")[:, None, None]).all()
        assert table["valid_mask"].all()
        assert (table["image_size_hw"] == 240).all()
        assert (table["focal_px"] == 120).all()
        attrs = reader.root["selected_depth"].attrs
        assert (attrs["enabled"], attrs["units"], attrs["depth_dtype"]) == (True, "m", "float16")
        assert reader.root["selected_depth/depth_m"].metadata.to_dict()["shape"] == (6, 240, 240)


@pytest.mark.parametrize("per_shard", [1, 4, 16])
def test_every_step_gives_its_own_image_back(per_shard: int) -> None:
    records = list(make_records(3, horizon=3, depth=(6, 10), candidates=5))
    with written(records, **SMALL, selected_depth_chunk_steps=per_shard) as reader:
        steps = [step for r in records for chain in r.result.chains for step in chain.steps]
        for row, step in enumerate(steps):
            depth, stored = step.selected_depth, reader.selected_depth(row)
            assert depth is not None
            assert stored is not None
            expected = np.where(depth.valid_mask, depth.depth_m, 0).astype(np.float16)
            np.testing.assert_array_equal(stored["depth_m"], expected)
            np.testing.assert_array_equal(stored["valid_mask"], depth.valid_mask)
            assert tuple(stored["focal_px"]) == depth.focal_px


def changed_depth(**fields: Any) -> Any:
    def change(step: RolloutStep) -> RolloutStep:
        depth = step.selected_depth
        assert isinstance(depth, SelectedDepth)
        return replace(step, selected_depth=replace(depth, **fields))

    return change


def small_records() -> list[Any]:
    return list(make_records(2, horizon=2, depth=(6, 10), candidates=4))


def test_invalid_pixels_are_written_as_zero_whatever_they_hold() -> None:
    depth = np.full((6, 10), 2.0, np.float32)
    depth[0, :3] = [np.nan, np.inf, 1e9]
    mask = np.ones((6, 10), bool)
    mask[0, :3] = False
    records = [
        with_steps(r, changed_depth(depth_m=depth, valid_mask=mask)) for r in small_records()
    ]
    with written(records, **SMALL) as reader:
        stored = reader.array("selected_depth/depth_m")
        assert (stored[:, 0, :3] == 0).all()
        assert (stored[:, 1:] == 2).all()


@pytest.mark.parametrize("value", [7e4, -7e4, np.nan, np.inf])
def test_valid_pixels_that_float16_cannot_hold_are_refused(value: float) -> None:
    depth = np.full((6, 10), value, np.float32)
    change = changed_depth(depth_m=depth, valid_mask=np.ones((6, 10), bool))
    records = [with_steps(record, change) for record in small_records()]
    with pytest.raises(InvalidValue, match="float16"), written(records, **SMALL):
        pass


@pytest.mark.parametrize(
    "fields",
    [
        {"depth_m": np.zeros((10, 6), np.float32)},
        {"depth_m": np.zeros(60, np.float32)},
        {"valid_mask": np.ones((6, 9), bool)},
        {"valid_mask": np.ones((6, 10), np.int64)},
        {"focal_px": (1.0, 2.0, 3.0)},
        {"principal_point_px": (np.nan, 1.0)},
    ],
)
def test_images_of_another_shape_are_refused(fields: dict[str, Any]) -> None:
    records = [with_steps(record, changed_depth(**fields)) for record in small_records()]
    with pytest.raises(InvalidValue, match="selected_depth"), written(records, **SMALL):
        pass


def test_a_missing_image_is_refused_with_what_to_do() -> None:
    records = spec_fixture_records(depth=False, crops=False)
    with (
        pytest.raises(InvalidValue, match="selected_depth_enabled=False"),
        written(records, selected_depth_enabled=True),
    ):
        pass


def test_crops_are_padded_and_know_their_role() -> None:
    options = {"target_eval_crops_enabled": True, "target_eval_crop_max_points": 4}
    with written(spec_fixture_records(depth=False), **options) as reader:
        crops = reader.table("target_eval_crops")
        assert crops["points_world"].shape == (6 * 9, 4, 3)
        np.testing.assert_array_equal(crops["mask"].sum(1), crops["lengths"])
        assert set(crops["source_role_id"].tolist()) == {0, 1}
        np.testing.assert_array_equal(crops["source_role_id"] == 0, crops["candidate_row_id"] == -1)
        assert (crops["points_world"][~crops["mask"]] == 0).all()
        assert crops["lengths"][0] == 3
        assert crops["lengths"][1] == 2
        assert reader.decoded("target_eval_crops", "crop_policy_id")[0] is not None


def test_crops_are_cut_to_their_cap_and_to_finite_points() -> None:
    def broken(step: RolloutStep) -> RolloutStep:
        crops = [
            replace(
                crop,
                points_world=np.vstack([np.full((1, 3), np.nan, np.float32), crop.points_world]),
            )
            for crop in step.target_eval_crops
        ]
        return replace(step, target_eval_crops=tuple(crops))

    records = [with_steps(record, broken) for record in spec_fixture_records(depth=False)]
    options = {"target_eval_crops_enabled": True, "target_eval_crop_max_points": 2}
    with written(records, **options) as reader:
        assert (reader.array("target_eval_crops/lengths") == 2).all()
        assert np.isfinite(reader.array("target_eval_crops/points_world")).all()


def test_a_damaged_image_is_an_error_not_an_image(tmp_path: Path) -> None:
    writer = FrameWriter(tmp_path / "array", np.dtype("<f2"), (4, 5), 0, 4, POOL)
    writer.append(partial(np.ones, (4, 5), np.float16))
    writer.close()
    (tmp_path / "array" / "c.0.0.0").unlink()
    with pytest.raises(StorageError, match="cannot be read"):
        FrameReader(tmp_path / "array").frame(0)
