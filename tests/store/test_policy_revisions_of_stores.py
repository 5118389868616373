"""A store keeps the policy revisions of its chains, each once, and looks as before where there are none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from rollbook.contracts.policy import PolicyRevision
from rollbook.errors import ConflictingRevision, StorageError
from rollbook.store.collection import RolloutCollection
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.records import RolloutZarrRecord
from rollbook.store.repack import repack_store
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.synthetic import make_records
from tests.store.tampering import edit_group


def revision(number: int, **facts: object) -> PolicyRevision:
    known = {"policy_family": "grasp", "revision_id": f"rev-{number}", "produced_at_ms": 5}
    return msgspec.convert({**known, "policy_digest": f"d{number}", **facts}, PolicyRevision)


def records(*revisions: PolicyRevision | None) -> Iterator[RolloutZarrRecord]:
    for record, each in zip(make_records(len(revisions), seed=3), revisions, strict=True):
        digest = None if each is None else each.policy_digest
        changes = {"policy_revision": each, "model_checkpoint_hash": digest}
        yield replace(record, lineage=msgspec.structs.replace(record.lineage, **changes))


def test_every_chain_names_its_revision(tmp_path: Path) -> None:
    given = (revision(1), revision(2), None, revision(1, revision_number=1))
    write_rollout_zarr_store(tmp_path / "local", records(*given), selected_depth_enabled=False)
    repack_store(tmp_path / "local", tmp_path / "archive", "archive")
    for name in ("local", "archive"):
        reader = RolloutZarrStoreReader(tmp_path / name)
        # a later record may add facts to what an earlier one said
        assert reader.policy_revisions == {"d1": revision(1, revision_number=1), "d2": revision(2)}
        named = reader.decoded("lineage", "model_checkpoint_id")
        assert set(named) == {"d1", "d2", None}
        reader.validate()


def test_a_collection_counts_the_revisions_of_all_its_stores(tmp_path: Path) -> None:
    given = {"one": (revision(1), None), "two": (revision(2), revision(1, revision_number=1))}
    for name, each in given.items():
        named = [
            replace(record, rollout_id_prefix=f"{name}-{at}")
            for at, record in enumerate(records(*each))
        ]
        write_rollout_zarr_store(tmp_path / name, named, selected_depth_enabled=False)
    many = RolloutCollection([tmp_path / name for name in given])
    assert set(many.policy_revisions) == {"d1", "d2"}
    indices = many.array("lineage/policy_revision_index").tolist()
    for row, index in enumerate(indices):
        stated = many.stated_policy_revisions[index] if index >= 0 else None
        assert stated == many.lineage(row).policy_revision
    assert -1 in indices


def test_a_store_without_revisions_says_nothing_of_them(tmp_path: Path) -> None:
    write_rollout_zarr_store(tmp_path / "store", records(None, None), selected_depth_enabled=False)
    group = json.loads((tmp_path / "store" / "metadata" / "zarr.json").read_bytes())
    assert "policy_revisions" not in group["attributes"]
    assert RolloutZarrStoreReader(tmp_path / "store").policy_revisions == {}


@pytest.mark.parametrize(
    ("second", "field"),
    [
        (revision(1, policy_digest="d9"), "policy_digest"),
        (revision(1, produced_at_ms=6), "produced_at_ms"),
        (revision(1, revision_id="rev-9"), "revision_id"),
    ],
)
def test_revisions_that_contradict_each_other_are_refused(
    tmp_path: Path, second: PolicyRevision, field: str
) -> None:
    """Also two of one digest: rows name a revision by its digest."""
    with pytest.raises(ConflictingRevision) as caught:
        write_rollout_zarr_store(
            tmp_path / "store", records(revision(1), second), selected_depth_enabled=False
        )
    assert caught.value.field == field
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("damaged", [7, [{"policy_family": "grasp"}], [{"policy_family": ""}]])
def test_damaged_revisions_are_a_storage_error(tmp_path: Path, damaged: object) -> None:
    store = tmp_path / "store"
    write_rollout_zarr_store(store, records(revision(1)), selected_depth_enabled=False)
    edit_group(store, "metadata", lambda attributes: attributes.update(policy_revisions=damaged))
    with pytest.raises(StorageError, match="policy_revisions"):
        _ = RolloutZarrStoreReader(store).policy_revisions
