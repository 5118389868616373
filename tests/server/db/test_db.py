"""A database does each piece of work whole or not at all, tells everyone who waits, and outlives its troubles."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from rollbook.errors import (
    ConfigurationError,
    DatabaseFull,
    DatabaseUnavailable,
    InvalidText,
    RollbookError,
)
from rollbook.server.db import engine as db_module
from rollbook.server.db.engine import NOBODY, Database
from rollbook.server.db.open import open_database, postgres_url
from rollbook.server.db.postgres import PostgresDatabase
from rollbook.server.db.sqlite import SqliteDatabase
from rollbook.server.db.tables import organisations
from rollbook.server.db.value_checks import is_storable
from tests.server.postgres_cluster import PostgresCluster


def add(org_id: str) -> Callable[[sa.Connection], str]:
    def work(connection: sa.Connection) -> str:
        row = {"id": org_id, "name": org_id, "created_at_us": 1}
        let_policies_see(connection, "app.org", org_id)
        connection.execute(sa.insert(organisations), row)
        return org_id

    return work


def let_policies_see(connection: sa.Connection, setting: str, value: str) -> None:
    """Here one transaction may work on several organisations."""
    if connection.dialect.name == "postgresql" and is_storable(value):
        connection.execute(sa.select(sa.func.set_config(setting, value, True)))


def names(connection: sa.Connection) -> set[str]:
    let_policies_see(connection, "app.upkeep", "on")
    return set(connection.execute(sa.select(organisations.c.name)).scalars())


def add_then_fail(org_id: str) -> Callable[[sa.Connection], None]:
    def work(connection: sa.Connection) -> None:
        add(org_id)(connection)
        raise LookupError("on second thoughts")

    return work


def test_what_was_written_is_read(database: Database) -> None:
    assert database.write_now(NOBODY, add("a")) == "a"
    assert database.read_now(NOBODY, names) == {"a"}


def test_work_that_fails_leaves_nothing_and_its_error_comes_back(database: Database) -> None:
    with pytest.raises(LookupError, match="second thoughts"):
        database.write_now(NOBODY, add_then_fail("a"))
    assert database.read_now(NOBODY, names) == set()


def test_many_at_once_each_succeed_or_fail_alone(database: Database) -> None:
    good = [database.submit_write(NOBODY, add(f"good{number}")) for number in range(40)]
    bad = [database.submit_write(NOBODY, add_then_fail(f"bad{number}")) for number in range(40)]
    good[0].result()  # on PostgreSQL another thread could otherwise be first
    twice = [database.submit_write(NOBODY, add("good0")) for _ in range(5)]
    assert [future.result() for future in good] == [f"good{number}" for number in range(40)]
    assert all(isinstance(future.exception(), LookupError) for future in bad)
    assert all(isinstance(future.exception(), sa.exc.IntegrityError) for future in twice)
    assert database.read_now(NOBODY, names) == {f"good{number}" for number in range(40)}


def test_it_serves_an_event_loop(database: Database) -> None:
    async def many() -> set[str]:
        await asyncio.gather(*(database.write(NOBODY, add(f"{number}")) for number in range(30)))
        return await database.read(NOBODY, names)

    assert asyncio.run(many()) == {f"{number}" for number in range(30)}


def test_a_read_cannot_write(database: Database) -> None:
    with pytest.raises((sa.exc.DBAPIError, DatabaseUnavailable)):
        database.read_now(NOBODY, add("a"))
    database.write_now(NOBODY, add("b"))
    assert database.read_now(NOBODY, names) == {"b"}


def test_a_read_sees_one_moment(sqlite_database: SqliteDatabase) -> None:
    """All of it, on SQLite; PostgreSQL promises that for each statement."""
    seen_once, written = threading.Event(), threading.Event()

    def look_twice(connection: sa.Connection) -> tuple[set[str], set[str]]:
        first = names(connection)
        seen_once.set()
        assert written.wait(10)
        return first, names(connection)

    looking = sqlite_database.submit_read(NOBODY, look_twice)
    assert seen_once.wait(10)
    sqlite_database.write_now(NOBODY, add("a"))
    written.set()
    assert looking.result() == (set(), set())


def test_a_text_that_cannot_be_stored_is_refused_and_nothing_else_breaks(
    database: Database,
) -> None:
    for text in ("nul\x00" if database.kind != "sqlite" else "half \ud800", "half \udfff pair"):
        with pytest.raises(InvalidText, match="cannot be stored"):
            database.write_now(NOBODY, add(text))
    database.write_now(NOBODY, add("a"))
    assert database.read_now(NOBODY, names) == {"a"}


def test_errors_say_nothing_of_the_values(database: Database) -> None:
    database.write_now(NOBODY, add("secret-token"))
    with pytest.raises(sa.exc.IntegrityError) as caught:
        database.write_now(NOBODY, add("secret-token"))
    assert "INSERT" in str(caught.value)
    assert "[parameters: " not in str(caught.value).replace("[SQL parameters hidden", "")


# ------------------------------------------------------------------------------- waiting and closing


def test_who_gives_up_while_waiting_has_changed_nothing_and_harms_nobody(
    sqlite_database: SqliteDatabase,
) -> None:
    """The future is cancelled under the writer's hands, which must not be the end of the writer."""
    database = sqlite_database
    holding, let_go = threading.Event(), threading.Event()

    def hold(connection: sa.Connection) -> None:
        holding.set()
        assert let_go.wait(10)

    busy = database.submit_write(NOBODY, hold)
    assert holding.wait(10)
    waiting = [database.submit_write(NOBODY, add(f"{number}")) for number in range(10)]
    assert all(future.cancel() for future in waiting[::2])
    assert not busy.cancel()
    let_go.set()
    assert [future.result() for future in waiting[1::2]] == ["1", "3", "5", "7", "9"]
    with pytest.raises(CancelledError):
        waiting[0].result()
    assert database.read_now(NOBODY, names) == {"1", "3", "5", "7", "9"}


def test_a_task_that_is_cancelled_does_not_stop_the_others(database: Database) -> None:
    async def story() -> set[str]:
        doomed = [asyncio.create_task(database.write(NOBODY, add(f"d{n}"))) for n in range(20)]
        await asyncio.sleep(0)
        for task in doomed:
            task.cancel()
        await asyncio.gather(*doomed, return_exceptions=True)
        await database.write(NOBODY, add("after"))
        return await database.read(NOBODY, names)

    assert "after" in asyncio.run(story())


def test_closing_does_what_waits_and_refuses_what_comes_later(database_url: str) -> None:
    database = open_database(database_url)
    waiting = [database.submit_write(NOBODY, add(f"{number}")) for number in range(50)]
    database.close()
    assert [future.result(0) for future in waiting] == [f"{number}" for number in range(50)]
    for ask in (database.submit_write, database.submit_read):
        with pytest.raises(DatabaseUnavailable, match="closing"):
            ask(NOBODY, names)
    database.close()
    again = open_database(database_url)
    assert len(again.read_now(NOBODY, names)) == 50
    again.close()


def test_submitting_while_it_closes_is_answered_one_way_or_the_other(database_url: str) -> None:
    database = open_database(database_url)
    accepted: list[str] = []
    refused = 0

    def submit_until_refused(name: str) -> None:
        nonlocal refused
        for number in range(10_000):
            try:
                future = database.submit_write(NOBODY, add(f"{name}{number}"))
            except DatabaseUnavailable:
                refused += 1
                return
            accepted.append(future.result(10))

    threads = [threading.Thread(target=submit_until_refused, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    database.close()
    for thread in threads:
        thread.join(10)
    again = open_database(database_url)
    assert refused == 3
    assert again.read_now(NOBODY, names) == set(accepted)
    again.close()


def test_work_that_asks_its_database_for_more_is_told_instead_of_waiting_forever(
    database: Database,
) -> None:
    for ask in (database.read_now, database.write_now):
        with pytest.raises(RuntimeError, match="wait for itself"):
            database.write_now(NOBODY, lambda _, ask=ask: ask(NOBODY, names))  # type: ignore[misc]
    assert database.read_now(NOBODY, names) == set()


def test_a_query_that_takes_too_long_is_stopped(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db_module, "LONGEST_QUERY_S", 0.3)
    database = open_database(database_url)
    slow = sa.text(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000000000) "
        "SELECT count(*) FROM n"
    )
    try:
        with pytest.raises(DatabaseUnavailable, match="took too long"):
            database.read_now(NOBODY, lambda connection: connection.execute(slow).scalar())
        assert database.read_now(NOBODY, names) == set()
    finally:
        database.close()


# ----------------------------------------------------------------------------------------- opening


@pytest.mark.parametrize(
    "url",
    ["mysql://somewhere", "rollbook.db", "sqlite://", "sqlite:///", "sqlite:///:memory:", ""],
)
def test_another_kind_of_database_is_refused_with_what_was_expected(url: str) -> None:
    with pytest.raises(ConfigurationError, match="sqlite:///"):
        open_database(url)


def test_a_wrong_password_is_not_shown(postgres_cluster: PostgresCluster) -> None:
    url = "postgresql://rollbook_app:hunter2@127.0.0.1:9/none?connect_timeout=2"
    database = open_database(url)
    with pytest.raises(DatabaseUnavailable) as caught:
        database.read_now(NOBODY, names)
    assert "hunter2" not in str(caught.value)
    assert caught.value.retryable
    database.close()


# ------------------------------------------------------------------------------------------- SQLite


def test_the_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rollbook.db"
    database = SqliteDatabase(path)
    database.write_now(NOBODY, lambda connection: connection.exec_driver_sql("CREATE TABLE t(a)"))
    assert {file.stat().st_mode & 0o077 for file in path.parent.iterdir()} == {0}
    assert len(list(path.parent.iterdir())) == 3  # with its log and index
    database.close()


def test_a_full_disk_fails_the_work_cleanly_and_is_over_when_there_is_room(
    sqlite_database: SqliteDatabase,
) -> None:
    database = sqlite_database

    def allow_pages(count: int) -> Callable[[sa.Connection], int]:
        def work(connection: sa.Connection) -> int:
            set_to = connection.exec_driver_sql(f"PRAGMA max_page_count={count}").scalar_one()
            return int(set_to)

        return work

    database.write_now(NOBODY, allow_pages(1))  # it does not shrink: no more pages than there are
    futures = [database.submit_write(NOBODY, add("x" * 300_000 + str(n))) for n in range(3)]
    futures.append(database.submit_write(NOBODY, lambda connection: "nothing"))
    failures = [future.exception() for future in futures]
    assert any(isinstance(failure, DatabaseFull) for failure in failures)
    assert all(failure is None or isinstance(failure, RollbookError) for failure in failures)
    assert database.read_now(NOBODY, names) == set()
    database.write_now(NOBODY, allow_pages(1_000_000))
    database.write_now(NOBODY, add("x" * 300_000))
    assert len(database.read_now(NOBODY, names)) == 1


def test_another_process_that_writes_is_waited_for(sqlite_database: SqliteDatabase) -> None:
    """Several worker processes may share one file."""
    one, other = sqlite_database, SqliteDatabase(sqlite_database.path)
    holding = threading.Event()

    def hold(connection: sa.Connection) -> None:
        add("first")(connection)
        holding.set()
        time.sleep(0.3)

    first = one.submit_write(NOBODY, hold)
    assert holding.wait(10)
    other.write_now(NOBODY, add("second"))
    assert first.done()
    assert one.read_now(NOBODY, names) == other.read_now(NOBODY, names) == {"first", "second"}
    other.close()


def test_a_damaged_file_is_a_fault_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "rollbook.db"
    path.write_bytes(b"this is no database" * 500)
    database = SqliteDatabase(path)
    for ask in (database.read_now, database.write_now):
        with pytest.raises(DatabaseUnavailable, match="not a database"):
            ask(NOBODY, names)
    database.close()


# --------------------------------------------------------------------------------------- PostgreSQL


def test_after_a_restart_of_postgresql_the_next_request_is_served(
    postgres_cluster: PostgresCluster, postgres_database: Database
) -> None:
    database = postgres_database
    held = [database.submit_read(NOBODY, names) for _ in range(8)]
    assert all(future.result() == set() for future in held)
    postgres_cluster.restart()
    assert database.write_now(NOBODY, add("a")) == "a"
    assert all(database.read_now(NOBODY, names) == {"a"} for _ in range(20))


def test_postgresql_that_stops_in_the_middle_fails_the_work_cleanly(
    postgres_cluster: PostgresCluster, postgres_database: Database
) -> None:
    database = postgres_database
    working, stopped = threading.Event(), threading.Event()

    def interrupted(connection: sa.Connection) -> None:
        add("lost")(connection)
        working.set()
        assert stopped.wait(20)
        add("more")(connection)

    future = database.submit_write(NOBODY, interrupted)
    assert working.wait(10)
    postgres_cluster.pause()
    stopped.set()
    assert isinstance(future.exception(20), DatabaseUnavailable)
    with pytest.raises(DatabaseUnavailable):
        database.read_now(NOBODY, names)
    postgres_cluster.resume()
    assert database.read_now(NOBODY, names) == set()


def test_work_undone_to_end_a_deadlock_runs_again(postgres_database: Database) -> None:
    database = postgres_database
    for org_id in ("a", "b"):
        database.write_now(NOBODY, add(org_id))
    meet = threading.Barrier(2)
    met = threading.local()

    def rename(first: str, second: str) -> Callable[[sa.Connection], None]:
        def work(connection: sa.Connection) -> None:
            for number, org_id in enumerate((first, second)):
                let_policies_see(connection, "app.org", org_id)
                statement = sa.update(organisations).where(organisations.c.id == org_id)
                connection.execute(statement.values(name=f"{org_id} renamed"))
                if number == 0 and not getattr(met, "once", False):
                    met.once = True
                    meet.wait(10)

        return work

    both = [database.submit_write(NOBODY, rename(*pair)) for pair in (("a", "b"), ("b", "a"))]
    assert [future.result(20) for future in both] == [None, None]
    assert database.read_now(NOBODY, names) == {"a renamed", "b renamed"}


def test_more_work_than_connections_is_done_in_turn(postgres_cluster: PostgresCluster) -> None:
    url = postgres_cluster.new_database(migrated=True)
    database = PostgresDatabase(postgres_url(url), connections=2)

    def slowly(connection: sa.Connection) -> Any:
        return connection.execute(sa.text("SELECT pg_sleep(0.02)")).first()

    futures = [database.submit_read(NOBODY, slowly) for _ in range(20)]
    assert all(future.exception(20) is None for future in futures)
    database.close()
