"""Every attempt at a pair, labels of a pair, how many pairs of a run were retried, and how many baselines it lost.

Written out apart from tables.py for the same reason as the first one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_OWN_ORG = "org_id = current_setting('app.org', true)"
_CHANGED = ("eval_runs", "eval_results")


def upgrade() -> None:
    op.create_table(
        "eval_attempts",
        sa.Column("org_id", sa.Text, nullable=False),
        sa.Column("eval_run_id", sa.Text, nullable=False),
        sa.Column("baseline_episode_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("metrics", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("recorded_at_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint(
            "org_id", "eval_run_id", "baseline_episode_id", "number", name="pk_eval_attempts"
        ),
        sa.ForeignKeyConstraint(
            ["org_id", "eval_run_id"],
            ["eval_runs.org_id", "eval_runs.id"],
            name="fk_eval_attempts_org_id_eval_run_id",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["org_id", "baseline_episode_id"],
            ["episodes.org_id", "episodes.id"],
            name="fk_eval_attempts_org_id_baseline_episode_id",
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        "ix_eval_attempts_org_id_baseline_episode_id",
        "eval_attempts",
        ["org_id", "baseline_episode_id"],
    )
    for table, name in (
        ("eval_runs", "retried"),
        ("eval_runs", "altered"),
        ("eval_results", "attempts"),
    ):
        op.add_column(table, sa.Column(name, sa.Integer, nullable=False, server_default="0"))
    for table, name in (("eval_results", "retried"), ("verification_results", "measured")):
        column = sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false())
        op.add_column(table, column)
    op.add_column("eval_results", sa.Column("labels", sa.JSON(none_as_null=True)))
    with _every_tenant():
        op.execute("UPDATE eval_results SET attempts = 1 WHERE status != 'pending'")
        op.execute(
            "UPDATE eval_runs SET altered = episode_count - (SELECT count(*) FROM eval_results "
            "WHERE eval_results.org_id = eval_runs.org_id AND eval_results.eval_run_id = eval_runs.id)"
        )
    if _is_postgres():
        for statement in (
            "ALTER TABLE eval_attempts ENABLE ROW LEVEL SECURITY",
            "ALTER TABLE eval_attempts FORCE ROW LEVEL SECURITY",
            f"CREATE POLICY tenant ON eval_attempts USING ({_OWN_ORG})",
        ):
            op.execute(statement)


@contextmanager
def _every_tenant() -> Iterator[None]:
    """The policies of PostgreSQL would hide all rows from a migration, which has no tenant."""
    for table in _CHANGED if _is_postgres() else ():
        op.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
    yield
    for table in _CHANGED if _is_postgres() else ():
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")


def _is_postgres() -> bool:
    return op.get_bind().dialect.name == "postgresql"
