"""What the summary of an eval run was computed from.

Written out apart from tables.py for the same reason as the first one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_OWN_ORG = "org_id = current_setting('app.org', true)"


def upgrade() -> None:
    op.create_table(
        "eval_evidence",
        sa.Column("org_id", sa.Text, nullable=False),
        sa.Column("eval_run_id", sa.Text, nullable=False),
        sa.Column("record", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("org_id", "eval_run_id", name="pk_eval_evidence"),
        sa.ForeignKeyConstraint(
            ["org_id", "eval_run_id"],
            ["eval_runs.org_id", "eval_runs.id"],
            name="fk_eval_evidence_org_id_eval_run_id",
            ondelete="CASCADE",
        ),
    )
    if op.get_bind().dialect.name == "postgresql":
        for statement in (
            "ALTER TABLE eval_evidence ENABLE ROW LEVEL SECURITY",
            "ALTER TABLE eval_evidence FORCE ROW LEVEL SECURITY",
            f"CREATE POLICY tenant ON eval_evidence USING ({_OWN_ORG})",
        ):
            op.execute(statement)
