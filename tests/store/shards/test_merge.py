"""Finished shards become one collection: only complete ones, of one plan, which are then read as one."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.errors import (
    ChecksumMismatch,
    ConfigurationError,
    IncompatibleStores,
    ShardDrift,
    StorageError,
    UnsupportedVersion,
)
from rollbook.store import listed_stores, state_rows
from rollbook.store.collection import RolloutCollection
from rollbook.store.shards.collection_file import CollectionFile, open_collection, read_collection
from rollbook.store.shards.merge import merge_shards, shards_at
from tests.store.shards.planned import entry
from tests.store.shards.small_campaigns import Campaign, campaign
from tests.store.tampering import replace_file
from tests.store.test_reader import assert_same_columns

ROWS = ((0, 1), (2,), (3, 4), (5,))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """Three shards, and a fourth whose rows gave no rollout. Tests that change it work on a copy."""
    made = campaign(tmp_path_factory.mktemp("merge") / "campaign", ROWS, empty=(3,)).build()
    made.merge()
    return made


@pytest.fixture
def linked(finished: Campaign, tmp_path: Path) -> Campaign:
    return finished.copy(tmp_path / "linked")


@pytest.fixture
def copied(finished: Campaign, tmp_path: Path) -> Campaign:
    """The second shard may be changed."""
    return finished.copy(tmp_path / "copied", own=(1,))


def opened(made: Campaign) -> RolloutCollection:
    return open_collection(made.folder)


# -------------------------------------------------------------------------------------- the file


def test_a_collection_lists_every_shard_of_the_plan_in_order(finished: Campaign) -> None:
    file = read_collection(finished.folder).file
    assert [each.shard_id for each in file.shards] == [each.shard_id for each in finished.entries]
    assert [each.path for each in file.shards] == [
        *(f"shards/{each.shard_id}" for each in finished.entries[:3]),
        None,
    ]
    eager = RolloutCollection(finished.shards[:3])
    for listed, store in zip(file.stores, eager.stores, strict=True):
        manifest = store.manifest()["manifest"]
        assert listed.content_sha256 == manifest["content_sha256"]
        assert listed.manifest_sha256 == store.attrs["manifest_sha256"]
        assert listed.counts == manifest["counts"]
    assert file.totals["shards"] == 4
    assert file.totals["empty_shards"] == 1
    assert file.totals["source_rows"] == 6
    assert file.totals["candidates"] == eager.num_candidates
    assert file.writer_config_hash == finished.entries[0].writer_config_hash


def test_the_same_shards_give_the_same_bytes(finished: Campaign, linked: Campaign) -> None:
    before = (finished.folder / "collection.json").read_bytes()
    assert finished.merge().to_bytes() == before
    assert linked.merge().to_bytes() == before
    assert json.loads(before)["collection_sha256"] == finished.merge().collection_sha256


def test_the_digest_covers_content_and_not_place(finished: Campaign, tmp_path: Path) -> None:
    elsewhere = merge_shards(
        finished.entries, shards_at(finished.folder / "shards"), tmp_path / "collection.json"
    )
    assert elsewhere.stores[0].path == str(finished.shards[0])
    assert elsewhere.collection_sha256 == finished.merge().collection_sha256
    fewer = merge_shards(
        finished.entries[1:], shards_at(finished.folder / "shards"), tmp_path / "fewer.json"
    )
    assert fewer.collection_sha256 != elsewhere.collection_sha256
    assert open_collection(tmp_path / "fewer.json").num_sources == 3


def test_progress_is_reported_shard_by_shard(finished: Campaign) -> None:
    seen: list[tuple[int, int]] = []
    finished.merge(on_shard=lambda done, total: seen.append((done, total)))
    assert seen == [(number, 4) for number in range(1, 5)]


# ------------------------------------------------------------------------------------- refusals


def test_shards_that_are_not_finished_are_all_named(copied: Campaign) -> None:
    (copied.folder / "collection.json").unlink()
    (copied.folder / "shards" / "shard-000000").unlink()
    (copied.shards[1] / "_SUCCESS.json").unlink()
    with pytest.raises(StorageError, match="2 of 4 shards are not finished") as refused:
        copied.merge()
    assert "shard-000000: there is no _SUCCESS.json" in str(refused.value)
    assert "shard-000001: there is no _SUCCESS.json" in str(refused.value)
    assert "shard-000002" not in str(refused.value)
    assert not (copied.folder / "collection.json").exists()


def test_a_shard_whose_manifest_was_exchanged_is_refused(copied: Campaign) -> None:
    shutil.copy(copied.shards[0] / "manifest.json", copied.shards[1] / "manifest.json")
    with pytest.raises(StorageError, match=r"shard-000001: manifest\.json is not the one"):
        copied.merge()


def test_rows_of_another_shard_are_refused(linked: Campaign) -> None:
    linked.records[1] = linked.records[0][:3]
    with pytest.raises(StorageError, match="rollouts of source row 0, which shard-000001 does not"):
        linked.rebuild(1).merge()


def test_a_source_row_in_two_shards_is_refused(linked: Campaign) -> None:
    linked.entries[1] = entry(1, (1, 2))
    linked.records[1] = [*linked.records[0][3:], *linked.records[1]]
    with pytest.raises(IncompatibleStores, match="both have rollouts of source row 1"):
        linked.rebuild(1).merge()


def test_stores_whose_rows_mean_different_things_are_refused(linked: Campaign) -> None:
    linked.config["discount_gamma"] = 0.5
    with pytest.raises(IncompatibleStores, match=r"discount_gamma is 1\.0 in the first and 0\.5"):
        linked.rebuild(1).merge()


def test_stores_with_other_columns_are_refused(linked: Campaign) -> None:
    linked.config["target_eval_crops_enabled"] = True
    with pytest.raises(IncompatibleStores, match="only one of them has target_eval_crops/"):
        linked.rebuild(1).merge()


def test_features_of_another_number_are_refused(linked: Campaign) -> None:
    linked.records[1] = campaign(linked.folder, ROWS, features=3).records[1]
    with pytest.raises(IncompatibleStores, match="actor feature count is 2 in the first and 3"):
        linked.rebuild(1).merge()


def test_shards_of_two_plans_are_refused(linked: Campaign) -> None:
    linked.entries[1] = entry(1, (2,), config="d" * 64)
    with pytest.raises(ShardDrift, match="writer_config_hash of shard-000000 is"):
        linked.rebuild(1).merge()


def test_a_campaign_without_any_rollout_is_no_collection(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no shard has a rollout"):
        campaign(tmp_path, ((0,), (1,)), empty=(0, 1)).build().merge()
    with pytest.raises(ConfigurationError, match="at least one shard"):
        merge_shards([], shards_at(tmp_path), tmp_path / "collection.json")


def test_only_verify_reads_every_byte(copied: Campaign) -> None:
    chunk = next((copied.shards[1] / "candidates" / "target_rri" / "c").rglob("*"))
    replace_file(chunk, bytes([chunk.read_bytes()[0] ^ 1]) + chunk.read_bytes()[1:])
    copied.merge()
    (copied.folder / "collection.json").unlink()
    with pytest.raises(StorageError, match=r"shard-000001: the store is not valid: .*target_rri"):
        copied.merge(verify=True)
    assert not (copied.folder / "collection.json").exists()


def test_verify_finds_a_rollout_that_two_shards_have(linked: Campaign) -> None:
    first, second = linked.records[0][0], linked.records[1][0]
    again = dataclasses.replace(second, rollout_id_prefix=first.rollout_id_prefix)
    linked.records[1] = [again, *linked.records[1][1:]]
    linked.rebuild(1).merge()
    with pytest.raises(IncompatibleStores, match="both hold the rollout"):
        linked.merge(verify=True)


# --------------------------------------------------------------------------------------- reading


def test_a_merged_campaign_reads_like_its_stores_together(finished: Campaign) -> None:
    many, eager = opened(finished), RolloutCollection(finished.shards[:3])
    for table in ("sources", "rollouts", "targets", "steps", "candidates", "q_h", "returns"):
        assert many.num_rows(table) == eager.num_rows(table)
        assert many.column_names(table) == eager.column_names(table)
        assert_same_columns(many.table(table, global_ids=True), eager.table(table, global_ids=True))
    assert many.dictionaries == eager.dictionaries
    assert many.rollout(7).keys() == eager.rollout(7).keys()
    assert many.lineage(7) == eager.lineage(7)
    assert many.provenance() == eager.provenance()
    for one, other in zip(many.batches(4, seed=3), eager.batches(4, seed=3), strict=True):
        assert_same_columns(one, other)
    assert many.to_arrow("rollouts").equals(eager.to_arrow("rollouts"))
    assert many.validate(deep=True).ok


def test_the_file_the_folder_and_a_single_store_can_be_opened(
    finished: Campaign, tmp_path: Path
) -> None:
    by_file = open_collection(finished.folder / "collection.json")
    assert by_file.num_rollouts == opened(finished).num_rollouts
    assert open_collection(finished.shards[0]).num_rollouts == 6
    with pytest.raises(StorageError, match="neither a store nor a collection"):
        open_collection(tmp_path)
    with pytest.raises(
        StorageError, match=r"there is no collection\.json; `rollbook campaign merge`"
    ):
        read_collection(tmp_path)


def test_a_campaign_can_be_moved(linked: Campaign, tmp_path: Path) -> None:
    moved = linked.folder.rename(tmp_path / "moved")
    assert open_collection(moved).validate().ok


def test_opening_a_collection_opens_no_store(linked: Campaign) -> None:
    many = opened(linked)
    shutil.rmtree(linked.folder / "shards")
    assert many.num_candidates > 0
    assert many.row_shape("q_h", "actor_features") == (5, 2)
    assert pickle.loads(pickle.dumps(many)).num_steps == many.num_steps


def test_few_stores_stay_open(finished: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows can be read, in any order, even if a single store stays open."""
    monkeypatch.setattr(listed_stores, "_MOST_OPEN", 1)
    monkeypatch.setattr(state_rows, "_MOST_OPEN", 1)
    many, eager = opened(finished), RolloutCollection(finished.shards[:3])
    for one, other in zip(many.batches(3, seed=1), eager.batches(3, seed=1), strict=True):
        assert_same_columns(one, other)
    rows = np.array([9, 0, 7, 14])
    assert_same_columns(many.table("rollouts", rows=rows), eager.table("rollouts", rows=rows))


def test_a_store_that_was_replaced_is_refused_by_name(linked: Campaign) -> None:
    many = opened(linked)
    linked.records[1] = linked.records[1][:2]
    linked.rebuild(1)
    with pytest.raises(
        ChecksumMismatch,
        match=r"shard-000001 was changed .* not the store that",
    ):
        many.array("candidates/target_rri")
    found = opened(linked).validate()
    assert [each.ok for each in found.stores] == [True, False, True]
    assert "manifest_mismatch" in found.errors[0]


def test_a_lost_store_is_a_violation_of_a_collection(linked: Campaign) -> None:
    linked.shards[2].unlink()
    found = opened(linked).validate()
    assert [each.ok for each in found.stores] == [True, True, False]
    assert str(linked.shards[2]) in found.errors[0]
    with pytest.raises(StorageError, match="shard-000002"):
        opened(linked).array("candidates/target_rri")


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (
            lambda fields: fields["shards"].pop(),
            ChecksumMismatch,
            "its shards do not have the digest",
        ),
        (
            lambda fields: fields["shards"][0].update(content_sha256="0" * 64),
            ChecksumMismatch,
            "its shards do not have the digest",
        ),
        (
            lambda fields: fields.update(collection_version="rollout-collection-v2"),
            UnsupportedVersion,
            "needs a later release",
        ),
        (
            lambda fields: fields.update(collection_version="rollout-collection-v0"),
            UnsupportedVersion,
            "merge the campaign again",
        ),
        (lambda fields: fields.pop("sizes"), StorageError, "missing required field `sizes`"),
        (lambda fields: fields["sizes"].pop("A"), StorageError, "sizes has no A"),
        (lambda fields: fields.update(more=1), StorageError, "unknown field `more`"),
    ],
)
def test_an_edited_collection_file_is_refused(
    finished: Campaign, tmp_path: Path, change: Any, error: type[Exception], said: str
) -> None:
    fields = json.loads((finished.folder / "collection.json").read_bytes())
    change(fields)
    (tmp_path / "collection.json").write_text(json.dumps(fields))
    with pytest.raises(error, match=re.escape(str(tmp_path))) as refused:
        open_collection(tmp_path)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields["shards"][0]["counts"].update(candidates=1),
        lambda fields: fields["sizes"].update(A=1),
    ],
)
def test_edited_sizes_are_noticed_when_a_store_is_opened(linked: Campaign, change: Any) -> None:
    path = linked.folder / "collection.json"
    fields = json.loads(path.read_bytes())
    change(fields)
    path.write_text(json.dumps(fields))
    with pytest.raises(ChecksumMismatch, match="other counts or sizes than the store"):
        opened(linked).array("candidates/target_rri")


def test_what_is_no_json_is_no_collection_file(tmp_path: Path) -> None:
    (tmp_path / "collection.json").write_bytes(b"\xff{")
    with pytest.raises(StorageError, match="it is not a collection file"):
        open_collection(tmp_path)


@pytest.mark.parametrize("path", ["../secrets", "/etc", "s3://other/place"])
def test_a_collection_at_a_url_names_nothing_outside_of_it(finished: Campaign, path: str) -> None:
    fields = json.loads((finished.folder / "collection.json").read_bytes())
    fields["shards"][0]["path"] = path
    file = CollectionFile.from_bytes(json.dumps(fields).encode(), "collection.json")
    with pytest.raises(StorageError, match="not below the URL of the collection"):
        file.listed("s3://bucket/prefix")
