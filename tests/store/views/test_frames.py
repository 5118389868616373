"""Tables in other people's data frames, and as files: the same values, without copies where that is promised."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.contracts.reasons import (
    decode_invalid_reason,
    decode_position_id,
    decode_strategy_id,
    decode_target_invalid_reason,
)
from rollbook.errors import ConfigurationError, TargetExists
from rollbook.store.audit.export import export_table
from rollbook.store.coded_words import coded_words
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.schema import TABLES
from rollbook.store.views.frames import (
    arrow_table,
    duckdb_columns,
    duckdb_relation,
    pandas_frame,
    polars_frame,
)
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.synthetic import make_records

FRAMES = (arrow_table, pandas_frame, polars_frame, duckdb_relation)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> RolloutZarrStoreReader:
    path = tmp_path_factory.mktemp("frames") / "s.zarr"
    records = make_records(
        6, seed=5, horizon=2, candidates=(4, 8), unlabelled_fraction=0.3, depth=(6, 8), features=3
    )
    write_rollout_zarr_store(path, records, selected_depth_height_px=6, selected_depth_width_px=8)
    return RolloutZarrStoreReader(path)


def kept(reader: RolloutZarrStoreReader) -> list[str]:
    return [name for name in TABLES if reader.column_names(name)]


def same(found: Any, stored: Any) -> bool:
    return bool(np.array_equal(np.asarray(found), stored, equal_nan=stored.dtype.kind == "f"))


def test_arrow_without_decoding_is_exactly_what_is_stored(reader: RolloutZarrStoreReader) -> None:
    for table in kept(reader):
        frame = arrow_table(reader, table, decode=False)
        assert tuple(frame.column_names) == reader.column_names(table)
        for name in frame.column_names:
            stored = reader.array(f"{table}/{name}")
            column = frame[name].chunk(0)
            if stored.dtype == np.uint8:
                assert [each.as_py() for each in column] == [row.tobytes() for row in stored]
                continue
            for _ in stored.shape[1:]:
                column = column.flatten()
            found = column.to_numpy(zero_copy_only=False).reshape(stored.shape)
            assert same(found, stored), f"{table}/{name}"


NAMED: dict[str, dict[str, Callable[[int], str]]] = {
    "candidates": {
        "position_id": decode_position_id,
        "strategy_id": decode_strategy_id,
        "primary_invalid_reason": decode_invalid_reason,
    },
    "candidate_diagnostics": {"position_id": decode_position_id},
    "targets": {"target_primary_invalid_reason": decode_target_invalid_reason},
}


def test_families_and_reasons_are_words_in_every_frame(reader: RolloutZarrStoreReader) -> None:
    for table, columns in NAMED.items():
        names = tuple(columns)
        arrow = reader.to_arrow(table, names)
        pandas, polars = reader.to_pandas(table, names), reader.to_polars(table, names)
        duckdb = duckdb_relation(reader, table, names).to_arrow_table()
        for name, decode in columns.items():
            codes = reader.array(f"{table}/{name}").tolist()
            expected = [decode(code) if code >= 0 else None for code in codes]
            assert str(arrow[name].type).startswith("dictionary<values=string")
            assert pandas[name].dtype.name == "category"
            found = (arrow[name].to_pylist(), polars[name].to_list(), duckdb[name].to_pylist())
            assert found == (expected, expected, expected)
            assert (
                pandas[name].astype(object).where(pandas[name].notna(), None).tolist() == expected
            )
            assert reader.decoded(table, name) == expected
            assert reader.to_pandas(table, names, decode=False)[name].tolist() == codes
            assert reader.to_polars(table, names, decode=False)[name].to_list() == codes
            assert reader.to_arrow(table, names, decode=False)[name].to_pylist() == codes


def test_the_dense_view_keeps_codes_as_numbers(reader: RolloutZarrStoreReader) -> None:
    positions = reader.to_arrow("q_h", ("position_id",))["position_id"].chunk(0)
    assert same(positions.flatten().to_numpy(), reader.array("q_h/position_id").reshape(-1))


@given(st.lists(st.integers(-2, 40) | st.just(2**31 - 1)))
def test_a_code_of_a_later_release_is_named_by_its_number(codes: list[int]) -> None:
    column = TABLES["candidates"].columns["position_id"]
    found = coded_words(column, np.array(codes, np.int32), lambda name: ())
    assert found is not None
    assert found.tolist() == [decode_position_id(code) if code >= 0 else None for code in codes]


def test_a_column_without_words_cannot_be_decoded(reader: RolloutZarrStoreReader) -> None:
    with pytest.raises(ConfigurationError, match="candidates/target_rri holds no coded words"):
        reader.decoded("candidates", "target_rri")


def test_arrow_numbers_lie_where_the_store_is_mapped(reader: RolloutZarrStoreReader) -> None:
    frame = arrow_table(reader, "candidates")
    for name in ("candidate_row_id", "target_rri", "invalid_reason_bitset"):
        stored = reader.array(f"candidates/{name}")
        assert frame[name].chunk(0).buffers()[1].address == stored.ctypes.data
    poses = frame["pose_world_cam"].chunk(0)
    assert poses.type.list_size == 12
    address = reader.array("candidates/pose_world_cam").ctypes.data
    assert poses.flatten().buffers()[1].address == address


def test_arrow_keeps_the_mapping_alive(reader: RolloutZarrStoreReader) -> None:
    frame = arrow_table(RolloutZarrStoreReader(reader.store_dir), "candidates")
    wanted = reader.array("candidates/candidate_row_id").sum()
    assert frame["candidate_row_id"].to_numpy().sum() == wanted


def test_decoded_codes_are_words_and_what_is_not_known_is_null(
    reader: RolloutZarrStoreReader,
) -> None:
    import pyarrow as pa

    lineage = arrow_table(reader, "lineage")
    for name in ("candidate_config_id", "model_checkpoint_id", "branch_schedule_id"):
        assert pa.types.is_dictionary(lineage[name].type)
        assert lineage[name].to_pylist() == reader.decoded("lineage", name)
    assert lineage["model_checkpoint_id"].null_count == reader.num_rollouts
    gains = arrow_table(reader, "candidates", ["target_root_gain"])["target_root_gain"]
    stored = reader.array("candidates/target_root_gain")
    assert gains.null_count == np.isnan(stored).sum()
    found = gains.to_pylist()
    assert [math.nan if each is None else each for each in found] == pytest.approx(
        stored.tolist(), nan_ok=True
    )


def test_every_frame_has_the_same_means_and_words(reader: RolloutZarrStoreReader) -> None:
    stored = reader.array("candidates/target_root_gain")
    mean = pytest.approx(float(np.nanmean(stored.astype(np.float64))), rel=1e-5)
    arrow = arrow_table(reader, "candidates")
    assert (
        np.mean([each for each in arrow["target_root_gain"].to_pylist() if each is not None])
        == mean
    )
    assert pandas_frame(reader, "candidates")["target_root_gain"].mean() == mean
    assert polars_frame(reader, "candidates")["target_root_gain"].mean() == mean
    relation = duckdb_relation(reader, "candidates")
    assert relation.aggregate("avg(target_root_gain)").fetchall() == [(mean,)]
    words = reader.decoded("rollouts", "policy_id")
    assert list(pandas_frame(reader, "rollouts")["policy_id"]) == words
    assert polars_frame(reader, "rollouts")["policy_id"].to_list() == words
    fetched = duckdb_relation(reader, "rollouts", ["policy_id"]).fetchall()
    assert [word for (word,) in fetched] == words


def test_every_table_goes_into_every_frame(reader: RolloutZarrStoreReader) -> None:
    for table in kept(reader):
        for frame in FRAMES:
            assert len(frame(reader, table)) == len(
                reader.array(f"{table}/{reader.column_names(table)[0]}")
            )


def test_pandas_shares_the_mapped_numbers(reader: RolloutZarrStoreReader) -> None:
    frame = pandas_frame(reader, "candidates", ["target_rri", "pose_world_cam"])
    stored = reader.array("candidates/target_rri")
    assert np.shares_memory(frame["target_rri"].to_numpy(), stored)
    assert np.stack(list(frame["pose_world_cam"])).shape == (len(stored), 12)


def test_duckdb_queries_mapped_columns_by_name(reader: RolloutZarrStoreReader) -> None:
    import duckdb

    columns = duckdb_columns(reader, "candidates")
    assert np.shares_memory(columns["target_rri"], reader.array("candidates/target_rri"))
    connection = duckdb.connect()
    connection.register("candidates", columns)
    found = connection.execute("select sum(pose_world_cam_9), count(*) from candidates").fetchone()
    x = reader.array("candidates/pose_world_cam")[:, 9]
    assert found == (pytest.approx(float(x.sum(dtype=np.float64)), rel=1e-4), len(x))


def test_duckdb_takes_a_connection_of_the_callers(reader: RolloutZarrStoreReader) -> None:
    import duckdb

    connection = duckdb.connect()
    relation = duckdb_relation(reader, "steps", ["num_candidates"], connection=connection)
    total = int(reader.array("steps/num_candidates").sum())
    assert relation.aggregate("sum(num_candidates)").fetchall() == [(total,)]


def test_images_are_not_for_duckdb(reader: RolloutZarrStoreReader) -> None:
    assert "depth_m" not in duckdb_relation(reader, "selected_depth").columns
    with pytest.raises(ConfigurationError, match="depth_m cannot be queried"):
        duckdb_relation(reader, "selected_depth", ["depth_m"])


@pytest.mark.parametrize("frame", FRAMES)
def test_tables_and_columns_that_are_not_there_are_refused(
    reader: RolloutZarrStoreReader, frame: Any
) -> None:
    with pytest.raises(
        ConfigurationError, match="there is no table 'candidate'; did you mean candidates"
    ):
        frame(reader, "candidate")
    with pytest.raises(ConfigurationError, match="candidates has no column 'gain' in this store"):
        frame(reader, "candidates", ["gain"])
    with pytest.raises(ConfigurationError, match="written without target_eval_crops"):
        frame(reader, "target_eval_crops")


@pytest.mark.parametrize(
    ("frame", "library"),
    list(zip(FRAMES, ("pyarrow", "pandas", "polars", "duckdb"), strict=True)),
)
def test_a_missing_library_is_named_with_what_to_install(
    reader: RolloutZarrStoreReader, monkeypatch: pytest.MonkeyPatch, frame: Any, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigurationError) as refused:
        frame(reader, "steps")
    assert library in str(refused.value)
    assert str(refused.value).endswith("pip install 'rollbook[frames]'")


# ---------------------------------------------------------------------------------------- files


def test_parquet_has_what_arrow_has(reader: RolloutZarrStoreReader, tmp_path: Path) -> None:
    from pyarrow import parquet

    for table in kept(reader):
        rows = export_table(reader, table, tmp_path / f"{table}.parquet")
        found = parquet.read_table(tmp_path / f"{table}.parquet")
        wanted = arrow_table(reader, table)
        assert (found.num_rows, found.column_names) == (rows, wanted.column_names)
        for name in found.column_names:
            assert str(found[name].to_pylist()) == str(wanted[name].to_pylist()), f"{table}/{name}"


def test_json_lines_have_every_row_and_null_for_what_is_not_a_number(
    reader: RolloutZarrStoreReader, tmp_path: Path
) -> None:
    for table in kept(reader):
        rows = export_table(reader, table, tmp_path / f"{table}.jsonl")
        lines = (tmp_path / f"{table}.jsonl").read_text().splitlines()
        assert len(lines) == rows
        assert tuple(json.loads(lines[0])) == reader.column_names(table)
    found = [json.loads(line) for line in (tmp_path / "candidates.jsonl").read_text().splitlines()]
    stored = reader.array("candidates/target_rri").tolist()
    assert [math.nan if row["target_rri"] is None else row["target_rri"] for row in found] == (
        pytest.approx(stored, nan_ok=True)
    )
    assert found[3]["pose_world_cam"] == reader.array("candidates/pose_world_cam")[3].tolist()
    digests = [json.loads(line) for line in (tmp_path / "lineage.jsonl").read_text().splitlines()]
    assert digests[0]["lineage_digest"] == reader.array("lineage/lineage_digest")[0].tobytes().hex()
    images = [
        json.loads(line) for line in (tmp_path / "selected_depth.jsonl").read_text().splitlines()
    ]
    assert np.asarray(images[1]["valid_mask"]).shape == (6, 8)


def test_csv_has_a_column_per_place_of_a_vector(
    reader: RolloutZarrStoreReader, tmp_path: Path
) -> None:
    columns = ["candidate_row_id", "pose_world_cam", "score_source_id", "target_rri"]
    rows = export_table(reader, "candidates", tmp_path / "c.csv", columns=columns)
    with open(tmp_path / "c.csv", newline="") as file:
        found = list(csv.DictReader(file))
    assert len(found) == rows == reader.num_candidates
    assert list(found[0])[:3] == ["candidate_row_id", "pose_world_cam_0", "pose_world_cam_1"]
    assert [row["score_source_id"] for row in found] == reader.decoded(
        "candidates", "score_source_id"
    )
    stored = reader.array("candidates/target_rri").tolist()
    assert [float(row["target_rri"] or "nan") for row in found] == pytest.approx(
        stored, nan_ok=True
    )
    x = [float(row["pose_world_cam_9"]) for row in found]
    assert x == reader.array("candidates/pose_world_cam")[:, 9].tolist()


def test_codes_can_be_kept(reader: RolloutZarrStoreReader, tmp_path: Path) -> None:
    export_table(reader, "rollouts", tmp_path / "r.jsonl", columns=["policy_id"], decode=False)
    found = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [row["policy_id"] for row in found] == reader.array("rollouts/policy_id").tolist()


def test_what_an_export_cannot_do_is_refused(
    reader: RolloutZarrStoreReader, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=r"name it \.parquet, \.csv, \.jsonl"):
        export_table(reader, "steps", tmp_path / "steps.xlsx")
    with pytest.raises(ConfigurationError, match="an image per row, which CSV cannot hold"):
        export_table(reader, "selected_depth", tmp_path / "d.csv")
    assert not list(tmp_path.iterdir())
    export_table(reader, "steps", tmp_path / "s.csv")
    with pytest.raises(TargetExists):
        export_table(reader, "steps", tmp_path / "s.csv")
    export_table(reader, "steps", tmp_path / "s.csv", replace=True)
