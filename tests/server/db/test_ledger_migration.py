"""A database of an older release has runs with results: the migration enters them in the ledger."""

from __future__ import annotations

from contextlib import closing
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from rollbook.server.db.engine import Tenant
from rollbook.server.db.migrate import migrate
from rollbook.server.db.open import open_database, postgres_url
from rollbook.server.db.sqlite import sqlite_engine, sqlite_path
from rollbook.server.queries import Scope
from tests.server.postgres_cluster import PostgresCluster

RUNS = {
    "first": (1, ["a", "b"], "complete"),
    "empty": (2, ["a", "b"], "pending"),
    "second": (3, ["b", "c"], "failed"),
    "apart": (4, ["d"], "complete"),
}


def insert(connection: sa.Connection, table: str, **values: object) -> None:
    columns, marks = ", ".join(values), ", ".join(f":{name}" for name in values)
    connection.execute(sa.text(f"INSERT INTO {table} ({columns}) VALUES ({marks})"), values)


@pytest.fixture
def old_database(
    empty_database_url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> str:
    """At the revision before the ledger, with the same runs in two organisations."""
    from alembic import command

    upgrade = command.upgrade
    with monkeypatch.context() as patch:
        patch.setattr(command, "upgrade", lambda config, _head: upgrade(config, "0008"))
        migrate(empty_database_url)
    if empty_database_url.startswith("sqlite"):
        engine = sqlite_engine(sqlite_path(empty_database_url))
    else:
        cluster: PostgresCluster = request.getfixturevalue("postgres_cluster")
        as_admin = cluster.admin_url(urlsplit(empty_database_url).path[1:])
        engine = sa.create_engine(postgres_url(as_admin), poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        for org in ("one", "two"):
            insert(connection, "organisations", id=org, name=org, created_at_us=1)
            _fill(connection, org)
    engine.dispose()
    return empty_database_url


def _fill(connection: sa.Connection, org: str) -> None:
    times = {"created_at_us": 1, "updated_at_us": 1}
    for each in "abcd":
        about = {"source": "sim", "status": "ready", "metadata": "{}", "tags": "[]"}
        insert(connection, "episodes", org_id=org, id=each, **about, **times)
    for run, (at, baselines, status) in RUNS.items():
        insert(
            connection,
            "eval_runs",
            org_id=org,
            id=run,
            candidate_policy_version="v2",
            runner_kind="client",
            status="running",
            episode_count=len(baselines),
            episodes_completed=0,
            episodes_failed=0,
            gate="{}",
            gate_digest="",
            metadata="{}",
            revision=0,
            created_at_us=at,
            updated_at_us=at,
        )
        for position, each in enumerate(baselines):
            insert(
                connection,
                "eval_results",
                org_id=org,
                eval_run_id=run,
                position=position,
                id=f"{run} {each}",
                baseline_episode_id=each,
                status=status if position == 0 else "pending",
                metrics="{}",
                updated_at_us=1,
            )


def test_runs_with_results_are_entered_in_the_order_of_their_creation(old_database: str) -> None:
    migrate(old_database)
    with closing(open_database(old_database)) as database:
        for org in ("one", "two"):
            earlier = database.read_now(
                Tenant(org_id=org),
                lambda connection: {
                    run: Scope(connection, org).earlier_runs(run)  # noqa: B023
                    for run in RUNS
                },
            )
            assert earlier == {"first": 0, "empty": 0, "second": 1, "apart": 0}
