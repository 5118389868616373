"""Policy revisions in a table of their own, and the columns of episodes and eval runs that name one.

Written out apart from tables.py for the same reason as the first one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_OWN_ORG = "org_id = current_setting('app.org', true)"


def upgrade() -> None:
    op.create_table(
        "policy_revisions",
        sa.Column("org_id", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("policy_family", sa.Text, nullable=False),
        sa.Column("revision_id", sa.Text, nullable=False),
        sa.Column("revision", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.Column("updated_at_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("org_id", "id", name="pk_policy_revisions"),
        sa.UniqueConstraint(
            "org_id",
            "policy_family",
            "revision_id",
            name="uq_policy_revisions_org_id_policy_family_revision_id",
        ),
        sa.ForeignKeyConstraint(
            ["org_id"],
            ["organisations.id"],
            name="fk_policy_revisions_org_id",
            ondelete="CASCADE",
        ),
    )
    op.add_column("episodes", sa.Column("policy_revision_id", sa.Text))
    op.add_column("eval_runs", sa.Column("candidate_policy_revision_id", sa.Text))
    op.add_column("eval_runs", sa.Column("baseline_policy_revision_id", sa.Text))
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        for statement in (
            "ALTER TABLE policy_revisions ENABLE ROW LEVEL SECURITY",
            "ALTER TABLE policy_revisions FORCE ROW LEVEL SECURITY",
            f"CREATE POLICY tenant ON policy_revisions USING ({_OWN_ORG})",
        ):
            connection.execute(sa.text(statement))
