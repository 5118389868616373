"""The file of a plan: the same bytes for the same plan, and no plan from a file that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.errors import InvalidValue, MalformedJson, StorageError
from rollbook.store.shards.shard_manifest import (
    load_rollout_shard_entry,
    read_rollout_shard_manifest,
    shard_manifest_bytes,
    write_rollout_shard_manifest,
)
from tests.store.shards.planned import entry, plan


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write_rollout_shard_manifest(tmp_path / "shards.jsonl", plan(3))
    return tmp_path / "shards.jsonl"


@given(st.lists(st.integers(1, 4), max_size=6))
def test_a_plan_comes_back_from_its_lines(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    entries = [
        entry(at, range(start, start + size), split="val" if at % 2 else "train")
        for at, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]
    file = tmp_path_factory.getbasetemp() / "again.jsonl"
    write_rollout_shard_manifest(file, entries)
    assert list(read_rollout_shard_manifest(file)) == entries
    assert file.read_bytes() == shard_manifest_bytes(entries, "plan")


def test_lines_are_sorted_ascii_and_end(written: Path) -> None:
    data = written.read_bytes()
    assert data.isascii()
    assert data.endswith(b"}\n")
    for line in data.splitlines():
        assert json.dumps(json.loads(line), sort_keys=True).encode() == line


def test_blank_lines_do_not_count(written: Path) -> None:
    spread = written.read_bytes().replace(b"\n", b"\n\n  \n")
    written.write_bytes(b"\n" + spread)
    assert list(read_rollout_shard_manifest(written)) == plan(3)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda line: line[:40], "truncated"),
        (
            lambda line: line.replace(b'"num_rows": 2', b'"num_rows": 3'),
            "num_rows is 3, expected 2",
        ),
        (lambda line: line.replace(b'"order": 1', b'"order": "1"'), r"\$\.rows\[1\]\.order"),
        (
            lambda line: line.replace(b'"sample_index": 3', b'"sample_index": 9'),
            "split_manifest_hash",
        ),
        (lambda line: line.replace(b"flat", b"fl\xff"), "line 2"),
        (lambda line: line.replace(b'"split"', b'"slit"', 1), "slit"),
        (lambda line: b"[]", "Expected `object`"),
    ],
)
def test_a_wrong_line_is_named_by_its_number(written: Path, damage: Any, said: str) -> None:
    lines = written.read_bytes().splitlines(keepends=True)
    lines[1] = damage(lines[1].rstrip()) + b"\n"
    written.write_bytes(b"".join(lines))
    with pytest.raises(MalformedJson, match=said) as refused:
        read_rollout_shard_manifest(written)
    assert "line 2" in str(refused.value)
    assert str(written) in str(refused.value)


def test_a_shard_is_planned_once_and_a_row_is_in_one_shard(tmp_path: Path) -> None:
    file = tmp_path / "shards.jsonl"
    for entries, said in (
        ([entry(0, [0, 1]), entry(0, [2, 3])], "shard-000000 twice"),
        (
            [entry(0, [0, 1]), entry(1, [2, 1])],
            "source row 1 in both shard-000000 and shard-000001",
        ),
    ):
        with pytest.raises(InvalidValue, match=said):
            write_rollout_shard_manifest(file, entries)
        assert not file.exists()
        file.write_bytes(b"".join(shard_manifest_bytes([each], "plan") for each in entries))
        with pytest.raises(InvalidValue, match=said):
            read_rollout_shard_manifest(file)
        file.unlink()


def test_a_shard_is_found_by_number_or_id(written: Path) -> None:
    for name in (2, "2", "shard-2", "shard-000002"):
        assert load_rollout_shard_entry(written, name) == plan(3)[2]
    with pytest.raises(
        StorageError, match="no shard-000003; the plan has shard-000000 to shard-000002"
    ):
        load_rollout_shard_entry(written, 3)
    with pytest.raises(StorageError, match="cannot be read"):
        load_rollout_shard_entry(written.with_name("none.jsonl"), 0)
