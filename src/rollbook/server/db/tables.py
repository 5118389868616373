"""Every table of the server. Migrations build them; only the queries modules read and write them.

A table with `org_id` belongs to tenants. Every query on it is scoped by `queries.Scope`, and on PostgreSQL a row-level
security policy checks the tenant a second time. Its primary key and every reference to it begin with the tenant, so a
row can never refer to a row of another tenant.

Tables of accounts have policies too: without a tenant they show only the row that a transaction names. The migration
of a new table has to give it a policy.

Each table is in the module of its noun, beside the class of its rows.
"""

from __future__ import annotations

from rollbook.server.db.account_tables import (
    api_keys,
    audit_log,
    device_logins,
    invitations,
    memberships,
    organisations,
    sessions,
    sign_in_links,
    users,
)
from rollbook.server.db.analysis_table import episode_analyses
from rollbook.server.db.columns import metadata
from rollbook.server.db.episode_tables import (
    artifacts,
    doomed_objects,
    episode_terms,
    episodes,
    idempotency_keys,
    policy_revisions,
    upload_parts,
    uploads,
    usage,
)
from rollbook.server.db.eval_tables import (
    eval_attempts,
    eval_evidence,
    eval_results,
    eval_runs,
    verification_results,
    verification_scenarios,
    webhook_deliveries,
    webhooks,
)
from rollbook.server.db.lease_table import leases
from rollbook.server.db.ledger_tables import ledger_baselines, ledger_runs, locked_gates
from rollbook.server.db.lineage_tables import training_sources
from rollbook.server.db.retention_tables import legal_holds, retention_policies
from rollbook.server.db.store_tables import stores

__all__ = [
    "api_keys",
    "artifacts",
    "audit_log",
    "device_logins",
    "doomed_objects",
    "episode_analyses",
    "episode_terms",
    "episodes",
    "eval_attempts",
    "eval_evidence",
    "eval_results",
    "eval_runs",
    "idempotency_keys",
    "invitations",
    "leases",
    "ledger_baselines",
    "ledger_runs",
    "legal_holds",
    "locked_gates",
    "memberships",
    "metadata",
    "organisations",
    "policy_revisions",
    "retention_policies",
    "sessions",
    "sign_in_links",
    "stores",
    "training_sources",
    "upload_parts",
    "uploads",
    "usage",
    "users",
    "verification_results",
    "verification_scenarios",
    "webhook_deliveries",
    "webhooks",
]
