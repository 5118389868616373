"""The v1 recipes give the digests, sums and refusals recorded from the reference implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook import errors
from rollbook.contracts import (
    COMPATIBLE,
    EnvironmentPackageKey,
    PolicyRevision,
    PolicyRevisionLineage,
    RolloutArtifact,
    RolloutProofKind,
    RolloutProofReference,
    TrainerBatch,
    read_document,
)
from rollbook.contracts.rl.batch import with_digests
from rollbook.contracts.rl.sample_payload import sample_payload
from rollbook.contracts.rl.sums import total_of_sums
from tests.factories import artifact, proof, revision

GOLDEN = Path(__file__).parents[2] / "golden"
VECTORS = json.loads((GOLDEN / "contracts.json").read_text())
PROTOCOL = json.loads((GOLDEN / "contracts_protocol.json").read_text())
BATCHES = {batch["name"]: batch for batch in VECTORS["batches"]}
ARTIFACTS = {each["artifact_id"]: each for batch in BATCHES.values() for each in batch["artifacts"]}
WITH_SAMPLES = [name for name, each in ARTIFACTS.items() if each["samples"] is not None]


def bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def from_bits(values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, np.uint32).view(np.float32)


def proofs_of(given: list[dict[str, str]]) -> list[RolloutProofReference]:
    return [
        RolloutProofReference(
            kind=RolloutProofKind(each["kind"]), digest=each["digest"], reference=each["reference"]
        )
        for each in given
    ]


def build(given: dict[str, Any]) -> RolloutArtifact:
    rows = np.array(given["samples"], np.uint64).T
    return RolloutArtifact(
        artifact_id=given["artifact_id"],
        worker_id=given["worker_id"],
        environment=EnvironmentPackageKey(**given["environment"]),
        task_id=given["task_id"],
        source_policy_revision=PolicyRevision(**given["source_policy_revision"]),
        samples={
            "token_id": rows[0],
            "logprob": from_bits(rows[1]),
            "reward": from_bits(rows[2]),
            "advantage": from_bits(rows[3]),
        },
        termination_reason=given["termination_reason"],
        created_at_ms=given["created_at_ms"],
        proof_references=proofs_of(given["proof_references"]),
        rules=COMPATIBLE,
    )


@pytest.mark.parametrize("name", WITH_SAMPLES)
def test_artifact_digest_and_sums_are_those_of_the_reference(name: str) -> None:
    given = ARTIFACTS[name]
    built = build(given)
    assert built.artifact_digest == given["artifact_digest"]
    assert built.token_count == given["sample_count"]
    assert bits(built.reward_sum) == given["reward_sum_bits"]
    assert bits(built.advantage_sum) == given["advantage_sum_bits"]


@pytest.mark.parametrize("name", WITH_SAMPLES)
def test_the_bytes_hashed_for_samples_are_those_of_the_reference(name: str) -> None:
    given = ARTIFACTS[name]
    built = build(given)
    payload, begins = sample_payload(built.table.samples, 0, built.token_count)
    assert begins[-1] == len(payload)
    assert bytes(payload) in bytes.fromhex(given["payload_hex"])


@pytest.mark.parametrize(
    "name", [name for name, batch in BATCHES.items() if batch["artifacts"][0]["samples"]]
)
def test_assembled_batch_is_that_of_the_reference(name: str) -> None:
    expected = BATCHES[name]["batch"]
    batch = TrainerBatch.assemble(
        batch_id=expected["batch_id"],
        target_revision=PolicyRevision(**expected["target"]),
        rollouts=[build(each) for each in BATCHES[name]["artifacts"]],
        assembled_at_ms=expected["assembled_at_ms"],
        rules=COMPATIBLE,
    )
    assert batch.batch_digest == expected["batch_digest"]
    assert batch.policy_lineage.lineage_digest == expected["lineage_digest"]
    assert [*batch.policy_lineage.source_revisions] == [
        PolicyRevision(**each) for each in expected["source_revisions"]
    ]
    assert [*batch.rollout_ids] == expected["rollout_ids"]
    assert [*batch.rollout_digests] == expected["rollout_digests"]
    assert [*batch.proof_references] == proofs_of(expected["proof_references"])
    assert (batch.rollout_count, batch.token_count) == (
        expected["rollout_count"],
        expected["token_count"],
    )
    assert bits(batch.reward_sum) == expected["reward_sum_bits"]
    assert bits(batch.advantage_sum) == expected["advantage_sum_bits"]


def test_a_batch_whose_samples_were_not_recorded_follows_from_its_artifacts_sums_and_digests() -> (
    None
):
    """The vectors give no samples for this one, so it is checked from the artifacts' recorded results on."""
    given, expected = (
        BATCHES["order_sensitive_sums"]["artifacts"],
        BATCHES["order_sensitive_sums"]["batch"],
    )
    sources = {
        each["source_policy_revision"]["revision_id"]: PolicyRevision(
            **each["source_policy_revision"]
        )
        for each in given
    }
    lineage = PolicyRevisionLineage.of(PolicyRevision(**expected["target"]), sources)
    reward = total_of_sums(from_bits([each["reward_sum_bits"] for each in given]))
    advantage = total_of_sums(from_bits([each["advantage_sum_bits"] for each in given]))
    assert lineage.lineage_digest == expected["lineage_digest"]
    assert (bits(float(reward)), bits(float(advantage))) == (
        expected["reward_sum_bits"],
        expected["advantage_sum_bits"],
    )
    batch = with_digests(
        TrainerBatch(
            batch_id=expected["batch_id"],
            policy_lineage=lineage,
            rollout_ids=tuple(each["artifact_id"] for each in given),
            rollout_digests=tuple(each["artifact_digest"] for each in given),
            proof_references=tuple(proofs_of(expected["proof_references"])),
            rollout_count=len(given),
            token_count=sum(each["sample_count"] for each in given),
            reward_sum=float(reward),
            advantage_sum=float(advantage),
            assembled_at_ms=expected["assembled_at_ms"],
            batch_digest="",
            content_digest="",
        )
    )
    assert batch.batch_digest == expected["batch_digest"]


def protocol_records() -> list[dict[str, Any]]:
    window = PROTOCOL["windows"][0]
    kept = window["accepted_rollouts"] + window["quarantined_rollouts"]
    return [each["artifact"] for each in kept] + [PROTOCOL["batch_record"]["batch"]]


def test_json_the_reference_wrote_is_read_and_every_digest_in_it_holds() -> None:
    entries = list(read_document(json.dumps(protocol_records()).encode()))
    assert [entry.problem for entry in entries] == [None] * 4
    batch, rollouts = entries[-1].record, [entry.record for entry in entries[:-1]]
    assert isinstance(batch, TrainerBatch)
    by_id = {each.artifact_id: each for each in rollouts if isinstance(each, RolloutArtifact)}
    again = TrainerBatch.assemble(
        batch_id=batch.batch_id,
        target_revision=batch.policy_lineage.target_revision,
        rollouts=[by_id[name] for name in batch.rollout_ids],
        assembled_at_ms=batch.assembled_at_ms,
    )
    assert again.batch_digest == batch.batch_digest


def _family(name: str) -> PolicyRevision:
    return revision(1, policy_family=name)


def _assemble(batch_id: str, rollouts: list[RolloutArtifact]) -> None:
    TrainerBatch.assemble(
        batch_id=batch_id, target_revision=revision(9), rollouts=rollouts, assembled_at_ms=1
    )


REFUSED: dict[str, Any] = {
    "empty_samples": lambda: artifact("rollout-empty", samples=[]),
    "duplicate_proof": lambda: artifact("dup", proof_references=[proof("p"), proof("p")]),
    "empty_samples_beats_duplicate_proof": lambda: artifact(
        "both", samples=[], proof_references=[proof("p"), proof("p")]
    ),
    "empty_batch": lambda: _assemble("b-empty", []),
    "family_mismatch": lambda: _assemble(
        "b-x", [artifact("a"), artifact("c", source_policy_revision=_family("other.family"))]
    ),
    "duplicate_artifact": lambda: _assemble("b-d", [artifact("a"), artifact("a")]),
    "family_beats_duplicate": lambda: _assemble(
        "b-fd", [artifact("a"), artifact("a", source_policy_revision=_family("other.family"))]
    ),
}


@pytest.mark.parametrize("expected", VECTORS["errors"], ids=lambda each: each["name"])
def test_refusals_have_the_type_fields_and_order_of_the_reference(expected: dict[str, Any]) -> None:
    with pytest.raises(errors.Refusal) as caught:
        REFUSED[expected["name"]]()
    assert type(caught.value).__name__ == expected["error"]
    assert caught.value.fields == expected["fields"]
