"""All shards of a collection as one store: the bytes that one run would have written, made of verified bytes only."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.contracts.policy import PolicyRevision
from rollbook.errors import (
    ChecksumMismatch,
    ConfigurationError,
    IncompatibleStores,
    StorageError,
    TargetExists,
    TruncatedFile,
)
from rollbook.store.checks.validate import validate_rollout_zarr_store
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.repack import repack_store
from rollbook.store.shards.collection_file import FoundCollection, open_collection
from rollbook.store.shards.compact import compact_shards
from tests.store.shards.small_campaigns import Campaign, campaign
from tests.store.tampering import replace_file


def content(store: Path) -> dict[str, tuple[int, str]]:
    """Every file with its checksum. Only manifest.json and the root attributes say when and by whom it was made."""
    return dict(RolloutZarrStoreReader(store).files.listed)


def compacted(made: Campaign, name: str = "compact", **options: Any) -> Path:
    made.merge()
    return compact_shards(made.folder, made.folder / name, **options).store_dir


@st.composite
def plans(draw: st.DrawFn) -> list[list[int]]:
    """Source rows, in any order, divided into shards of any size."""
    rows = draw(st.permutations(range(draw(st.integers(1, 5)))))
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(rows) - 1)))))
    parts = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    return [part for part in parts if part]


CONFIG = {
    "selected_depth_height_px": 3,
    "selected_depth_width_px": 4,
    "selected_depth_chunk_steps": 3,
    "target_eval_crop_max_points": 8,
}
LEARNED = ("oracle_greedy", "random_valid", "learned")


def assert_content_of_one_run(made: Campaign) -> None:
    store = compacted(made.build())
    assert content(store) == content(made.one_run(made.folder / "one"))
    assert validate_rollout_zarr_store(store, deep=True).ok


def test_a_compacted_campaign_has_the_content_of_one_run(tmp_path: Path) -> None:
    kept = {"selected_depth_enabled": True, "target_eval_crops_enabled": True}
    made = campaign(
        tmp_path,
        ((1, 2), (0,)),
        depth=(3, 4),
        crops=True,
        branching=True,
        early_fraction=0.3,
        unmatched_fraction=0.3,
        policies=LEARNED,
        config={**CONFIG, **kept},
    )
    assert_content_of_one_run(made)


@pytest.mark.slow
@settings(max_examples=5)
@given(
    rows=plans(),
    seed=st.integers(0, 50),
    depth=st.booleans(),
    crops=st.booleans(),
    branching=st.booleans(),
    features=st.integers(0, 2),
)
def test_any_records_in_any_shards_are_compacted_to_the_content_of_one_run(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[list[int]],
    seed: int,
    depth: bool,
    crops: bool,
    branching: bool,
    features: int,
) -> None:
    made = campaign(
        tmp_path_factory.mktemp("compact"),
        rows,
        seed=seed,
        depth=(3, 4) if depth else None,
        crops=crops,
        branching=branching,
        features=features,
        early_fraction=0.3,
        unmatched_fraction=0.2,
        policies=LEARNED,
        config={
            **CONFIG,
            "selected_depth_enabled": depth,
            "target_eval_crops_enabled": crops,
        },
    )
    assert_content_of_one_run(made)
    shutil.rmtree(made.folder)


def revision(number: int, **facts: Any) -> PolicyRevision:
    return PolicyRevision(
        policy_family="greedy",
        revision_id=f"r{number}",
        policy_digest=f"{number}" * 64,
        produced_at_ms=number,
        **facts,
    )


def test_policies_of_all_shards_are_described_as_in_one_run(tmp_path: Path) -> None:
    made = campaign(tmp_path, ((0,), (1,), (2,)), policies=("learned",) * 3)
    stated = [revision(1), revision(2), revision(1, revision_number=4)]
    for records, each in zip(made.records, stated, strict=True):
        for at, record in enumerate(records):
            lineage = msgspec.structs.replace(
                record.lineage, policy_revision=each, model_checkpoint_hash=each.policy_digest
            )
            name = f"{record.rollout_id_prefix}-{at}"
            records[at] = dataclasses.replace(record, lineage=lineage, rollout_id_prefix=name)
    store = compacted(made.build())
    assert content(store) == content(made.one_run(tmp_path / "one"))
    reader = RolloutZarrStoreReader(store)
    assert reader.policy_revisions["1" * 64].revision_number == 4
    assert reader.lineage(0).policy_revision == stated[0]
    assert reader.lineage(8).policy_revision == stated[2]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    made = campaign(tmp_path_factory.mktemp("compact") / "campaign").build()
    made.merge()
    return made


@pytest.fixture
def made(finished: Campaign, tmp_path: Path) -> Campaign:
    """The second shard may be changed."""
    return finished.copy(tmp_path / "campaign", own=(1,))


def test_a_compacted_store_says_what_it_was_made_of(finished: Campaign, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    store = compact_shards(
        finished.folder,
        tmp_path / "compact",
        on_store=lambda done, total: seen.append((done, total)),
    ).store_dir
    generation = RolloutZarrStoreReader(store).manifest()["manifest"]["generation"]
    assert generation["shard"] == {
        "compacted_collection_sha256": finished.merge().collection_sha256,
        "shard_ids": [each.shard_id for each in finished.entries],
    }
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert open_collection(store).num_candidates == open_collection(finished.folder).num_candidates
    with pytest.raises(TargetExists):
        compact_shards(finished.folder, store)
    with pytest.raises(StorageError, match="it is in the shard"):
        compact_shards(finished.folder, finished.shards[1], replace=True)
    compact_shards(finished.folder, store, replace=True)
    assert validate_rollout_zarr_store(store).ok


@pytest.mark.slow
def test_shards_of_the_archive_profile_are_compacted_too(
    finished: Campaign, tmp_path: Path
) -> None:
    archived = [repack_store(shard, tmp_path / shard.name, "archive") for shard in finished.shards]
    file = finished.merge()
    shards = tuple(
        msgspec.structs.replace(
            shard,
            path=str(place),
            manifest_sha256=RolloutZarrStoreReader(place).attrs["manifest_sha256"],
        )
        for shard, place in zip(file.shards, archived, strict=True)
    )
    found = FoundCollection(msgspec.structs.replace(file, shards=shards), str(tmp_path))
    store = compact_shards(found, tmp_path / "compact").store_dir
    assert content(store) == content(finished.one_run(tmp_path / "one"))


def test_of_several_splits_one_is_named(tmp_path: Path) -> None:
    made = campaign(
        tmp_path, ((0,), (1,), (2,)), splits=("train", "val", "train"), horizon=1
    ).build()
    made.merge()
    with pytest.raises(
        ConfigurationError, match=r"splits train, val, and a store holds one.*--split"
    ):
        compact_shards(tmp_path, tmp_path / "compact")
    with pytest.raises(ConfigurationError, match="no split 'test'; it has train, val"):
        compact_shards(tmp_path, tmp_path / "compact", split="test")
    for split in ("train", "val"):
        store = compacted(made, f"compact-{split}", split=split)
        assert content(store) == content(made.one_run(tmp_path / f"one-{split}", split))


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    replace_file(path, bytes(data))


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda chunk: flipped(chunk), ChecksumMismatch),
        (lambda chunk: chunk.unlink(), TruncatedFile),
        (lambda chunk: replace_file(chunk, chunk.read_bytes()[:-1]), TruncatedFile),
    ],
)
def test_a_damaged_shard_is_refused_by_name_and_leaves_nothing(
    made: Campaign, damage: Any, error: type[Exception]
) -> None:
    damage(made.shards[1] / "candidates" / "target_rri" / "c" / "0")
    with pytest.raises(error, match=r"shard-000001/candidates/target_rri/c/0"):
        compact_shards(made.folder, made.folder / "compact")
    assert {each.name for each in made.folder.iterdir()} == {"collection.json", "shards"}


def test_an_edited_dictionary_is_refused(made: Campaign) -> None:
    flipped(made.shards[1] / "dictionaries" / "zarr.json")
    with pytest.raises(ChecksumMismatch, match=r"shard-000001/dictionaries/zarr\.json"):
        compact_shards(made.folder, made.folder / "compact")


def test_shards_of_different_settings_do_not_become_one_store(
    finished: Campaign, tmp_path: Path
) -> None:
    made = finished.copy(tmp_path / "campaign")
    made.config["q_h_chunk_states"] = 128
    made.rebuild(1).merge()
    with pytest.raises(IncompatibleStores, match="q_h_chunk_states is 64 in the first and 128"):
        compact_shards(made.folder, tmp_path / "compact")


def test_a_rollout_that_two_shards_have_is_refused(finished: Campaign, tmp_path: Path) -> None:
    made = finished.copy(tmp_path / "campaign")
    first, second = made.records[0][0], made.records[1][0]
    again = dataclasses.replace(second, rollout_id_prefix=first.rollout_id_prefix)
    made.records[1] = [again, *made.records[1][1:]]
    made.rebuild(1).merge()
    with pytest.raises(StorageError, match="is also in a shard before it"):
        compact_shards(made.folder, tmp_path / "compact")
