"""Inspection of stores for people: plain rows, heuristics, exports, and an HTML page with charts.

Everything here only reads, and also works on damaged stores as far as possible. `audit/` may import every other part
of the store; no part of the store imports `audit/`.
"""

from __future__ import annotations

from rollbook.contracts.reasons import (
    decode_invalid_reason,
    decode_position_id,
    decode_strategy_id,
    decode_target_invalid_reason,
)
from rollbook.store.audit.candidates import (
    AUDIT_COLUMNS,
    candidate_audit_rows,
    candidate_group_summary_rows,
    candidate_result_diagnostic_counts,
    validity_waterfall_rows,
)
from rollbook.store.audit.depth import selected_depth_preview, selected_depth_summary_rows
from rollbook.store.audit.inventory import (
    discover_rollout_store_paths,
    rollout_store_inventory_rows,
)
from rollbook.store.audit.rollouts import (
    rollout_step_objective_rows,
    rollout_tree_summary_rows,
    target_audit_rows,
)
from rollbook.store.audit.suspicious import (
    RolloutSuspiciousQueryConfig,
    suspicious_counts,
    suspicious_rollout_rows,
)

__all__ = [
    "AUDIT_COLUMNS",
    "RolloutSuspiciousQueryConfig",
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
    "suspicious_counts",
    "suspicious_rollout_rows",
    "target_audit_rows",
    "validity_waterfall_rows",
]
