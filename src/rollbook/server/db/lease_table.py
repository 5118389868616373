"""Leases: their table. It holds nothing of a tenant."""

from __future__ import annotations

import sqlalchemy as sa

from rollbook.server.db.columns import metadata, text, time_column

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    text("holder"),
    time_column("until_us"),
)
"""Nobody may begin the work called `name` before `until_us`: until then the holder does it, or, without a holder, it is
not due again."""
