"""Every table of the server. Migrations build them; only the queries modules read and write them.

A table with `org_id` belongs to tenants. Every query on it is scoped by `queries.Scope`, and on PostgreSQL a row-level
security policy checks the tenant a second time. Its primary key and every reference to it begin with the tenant, so a
row can never refer to a row of another tenant.

Times are microseconds since 1970 in UTC, so that both databases order them alike; ids are text.
"""

from __future__ import annotations

import os
import time
from typing import Any

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class WholeNumber(sa.TypeDecorator[int]):
    """An integer of any size, stored as its digits: SQLite would turn one beyond 64 bits into a float."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else str(int(value))

    def process_result_value(self, value: Any | None, dialect: sa.Dialect) -> int | None:
        return None if value is None else int(value)


Json = sa.JSON(none_as_null=True)
"""Not jsonb, which rewrites numbers (1e22 becomes an integer): values are read as they were logged."""


def now_us() -> int:
    return time.time_ns() // 1000


def new_id() -> str:
    """A version 7 UUID: new ids sort after old ones, so rows written together are close in an index."""
    microseconds = now_us()
    milliseconds, rest = divmod(microseconds, 1000)
    random = int.from_bytes(os.urandom(8), "big") >> 2
    number = milliseconds << 80 | 7 << 76 | rest * 4096 // 1000 << 64 | 0b10 << 62 | random
    digits = f"{number:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _org() -> sa.Column[str]:
    return sa.Column(
        "org_id", sa.Text, sa.ForeignKey("organisations.id", ondelete="CASCADE"), nullable=False
    )


def _org_of_parent() -> sa.Column[str]:
    """For a table whose reference to another row of the tenant already leads to the organisation."""
    return _text("org_id", required=True)


def _user() -> sa.Column[str]:
    return sa.Column(
        "user_id", sa.Text, sa.ForeignKey("users.id", ondelete="CASCADE"), nullable=False
    )


def _text(name: str, *, required: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=not required)


def _time(name: str, *, required: bool = True) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=not required)


def _within_tenant(parent: str, column: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["org_id", column], [f"{parent}.org_id", f"{parent}.id"], ondelete="CASCADE"
    )


# ------------------------------------------------------------------------------- people and access

organisations = sa.Table(
    "organisations",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    _text("name", required=True),
    sa.Column("quota_bytes", sa.BigInteger),
    sa.Column("quota_episodes", sa.BigInteger),
    _time("created_at_us"),
)

users = sa.Table(
    "users",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("email", sa.Text, nullable=False, unique=True),
    _text("name"),
    _text("password_hash"),
    _time("created_at_us"),
)

memberships = sa.Table(
    "memberships",
    metadata,
    _org(),
    _user(),
    _text("role", required=True),
    _time("created_at_us"),
    sa.PrimaryKeyConstraint("org_id", "user_id"),
    sa.Index(None, "user_id"),
)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("token_hash", sa.Text, primary_key=True),
    _user(),
    _org(),
    _text("csrf_token", required=True),
    _time("created_at_us"),
    _time("expires_at_us"),
    sa.Index(None, "user_id"),
    sa.Index(None, "org_id"),
    sa.Index(None, "expires_at_us"),
)

sign_in_links = sa.Table(
    "sign_in_links",
    metadata,
    sa.Column("token_hash", sa.Text, primary_key=True),
    _user(),
    _time("expires_at_us"),
    _time("used_at_us", required=False),
    sa.Index(None, "user_id"),
)

invitations = sa.Table(
    "invitations",
    metadata,
    _org(),
    _text("id", required=True),
    sa.Column("token_hash", sa.Text, nullable=False, unique=True),
    _text("email", required=True),
    _text("role", required=True),
    _text("invited_by"),
    _time("created_at_us"),
    _time("expires_at_us"),
    _time("accepted_at_us", required=False),
    sa.PrimaryKeyConstraint("org_id", "id"),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("key_id", sa.Text, primary_key=True),
    _org(),
    _text("prefix", required=True),
    _text("secret_hash", required=True),
    _text("label"),
    _text("created_by"),
    _time("created_at_us"),
    _time("last_used_at_us", required=False),
    _time("revoked_at_us", required=False),
    sa.Index(None, "org_id", "created_at_us"),
)

device_logins = sa.Table(
    "device_logins",
    metadata,
    sa.Column("device_code_hash", sa.Text, primary_key=True),
    sa.Column("user_code", sa.Text, nullable=False, unique=True),
    _text("status", required=True),
    _text("hostname"),
    _text("user_agent"),
    _text("ip"),
    _text("user_id"),
    _text("org_id"),
    _text("key_id"),
    _time("created_at_us"),
    _time("expires_at_us"),
    sa.Index(None, "expires_at_us"),
)

audit_log = sa.Table(
    "audit_log",
    metadata,
    sa.Column(
        "id",
        sa.BigInteger().with_variant(sa.Integer, "sqlite"),
        primary_key=True,
        autoincrement=True,
    ),
    _org(),
    _text("event", required=True),
    _text("actor"),
    _text("subject"),
    sa.Column("detail", Json, nullable=False),
    _text("ip"),
    _time("at_us"),
    sa.Index(None, "org_id", "id"),
)

# ---------------------------------------------------------------------------------------- episodes

policy_revisions = sa.Table(
    "policy_revisions",
    metadata,
    _org(),
    _text("id", required=True),
    _text("policy_family", required=True),
    _text("revision_id", required=True),
    sa.Column("revision", Json, nullable=False),
    _time("created_at_us"),
    _time("updated_at_us"),
    sa.PrimaryKeyConstraint("org_id", "id"),
    sa.UniqueConstraint("org_id", "policy_family", "revision_id"),
)
"""`revision` is the whole PolicyRevision. Episodes and eval runs name its `id`. Rows are never deleted, except with
their organisation, so the columns that name one need no reference that a database checks: SQLite could add one only
by copying the largest table."""

episodes = sa.Table(
    "episodes",
    metadata,
    _org(),
    _text("id", required=True),
    _text("name"),
    _text("name_search"),
    _text("source", required=True),
    _text("robot"),
    _text("policy_version"),
    _text("policy_revision_id"),
    _text("env_version"),
    _text("git_sha"),
    sa.Column("seed", WholeNumber),
    sa.Column("fps", sa.Double),
    sa.Column("duration_s", sa.Double),
    sa.Column("bytes_total", sa.BigInteger),
    _text("status", required=True),
    _text("archived_from"),
    sa.Column("failure_time_s", sa.Double),
    sa.Column("metadata", Json, nullable=False),
    sa.Column("tags", Json, nullable=False),
    _text("created_by"),
    _time("created_at_us"),
    _time("updated_at_us"),
    _time("finalized_at_us", required=False),
    _time("abandoned_at_us", required=False),
    _time("archived_at_us", required=False),
    sa.PrimaryKeyConstraint("org_id", "id"),
    # a list goes newest first, so each index ends in the order of the list; the first one answers a search by name
    sa.Index(None, "org_id", "created_at_us", "id", "status", "name_search"),
    sa.Index(None, "org_id", "policy_version", "created_at_us", "id"),
    sa.Index(None, "org_id", "env_version", "created_at_us", "id"),
    sa.Index(None, "org_id", "git_sha", "created_at_us", "id"),
    sa.Index(None, "org_id", "seed", "created_at_us", "id"),
    sa.Index(None, "org_id", "robot", "created_at_us", "id"),
    sa.Index(None, "org_id", "source", "created_at_us", "id"),
    sa.Index(None, "org_id", "status", "created_at_us", "id"),
)

episode_terms = sa.Table(
    "episode_terms",
    metadata,
    _org_of_parent(),
    _text("term", required=True),
    _time("created_at_us"),
    _text("episode_id", required=True),
    sa.PrimaryKeyConstraint("org_id", "term", "created_at_us", "episode_id"),
    sqlite_with_rowid=False,
)
"""Tags and metadata values as `tag=…` and `metadata.a.b=…`, each with its episodes in the order of the list, so rare
and common values are found alike. Rebuilt from the episode, so there is no reference and no second index."""

artifacts = sa.Table(
    "artifacts",
    metadata,
    _org_of_parent(),
    _text("episode_id", required=True),
    _text("kind", required=True),
    _text("object_key", required=True),
    _text("content_type", required=True),
    _text("status", required=True),
    sa.Column("size", sa.BigInteger),
    _text("sha256"),
    _text("claimed_sha256"),
    sa.Column("playable", sa.Boolean),
    _text("detail"),
    _time("requested_at_us"),
    _time("uploaded_at_us", required=False),
    _text("etag"),
    _text("rendition"),
    _text("rendition_key"),
    sa.Column("rendition_tries", sa.BigInteger),
    sa.PrimaryKeyConstraint("org_id", "episode_id", "kind"),
    sa.UniqueConstraint("org_id", "object_key"),
    _within_tenant("episodes", "episode_id"),
)
_has_rendition = artifacts.c.rendition_key.is_not(None)
_waits_for_rendition = artifacts.c.rendition == "pending"
sa.Index(
    "ix_artifacts_rendition_key",
    artifacts.c.org_id,
    artifacts.c.rendition_key,
    sqlite_where=_has_rendition,
    postgresql_where=_has_rendition,
)
sa.Index(
    "ix_artifacts_rendition_pending",
    artifacts.c.org_id,
    artifacts.c.requested_at_us,
    sqlite_where=_waits_for_rendition,
    postgresql_where=_waits_for_rendition,
)

uploads = sa.Table(
    "uploads",
    metadata,
    _org_of_parent(),
    _text("id", required=True),
    _text("episode_id", required=True),
    _text("kind", required=True),
    _text("object_key", required=True),
    _text("store_id"),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("part_size", sa.BigInteger, nullable=False),
    _text("sha256"),
    _time("created_at_us"),
    _time("completed_at_us", required=False),
    sa.PrimaryKeyConstraint("org_id", "id"),
    sa.Index(None, "org_id", "episode_id"),
    _within_tenant("episodes", "episode_id"),
)

upload_parts = sa.Table(
    "upload_parts",
    metadata,
    _org_of_parent(),
    _text("upload_id", required=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    _text("etag", required=True),
    _text("sha256"),
    sa.PrimaryKeyConstraint("org_id", "upload_id", "number"),
    _within_tenant("uploads", "upload_id"),
)

doomed_objects = sa.Table(
    "doomed_objects",
    metadata,
    _org(),
    _text("object_key", required=True),
    _text("store_id", required=True),
    _time("doomed_at_us"),
    sa.PrimaryKeyConstraint("org_id", "object_key", "store_id"),
)
"""Blobs whose rows are already deleted. They stay here until the blob store has deleted them. `store_id` is empty for
an object, or names the multipart upload to abort."""

idempotency_keys = sa.Table(
    "idempotency_keys",
    metadata,
    _org(),
    _text("key", required=True),
    _text("request_digest", required=True),
    _text("episode_id", required=True),
    _time("created_at_us"),
    sa.PrimaryKeyConstraint("org_id", "key"),
)

usage = sa.Table(
    "usage",
    metadata,
    sa.Column(
        "org_id", sa.Text, sa.ForeignKey("organisations.id", ondelete="CASCADE"), primary_key=True
    ),
    sa.Column("episodes", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
)
"""What a tenant stores, counted with every change: reading it costs one row."""

# --------------------------------------------------------------------------------------- eval runs

eval_runs = sa.Table(
    "eval_runs",
    metadata,
    _org(),
    _text("id", required=True),
    _text("name"),
    _text("candidate_policy_version", required=True),
    _text("baseline_policy_version"),
    _text("candidate_policy_revision_id"),
    _text("baseline_policy_revision_id"),
    _text("runner_kind", required=True),
    _text("status", required=True),
    sa.Column("episode_count", sa.Integer, nullable=False),
    sa.Column("episodes_completed", sa.Integer, nullable=False),
    sa.Column("episodes_failed", sa.Integer, nullable=False),
    sa.Column("gate", Json, nullable=False),
    _text("gate_digest", required=True),
    sa.Column("metadata", Json, nullable=False),
    sa.Column("summary", Json),
    _text("recommend"),
    _text("decision"),
    sa.Column("revision", sa.BigInteger, nullable=False),
    _text("idempotency_key"),
    _text("request_digest"),
    _text("created_by"),
    _time("created_at_us"),
    _time("updated_at_us"),
    _time("completed_at_us", required=False),
    sa.PrimaryKeyConstraint("org_id", "id"),
    sa.UniqueConstraint("org_id", "idempotency_key"),
    sa.Index(None, "org_id", "created_at_us", "id"),
    sa.Index(None, "org_id", "candidate_policy_version", "created_at_us", "id"),
    sa.Index(None, "org_id", "baseline_policy_version", "created_at_us", "id"),
    sa.Index(None, "org_id", "status", "created_at_us", "id"),
    sa.Index(None, "org_id", "completed_at_us", "id"),
)
"""`revision` changes with every result, so that a summary is never stored beside results it does not cover."""

eval_results = sa.Table(
    "eval_results",
    metadata,
    _org_of_parent(),
    _text("eval_run_id", required=True),
    sa.Column("position", sa.Integer, nullable=False),
    _text("id", required=True),
    _text("baseline_episode_id", required=True),
    _text("candidate_episode_id"),
    _text("status", required=True),
    sa.Column("metrics", Json, nullable=False),
    _text("error"),
    _time("updated_at_us"),
    sa.PrimaryKeyConstraint("org_id", "eval_run_id", "position"),
    sa.UniqueConstraint("org_id", "eval_run_id", "baseline_episode_id"),
    sa.Index(None, "org_id", "baseline_episode_id"),
    sa.Index(None, "org_id", "candidate_episode_id"),
    _within_tenant("eval_runs", "eval_run_id"),
    _within_tenant("episodes", "baseline_episode_id"),
)
"""One row for every baseline from the creation of the run. The candidate's episode is not a foreign key, because
clearing it would clear the tenant too: `Scope.delete_episode` clears it."""
_has_result = eval_results.c.status != "pending"
sa.Index(
    "ix_eval_results_done",
    eval_results.c.org_id,
    eval_results.c.eval_run_id,
    eval_results.c.status,
    sqlite_where=_has_result,
    postgresql_where=_has_result,
)
"""Only for counting. Without its condition PostgreSQL would, before it has statistics, use it to find one baseline in a
run, and read the whole run."""

verification_scenarios = sa.Table(
    "verification_scenarios",
    metadata,
    _org_of_parent(),
    _text("id", required=True),
    _text("baseline_episode_id", required=True),
    _text("name"),
    _text("description"),
    _text("severity", required=True),
    sa.Column("active", sa.Boolean, nullable=False),
    _text("created_by"),
    _time("created_at_us"),
    _time("updated_at_us"),
    sa.PrimaryKeyConstraint("org_id", "id"),
    sa.UniqueConstraint("org_id", "baseline_episode_id"),
    _within_tenant("episodes", "baseline_episode_id"),
)

verification_results = sa.Table(
    "verification_results",
    metadata,
    _org_of_parent(),
    _text("id", required=True),
    _text("scenario_id", required=True),
    _text("candidate_policy_version", required=True),
    _text("status", required=True),
    sa.Column("metrics", Json, nullable=False),
    _text("error"),
    _text("candidate_episode_id"),
    _text("eval_run_id"),
    sa.Column("mirrored", sa.Boolean, nullable=False),
    _time("created_at_us"),
    sa.PrimaryKeyConstraint("org_id", "id"),
    sa.UniqueConstraint("org_id", "scenario_id", "eval_run_id"),
    sa.Index(None, "org_id", "candidate_policy_version", "scenario_id", "created_at_us", "id"),
    sa.Index(None, "org_id", "candidate_episode_id"),
    sa.Index(None, "org_id", "eval_run_id"),
    _within_tenant("verification_scenarios", "scenario_id"),
)
"""`mirrored`: copied from an eval run when the run was finalized. A result that somebody recorded has priority."""

webhooks = sa.Table(
    "webhooks",
    metadata,
    _org(),
    _text("id", required=True),
    _text("url", required=True),
    sa.Column("events", Json, nullable=False),
    _text("description"),
    _text("salt", required=True),
    _text("secret_hash", required=True),
    _text("created_by"),
    _time("created_at_us"),
    sa.PrimaryKeyConstraint("org_id", "id"),
)
"""The secret is not stored: it is derived from the server's secret and the salt."""

webhook_deliveries = sa.Table(
    "webhook_deliveries",
    metadata,
    _org_of_parent(),
    _text("id", required=True),
    _text("webhook_id", required=True),
    _text("event", required=True),
    _text("body", required=True),
    _text("status", required=True),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("tries", Json, nullable=False),
    _time("created_at_us"),
    _time("next_attempt_at_us"),
    _time("finished_at_us", required=False),
    sa.PrimaryKeyConstraint("org_id", "id"),
    sa.Index(None, "org_id", "webhook_id", "created_at_us", "id"),
    sa.Index(None, "org_id", "status", "next_attempt_at_us"),
    _within_tenant("webhooks", "webhook_id"),
)
"""A queue and its log. A process that takes a delivery moves its next attempt behind a lease: if the process dies, the
delivery is due again."""

BY_SECRET = ("sessions", "device_logins")
"""Tables looked up by a secret, before the tenant is known."""

TENANT_TABLES = tuple(
    table.name
    for table in metadata.sorted_tables
    if "org_id" in table.c and table.name not in BY_SECRET
)
"""Tables under row-level security on PostgreSQL."""
