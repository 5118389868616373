"""The ledger of eval runs, locked gates, and the name of the gate that judges a run.

Runs that have results are entered in the order of their creation. Each has a set of baselines of its own, named by the
run: the rows say the same as those of a set that several runs share.

Written out apart from tables.py for the same reason as the first one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_OWN_ORG = "org_id = current_setting('app.org', true)"
_NEW = ("ledger_runs", "ledger_baselines", "locked_gates")
_READ = ("eval_runs", "eval_results")
_ENTER_RUNS = """
INSERT INTO ledger_runs (org_id, eval_run_id, position, baseline_set, entered_at_us)
SELECT org_id, id, row_number() OVER (PARTITION BY org_id ORDER BY created_at_us, id), id, created_at_us
FROM eval_runs
WHERE EXISTS (SELECT 1 FROM eval_results WHERE eval_results.org_id = eval_runs.org_id
              AND eval_results.eval_run_id = eval_runs.id AND eval_results.status <> 'pending')
"""
_ENTER_BASELINES = """
INSERT INTO ledger_baselines (org_id, baseline_set, episode_id)
SELECT eval_results.org_id, eval_results.eval_run_id, eval_results.baseline_episode_id
FROM ledger_runs JOIN eval_results
ON eval_results.org_id = ledger_runs.org_id AND eval_results.eval_run_id = ledger_runs.eval_run_id
"""


def upgrade() -> None:
    op.create_table(
        "ledger_runs",
        sa.Column("org_id", sa.Text, nullable=False),
        sa.Column("eval_run_id", sa.Text, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("baseline_set", sa.Text, nullable=False),
        sa.Column("entered_at_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("org_id", "eval_run_id", name="pk_ledger_runs"),
        sa.UniqueConstraint("org_id", "position", name="uq_ledger_runs_org_id_position"),
        _of_organisation("ledger_runs"),
    )
    op.create_index(
        "ix_ledger_runs_org_id_baseline_set_position",
        "ledger_runs",
        ["org_id", "baseline_set", "position"],
    )
    op.create_table(
        "ledger_baselines",
        sa.Column("org_id", sa.Text, nullable=False),
        sa.Column("baseline_set", sa.Text, nullable=False),
        sa.Column("episode_id", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("org_id", "baseline_set", "episode_id", name="pk_ledger_baselines"),
        _of_organisation("ledger_baselines"),
    )
    op.create_index(
        "ix_ledger_baselines_org_id_episode_id_baseline_set",
        "ledger_baselines",
        ["org_id", "episode_id", "baseline_set"],
    )
    op.create_table(
        "locked_gates",
        sa.Column("org_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("gate", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("gate_digest", sa.Text, nullable=False),
        sa.Column("locked_by", sa.Text),
        sa.Column("locked_at_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("org_id", "name", name="pk_locked_gates"),
        _of_organisation("locked_gates"),
    )
    op.add_column("eval_runs", sa.Column("gate_name", sa.Text))
    connection = op.get_bind()
    if connection.dialect.name != "postgresql":
        _enter_old_runs(connection)
        return
    # the policies of these tables hide every row from a migration, which is of no organisation
    for name in _READ:
        connection.execute(sa.text(f"ALTER TABLE {name} NO FORCE ROW LEVEL SECURITY"))
    _enter_old_runs(connection)
    for name in _READ:
        connection.execute(sa.text(f"ALTER TABLE {name} FORCE ROW LEVEL SECURITY"))
    for name in _NEW:
        for statement in (
            f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY",
            f"ALTER TABLE {name} FORCE ROW LEVEL SECURITY",
            f"CREATE POLICY tenant ON {name} USING ({_OWN_ORG})",
        ):
            connection.execute(sa.text(statement))


def _enter_old_runs(connection: sa.Connection) -> None:
    connection.execute(sa.text(_ENTER_RUNS))
    connection.execute(sa.text(_ENTER_BASELINES))


def _of_organisation(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["org_id"], ["organisations.id"], name=f"fk_{table}_org_id", ondelete="CASCADE"
    )
