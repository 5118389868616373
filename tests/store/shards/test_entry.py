"""A planned shard: what it says, what it refuses, and what its split hash depends on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.errors import InvalidText, InvalidValue, MalformedJson
from rollbook.store.shards.entry import (
    RolloutShardEntry,
    RolloutShardRow,
    canonical_rollout_shard_id,
    split_hash,
)
from tests.store.shards.planned import SOURCE, entry, row

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
numbers = st.integers(0, 2**63 - 1)
some_rows = st.lists(
    st.builds(
        RolloutShardRow,
        order=numbers,
        sample_index=numbers,
        sample_key=texts,
        scene_id=texts,
        snippet_id=texts,
        split=texts,
        source_shard_id=texts,
        source_shard_row=numbers,
    ),
    min_size=1,
    max_size=4,
)


# ---------------------------------------------------------------------------------------- ids


@given(st.integers(0, 999_999_999_999))
def test_every_spelling_of_a_number_is_one_id(number: int) -> None:
    spellings: set[int | str] = {
        number,
        str(number),
        f"shard-{number}",
        f"shard-{number:06d}",
        f"{number:09d}",
    }
    (found,) = {canonical_rollout_shard_id(each) for each in spellings}
    assert found == f"shard-{number:06d}"


@pytest.mark.parametrize(
    "wrong", ["", "shard-", "shard--1", -1, "1.0", "../shard-1", "shard-1\n", "shard-٣", True, " 1"]
)
def test_what_is_no_id_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidText, match="expected a number or an id such as shard-000007"):
        canonical_rollout_shard_id(wrong)


# ------------------------------------------------------------------------------------- split hash


@given(some_rows, some_rows, texts, texts)
def test_the_split_hash_tells_every_difference(
    rows: list[RolloutShardRow], others: list[RolloutShardRow], split: str, source: str
) -> None:
    same = split_hash(source, split, [RolloutShardRow(**each.hash_record()) for each in rows])
    assert split_hash(source, split, rows) == same
    assert (split_hash(source, split, others) == same) == (rows == others)
    assert split_hash(source + "x", split, rows) != same != split_hash(source, split + "x", rows)
    assert (split_hash(source, split, rows[::-1]) == same) == (rows == rows[::-1])


def test_text_that_moves_from_one_value_to_the_next_is_another_hash() -> None:
    one = msgspec.structs.replace(row(0, order=0), scene_id="ab", snippet_id="c")
    other = msgspec.structs.replace(one, scene_id="a", snippet_id="bc")
    assert split_hash(SOURCE, "train", [one]) != split_hash(SOURCE, "train", [other])


# ----------------------------------------------------------------------------------- JSON and rows


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=9, unique=True))
def test_an_entry_comes_back_from_its_json(indices: list[int]) -> None:
    planned = entry(3, indices, split="val")
    plain = planned.to_jsonable()
    assert plain["num_rows"] == len(indices)
    assert RolloutShardEntry.from_jsonable(plain) == planned
    assert [RolloutShardRow.from_jsonable(each) for each in plain["rows"]] == list(planned.rows)


def test_a_value_of_the_wrong_type_is_named() -> None:
    plain = entry(0, [4, 5]).to_jsonable()
    plain["rows"][1]["sample_index"] = "5"
    with pytest.raises(MalformedJson, match=r"\$\.rows\[1\]\.sample_index: Expected `int`"):
        RolloutShardEntry.from_jsonable(plain)
    with pytest.raises(MalformedJson, match="extra"):
        RolloutShardRow.from_jsonable({**entry(0, [4]).rows[0].to_jsonable(), "extra": 1})


WRONG: dict[str, dict[str, Any]] = {
    "manifest_version": {"manifest_version": "rollout-shard-manifest-v2"},
    "shard_id": {"shard_id": "shard-7"},
    "rows is 'empty'": {"rows": ()},
    r"rows\[1\].order": {"rows": (row(4, order=0), row(5, order=2))},
    r"rows\[1\].split": {"rows": (row(4, order=0), row(5, order=1, split="val"))},
    r"rows\[0\].source_shard_id": {
        "rows": (msgspec.structs.replace(row(4, order=0), source_shard_id=""),)
    },
    r"rows\[0\].source_shard_row is -1": {
        "rows": (msgspec.structs.replace(row(4, order=0), source_shard_row=-1),)
    },
    r"rows\[0\].sample_index": {
        "rows": (msgspec.structs.replace(row(4, order=0), sample_index=2**63),)
    },
    "same source row twice": {"rows": (row(4, order=0), row(4, order=1))},
    "split_manifest_hash": {"rows": (row(5, order=0), row(4, order=1))},
    "split_manifest_hash is ": {"source_manifest_hash": "6" * 64},
}


@pytest.mark.parametrize("named", WRONG)
def test_an_entry_that_breaks_a_rule_is_refused_by_field(named: str) -> None:
    with pytest.raises(InvalidValue, match=named):
        msgspec.structs.replace(entry(0, [4, 5]), **WRONG[named]).validate()


def test_a_row_matches_the_record_it_was_planned_from_and_no_other() -> None:
    planned = row(4, order=3)

    class Record:
        sample_index, sample_key, scene_id = 4, planned.sample_key, planned.scene_id
        snippet_id, split = planned.snippet_id, planned.split
        shard_id, row = planned.source_shard_id, planned.source_shard_row

    assert RolloutShardRow.from_index_record(Record(), order=3) == planned
    assert planned.matches_record(Record())
    for name in (
        "sample_index",
        "sample_key",
        "scene_id",
        "snippet_id",
        "split",
        "shard_id",
        "row",
    ):
        other = Record()
        setattr(other, name, 9 if name in ("sample_index", "row") else "other")
        assert not planned.matches_record(other), name
