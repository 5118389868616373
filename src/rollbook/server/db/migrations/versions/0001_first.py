"""The first schema: organisations, people, keys, episodes, artifacts, and who may see what.

The tables are written out again rather than taken from tables.py, which goes on changing: a migration that has been
released always does the same.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_schema = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def upgrade() -> None:
    connection = op.get_bind()
    _schema.create_all(connection, checkfirst=False)
    if connection.dialect.name == "postgresql":
        for statement in (*_row_level_security(), *_UPKEEP):
            connection.execute(sa.text(statement))


# --------------------------------------------------------------------------------- who may see what

_OWN_ORG = "org_id = current_setting('app.org', true)"
_TENANT_TABLES = (
    "api_keys",
    "artifacts",
    "doomed_objects",
    "episode_terms",
    "episodes",
    "idempotency_keys",
    "invitations",
    "memberships",
    "upload_parts",
    "uploads",
    "usage",
)


def _row_level_security() -> list[str]:
    """FORCE, because the role that migrates owns the tables and may well be the one that serves.

    Empty settings stand for "nobody": no id is empty.
    """
    statements = []
    for table in (*_TENANT_TABLES, "audit_log"):
        statements += [
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
            f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
        ]
    statements += [
        f"CREATE POLICY tenant ON {table} USING ({_OWN_ORG})" for table in _TENANT_TABLES
    ]
    return [
        *statements,
        *_AUDIT_IS_APPEND_ONLY,
        *_BEFORE_THE_TENANT_IS_KNOWN,
        *_KEYS_ARE_ONLY_TOUCHED,
    ]


_AUDIT_IS_APPEND_ONLY = (
    f"CREATE POLICY tenant_reads ON audit_log FOR SELECT USING ({_OWN_ORG})",
    f"CREATE POLICY tenant_appends ON audit_log FOR INSERT WITH CHECK ({_OWN_ORG})",
)

_OWN_KEY = "key_id = current_setting('app.key', true)"
_BEFORE_THE_TENANT_IS_KNOWN = (
    "CREATE POLICY own_memberships ON memberships FOR SELECT USING (user_id = current_setting('app.user', true))",
    "CREATE POLICY own_invitation ON invitations FOR SELECT "
    "USING (token_hash = current_setting('app.invitation', true))",
    f"CREATE POLICY own_key ON api_keys FOR SELECT USING ({_OWN_KEY})",
    f"CREATE POLICY own_key_is_used ON api_keys FOR UPDATE USING ({_OWN_KEY})",
)

_KEYS_ARE_ONLY_TOUCHED = (
    """
    CREATE FUNCTION refuse_more_than_last_used() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        touched api_keys := OLD;
    BEGIN
        touched.last_used_at_us := NEW.last_used_at_us;
        IF OLD.org_id IS DISTINCT FROM current_setting('app.org', true) AND touched IS DISTINCT FROM NEW THEN
            RAISE insufficient_privilege USING MESSAGE = 'a key without its tenant: only its last use may change';
        END IF;
        RETURN NEW;
    END $$
    """,
    "CREATE TRIGGER only_last_used BEFORE UPDATE ON api_keys "
    "FOR EACH ROW EXECUTE FUNCTION refuse_more_than_last_used()",
)


_UPKEEP = tuple(
    f"ALTER TABLE {table} SET (autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02)"
    for table in ("episodes", "episode_terms")
)
"""After each fiftieth of new rows rather than each fifth: a search that reads an index alone needs to know which rows
everybody can see."""


# ------------------------------------------------------------------------------------------- tables


def _text(name: str, *, required: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=not required)


def _number(name: str, *, required: bool = True) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=not required)


def _json(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.JSON(none_as_null=True), nullable=False)


def _reference(column: str, parent: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{parent}.id"], ondelete="CASCADE")


def _within_tenant(column: str, parent: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["org_id", column], [f"{parent}.org_id", f"{parent}.id"], ondelete="CASCADE"
    )


sa.Table(
    "organisations",
    _schema,
    _text("id", required=True),
    _text("name", required=True),
    _number("quota_bytes", required=False),
    _number("quota_episodes", required=False),
    _number("created_at_us"),
    sa.PrimaryKeyConstraint("id"),
)
sa.Table(
    "users",
    _schema,
    _text("id", required=True),
    _text("email", required=True),
    _text("name"),
    _text("password_hash"),
    _number("created_at_us"),
    sa.PrimaryKeyConstraint("id"),
    sa.UniqueConstraint("email"),
)
sa.Table(
    "memberships",
    _schema,
    _text("org_id", required=True),
    _text("user_id", required=True),
    _text("role", required=True),
    _number("created_at_us"),
    sa.PrimaryKeyConstraint("org_id", "user_id"),
    sa.Index(None, "user_id"),
    _reference("org_id", "organisations"),
    _reference("user_id", "users"),
)
sa.Table(
    "sessions",
    _schema,
    _text("token_hash", required=True),
    _text("user_id", required=True),
    _text("org_id", required=True),
    _text("csrf_token", required=True),
    _number("created_at_us"),
    _number("expires_at_us"),
    sa.PrimaryKeyConstraint("token_hash"),
    sa.Index(None, "user_id"),
    sa.Index(None, "org_id"),
    sa.Index(None, "expires_at_us"),
    _reference("org_id", "organisations"),
    _reference("user_id", "users"),
)
sa.Table(
    "sign_in_links",
    _schema,
    _text("token_hash", required=True),
    _text("user_id", required=True),
    _number("expires_at_us"),
    _number("used_at_us", required=False),
    sa.PrimaryKeyConstraint("token_hash"),
    sa.Index(None, "user_id"),
    _reference("user_id", "users"),
)
sa.Table(
    "invitations",
    _schema,
    _text("org_id", required=True),
    _text("id", required=True),
    _text("token_hash", required=True),
    _text("email", required=True),
    _text("role", required=True),
    _text("invited_by"),
    _number("created_at_us"),
    _number("expires_at_us"),
    _number("accepted_at_us", required=False),
    sa.PrimaryKeyConstraint("org_id", "id"),
    sa.UniqueConstraint("token_hash"),
    _reference("org_id", "organisations"),
)
sa.Table(
    "api_keys",
    _schema,
    _text("key_id", required=True),
    _text("org_id", required=True),
    _text("prefix", required=True),
    _text("secret_hash", required=True),
    _text("label"),
    _text("created_by"),
    _number("created_at_us"),
    _number("last_used_at_us", required=False),
    _number("revoked_at_us", required=False),
    sa.PrimaryKeyConstraint("key_id"),
    sa.Index(None, "org_id", "created_at_us"),
    _reference("org_id", "organisations"),
)
sa.Table(
    "device_logins",
    _schema,
    _text("device_code_hash", required=True),
    _text("user_code", required=True),
    _text("status", required=True),
    _text("hostname"),
    _text("user_agent"),
    _text("ip"),
    _text("user_id"),
    _text("org_id"),
    _text("key_id"),
    _number("created_at_us"),
    _number("expires_at_us"),
    sa.PrimaryKeyConstraint("device_code_hash"),
    sa.UniqueConstraint("user_code"),
    sa.Index(None, "expires_at_us"),
)
sa.Table(
    "audit_log",
    _schema,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), autoincrement=True),
    _text("org_id", required=True),
    _text("event", required=True),
    _text("actor"),
    _text("subject"),
    _json("detail"),
    _text("ip"),
    _number("at_us"),
    sa.PrimaryKeyConstraint("id"),
    sa.Index(None, "org_id", "id"),
    _reference("org_id", "organisations"),
)
sa.Table(
    "episodes",
    _schema,
    _text("org_id", required=True),
    _text("id", required=True),
    _text("name"),
    _text("name_search"),
    _text("source", required=True),
    _text("robot"),
    _text("policy_version"),
    _text("env_version"),
    _text("git_sha"),
    _text("seed"),
    sa.Column("fps", sa.Double),
    sa.Column("duration_s", sa.Double),
    _number("bytes_total", required=False),
    _text("status", required=True),
    _text("archived_from"),
    sa.Column("failure_time_s", sa.Double),
    _json("metadata"),
    _json("tags"),
    _text("created_by"),
    _number("created_at_us"),
    _number("updated_at_us"),
    _number("finalized_at_us", required=False),
    _number("abandoned_at_us", required=False),
    _number("archived_at_us", required=False),
    sa.PrimaryKeyConstraint("org_id", "id"),
    sa.Index(None, "org_id", "created_at_us", "id", "status", "name_search"),
    *(
        sa.Index(None, "org_id", column, "created_at_us", "id")
        for column in (
            "policy_version",
            "env_version",
            "git_sha",
            "seed",
            "robot",
            "source",
            "status",
        )
    ),
    _reference("org_id", "organisations"),
)
sa.Table(
    "episode_terms",
    _schema,
    _text("org_id", required=True),
    _text("term", required=True),
    _number("created_at_us"),
    _text("episode_id", required=True),
    sa.PrimaryKeyConstraint("org_id", "term", "created_at_us", "episode_id"),
    sqlite_with_rowid=False,
)
sa.Table(
    "artifacts",
    _schema,
    _text("org_id", required=True),
    _text("episode_id", required=True),
    _text("kind", required=True),
    _text("object_key", required=True),
    _text("content_type", required=True),
    _text("status", required=True),
    _number("size", required=False),
    _text("sha256"),
    _text("claimed_sha256"),
    sa.Column("playable", sa.Boolean),
    _text("detail"),
    _number("requested_at_us"),
    _number("uploaded_at_us", required=False),
    _text("etag"),
    _text("rendition"),
    _text("rendition_key"),
    _number("rendition_tries", required=False),
    sa.PrimaryKeyConstraint("org_id", "episode_id", "kind"),
    sa.UniqueConstraint("org_id", "object_key"),
    sa.Index(
        "ix_artifacts_rendition_key",
        "org_id",
        "rendition_key",
        sqlite_where=sa.text("rendition_key IS NOT NULL"),
        postgresql_where=sa.text("rendition_key IS NOT NULL"),
    ),
    sa.Index(
        "ix_artifacts_rendition_pending",
        "org_id",
        "requested_at_us",
        sqlite_where=sa.text("rendition = 'pending'"),
        postgresql_where=sa.text("rendition = 'pending'"),
    ),
    _within_tenant("episode_id", "episodes"),
)
sa.Table(
    "uploads",
    _schema,
    _text("org_id", required=True),
    _text("id", required=True),
    _text("episode_id", required=True),
    _text("kind", required=True),
    _text("object_key", required=True),
    _text("store_id"),
    _number("size"),
    _number("part_size"),
    _text("sha256"),
    _number("created_at_us"),
    _number("completed_at_us", required=False),
    sa.PrimaryKeyConstraint("org_id", "id"),
    sa.Index(None, "org_id", "episode_id"),
    _within_tenant("episode_id", "episodes"),
)
sa.Table(
    "upload_parts",
    _schema,
    _text("org_id", required=True),
    _text("upload_id", required=True),
    sa.Column("number", sa.Integer, nullable=False),
    _number("size"),
    _text("etag", required=True),
    _text("sha256"),
    sa.PrimaryKeyConstraint("org_id", "upload_id", "number"),
    _within_tenant("upload_id", "uploads"),
)
sa.Table(
    "doomed_objects",
    _schema,
    _text("org_id", required=True),
    _text("object_key", required=True),
    _text("store_id", required=True),
    _number("doomed_at_us"),
    sa.PrimaryKeyConstraint("org_id", "object_key", "store_id"),
    _reference("org_id", "organisations"),
)
sa.Table(
    "idempotency_keys",
    _schema,
    _text("org_id", required=True),
    _text("key", required=True),
    _text("request_digest", required=True),
    _text("episode_id", required=True),
    _number("created_at_us"),
    sa.PrimaryKeyConstraint("org_id", "key"),
    _reference("org_id", "organisations"),
)
sa.Table(
    "usage",
    _schema,
    _text("org_id", required=True),
    _number("episodes"),
    _number("bytes"),
    sa.PrimaryKeyConstraint("org_id"),
    _reference("org_id", "organisations"),
)
