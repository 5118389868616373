"""Analyses of episodes.

Written out apart from tables.py for the same reason as the first one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_OWN_ORG = "org_id = current_setting('app.org', true)"


def upgrade() -> None:
    op.create_table(
        "episode_analyses",
        sa.Column("org_id", sa.Text, nullable=False),
        sa.Column("episode_id", sa.Text, nullable=False),
        sa.Column("analyzer_version", sa.Text, nullable=False),
        sa.Column("basis", sa.Text, nullable=False),
        sa.Column("findings", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("left_out", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("made_at_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("org_id", "episode_id", name="pk_episode_analyses"),
        sa.ForeignKeyConstraint(
            ["org_id", "episode_id"],
            ["episodes.org_id", "episodes.id"],
            name="fk_episode_analyses_org_id_episode_id",
            ondelete="CASCADE",
        ),
    )
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        for statement in (
            "ALTER TABLE episode_analyses ENABLE ROW LEVEL SECURITY",
            "ALTER TABLE episode_analyses FORCE ROW LEVEL SECURITY",
            f"CREATE POLICY tenant ON episode_analyses USING ({_OWN_ORG})",
        ):
            connection.execute(sa.text(statement))
