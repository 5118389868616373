"""A collection in audits, data frames, exports, validation and returns: as its stores, with global ids."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.errors import RollbookError, StorageError
from rollbook.store import audit
from rollbook.store.audit.export import export_table
from rollbook.store.audit.page import audit_page
from rollbook.store.collection import ROW_IDS, RolloutCollection
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.schema import TABLES
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.synthetic import make_records
from tests.store.test_collection import write_store
from tests.store.test_reader import assert_same_columns

Row = dict[str, Any]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> RolloutCollection:
    """Stores of different widths, horizons and words; one has images."""
    place = tmp_path_factory.mktemp("views")
    wide = make_records(
        5, seed=2, candidates=(6, 9), horizon=5, features=2, depth=(6, 8), policies=("new",)
    )
    size: Any = {"selected_depth_height_px": 6, "selected_depth_width_px": 8}
    paths = [
        write_store(place, "narrow", 4, seed=1, candidates=(3, 5), branching=True),
        write_rollout_zarr_store(place / "wide", wide, **size).store_dir,
        write_store(place, "last", 2, seed=3, candidates=4, horizon=2),
    ]
    return RolloutCollection(paths)


def shifted(many: RolloutCollection, index: int, row: Row) -> Row:
    """A row of one store with global ids."""
    return {
        name: value + int(many.offsets(ROW_IDS[name])[index])
        if name in ROW_IDS and value is not None and value >= 0
        else value
        for name, value in row.items()
    }


def comparable(rows: list[Row]) -> list[str]:
    return sorted(repr({k: "nan" if _is_nan(v) else v for k, v in row.items()}) for row in rows)


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


@pytest.mark.parametrize(
    "rows_of",
    [
        audit.candidate_audit_rows,
        audit.rollout_step_objective_rows,
        audit.target_audit_rows,
        audit.suspicious_rollout_rows,
        audit.selected_depth_summary_rows,
    ],
)
def test_audit_rows_are_those_of_the_stores(
    many: RolloutCollection, rows_of: Callable[..., list[Row]]
) -> None:
    expected = [
        shifted(many, index, row)
        for index, store in enumerate(many.stores)
        for row in rows_of(store)
    ]
    found = rows_of(many)
    for row in [*found, *expected]:  # a store without images says so, a collection misses the row
        row["warning"] = bool(row.get("warning"))
    assert comparable(found) == comparable(expected)


@pytest.mark.parametrize("rows_of", [audit.validity_waterfall_rows, audit.suspicious_counts])
def test_audit_counts_are_sums(many: RolloutCollection, rows_of: Callable[..., list[Row]]) -> None:
    counts = [[row["count"] for row in rows_of(store)] for store in many.stores]
    assert [row["count"] for row in rows_of(many)] == np.sum(counts, axis=0).tolist()


def test_groups_are_over_all_stores(many: RolloutCollection) -> None:
    groups = audit.candidate_group_summary_rows(many, group_by="policy")
    assert {row["policy"] for row in groups} == set(many.decoded("rollouts", "policy_id"))
    assert sum(row["total"] for row in groups) == many.num_candidates


def test_the_audit_page_shows_a_collection(many: RolloutCollection) -> None:
    page = audit_page(many)
    assert "3 stores" in page
    assert f"{many.num_candidates:,}" in page
    step = int(many.offsets("steps")[1])  # the first with an image
    assert "data:image/png" in audit_page(many, step_row_id=step)


def test_frames_are_those_of_the_stores_one_after_the_other(many: RolloutCollection) -> None:
    for table in ("rollouts", "candidates", "targets", "returns"):
        frame = many.to_pandas(table)
        assert len(frame) == many.num_rows(table)
        parts = [store.to_pandas(table) for store in many.stores]
        for name in set(frame.columns) - set(ROW_IDS):
            if TABLES[table].columns[name].shape == ():
                listed = [value for part in parts for value in part[name].tolist()]
                assert repr(frame[name].tolist()) == repr(listed), name
    assert many.to_arrow("steps")["step_row_id"].to_pylist() == list(range(many.num_steps))
    assert many.to_polars("lineage").height == many.num_rollouts


def test_a_table_is_exported_in_words(many: RolloutCollection, tmp_path: Path) -> None:
    rows = export_table(many, "rollouts", tmp_path / "r.jsonl")
    assert rows == many.num_rollouts
    text = (tmp_path / "r.jsonl").read_text()
    assert all(f'"rollout_id": "{name}"' in text for name in many.words("rollout"))


def test_returns_with_another_discount_are_those_of_the_stores(many: RolloutCollection) -> None:
    assert_same_columns(many.returns_view(), many.table("returns"))
    found = many.returns_view(discount_gamma=0.5)
    for index, store in enumerate(many.stores):
        own = store.returns_view(discount_gamma=0.5)
        first, last = many.offsets("steps")[index : index + 2].tolist()
        width = own["n_step_return"].shape[1]
        part = found["n_step_return"][first:last]
        assert np.array_equal(part[:, :width], own["n_step_return"], equal_nan=True)
        assert np.array_equal(found["mc_return"][first:last], own["mc_return"], equal_nan=True)
    view = many.q_h_view(discount_gamma=0.5)
    assert set(view["td_discount"].tolist()) == {0.0, 0.5}
    assert_same_columns(
        {**view, "td_discount": many.table("q_h")["td_discount"]}, many.table("q_h")
    )


def test_single_rows_have_global_ids(many: RolloutCollection) -> None:
    for row in (0, many.num_rollouts - 1):
        chain = many.rollout(row)
        assert chain["rollout_row_id"] == row
        assert set(chain["candidates"]["rollout_row_id"].tolist()) == {row}
        steps = chain["steps"]["step_row_id"]
        assert_same_columns(chain["steps"], many.steps(slice(steps[0], steps[-1] + 1)))
        shell = many.candidates(int(steps[0]))
        assert set(shell["step_row_id"].tolist()) == {steps[0]}
        assert many.lineage(row).rollout_id == many.decoded("rollouts", "rollout_id")[row]
    step = int(many.offsets("steps")[1])
    image = many.selected_depth(step)
    assert image is not None
    assert image["step_row_id"] == step
    assert image["candidate_row_id"] == many.array("steps/selected_candidate_row_id")[step]
    assert many.selected_depth(0) is None


def test_every_store_is_validated_and_errors_name_it(tmp_path: Path) -> None:
    good, bad = write_store(tmp_path, "good", 2, seed=1), write_store(tmp_path, "bad", 2, seed=2)
    many = RolloutCollection([good, bad])
    assert many.validate(deep=True).ok
    chunk = bad / "candidates" / "target_rri" / "c" / "0"
    chunk.write_bytes(bytes(chunk.stat().st_size))
    result = many.validate(deep=True)
    assert not result.ok
    assert [store.ok for store in result.stores] == [True, False]
    assert all(error.startswith(f"{bad}: ") for error in result.errors)
    with pytest.raises(StorageError, match=str(chunk)):
        export_table(many, "candidates", tmp_path / "c.csv")
    assert not (tmp_path / "c.csv").exists()


def test_columns_that_there_are_not_are_refused(many: RolloutCollection) -> None:
    for path in ("candidates/colour", "colours/candidate"):
        assert not many.has(path)
        with pytest.raises(StorageError, match="no such column"):
            many.array(path)
    assert not many.array("candidates/target_rri").flags.writeable


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


def test_a_collection_has_what_a_store_has_except_what_belongs_to_one_folder() -> None:
    """Those are reached through `collection.stores`; `provenance` has their manifests."""
    assert public(RolloutZarrStoreReader) - public(RolloutCollection) - {"stores"} == {
        *("root", "manifest", "store_manifest", "local")
    }


MISSPELT: list[tuple[Callable[[Any], object], str]] = [
    (lambda view: view.table("candidate"), "candidates"),
    (lambda view: view.table("candidate", rows=np.array([0])), "candidates"),
    (lambda view: view.table("candidates", ("target_root_gian",)), "target_root_gain"),
    (lambda view: view.array("candidate/target_rri"), "candidates"),
    (lambda view: view.array("candidates/target_root_gian"), "target_root_gain"),
    (lambda view: view.column_names("candidate"), "candidates"),
    (lambda view: view.decoded("candidate", "position_id"), "candidates"),
    (lambda view: view.decoded("candidates", "positon_id"), "position_id"),
    (lambda view: view.words("polcy"), "policy"),
    (lambda view: view.verify_columns("candidate", ["target_rri"]), "candidates"),
    (lambda view: view.verify_columns("candidates", ["target_root_gian"]), "target_root_gain"),
    (lambda view: view.to_arrow("candidate"), "candidates"),
]


@pytest.mark.parametrize(("read", "near"), MISSPELT)
def test_a_misspelt_name_is_refused_with_those_that_look_like_it(
    many: RolloutCollection, read: Callable[[Any], object], near: str
) -> None:
    for view in (many, many.stores[0]):
        with pytest.raises(RollbookError, match=f"did you mean .*{near}"):
            read(view)
