"""Retention policies and legal holds.

Written out apart from tables.py for the same reason as the first one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_OWN_ORG = "org_id = current_setting('app.org', true)"


def upgrade() -> None:
    op.create_table(
        "retention_policies",
        sa.Column("org_id", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("older_than_days", sa.BigInteger, nullable=False),
        sa.Column("source", sa.Text),
        sa.Column("tags", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_by", sa.Text),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("org_id", "id", name="pk_retention_policies"),
        sa.ForeignKeyConstraint(
            ["org_id"],
            ["organisations.id"],
            name="fk_retention_policies_org_id",
            ondelete="CASCADE",
        ),
    )
    op.create_table(
        "legal_holds",
        sa.Column("org_id", sa.Text, nullable=False),
        sa.Column("episode_id", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("created_by", sa.Text),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("org_id", "episode_id", name="pk_legal_holds"),
        sa.ForeignKeyConstraint(
            ["org_id", "episode_id"],
            ["episodes.org_id", "episodes.id"],
            name="fk_legal_holds_org_id_episode_id",
            ondelete="CASCADE",
        ),
    )
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        for table in ("retention_policies", "legal_holds"):
            for statement in (
                f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
                f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
                f"CREATE POLICY tenant ON {table} USING ({_OWN_ORG})",
            ):
                connection.execute(sa.text(statement))
