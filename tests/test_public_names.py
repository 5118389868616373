"""What may be imported is a promise: a name here goes or changes only on purpose."""

from __future__ import annotations

import dataclasses

from rollbook import contracts, errors, rollouts, train
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
    JaggedBatch PackedBatch PaddedBatch QHBatches QHStates balance pack_to_budget rollouts_of to_jagged
    to_packed to_packed_bins to_padded
"""
ROLLOUTS = """
    DEFAULT_RETURN_SEMANTICS INVALID_REASON_CODES INVALID_REASON_VERSION ROLLOUT_MANIFEST_FILENAME
    ROLLOUT_MANIFEST_VERSION ROLLOUT_ZARR_SCHEMA_ID ROLLOUT_ZARR_SCHEMA_VERSION RolloutDatasetWriter
    RolloutDatasetWriterConfig RolloutDatasetWriterStats RolloutLineage RolloutRecipeConfig
    RolloutStoreInvocation RolloutStoreManifestContext RolloutSuspiciousQueryConfig RolloutTargetSource
    RolloutZarrRecord SelectedDepthRetentionConfig
    RolloutZarrStoreConfig RolloutZarrStoreReader RolloutZarrValidationResult RolloutZarrWriteResult
    candidate_audit_rows candidate_group_summary_rows candidate_result_diagnostic_counts decode_invalid_reason
    decode_position_id decode_strategy_id decode_target_invalid_reason discover_rollout_store_paths
    rollout_step_objective_rows rollout_store_inventory_rows rollout_tree_summary_rows selected_depth_preview
    selected_depth_summary_rows suspicious_rollout_rows target_audit_rows validate_rollout_zarr_store
    validity_waterfall_rows write_rollout_zarr_store
"""
CAMPAIGNS = """
    ROLLOUT_SHARD_MANIFEST_VERSION ROLLOUT_SHARD_OWNER_FILENAME ROLLOUT_SHARD_SUCCESS_FILENAME
    RolloutShardEntry RolloutShardRow RolloutShardCampaignStatus RolloutShardRunResult RolloutShardStatus
    plan_rollout_shards run_rollout_shard summarize_rollout_shard_campaign
    write_rollout_shard_manifest_from_config
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


def test_the_names_of_the_rollout_package_that_are_here() -> None:
    """The others come with campaigns."""
    assert sorted(rollouts.__all__) == sorted(ROLLOUTS.split())
    assert all(hasattr(rollouts, name) for name in rollouts.__all__)
    later = set(CAMPAIGNS.split())
    assert len(later | set(rollouts.__all__)) == 52
    assert not later & set(rollouts.__all__)


def test_the_sample_columns_and_their_types() -> None:
    assert {name: dtype.str for name, dtype in SAMPLE_DTYPES.items()} == COLUMNS


def test_the_refusals_others_match_on() -> None:
    for name, (code, fields) in REFUSALS.items():
        cls = getattr(errors, name)
        assert cls.code == code
        assert [field.name for field in dataclasses.fields(cls)] == fields
