"""What may be imported is a promise: a name here goes or changes only on purpose."""

from __future__ import annotations

import dataclasses

from rollbook import contracts, errors, train
from rollbook.contracts.sample import SAMPLE_DTYPES

CONTRACTS = """
    Admission AdmissionOutcome AdmissionSignal AdmissionSignalKind AdmissionWindow COMPATIBLE CheckpointReference
    ContractRules Drift EnvironmentPackageKey InclusionProof LineageGraph LineageWalk LogprobDistribution
    LogprobSemantics OffPolicyBudget PolicyRevision PolicyRevisionLineage ReleaseDecision RevisionKey
    RolloutAdmissionReceipt
    RolloutArtifact RolloutIngestionTelemetry RolloutProofKind RolloutProofReference RolloutRole RolloutSample
    RolloutTable RolloutTerminationReason STRICT StalenessPolicy TokenStaleness TrainerBatch WindowAccounting admit
    artifact_from_json artifact_to_json batch_from_json batch_to_json open_table read_document read_file save_table
    token_staleness verify_proof write_file
"""
TRAIN = """
    JaggedBatch PackedBatch PaddedBatch balance pack_to_budget rollouts_of to_jagged to_packed to_packed_bins
    to_padded
"""
COLUMNS = {
    "token_id": "<u4",
    "logprob": "<f4",
    "reward": "<f4",
    "advantage": "<f4",
    "loss_mask": "|u1",
    "role": "|u1",
    "turn": "<u2",
    "policy_version": "<i4",
    "temperature": "<f4",
    "reference_logprob": "<f4",
    "value": "<f4",
}
REFUSALS = {
    "EmptyRolloutSamples": ("empty_rollout_samples", ["artifact_id"]),
    "DuplicateProofDigest": ("duplicate_proof_digest", ["artifact_id", "digest"]),
    "EmptyTrainerBatch": ("empty_trainer_batch", ["batch_id"]),
    "PolicyFamilyMismatch": (
        "policy_family_mismatch",
        ["batch_id", "artifact_id", "expected_policy_family", "actual_policy_family"],
    ),
    "DuplicateRolloutArtifact": ("duplicate_rollout_artifact", ["batch_id", "artifact_id"]),
    "DigestMismatch": ("digest_mismatch", ["record_id", "field", "recorded", "computed"]),
}


def test_the_names_of_the_contracts_room() -> None:
    assert sorted(contracts.__all__) == sorted(CONTRACTS.split())
    assert all(hasattr(contracts, name) for name in contracts.__all__)


def test_the_names_of_the_train_room() -> None:
    assert sorted(train.__all__) == sorted(TRAIN.split())


def test_the_sample_columns_and_their_types() -> None:
    assert {name: dtype.str for name, dtype in SAMPLE_DTYPES.items()} == COLUMNS


def test_the_refusals_others_match_on() -> None:
    for name, (code, fields) in REFUSALS.items():
        cls = getattr(errors, name)
        assert cls.code == code
        assert [field.name for field in dataclasses.fields(cls)] == fields
