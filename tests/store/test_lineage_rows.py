"""The lineage of every chain can be read back as it was written, and its digest proves the columns it is made of."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.contracts.lineage import RolloutLineage
from rollbook.contracts.policy import CheckpointReference, PolicyRevision
from rollbook.errors import ChecksumMismatch, InvalidNumber, StorageError
from rollbook.store.checks.columns import StoreColumns
from rollbook.store.checks.provenance import check_lineage_records
from rollbook.store.checks.validate import validate_rollout_zarr_store
from rollbook.store.lineage_rows import KNOWN_FIELDS, LINEAGE_COLUMNS
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.records import RolloutZarrRecord
from rollbook.store.repack import repack_store
from rollbook.store.stored_tables import StoredTables
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.synthetic import make_records
from tests.store.tampering import Array, codes_of, copy_store, edit, restore_store, sign

OPTIONAL = tuple(
    field
    for field, annotation in RolloutLineage.__annotations__.items()
    if annotation.endswith("| None")
    and field not in ("policy_revision", "source_sample_index", "source_row_id")
    and not field.startswith("target_primary")
)
"""Fields that a record may leave open. A source row must be known in one way or the other."""


def some_records(count: int) -> list[RolloutZarrRecord]:
    return list(make_records(count, seed=4, branching=True, unmatched_fraction=0.3))


def with_lineage(record: RolloutZarrRecord, **fields: Any) -> RolloutZarrRecord:
    return replace(record, lineage=msgspec.structs.replace(record.lineage, **fields))


def written(place: Path, records: Sequence[RolloutZarrRecord]) -> RolloutZarrStoreReader:
    write_rollout_zarr_store(place, records, selected_depth_enabled=False, replace=True)
    return RolloutZarrStoreReader(place)


def lineages(records: Sequence[RolloutZarrRecord]) -> list[RolloutLineage]:
    return [
        record.lineage_for_chain(chain)
        for record in records
        for chain in range(len(record.result.chains))
    ]


def assert_read_back(reader: RolloutZarrStoreReader, records: Sequence[RolloutZarrRecord]) -> None:
    expected = lineages(records)
    assert len(expected) == reader.num_rollouts
    assert [reader.lineage(row) for row in range(reader.num_rollouts)] == expected


# ------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("profile", ["local", "archive"])
def test_every_lineage_is_read_back_as_it_was_written(tmp_path: Path, profile: Any) -> None:
    records = some_records(5)
    written(tmp_path / "s", records)
    repack_store(tmp_path / "s", tmp_path / "p", profile)
    reader = RolloutZarrStoreReader(tmp_path / "p")
    assert_read_back(reader, records)
    score = records[0].lineage.target_selection_score
    assert score is not None
    assert score != float(np.float32(score))
    assert reader.lineage(0).target_selection_score == score


@settings(max_examples=8, deadline=None)
@given(absent=st.sets(st.sampled_from(OPTIONAL)), source=st.sampled_from(["row", "index", "both"]))
def test_what_a_record_leaves_open_stays_open(
    tmp_path_factory: pytest.TempPathFactory, absent: set[str], source: str
) -> None:
    (record,) = make_records(1, seed=4)
    fields: dict[str, Any] = dict.fromkeys(absent)
    if "target_invalid_reason_bitset" in absent:
        fields["target_primary_invalid_reason"] = None
    if source != "both":
        fields["source_row_id" if source == "index" else "source_sample_index"] = None
    records = [with_lineage(record, **fields)]
    assert_read_back(written(tmp_path_factory.mktemp("open") / "s", records), records)


def test_fill_values_that_are_stated_are_not_taken_for_none(tmp_path: Path) -> None:
    (record,) = make_records(1, seed=4)
    stated = {
        "target_id": "unknown-target",
        "gt_match_status": "not_requested",
        "target_sem_id": -1,
        "random_seed": -1,
        "target_source_index": None,
        "target_row_id": 7,
        "matched_gt_target_row_id": -1,
    }
    records = [with_lineage(record, **stated)]
    assert_read_back(written(tmp_path / "s", records), records)


def test_a_policy_revision_is_the_one_that_the_record_states(tmp_path: Path) -> None:
    """The store joins what two records say about one revision; each lineage keeps what it said itself."""
    short = PolicyRevision(
        policy_family="grasp", revision_id="r1", policy_digest="d1", produced_at_ms=5
    )
    checkpoint = CheckpointReference(
        checkpoint_family="grasp",
        stream_id="stream",
        manifest_digest="m",
        object_digest="o",
        writer_node_id="node",
        membership_epoch=1,
        cluster_state_digest="c",
        topology_digest="t",
        started_at_ms=4,
    )
    full = msgspec.structs.replace(short, revision_number=3, checkpoint=checkpoint)
    records = [
        with_lineage(record, policy_revision=revision, model_checkpoint_hash=digest)
        for record, revision, digest in zip(
            make_records(4, seed=3),
            (short, full, None, short),
            ("d1", "d1", "d1", "d1"),
            strict=True,
        )
    ]
    reader = written(tmp_path / "s", records)
    assert_read_back(reader, records)
    assert reader.policy_revisions == {"d1": full}
    assert validate_rollout_zarr_store(tmp_path / "s").errors == []


def test_a_row_that_is_not_there_is_refused(tmp_path: Path) -> None:
    reader = written(tmp_path / "s", some_records(1))
    for row in (-1, reader.num_rollouts):
        with pytest.raises(InvalidNumber, match="rollout row"):
            reader.lineage(row)


def test_every_field_of_the_lineage_has_its_place() -> None:
    assert {*KNOWN_FIELDS, "policy_revision"} == set(RolloutLineage.__struct_fields__)
    assert len(KNOWN_FIELDS) <= 64


# ------------------------------------------------------------------------------------------- proving


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("lineage") / "good.zarr"
    written(place, some_records(4))
    copy_store(place, place.with_name("copy.zarr"))
    return place


@pytest.fixture
def store(good: Path) -> Any:
    """A copy to be changed."""
    copy = good.with_name("copy.zarr")
    yield copy
    restore_store(copy, good)


def other_value(values: Array, _: Any) -> None:
    """Another value in the first row that is allowed by its type."""
    values[0] = values[0] - 1 if values[0] > 0 else values[0] + 1


@pytest.mark.parametrize("path", sorted({*LINEAGE_COLUMNS.values()} - {"rollouts/source_row_id"}))
def test_a_changed_column_of_the_lineage_breaks_its_digest(store: Path, path: str) -> None:
    edit(store, path, other_value)
    (found,) = check_lineage_records(StoreColumns(StoredTables(store)))
    assert found.code == "wrong_lineage_digest"
    assert 0 in found.rows
    with pytest.raises(ChecksumMismatch, match="rollout row 0"):
        RolloutZarrStoreReader(store).lineage(0)


@pytest.mark.parametrize("name", ["gt_match_iou", "target_center_world"])
def test_a_rounded_number_must_be_the_stated_one(store: Path, name: str) -> None:
    def more(values: Array, _: Any) -> None:
        values[0] += np.float32(0.25)

    edit(store, f"targets/{name}", more)
    assert codes_of(store) == {"lineage_value_differs"}


def test_a_stated_number_is_part_of_the_digest(store: Path) -> None:
    def nudge(values: Array, _: Any) -> None:
        values[0, 0] = np.nextafter(values[0, 0], 1)

    edit(store, "targets/lineage_values", nudge)
    assert codes_of(store) == {"wrong_lineage_digest"}


def test_a_digest_of_another_row_is_found(store: Path) -> None:
    def swap(values: Array, _: Any) -> None:
        values[[0, 1]] = values[[1, 0]]

    edit(store, "lineage/lineage_digest", swap)
    (found,) = validate_rollout_zarr_store(store).violations
    assert (found.code, found.rows) == ("wrong_lineage_digest", (0, 1))


def test_a_store_of_an_earlier_release_is_valid_but_has_no_whole_lineage(store: Path) -> None:
    for path in (
        *(f"lineage/{name}" for name in ("known_fields", "selector_target_row_id")),
        *("lineage/policy_revision_index", "targets/lineage_values"),
    ):
        shutil.rmtree(store / path)
    sign(store)
    assert validate_rollout_zarr_store(store, deep=True).errors == []
    with pytest.raises(StorageError, match="before stores kept the whole lineage"):
        RolloutZarrStoreReader(store).lineage(0)
