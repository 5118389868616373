"""What may be imported is a promise: a name here goes or changes only on purpose."""

from __future__ import annotations

import dataclasses
import inspect
from types import ModuleType

import rollbook
from rollbook import client, contracts, errors, evals, rollouts, store, train
from rollbook.contracts import evals as contracts_of_evals
from rollbook.contracts.rl.sample import SAMPLE_DTYPES
from rollbook.evals import verify

CONTRACTS = """
    Admission AdmissionOutcome AdmissionSignal AdmissionSignalKind AdmissionWindow COMPATIBLE CheckpointReference
    ContractRules Drift EnvironmentPackageKey InclusionProof LineageGraph LineageWalk LogprobDistribution
    LogprobSemantics OffPolicyBudget PolicyRevision PolicyRevisionLineage ReleaseDecision RevisionKey
    RolloutAdmissionReceipt
    RolloutArtifact RolloutIngestionTelemetry RolloutProofKind RolloutProofReference RolloutRole RolloutSample
    RolloutTable RolloutTerminationReason STRICT StalenessPolicy TokenStaleness TrainerBatch WindowAccounting admit
    artifact_from_json artifact_to_json batch_from_json batch_to_json open_table read_document read_file save_table
    token_staleness verify_proof write_file
    NpzLimits RolloutLineage read_npz write_npz
    Journal Recorder ToolCall read_journal
"""
TRAIN = """
    JaggedBatch PackedBatch PaddedBatch QHBatches QHStates balance chains_table check_proofs open_chains
    pack_to_budget resume_training rollouts_of to_jagged to_packed to_packed_bins to_padded train_policy
    PrimeRLMicroBatch RecordedStep RecordingMixin SplitBatch StepRecorder TinkerDatum TrainedStep VerlBatch
    lineage_of_steps open_verl recorded_steps save_verl to_prime_rl to_split to_tinker to_trl to_verl trained_steps
    weights_digest
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
    ROLLOUT_SHARD_MANIFEST_VERSION RolloutShardEntry RolloutShardRow plan_rollout_shards
    write_rollout_shard_manifest_from_config ROLLOUT_SHARD_OWNER_FILENAME ROLLOUT_SHARD_SUCCESS_FILENAME
    RolloutShardRunResult run_rollout_shard
    RolloutShardCampaignStatus RolloutShardStatus summarize_rollout_shard_campaign
"""
RECORDS = """
    CandidateSamplingResult CounterfactualRolloutResult RolloutChain RolloutStep SelectedDepth TargetEvalCrop
    reason_mask
"""
STORE = """
    CandidateSamplingResult CounterfactualRolloutResult PublishedStore RolloutChain RolloutCollection RolloutStep
    RolloutStoreInvocation RolloutStoreManifestContext RolloutStoreWriter RolloutZarrRecord RolloutZarrStoreConfig
    RolloutZarrStoreReader RolloutZarrValidationResult RolloutZarrWriteResult SelectedDepth StoredTables TargetEvalCrop
    Violation arrow_table duckdb_columns duckdb_relation export_table migrate_store open_collection open_store
    pandas_frame
    polars_frame publish_store repack_store validate_rollout_zarr_store write_rollout_zarr_store
"""
EVALS = """
    Action EvalResult EvalRun Gate MetricRule Observation PolicyCallable ReplayEpisode StepContext StoreBaselines
    audit_run calibrate cancel_run compare complete_run create_run fresh_baselines gate_from load_policy log_chains
    look_up open_run replay_store rollup_store run_against run_closed_loop
"""
VERBS = {
    "create_run": """candidate_policy_version baseline_episode_ids baseline_policy_version name metadata client gate
        dry_run candidate_policy_revision baseline_policy_revision gate_name""",
    "run_against": """run policy_callable on_episode dry_run workers engine parallel resume journal align clock
        step_timeout_s upload_actions environment store source frames batch isolation trusted retry_failed verbose
        check_determinism""",
    "complete_run": "run status metadata client",
}
VERIFY = {
    "promote": "baseline_episode_id name description severity client",
    "check_gate": "candidate_policy_version client",
    "record_result": """scenario_id candidate_policy_version status candidate_episode_id eval_run_id metrics error
        client""",
}
RESULT_KEYS = """
    success_baseline success_candidate reward_total_baseline reward_total_candidate collision_count_baseline
    collision_count_candidate time_to_goal_s_baseline time_to_goal_s_candidate action_l2_distance ood_action_share
    step_count
"""
GATE = """
    version mode design alpha n_min cluster least_clusters missing min_used_share evidence rules reward_range tails
    looks ledger accept_unverified_environment accept_retried guard_slices seed
"""
FRONT_DOOR = "AsyncClient Client __version__ close evals init log_episode start_episode verify"
CLIENT = """
    ArtifactKind AsyncClient AsyncEpisode AsyncRecordedEpisode Battery Client Delivery ENV_API_KEY ENV_BASE_URL ENV_HOME
    ENV_QUIET Episode EpisodeOutcome EpisodeSource FinalStatus Imu JointState Pose3D RecordedEpisode Retries Spool Twist
    UploadUrl close default_client init log_episode start_episode
"""
CLIENT_MEMBERS = """
    archive_episode base_url cache call close connection delete_episode deliver episode episodes log_episode
    record_revision restore_episode spool start_episode
"""
EPISODE_MEMBERS = "finalize frame id status step storage upload upload_urls"
RECORDED_MEMBERS = (
    "actions archive delete download fetch metadata read_metadata record restore sensors video"
)
LOG_EPISODE = """
    name source robot policy_version env_version git_sha seed video sensors actions t_ns duration_s fps metadata tags
    status failure_time_s on_progress policy_revision idempotency_key
"""
START_EPISODE = """
    name source robot policy_version env_version git_sha seed fps metadata tags artifacts policy_revision
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


def names(room: ModuleType) -> list[str]:
    """Type checkers do not see `__all__` of a room that loads its names when they are first used."""
    return sorted(vars(room)["__all__"])


def test_the_names_of_the_contracts_room() -> None:
    assert names(contracts) == sorted(CONTRACTS.split())
    assert all(hasattr(contracts, name) for name in names(contracts))


def test_the_names_of_the_train_room() -> None:
    assert names(train) == sorted(TRAIN.split())


def test_the_names_of_the_front_door() -> None:
    assert names(rollbook) == sorted(FRONT_DOOR.split())
    assert all(hasattr(rollbook, name) for name in names(rollbook))


def test_the_names_of_the_client_room_and_of_what_it_makes() -> None:
    assert names(client) == sorted(CLIENT.split())
    for members, kinds in (
        (CLIENT_MEMBERS, (client.Client, client.AsyncClient)),
        (EPISODE_MEMBERS, (client.Episode, client.AsyncEpisode)),
        (RECORDED_MEMBERS, (client.RecordedEpisode, client.AsyncRecordedEpisode)),
    ):
        for kind in kinds:
            assert [name for name in dir(kind) if not name.startswith("_")] == members.split()


def test_an_episode_is_logged_with_the_same_names_everywhere() -> None:
    for one, names in (
        (rollbook.log_episode, LOG_EPISODE),
        (rollbook.start_episode, START_EPISODE),
    ):
        given = inspect.signature(one).parameters
        assert list(given) == names.split()
        assert {each.kind for each in given.values()} == {inspect.Parameter.KEYWORD_ONLY}
        for kind in (client.Client, client.AsyncClient):
            assert list(inspect.signature(getattr(kind, one.__name__)).parameters)[1:] == list(
                given
            )


def test_the_three_verbs_and_their_neighbours() -> None:
    assert names(evals) == sorted(EVALS.split())
    assert all(hasattr(evals, name) for name in names(evals))
    for room, functions in ((evals, VERBS), (verify, VERIFY)):
        for name, parameters in functions.items():
            assert list(inspect.signature(getattr(room, name)).parameters) == parameters.split()
    assert names(verify) == sorted([*VERIFY, "run_check"])


def test_what_a_result_and_a_gate_say() -> None:
    assert list(contracts_of_evals.RESULT_KEYS) == RESULT_KEYS.split()
    assert list(evals.Gate().as_dict()) == GATE.split()


def test_the_names_of_the_rollout_package() -> None:
    assert len(ROLLOUTS.split()) == 52
    assert names(rollouts) == sorted(ROLLOUTS.split() + RECORDS.split())
    assert all(hasattr(rollouts, name) for name in names(rollouts))


def test_a_writer_finds_every_class_it_has_to_construct() -> None:
    for name in RECORDS.split():
        assert getattr(rollouts, name).__module__.startswith("rollbook.")


def test_the_names_of_the_store_room() -> None:
    assert names(store) == sorted(STORE.split())
    assert all(hasattr(store, name) for name in names(store))


def test_the_sample_columns_and_their_types() -> None:
    assert {name: dtype.str for name, dtype in SAMPLE_DTYPES.items()} == COLUMNS


def test_the_refusals_others_match_on() -> None:
    for name, (code, fields) in REFUSALS.items():
        cls = getattr(errors, name)
        assert cls.code == code
        assert [field.name for field in dataclasses.fields(cls)] == fields
