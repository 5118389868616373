"""What policy revisions were trained on, and the episodes of a revision by index.

Written out apart from tables.py for the same reason as the first one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_OWN_ORG = "org_id = current_setting('app.org', true)"


def upgrade() -> None:
    op.create_table(
        "training_sources",
        sa.Column("org_id", sa.Text, nullable=False),
        sa.Column("policy_revision_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("source_id", sa.Text, nullable=False),
        sa.Column("detail", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("record", sa.JSON(none_as_null=True)),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint(
            "org_id", "policy_revision_id", "kind", "source_id", name="pk_training_sources"
        ),
        sa.ForeignKeyConstraint(
            ["org_id", "policy_revision_id"],
            ["policy_revisions.org_id", "policy_revisions.id"],
            name="fk_training_sources_org_id_policy_revision_id",
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        "ix_training_sources_org_id_kind_source_id",
        "training_sources",
        ["org_id", "kind", "source_id"],
    )
    named = sa.text("policy_revision_id IS NOT NULL")
    op.create_index(
        "ix_episodes_policy_revision",
        "episodes",
        ["org_id", "policy_revision_id", "created_at_us"],
        sqlite_where=named,
        postgresql_where=named,
    )
    if op.get_bind().dialect.name == "postgresql":
        for statement in (
            "ALTER TABLE training_sources ENABLE ROW LEVEL SECURITY",
            "ALTER TABLE training_sources FORCE ROW LEVEL SECURITY",
            f"CREATE POLICY tenant ON training_sources USING ({_OWN_ORG})",
        ):
            op.execute(statement)
