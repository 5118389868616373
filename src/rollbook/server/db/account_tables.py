"""Organisations, people, keys, sessions and the audit log: their tables, and their rows as they leave the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from rollbook.contracts.wire.keys import KeyScope
from rollbook.server.db.columns import Json, metadata, org, text, time_column, user

organisations = sa.Table(
    "organisations",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    text("name", required=True),
    sa.Column("quota_bytes", sa.BigInteger),
    sa.Column("quota_episodes", sa.BigInteger),
    time_column("created_at_us"),
)

users = sa.Table(
    "users",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("email", sa.Text, nullable=False, unique=True),
    text("name"),
    text("password_hash"),
    time_column("created_at_us"),
)

memberships = sa.Table(
    "memberships",
    metadata,
    org(),
    user(),
    text("role", required=True),
    time_column("created_at_us"),
    sa.PrimaryKeyConstraint("org_id", "user_id"),
    sa.Index(None, "user_id"),
)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("token_hash", sa.Text, primary_key=True),
    user(),
    org(),
    text("csrf_token", required=True),
    time_column("created_at_us"),
    time_column("expires_at_us"),
    sa.Index(None, "user_id"),
    sa.Index(None, "org_id"),
    sa.Index(None, "expires_at_us"),
)

sign_in_links = sa.Table(
    "sign_in_links",
    metadata,
    sa.Column("token_hash", sa.Text, primary_key=True),
    user(),
    time_column("expires_at_us"),
    time_column("used_at_us", required=False),
    sa.Index(None, "user_id"),
)

invitations = sa.Table(
    "invitations",
    metadata,
    org(),
    text("id", required=True),
    sa.Column("token_hash", sa.Text, nullable=False, unique=True),
    text("email", required=True),
    text("role", required=True),
    text("invited_by"),
    time_column("created_at_us"),
    time_column("expires_at_us"),
    time_column("accepted_at_us", required=False),
    sa.PrimaryKeyConstraint("org_id", "id"),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("key_id", sa.Text, primary_key=True),
    org(),
    text("prefix", required=True),
    text("secret_hash", required=True),
    text("label"),
    text("created_by"),
    time_column("created_at_us"),
    time_column("last_used_at_us", required=False),
    time_column("revoked_at_us", required=False),
    sa.Index(None, "org_id", "created_at_us"),
)

device_logins = sa.Table(
    "device_logins",
    metadata,
    sa.Column("device_code_hash", sa.Text, primary_key=True),
    sa.Column("user_code", sa.Text, nullable=False, unique=True),
    text("status", required=True),
    text("hostname"),
    text("user_agent"),
    text("ip"),
    text("user_id"),
    text("org_id"),
    text("key_id"),
    time_column("created_at_us"),
    time_column("expires_at_us"),
    text("scope"),
    text("label"),
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
    org(),
    text("event", required=True),
    text("actor"),
    text("subject"),
    sa.Column("detail", Json, nullable=False),
    text("ip"),
    time_column("at_us"),
    sa.Index(None, "org_id", "id"),
)


@dataclass(frozen=True, slots=True)
class OrganisationRow:
    id: str
    name: str
    quota_bytes: int | None
    quota_episodes: int | None
    created_at_us: int


@dataclass(frozen=True, slots=True)
class UserRow:
    id: str
    email: str
    name: str | None
    password_hash: str | None
    created_at_us: int


@dataclass(frozen=True, slots=True)
class MemberRow:
    user_id: str
    email: str
    name: str | None
    role: str
    created_at_us: int


@dataclass(frozen=True, slots=True)
class MembershipRow:
    """One organisation of a user, and the user's role there."""

    org_id: str
    org_name: str
    role: str


@dataclass(frozen=True, slots=True)
class InvitationRow:
    org_id: str
    id: str
    email: str
    role: str
    invited_by: str | None
    created_at_us: int
    expires_at_us: int
    accepted_at_us: int | None


@dataclass(frozen=True, slots=True)
class KeyRow:
    key_id: str
    org_id: str
    prefix: str
    secret_hash: str
    label: str | None
    created_by: str | None
    created_at_us: int
    last_used_at_us: int | None
    revoked_at_us: int | None


@dataclass(frozen=True, slots=True)
class SessionRow:
    token_hash: str
    user_id: str
    org_id: str
    csrf_token: str
    created_at_us: int
    expires_at_us: int


@dataclass(frozen=True, slots=True)
class DeviceLoginRow:
    user_code: str
    status: str
    hostname: str | None
    user_agent: str | None
    ip: str | None
    user_id: str | None
    org_id: str | None
    key_id: str | None
    created_at_us: int
    expires_at_us: int
    scope: KeyScope | None
    label: str | None


@dataclass(frozen=True, slots=True)
class AuditRow:
    id: int
    event: str
    actor: str | None
    subject: str | None
    detail: dict[str, Any]
    ip: str | None
    at_us: int
