"""Every fast path gives the bits of the plain one."""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.contracts import RolloutArtifact, RolloutTable
from rollbook.contracts.rl import f32_json, sample_payload
from rollbook.contracts.rl.columns import ragged_rows
from rollbook.contracts.rl.sums import _one_by_one, _sweep, sequential_sums
from rollbook.contracts.rl.table_digests import (
    artifact_digests,
    content_digests,
    row_content_digest,
)
from rollbook.digest import Plain, canonical
from rollbook.errors import InvalidNumber
from tests.factories import f32_bits, table, tables


def plain_artifact_digest(artifact: RolloutArtifact) -> str:
    """The v1 recipe, one sample at a time."""
    source = artifact.source_policy_revision
    hasher = hashlib.sha256(
        f"psionic_rollout_artifact|{artifact.artifact_id}|worker|{artifact.worker_id}"
        f"|env|{artifact.environment.storage_key}|task|{artifact.task_id}"
        f"|policy_family|{source.policy_family}|revision|{source.revision_id}"
        f"|policy_digest|{source.policy_digest}|created_at_ms|{artifact.created_at_ms}"
        f"|termination|{artifact.termination_reason}".encode()
    )
    columns = artifact.columns
    for index in range(artifact.token_count):
        hasher.update(f"|sample|{int(columns['token_id'][index])}".encode())
        for name in ("logprob", "reward", "advantage"):
            hasher.update(b"|" + columns[name][index].tobytes())
    for proof in artifact.proof_references:
        hasher.update(f"|proof|{proof.kind}|{proof.digest}|{proof.reference}".encode())
    return hasher.hexdigest()


def plain_content_digest(artifact: RolloutArtifact) -> str:
    """The v2 recipe from plain values."""
    semantics, prompt = artifact.logprob_semantics, artifact.prompt
    header: list[Plain] = [
        artifact.artifact_id,
        artifact.worker_id,
        artifact.task_id,
        artifact.environment.plain(),
        artifact.source_policy_revision.plain(),
        str(artifact.termination_reason),
        artifact.created_at_ms,
        artifact.group_id,
        artifact.attempt,
        None if semantics is None else semantics.plain(),
        [
            text
            for proof in artifact.proof_references
            for text in (str(proof.kind), proof.digest, proof.reference)
        ],
        None if prompt is None else prompt.tobytes(),
    ]
    columns = artifact.columns
    body = b"".join(
        canonical(name) + canonical(column.dtype.str) + canonical(column.tobytes())
        for name, column in columns.items()
    )
    count = b"l" + struct.pack("<Q", len(columns))
    domain = canonical("rollbook.rollout_artifact.v2")
    return hashlib.sha256(domain + canonical(header) + count + body).hexdigest()


@given(tables())
def test_table_digests_equal_the_recipes_written_plainly(some: RolloutTable) -> None:
    assert [each.artifact_digest for each in some] == [plain_artifact_digest(each) for each in some]
    assert [each.content_digest for each in some] == [plain_content_digest(each) for each in some]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_payload, "FEW", -1)  # every table is then hashed like a large one
        assert artifact_digests(some.columns).tobytes() == some.artifact_digests.tobytes()


def test_digests_of_any_token_ids_need_nothing_that_an_earlier_call_prepared() -> None:
    """The numpy calls are counted: a table of digits that grows with the ids would add some to the first call."""
    counts = []
    for highest in (200_000, 200_000, 300_000, 999_999):
        ids = np.full(1000, highest, np.uint32)
        columns = {**table([1000]).samples, "token_id": ids}
        counts.append(_numpy_calls(partial(sample_payload.sample_payload, columns, 0, 1000)))
    assert len(set(counts)) == 1


def _numpy_calls(run: Callable[[], object]) -> int:
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "c_call"

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("chunk", [1, 3, 7, 8192])
def test_digests_do_not_depend_on_how_samples_are_cut_into_chunks(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = table([5, 1, 13, 2, 7])
    monkeypatch.setattr(sample_payload, "CHUNK", chunk)
    monkeypatch.setattr(sample_payload, "FEW", -1)
    assert artifact_digests(some.columns).tobytes() == some.artifact_digests.tobytes()


def test_one_row_hashed_alone_gives_its_digest_in_the_table() -> None:
    some = table([5, 1, 13])
    for row in range(3):
        assert row_content_digest(some.columns, row) == bytes(some.content_digests[row])


@given(st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 200_000), min_size=1, max_size=40))
def test_sample_bytes_are_right_for_any_token_ids(ids: list[int]) -> None:
    count = len(ids)
    columns: dict[str, Any] = {
        "token_id": np.array(ids, np.uint32),
        "logprob": np.full(count, -1.5, np.float32),
        "reward": np.arange(count, dtype=np.float32),
        "advantage": np.full(count, np.nan, np.float32),
    }
    payload, begins = sample_payload.sample_payload(columns, 0, count)
    rows = [
        b"|sample|%d|%b|%b|%b"
        % (
            token,
            struct.pack("<f", -1.5),
            struct.pack("<f", index),
            columns["advantage"][index].tobytes(),
        )
        for index, token in enumerate(ids)
    ]
    assert bytes(payload) == b"".join(rows)
    assert np.diff(begins).tolist() == [len(row) for row in rows]


def plain_sum(values: np.ndarray[Any, Any]) -> np.float32:
    total = np.float32(-0.0)
    with np.errstate(all="ignore"):
        for value in values:
            total = np.float32(total + value)
    return total


@given(st.lists(st.lists(st.floats(width=32, allow_nan=False), max_size=9), min_size=1, max_size=9))
def test_both_ways_of_summing_give_the_bits_of_a_plain_loop(rows: list[list[float]]) -> None:
    flat = np.array([value for row in rows for value in row], np.float32)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    expected = [plain_sum(np.array(row, np.float32)) for row in rows]
    with np.errstate(all="ignore"):
        for sums in (
            _sweep(flat, offsets),
            _one_by_one(flat, offsets),
            sequential_sums(flat, offsets),
        ):
            same = np.array(expected, np.float32)
            # an infinity less an infinity is some NaN; which one is the processor's business
            assert np.array_equal(np.isnan(sums), np.isnan(same))
            finite = ~np.isnan(same)
            assert sums[finite].tobytes() == same[finite].tobytes()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.data())
def test_taking_ragged_rows_equals_slicing_them_one_by_one(
    lengths: list[int], data: st.DataObject
) -> None:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    values = np.arange(offsets[-1])
    rows = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=6))
    flat, taken = ragged_rows(offsets, np.array(rows, np.int64))
    parts = [values[offsets[row] : offsets[row + 1]].tolist() for row in rows]
    assert values[flat].tolist() == [value for part in parts for value in part]
    assert np.diff(taken).tolist() == [len(part) for part in parts]


@given(st.lists(f32_bits, min_size=1, max_size=30))
def test_floats_come_back_from_json_bit_for_bit(patterns: list[int]) -> None:
    values = np.array(patterns, np.uint32).view(np.float32)
    written = json.loads(json.dumps(f32_json.to_json(values), allow_nan=False))
    assert f32_json.from_json(written, "r", "f").tobytes() == values.tobytes()


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floats_are_written_with_the_shortest_digits(value: float) -> None:
    shortest = str(np.float32(value))
    written = f32_json.json_f32(value)
    assert written == float(shortest) or np.float32(float(shortest)) != np.float32(value)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_digits_widened_to_binary64_read_back_to_the_same_float(value: float) -> None:
    assert f32_json.f32_from_json(value, "r", "f") == value


def test_shortest_digits_that_round_twice_to_a_neighbour_are_read_right() -> None:
    value = np.array([0x15AE43FD], np.uint32).view(np.float32)
    assert np.float32(7.038531e-26) != value[0]  # through binary64 these digits land beside it
    assert f32_json.f32_from_json(7.038531e-26, "r", "f") == value[0]
    assert f32_json.from_json([7.038531e-26], "r", "f")[0] == value[0]


@pytest.mark.parametrize(
    "bad", ["nan", "NaN:", "NaN:7f800000", "NaN:zzzzzzzz", "inf", "", 1e39, -1e300]
)
def test_what_is_not_a_binary32_is_refused_by_name(bad: Any) -> None:
    with pytest.raises(InvalidNumber) as caught:
        f32_json.f32_from_json(bad, "artifact 'a'", "reward")
    assert (caught.value.record, caught.value.field) == ("artifact 'a'", "reward")
    with pytest.raises(InvalidNumber, match=r"reward\[1\]"):
        f32_json.from_json([0.0, bad], "artifact 'a'", "reward")


def test_content_digests_of_an_empty_table_are_none() -> None:
    empty = RolloutTable.empty()
    assert content_digests(empty.columns).shape == artifact_digests(empty.columns).shape == (0, 32)
