"""JSON: the reference's shape, strict both ways, every digest checked again on the way in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from rollbook import errors
from rollbook.contracts import (
    COMPATIBLE,
    RolloutArtifact,
    RolloutTable,
    TrainerBatch,
    artifact_from_json,
    artifact_to_json,
    batch_from_json,
    batch_to_json,
    read_document,
    read_file,
    write_file,
)
from tests.factories import artifact, proof, revision, same_columns, samples, table, tables


def batch_of(*rollouts: RolloutArtifact) -> TrainerBatch:
    return TrainerBatch.assemble(
        batch_id="b", target_revision=revision(9), rollouts=rollouts, assembled_at_ms=1
    )


@given(tables(min_rows=1))
def test_artifacts_come_back_bit_for_bit(some: RolloutTable) -> None:
    for each in some:
        again = artifact_from_json(artifact_to_json(each), rules=COMPATIBLE)
        assert again == each
        assert same_columns(again.table, some.take([each.row]))


@given(tables(min_rows=1))
def test_batches_come_back_bit_for_bit(some: RolloutTable) -> None:
    target = some[0].source_policy_revision
    family = some.take(
        [
            each.row
            for each in some
            if each.source_policy_revision.policy_family == target.policy_family
        ]
    )
    batch = TrainerBatch.assemble(
        batch_id="b", target_revision=target, rollouts=family, assembled_at_ms=1, rules=COMPATIBLE
    )
    again = batch_from_json(batch_to_json(batch))
    assert again.content_digest == batch.content_digest
    assert np.float32(again.reward_sum).tobytes() == np.float32(batch.reward_sum).tobytes()


def test_a_plain_artifact_has_exactly_the_keys_of_the_reference() -> None:
    written = json.loads(
        artifact_to_json(artifact(proof_references=[proof("p")]), reference_only=True)
    )
    assert list(written) == [
        "artifact_id",
        "worker_id",
        "environment",
        "task_id",
        "source_policy_revision",
        "samples",
        "termination_reason",
        "proof_references",
        "created_at_ms",
        "artifact_digest",
    ]
    assert list(written["samples"][0]) == ["token_id", "logprob", "reward", "advantage"]
    assert "proof_references" not in json.loads(artifact_to_json(artifact()))


def test_a_plain_batch_has_exactly_the_keys_of_the_reference() -> None:
    written = json.loads(
        batch_to_json(batch_of(artifact(proof_references=[proof("p")])), reference_only=True)
    )
    assert list(written) == [
        "batch_id",
        "policy_lineage",
        "rollout_ids",
        "rollout_digests",
        "proof_references",
        "rollout_count",
        "token_count",
        "reward_sum",
        "advantage_sum",
        "assembled_at_ms",
        "batch_digest",
    ]
    assert list(written["policy_lineage"]) == [
        "target_revision",
        "source_revisions",
        "lineage_digest",
    ]
    assert batch_from_json(json.dumps(written)).rollouts_root is None


def test_an_artifact_that_needs_our_keys_is_not_written_without_them() -> None:
    with pytest.raises(errors.ConfigurationError, match="value, group_id"):
        artifact_to_json(
            artifact(samples=samples(value=[0, 0, 0]), group_id="g"), reference_only=True
        )


def test_floats_are_written_short_and_non_finite_ones_by_name() -> None:
    made = artifact(
        samples=samples(logprob=[-0.6, -np.inf, np.nan], reward=[0.1, -0.0, 1e-45]),
        rules=COMPATIBLE,
    )
    written = artifact_to_json(made).decode()
    assert '"logprob":-0.6,"reward":0.1,' in written
    assert '"logprob":"-Infinity","reward":-0.0,' in written
    assert '"logprob":"NaN","reward":1e-45,' in written


def test_the_largest_integers_survive() -> None:
    made = artifact(
        created_at_ms=2**64 - 1, source_policy_revision=revision(produced_at_ms=2**64 - 1)
    )
    again = artifact_from_json(artifact_to_json(made))
    assert again.created_at_ms == again.source_policy_revision.produced_at_ms == 2**64 - 1


def changed(change: Callable[[dict[str, Any]], None]) -> bytes:
    document = json.loads(
        artifact_to_json(artifact("a", prompt=[1, 2], proof_references=[proof("p")]))
    )
    change(document)
    return json.dumps(document).encode()


MALFORMED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "unknown field": (lambda d: d.update(extra=1), "extra"),
    "unknown field in a sample": (lambda d: d["samples"][1].update(x=1), "$.samples[1]"),
    "unknown field in the revision": (
        lambda d: d["source_policy_revision"].update(x=1),
        "$.source_policy_revision",
    ),
    "missing field": (lambda d: d.pop("worker_id"), "worker_id"),
    "missing digest": (lambda d: d.pop("artifact_digest"), "artifact_digest"),
    "text for a number": (lambda d: d.update(created_at_ms="1100"), "$.created_at_ms"),
    "a lost NaN": (lambda d: d["samples"][0].update(logprob=None), "$.samples[0].logprob"),
    "fractional token id": (
        lambda d: d["samples"][2].update(token_id=1.5),
        "$.samples[2].token_id",
    ),
    "unknown ending": (lambda d: d.update(termination_reason="tired"), "$.termination_reason"),
    "unknown proof kind": (
        lambda d: d["proof_references"][0].update(kind="x"),
        "$.proof_references[0].kind",
    ),
    "negative number in the revision": (
        lambda d: d["source_policy_revision"].update(produced_at_ms=-1),
        "produced_at_ms",
    ),
    "samples that are no list": (lambda d: d.update(samples={"token_id": [1]}), "$.samples"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_json_is_refused_naming_artifact_and_place(case: str) -> None:
    change, place = MALFORMED[case]
    with pytest.raises(errors.MalformedJson) as caught:
        artifact_from_json(changed(change))
    assert caught.value.record_id == "a"
    assert place in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[1,2",
        b"\xff\xfe",
        b"nul",
        b"[" * 200_000,
        b'{"artifact_id": "\\ud800"}',
        b"3",
        b'"x"',
    ],
)
def test_what_is_not_json_is_an_entry_with_a_problem(data: bytes) -> None:
    (entry,) = read_document(data)
    assert isinstance(entry.problem, errors.MalformedJson)
    with pytest.raises(errors.MalformedJson):
        artifact_from_json(data)


TAMPERED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "worker": lambda d: d.update(worker_id="w2"),
    "reward": lambda d: d["samples"][0].update(reward=0.5),
    "revision number": lambda d: d["source_policy_revision"].update(revision_number=2),
    "prompt": lambda d: d.update(prompt=[1, 3]),
    "digest": lambda d: d.update(artifact_digest="0" * 64),
    "content digest": lambda d: d.update(content_digest="0" * 64),
    "proof dropped": lambda d: d.pop("proof_references"),
    "sample dropped": lambda d: d["samples"].pop(),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_tampered_json_fails_its_digest(case: str) -> None:
    with pytest.raises(errors.DigestMismatch) as caught:
        artifact_from_json(changed(TAMPERED[case]))
    assert caught.value.record_id == "a"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda d: d.update(token_count=9), "batch_digest"),
        (lambda d: d.update(reward_sum=9.0), "batch_digest"),
        (lambda d: d.update(rollout_count=9), "rollout_count"),
        (lambda d: d["rollout_digests"].pop(), "rollout_count"),
        (lambda d: d["policy_lineage"].update(lineage_digest="x"), "lineage_digest"),
        (
            lambda d: d["policy_lineage"]["target_revision"].update(revision_number=77),
            "content_digest",
        ),
        (lambda d: d.update(rollouts_root="0" * 64), "content_digest"),
    ],
)
def test_tampered_batches_fail_their_digest(change: Callable[[Any], Any], field: str) -> None:
    document = json.loads(
        batch_to_json(batch_of(artifact("a"), artifact("b", source_policy_revision=revision(2))))
    )
    change(document)
    with pytest.raises(errors.DigestMismatch) as caught:
        batch_from_json(json.dumps(document))
    assert caught.value.field == field


def test_source_revisions_are_put_in_order_when_read() -> None:
    batch = batch_of(artifact("a"), artifact("b", source_policy_revision=revision(2)))
    document = json.loads(batch_to_json(batch))
    document["policy_lineage"]["source_revisions"].reverse()
    assert batch_from_json(json.dumps(document)) == batch


def test_a_document_may_be_a_record_a_list_or_an_object_of_lists() -> None:
    one, batch = artifact_to_json(artifact("a")), batch_to_json(batch_of(artifact("a")))
    shapes = {
        one: ["$"],
        b"[" + one + b"," + batch + b"]": ["$[0]", "$[1]"],
        b'{"artifacts":[' + one + b'],"batches":[' + batch + b"]}": [
            "$.artifacts[0]",
            "$.batches[0]",
        ],
        b'{"batches":[]}': [],
    }
    for data, places in shapes.items():
        entries = list(read_document(data))
        assert [entry.where for entry in entries] == places
        assert all(entry.problem is None for entry in entries)
    lines = list(read_document(one + b"\n\n" + batch + b"\n", lines=True))
    assert [entry.where for entry in lines] == ["line 1: $", "line 3: $"]


def test_a_bad_record_does_not_hide_the_others() -> None:
    good = artifact_to_json(artifact("a"))
    entries = list(
        read_document(b"[" + good.replace(b"worker-a", b"worker-b") + b",{}," + good + b"]")
    )
    assert [type(entry.problem).__name__ for entry in entries] == [
        "DigestMismatch",
        "MalformedJson",
        "NoneType",
    ]


def test_unknown_keys_beside_the_lists_are_refused() -> None:
    (entry,) = read_document(b'{"artifacts":[],"extras":[]}')
    assert isinstance(entry.problem, errors.MalformedJson)
    assert entry.problem.where == "$.extras"


@pytest.mark.parametrize("name", ["out.json", "out.jsonl", "out.ndjson"])
def test_files_are_written_whole_and_read_back(name: str, tmp_path: Path) -> None:
    some = table([2, 3])
    batch = TrainerBatch.assemble(
        batch_id="b", target_revision=revision(9), rollouts=some, assembled_at_ms=1
    )
    path = tmp_path / name
    write_file(some, [batch], path)
    records = [entry.record for entry in read_file(path)]
    assert records == [*some, batch]
    with pytest.raises(errors.TargetExists):
        write_file(some, [], path)
    assert [entry.record for entry in read_file(path)] == records


def test_a_refused_write_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigurationError):
        write_file(artifact(group_id="g").table, [], tmp_path / "out.json", reference_only=True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_there_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(errors.StorageError, match="cannot be opened"):
        read_file(tmp_path / "none.json")
