"""Webhooks can be paused.

Written out apart from tables.py for the same reason as the first one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("webhooks", sa.Column("paused_at_us", sa.BigInteger))
