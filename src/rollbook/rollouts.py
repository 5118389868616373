"""The public names of the rollout package in one place, and the record classes that a writer needs.

A name is loaded when it is first used: generation compiles kernels and needs an extra of its own.
"""

from typing import TYPE_CHECKING

from rollbook.lazy import lazy_names

if TYPE_CHECKING:
    from rollbook.contracts.lineage import (
        RolloutLineage as RolloutLineage,
    )
    from rollbook.contracts.reasons import (
        INVALID_REASON_CODES as INVALID_REASON_CODES,
        INVALID_REASON_VERSION as INVALID_REASON_VERSION,
        decode_invalid_reason as decode_invalid_reason,
        decode_position_id as decode_position_id,
        decode_strategy_id as decode_strategy_id,
        decode_target_invalid_reason as decode_target_invalid_reason,
        reason_mask as reason_mask,
    )
    from rollbook.generate.campaigns.planning import (
        plan_rollout_shards as plan_rollout_shards,
        write_rollout_shard_manifest_from_config as write_rollout_shard_manifest_from_config,
    )
    from rollbook.generate.campaigns.run_shard import (
        run_rollout_shard as run_rollout_shard,
    )
    from rollbook.generate.dataset_config import (
        RolloutDatasetWriterConfig as RolloutDatasetWriterConfig,
        SelectedDepthRetentionConfig as SelectedDepthRetentionConfig,
    )
    from rollbook.generate.rollout.recipes import (
        RolloutRecipeConfig as RolloutRecipeConfig,
    )
    from rollbook.generate.row_rollouts import (
        RolloutDatasetWriterStats as RolloutDatasetWriterStats,
    )
    from rollbook.generate.targets.config import (
        RolloutTargetSource as RolloutTargetSource,
    )
    from rollbook.generate.writer import (
        RolloutDatasetWriter as RolloutDatasetWriter,
    )
    from rollbook.store.audit import (
        RolloutSuspiciousQueryConfig as RolloutSuspiciousQueryConfig,
        candidate_audit_rows as candidate_audit_rows,
        candidate_group_summary_rows as candidate_group_summary_rows,
        candidate_result_diagnostic_counts as candidate_result_diagnostic_counts,
        discover_rollout_store_paths as discover_rollout_store_paths,
        rollout_step_objective_rows as rollout_step_objective_rows,
        rollout_store_inventory_rows as rollout_store_inventory_rows,
        rollout_tree_summary_rows as rollout_tree_summary_rows,
        selected_depth_preview as selected_depth_preview,
        selected_depth_summary_rows as selected_depth_summary_rows,
        suspicious_rollout_rows as suspicious_rollout_rows,
        target_audit_rows as target_audit_rows,
        validity_waterfall_rows as validity_waterfall_rows,
    )
    from rollbook.store.checks.validate import (
        RolloutZarrValidationResult as RolloutZarrValidationResult,
        validate_rollout_zarr_store as validate_rollout_zarr_store,
    )
    from rollbook.store.config import (
        RolloutZarrStoreConfig as RolloutZarrStoreConfig,
        RolloutZarrWriteResult as RolloutZarrWriteResult,
    )
    from rollbook.store.manifest import (
        ROLLOUT_MANIFEST_FILENAME as ROLLOUT_MANIFEST_FILENAME,
        ROLLOUT_MANIFEST_VERSION as ROLLOUT_MANIFEST_VERSION,
        RolloutStoreInvocation as RolloutStoreInvocation,
        RolloutStoreManifestContext as RolloutStoreManifestContext,
    )
    from rollbook.store.reader import (
        RolloutZarrStoreReader as RolloutZarrStoreReader,
    )
    from rollbook.store.records import (
        CandidateSamplingResult as CandidateSamplingResult,
        CounterfactualRolloutResult as CounterfactualRolloutResult,
        RolloutChain as RolloutChain,
        RolloutStep as RolloutStep,
        RolloutZarrRecord as RolloutZarrRecord,
        SelectedDepth as SelectedDepth,
        TargetEvalCrop as TargetEvalCrop,
    )
    from rollbook.store.schema import (
        DEFAULT_RETURN_SEMANTICS as DEFAULT_RETURN_SEMANTICS,
        ROLLOUT_ZARR_SCHEMA_ID as ROLLOUT_ZARR_SCHEMA_ID,
        ROLLOUT_ZARR_SCHEMA_VERSION as ROLLOUT_ZARR_SCHEMA_VERSION,
    )
    from rollbook.store.shards.build_shard import (
        RolloutShardRunResult as RolloutShardRunResult,
    )
    from rollbook.store.shards.campaign_status import (
        summarize_rollout_shard_campaign as summarize_rollout_shard_campaign,
    )
    from rollbook.store.shards.entry import (
        ROLLOUT_SHARD_MANIFEST_VERSION as ROLLOUT_SHARD_MANIFEST_VERSION,
        RolloutShardEntry as RolloutShardEntry,
        RolloutShardRow as RolloutShardRow,
    )
    from rollbook.store.shards.shard_status import (
        RolloutShardCampaignStatus as RolloutShardCampaignStatus,
        RolloutShardStatus as RolloutShardStatus,
    )
    from rollbook.store.shards.sidecars import (
        ROLLOUT_SHARD_OWNER_FILENAME as ROLLOUT_SHARD_OWNER_FILENAME,
        ROLLOUT_SHARD_SUCCESS_FILENAME as ROLLOUT_SHARD_SUCCESS_FILENAME,
    )
    from rollbook.store.writer import (
        write_rollout_zarr_store as write_rollout_zarr_store,
    )
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "rollbook.contracts.lineage": ("RolloutLineage",),
            "rollbook.contracts.reasons": (
                "INVALID_REASON_CODES",
                "INVALID_REASON_VERSION",
                "decode_invalid_reason",
                "decode_position_id",
                "decode_strategy_id",
                "decode_target_invalid_reason",
                "reason_mask",
            ),
            "rollbook.generate.campaigns.planning": (
                "plan_rollout_shards",
                "write_rollout_shard_manifest_from_config",
            ),
            "rollbook.generate.campaigns.run_shard": ("run_rollout_shard",),
            "rollbook.generate.dataset_config": (
                "RolloutDatasetWriterConfig",
                "SelectedDepthRetentionConfig",
            ),
            "rollbook.generate.rollout.recipes": ("RolloutRecipeConfig",),
            "rollbook.generate.row_rollouts": ("RolloutDatasetWriterStats",),
            "rollbook.generate.targets.config": ("RolloutTargetSource",),
            "rollbook.generate.writer": ("RolloutDatasetWriter",),
            "rollbook.store.audit": (
                "RolloutSuspiciousQueryConfig",
                "candidate_audit_rows",
                "candidate_group_summary_rows",
                "candidate_result_diagnostic_counts",
                "discover_rollout_store_paths",
                "rollout_step_objective_rows",
                "rollout_store_inventory_rows",
                "rollout_tree_summary_rows",
                "selected_depth_preview",
                "selected_depth_summary_rows",
                "suspicious_rollout_rows",
                "target_audit_rows",
                "validity_waterfall_rows",
            ),
            "rollbook.store.checks.validate": (
                "RolloutZarrValidationResult",
                "validate_rollout_zarr_store",
            ),
            "rollbook.store.config": ("RolloutZarrStoreConfig", "RolloutZarrWriteResult"),
            "rollbook.store.manifest": (
                "ROLLOUT_MANIFEST_FILENAME",
                "ROLLOUT_MANIFEST_VERSION",
                "RolloutStoreInvocation",
                "RolloutStoreManifestContext",
            ),
            "rollbook.store.reader": ("RolloutZarrStoreReader",),
            "rollbook.store.records": (
                "CandidateSamplingResult",
                "CounterfactualRolloutResult",
                "RolloutChain",
                "RolloutStep",
                "RolloutZarrRecord",
                "SelectedDepth",
                "TargetEvalCrop",
            ),
            "rollbook.store.schema": (
                "DEFAULT_RETURN_SEMANTICS",
                "ROLLOUT_ZARR_SCHEMA_ID",
                "ROLLOUT_ZARR_SCHEMA_VERSION",
            ),
            "rollbook.store.shards.build_shard": ("RolloutShardRunResult",),
            "rollbook.store.shards.campaign_status": ("summarize_rollout_shard_campaign",),
            "rollbook.store.shards.entry": (
                "ROLLOUT_SHARD_MANIFEST_VERSION",
                "RolloutShardEntry",
                "RolloutShardRow",
            ),
            "rollbook.store.shards.shard_status": (
                "RolloutShardCampaignStatus",
                "RolloutShardStatus",
            ),
            "rollbook.store.shards.sidecars": (
                "ROLLOUT_SHARD_OWNER_FILENAME",
                "ROLLOUT_SHARD_SUCCESS_FILENAME",
            ),
            "rollbook.store.writer": ("write_rollout_zarr_store",),
        },
        extra="store",
    )
