"""Every table of the server. Migrations build them; only the queries modules read and write them.

A table with `org_id` belongs to tenants. Every query on it is scoped by `queries.Scope`, and on PostgreSQL a row-level
security policy checks the tenant a second time. Its primary key and every reference to it begin with the tenant, so a
row can never refer to a row of another tenant.

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
    eval_results,
    eval_runs,
    verification_results,
    verification_scenarios,
    webhook_deliveries,
    webhooks,
)

__all__ = [
    "BY_SECRET",
    "TENANT_TABLES",
    "api_keys",
    "artifacts",
    "audit_log",
    "device_logins",
    "doomed_objects",
    "episode_terms",
    "episodes",
    "eval_results",
    "eval_runs",
    "idempotency_keys",
    "invitations",
    "memberships",
    "metadata",
    "organisations",
    "policy_revisions",
    "sessions",
    "sign_in_links",
    "upload_parts",
    "uploads",
    "usage",
    "users",
    "verification_results",
    "verification_scenarios",
    "webhook_deliveries",
    "webhooks",
]

BY_SECRET = ("sessions", "device_logins")
"""Tables looked up by a secret, before the tenant is known."""

TENANT_TABLES = tuple(
    table.name
    for table in metadata.sorted_tables
    if "org_id" in table.c and table.name not in BY_SECRET
)
"""Tables under row-level security on PostgreSQL."""
