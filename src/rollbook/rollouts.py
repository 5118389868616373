"""The rollout package in one place: names others write against. The rooms are where these are made.

Generation compiles kernels and needs an extra, so its names are loaded when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from rollbook.contracts.lineage import RolloutLineage
from rollbook.contracts.reasons import (
    INVALID_REASON_CODES,
    INVALID_REASON_VERSION,
    decode_invalid_reason,
    decode_position_id,
    decode_strategy_id,
    decode_target_invalid_reason,
)
from rollbook.store.audit import (
    RolloutSuspiciousQueryConfig,
    candidate_audit_rows,
    candidate_group_summary_rows,
    candidate_result_diagnostic_counts,
    discover_rollout_store_paths,
    rollout_step_objective_rows,
    rollout_store_inventory_rows,
    rollout_tree_summary_rows,
    selected_depth_preview,
    selected_depth_summary_rows,
    suspicious_rollout_rows,
    target_audit_rows,
    validity_waterfall_rows,
)
from rollbook.store.checks.validate import RolloutZarrValidationResult, validate_rollout_zarr_store
from rollbook.store.config import RolloutZarrStoreConfig, RolloutZarrWriteResult
from rollbook.store.manifest import (
    ROLLOUT_MANIFEST_FILENAME,
    ROLLOUT_MANIFEST_VERSION,
    RolloutStoreInvocation,
    RolloutStoreManifestContext,
)
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.records import RolloutZarrRecord
from rollbook.store.schema import (
    DEFAULT_RETURN_SEMANTICS,
    ROLLOUT_ZARR_SCHEMA_ID,
    ROLLOUT_ZARR_SCHEMA_VERSION,
)
from rollbook.store.writer import write_rollout_zarr_store

if TYPE_CHECKING:
    from rollbook.generate.dataset_config import (
        RolloutDatasetWriterConfig,
        SelectedDepthRetentionConfig,
    )
    from rollbook.generate.rollout.recipes import RolloutRecipeConfig
    from rollbook.generate.rollout.row_rollouts import RolloutDatasetWriterStats
    from rollbook.generate.targets.selection import RolloutTargetSource
    from rollbook.generate.writer import RolloutDatasetWriter

__all__ = [
    "DEFAULT_RETURN_SEMANTICS",
    "INVALID_REASON_CODES",
    "INVALID_REASON_VERSION",
    "ROLLOUT_MANIFEST_FILENAME",
    "ROLLOUT_MANIFEST_VERSION",
    "ROLLOUT_ZARR_SCHEMA_ID",
    "ROLLOUT_ZARR_SCHEMA_VERSION",
    "RolloutDatasetWriter",
    "RolloutDatasetWriterConfig",
    "RolloutDatasetWriterStats",
    "RolloutLineage",
    "RolloutRecipeConfig",
    "RolloutStoreInvocation",
    "RolloutStoreManifestContext",
    "RolloutSuspiciousQueryConfig",
    "RolloutTargetSource",
    "RolloutZarrRecord",
    "RolloutZarrStoreConfig",
    "RolloutZarrStoreReader",
    "RolloutZarrValidationResult",
    "RolloutZarrWriteResult",
    "SelectedDepthRetentionConfig",
    "candidate_audit_rows",
    "candidate_group_summary_rows",
    "candidate_result_diagnostic_counts",
    "decode_invalid_reason",
    "decode_position_id",
    "decode_strategy_id",
    "decode_target_invalid_reason",
    "discover_rollout_store_paths",
    "rollout_step_objective_rows",
    "rollout_store_inventory_rows",
    "rollout_tree_summary_rows",
    "selected_depth_preview",
    "selected_depth_summary_rows",
    "suspicious_rollout_rows",
    "target_audit_rows",
    "validate_rollout_zarr_store",
    "validity_waterfall_rows",
    "write_rollout_zarr_store",
]

_GENERATION = {
    "RolloutDatasetWriter": "writer",
    "RolloutDatasetWriterConfig": "dataset_config",
    "RolloutDatasetWriterStats": "rollout.row_rollouts",
    "RolloutRecipeConfig": "rollout.recipes",
    "RolloutTargetSource": "targets.selection",
    "SelectedDepthRetentionConfig": "dataset_config",
}


def __getattr__(name: str) -> Any:
    if name not in _GENERATION:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"rollbook.generate.{_GENERATION[name]}"), name)
