"""Rollout stores that an organisation registered.

Written out apart from tables.py for the same reason as the first one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_OWN_ORG = "org_id = current_setting('app.org', true)"


def upgrade() -> None:
    op.create_table(
        "stores",
        sa.Column("org_id", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("added_by", sa.Text),
        sa.Column("added_at_us", sa.BigInteger, nullable=False),
        sa.Column("manifest_sha256", sa.Text),
        sa.Column("content_sha256", sa.Text),
        sa.Column("counts", sa.JSON(none_as_null=True)),
        sa.Column("unreadable_at_us", sa.BigInteger),
        sa.Column("problem", sa.Text),
        sa.Column("verification", sa.JSON(none_as_null=True)),
        sa.PrimaryKeyConstraint("org_id", "id", name="pk_stores"),
        sa.UniqueConstraint("org_id", "place", name="uq_stores_org_id_place"),
        sa.ForeignKeyConstraint(
            ["org_id"], ["organisations.id"], name="fk_stores_org_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_stores_org_id_content_sha256", "stores", ["org_id", "content_sha256"])
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        for statement in (
            "ALTER TABLE stores ENABLE ROW LEVEL SECURITY",
            "ALTER TABLE stores FORCE ROW LEVEL SECURITY",
            f"CREATE POLICY tenant ON stores USING ({_OWN_ORG})",
        ):
            connection.execute(sa.text(statement))
