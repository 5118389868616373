"""A device login says which scope and which label its key is to have.

The scope of a stored key is in its prefix, which is part of the hashed text: keys of older releases have one already.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("device_logins", sa.Column("scope", sa.Text))
    op.add_column("device_logins", sa.Column("label", sa.Text))
