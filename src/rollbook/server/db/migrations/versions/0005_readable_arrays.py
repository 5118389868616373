"""Whether sensors and actions can be read, and which arrays they have.

Written out apart from tables.py for the same reason as the first one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("artifacts", sa.Column("readable", sa.Boolean))
    op.add_column("artifacts", sa.Column("arrays", sa.JSON(none_as_null=True)))
