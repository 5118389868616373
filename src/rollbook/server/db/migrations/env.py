"""Run by Alembic. `migrate.py` hands over a connection whose transaction it begins, locks and commits itself."""

from __future__ import annotations

from alembic import context

from rollbook.server.db.tables import metadata

given = context.config.attributes
context.configure(
    connection=given["connection"],
    target_metadata=metadata,
    on_version_apply=given["on_version_apply"],
    transactional_ddl=True,
    render_as_batch=True,
)
context.run_migrations()
