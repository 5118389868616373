"""Eval runs and their results, scenarios that a candidate has to pass, webhooks and their deliveries.

Written out apart from tables.py for the same reason as the first one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_schema = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
_NEW = (
    "eval_runs",
    "eval_results",
    "verification_scenarios",
    "verification_results",
    "webhooks",
    "webhook_deliveries",
)
_OWN_ORG = "org_id = current_setting('app.org', true)"


def upgrade() -> None:
    connection = op.get_bind()
    _schema.create_all(connection, [_schema.tables[name] for name in _NEW], checkfirst=False)
    if connection.dialect.name == "postgresql":
        for name in _NEW:
            connection.execute(sa.text(f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY"))
            connection.execute(sa.text(f"ALTER TABLE {name} FORCE ROW LEVEL SECURITY"))
            connection.execute(sa.text(f"CREATE POLICY tenant ON {name} USING ({_OWN_ORG})"))


# ------------------------------------------------------------------------------------------- tables


def _text(name: str, *, required: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=not required)


def _number(name: str, *, required: bool = True) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=not required)


def _json(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.JSON(none_as_null=True), nullable=False)


def _to_organisation() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["org_id"], ["organisations.id"], ondelete="CASCADE")


def _within_tenant(column: str, parent: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["org_id", column], [f"{parent}.org_id", f"{parent}.id"], ondelete="CASCADE"
    )


# what 0001 made, as far as it is referred to
sa.Table("organisations", _schema, _text("id", required=True), sa.PrimaryKeyConstraint("id"))
sa.Table(
    "episodes",
    _schema,
    _text("org_id", required=True),
    _text("id", required=True),
    sa.PrimaryKeyConstraint("org_id", "id"),
)

sa.Table(
    "eval_runs",
    _schema,
    _text("org_id", required=True),
    _text("id", required=True),
    _text("name"),
    _text("candidate_policy_version", required=True),
    _text("baseline_policy_version"),
    _text("runner_kind", required=True),
    _text("status", required=True),
    sa.Column("episode_count", sa.Integer, nullable=False),
    sa.Column("episodes_completed", sa.Integer, nullable=False),
    sa.Column("episodes_failed", sa.Integer, nullable=False),
    sa.Column("gate", sa.JSON(none_as_null=True), nullable=False),
    _text("gate_digest", required=True),
    _json("metadata"),
    sa.Column("summary", sa.JSON(none_as_null=True)),
    _text("recommend"),
    _text("decision"),
    sa.Column("revision", sa.BigInteger, nullable=False),
    _text("idempotency_key"),
    _text("request_digest"),
    _text("created_by"),
    _number("created_at_us"),
    _number("updated_at_us"),
    _number("completed_at_us", required=False),
    sa.PrimaryKeyConstraint("org_id", "id"),
    sa.UniqueConstraint("org_id", "idempotency_key"),
    sa.Index(None, "org_id", "created_at_us", "id"),
    sa.Index(None, "org_id", "candidate_policy_version", "created_at_us", "id"),
    sa.Index(None, "org_id", "baseline_policy_version", "created_at_us", "id"),
    sa.Index(None, "org_id", "status", "created_at_us", "id"),
    sa.Index(None, "org_id", "completed_at_us", "id"),
    _to_organisation(),
)
sa.Table(
    "eval_results",
    _schema,
    _text("org_id", required=True),
    _text("eval_run_id", required=True),
    sa.Column("position", sa.Integer, nullable=False),
    _text("id", required=True),
    _text("baseline_episode_id", required=True),
    _text("candidate_episode_id"),
    _text("status", required=True),
    _json("metrics"),
    _text("error"),
    _number("updated_at_us"),
    sa.PrimaryKeyConstraint("org_id", "eval_run_id", "position"),
    sa.UniqueConstraint("org_id", "eval_run_id", "baseline_episode_id"),
    sa.Index(None, "org_id", "baseline_episode_id"),
    sa.Index(None, "org_id", "candidate_episode_id"),
    _within_tenant("eval_run_id", "eval_runs"),
    _within_tenant("baseline_episode_id", "episodes"),
)
_results = _schema.tables["eval_results"].c
sa.Index(
    "ix_eval_results_done",
    _results.org_id,
    _results.eval_run_id,
    _results.status,
    sqlite_where=_results.status != "pending",
    postgresql_where=_results.status != "pending",
)
sa.Table(
    "verification_scenarios",
    _schema,
    _text("org_id", required=True),
    _text("id", required=True),
    _text("baseline_episode_id", required=True),
    _text("name"),
    _text("description"),
    _text("severity", required=True),
    sa.Column("active", sa.Boolean, nullable=False),
    _text("created_by"),
    _number("created_at_us"),
    _number("updated_at_us"),
    sa.PrimaryKeyConstraint("org_id", "id"),
    sa.UniqueConstraint("org_id", "baseline_episode_id"),
    _within_tenant("baseline_episode_id", "episodes"),
)
sa.Table(
    "verification_results",
    _schema,
    _text("org_id", required=True),
    _text("id", required=True),
    _text("scenario_id", required=True),
    _text("candidate_policy_version", required=True),
    _text("status", required=True),
    _json("metrics"),
    _text("error"),
    _text("candidate_episode_id"),
    _text("eval_run_id"),
    sa.Column("mirrored", sa.Boolean, nullable=False),
    _number("created_at_us"),
    sa.PrimaryKeyConstraint("org_id", "id"),
    sa.UniqueConstraint("org_id", "scenario_id", "eval_run_id"),
    sa.Index(None, "org_id", "candidate_policy_version", "scenario_id", "created_at_us", "id"),
    sa.Index(None, "org_id", "candidate_episode_id"),
    sa.Index(None, "org_id", "eval_run_id"),
    _within_tenant("scenario_id", "verification_scenarios"),
)
sa.Table(
    "webhooks",
    _schema,
    _text("org_id", required=True),
    _text("id", required=True),
    _text("url", required=True),
    _json("events"),
    _text("description"),
    _text("salt", required=True),
    _text("secret_hash", required=True),
    _text("created_by"),
    _number("created_at_us"),
    sa.PrimaryKeyConstraint("org_id", "id"),
    _to_organisation(),
)
sa.Table(
    "webhook_deliveries",
    _schema,
    _text("org_id", required=True),
    _text("id", required=True),
    _text("webhook_id", required=True),
    _text("event", required=True),
    _text("body", required=True),
    _text("status", required=True),
    sa.Column("attempts", sa.Integer, nullable=False),
    _json("tries"),
    _number("created_at_us"),
    _number("next_attempt_at_us"),
    _number("finished_at_us", required=False),
    sa.PrimaryKeyConstraint("org_id", "id"),
    sa.Index(None, "org_id", "webhook_id", "created_at_us", "id"),
    sa.Index(None, "org_id", "status", "next_attempt_at_us"),
    _within_tenant("webhook_id", "webhooks"),
)
