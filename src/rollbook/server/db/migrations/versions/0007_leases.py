"""Leases: work that one process of all does, such as upkeep.

Written out apart from tables.py for the same reason as the first one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "leases",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("holder", sa.Text),
        sa.Column("until_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        for statement in (
            "ALTER TABLE leases ENABLE ROW LEVEL SECURITY",
            "ALTER TABLE leases FORCE ROW LEVEL SECURITY",
            "CREATE POLICY looked_up ON leases USING (name = current_setting('app.lookup', true))",
        ):
            connection.execute(sa.text(statement))
