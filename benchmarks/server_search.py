"""Finding episodes over HTTP among 1e5 of them, on SQLite and on PostgreSQL: a page of the list, and filters that are
rare, common, absent, and together.

The rows are put there at once, so PostgreSQL is measured twice: before it had time to look at them, when it knows no
statistics and every row that an index names is looked up to see whether it counts, and after VACUUM ANALYZE, which it
does by itself within a minute.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import psycopg
from psycopg import sql

from benchmarks.http_load import Connection
from benchmarks.servers import Server, postgres, rollbook_server
from benchmarks.stores import scratch
from benchmarks.timing import Claim
from rollbook.server.db import tables
from rollbook.server.queries.search_terms import terms_of

_EPISODES = 100_000
_ROUNDS = 30
_BAR_MS = 50
_BEGAN_US = 1_750_000_000_000_000
_GAP_US = 37_000_000
_NO_SUCH_THING = "nobody ever called it that"

Row = dict[str, Any]


def main(scale: float = 1.0) -> list[Claim]:
    count, rounds = (int(_EPISODES * scale), _ROUNDS) if scale > 0.1 else (500, 2)
    claims = []
    for kind in ("SQLite", "PostgreSQL"):
        with filled(kind, count) as (server, admin_url):
            print(f"server search on {kind}, {count:,} episodes, load {os.getloadavg()[0]:.1f}")
            if admin_url is None:
                claims += _measure(kind, server, count, rounds)
                continue
            claims += _measure(f"{kind}, just filled", server, count, rounds)
            with psycopg.connect(admin_url, autocommit=True) as admin:
                admin.execute("VACUUM ANALYZE")
            print("  after VACUUM ANALYZE:")
            claims += _measure(f"{kind}, vacuumed", server, count, rounds)
    return claims


def _searches(count: int) -> dict[str, dict[str, Any]]:
    middle_us = _BEGAN_US + count // 2 * _GAP_US
    half = np.datetime64(middle_us, "us").astype(str)
    return {
        "the newest page": {},
        "a page of 200": {"limit": 200},
        "one policy of 13": {"policy_version": "pap-v3"},
        "one seed": {"seed": count // 2},
        "a policy nobody has": {"policy_version": _NO_SUCH_THING},
        "one robot of 7, failed ones": {"robot": "arm-3", "status": "failed"},
        "one source, one commit": {"source": "sim", "git_sha": f"{7:040x}"},
        "archived ones": {"status": "archived"},
        "still recording": {"status": "recording"},
        "part of a common name": {"name": "place"},
        "part of one name": {"name": f"place {count // 2}"},
        "a name nobody has": {"name": _NO_SUCH_THING},
        "a common tag": {"tag": "night"},
        "a tag nobody has": {"tag": _NO_SUCH_THING},
        "a metadata value of 10": {"metadata.task.name": "pick-3"},
        "two common terms": {"tag": "night", "metadata.task.name": "pick-4"},
        "two common terms, never together": {"tag": "night", "metadata.shift": "day"},
        "tag, policy and robot": {"tag": "night", "policy_version": "pap-v3", "robot": "arm-3"},
        "the older half, failed": {"created_before": f"{half}Z", "status": "failed"},
    }


def _measure(kind: str, server: Server, count: int, rounds: int) -> list[Claim]:
    slowest, all_ms = 0.0, []
    connection = Connection(server.base_url, server.headers)
    for name, asked in _searches(count).items():
        path = "/api/episodes?" + urlencode(asked)
        found = len(json.loads(connection.get(path))["episodes"])
        connection.seconds.clear()
        before = server.cpu_s
        for _ in range(rounds):
            connection.get(path)
        spent = np.array(connection.seconds) * 1e3
        cpu_ms = (server.cpu_s - before) / rounds * 1e3
        p50, p95 = np.percentile(spent, (50, 95))
        all_ms += list(spent)
        slowest = max(slowest, p95)
        print(
            f"  {name:34} {found:4} found   p50 {p50:7.1f} ms  p95 {p95:7.1f} ms"
            f"   server CPU {cpu_ms:6.1f} ms"
        )
    connection.close()
    return [
        Claim(
            f"{kind}: p95 of all searches", float(np.percentile(all_ms, 95)), _BAR_MS, "ms", True
        ),
        Claim(f"{kind}: p95 of the slowest search", slowest, _BAR_MS, "ms", True),
    ]


# ------------------------------------------------------------------------------------------- the rows


@contextmanager
def filled(
    kind: str,
    count: int,
    record: Callable[[Connection], None] = lambda connection: None,
    more: Callable[[Any], None] = lambda driver: None,
) -> Iterator[tuple[Server, str | None]]:
    """A server that was started, stopped, filled and started again; its key is of the first start. Beside it the way
    past row-level security, where there is any. `record` sends something to the first server, and `more` adds rows
    through the connection of the driver."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(scratch()))
        cluster = stack.enter_context(postgres()) if kind == "PostgreSQL" else None
        url = None if cluster is None else cluster.new_database()
        with rollbook_server(folder, url) as first:
            headers = first.headers
            made = Connection(first.base_url, headers)
            made.post("/api/ingest/episode", b'{"request_uploads":[]}', 201)
            record(made)
            made.close()
        admin_url = None
        if cluster is None or url is None:
            _fill_sqlite(folder / "data" / "rollbook.db", count, more)
        else:
            admin_url = cluster.admin_url(url.split("/")[3].split("?")[0])
            _fill_postgres(admin_url, count, more)
        again = stack.enter_context(rollbook_server(folder, url))
        yield Server(again.pid, again.base_url, again.started_s, headers, folder), admin_url


def _fill_sqlite(database: Path, count: int, more: Callable[[Any], None]) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        [org_id] = connection.execute("SELECT id FROM organisations").fetchone()
        for name, rows in _tables(org_id, count):
            columns = list(rows[0])
            marks = ", ".join("?" * len(columns))
            statement = f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({marks})"
            connection.executemany(statement, ([*row.values()] for row in rows))
        more(connection)


def _fill_postgres(admin_url: str, count: int, more: Callable[[Any], None]) -> None:
    with psycopg.connect(admin_url) as admin:
        found = admin.execute("SELECT id FROM organisations").fetchone()
        assert found is not None
        for table, rows in _tables(found[0], count):
            columns = sql.SQL(", ").join(map(sql.Identifier, rows[0]))
            copy = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table), columns)
            with admin.cursor().copy(copy) as into:
                for row in rows:
                    into.write_row([*row.values()])
        more(admin)


def _tables(org_id: str, count: int) -> Iterator[tuple[str, list[Row]]]:
    """Some thousand rows at a time, so that all of them are never in memory."""
    rng = np.random.default_rng(1)
    for numbers in _batches(count, 5000):
        episodes = [_episode(org_id, number, rng) for number in numbers]
        yield (
            tables.episodes.name,
            [
                {**row, "metadata": json.dumps(row["metadata"]), "tags": json.dumps(row["tags"])}
                for row in episodes
            ],
        )
        yield (
            tables.episode_terms.name,
            [
                {
                    "org_id": org_id,
                    "term": term,
                    "created_at_us": row["created_at_us"],
                    "episode_id": row["id"],
                }
                for row in episodes
                for term in terms_of(row["metadata"], row["tags"])
            ],
        )


def _batches(count: int, size: int) -> Iterator[range]:
    for first in range(0, count, size):
        yield range(first, min(first + size, count))


def _episode(org_id: str, number: int, rng: np.random.Generator) -> Row:
    created_at_us = _BEGAN_US + number * _GAP_US
    chance = rng.random()
    status = "failed" if chance < 0.05 else "archived" if chance < 0.07 else "ready"
    at_night = number % 2 == 0
    name = f"Pick and place {number}"
    metadata = {
        "task": {"name": f"pick-{number % 10}", "attempt": int(rng.integers(100))},
        "shift": "night" if at_night else "day",
        "success": status == "ready",
        "reward_total": round(float(rng.normal()), 3),
        "time_to_goal_s": round(float(rng.uniform(5, 20)), 2),
    }
    return {
        "org_id": org_id,
        "id": f"{number:08x}-0000-7000-8000-{int(rng.integers(1 << 47)):012x}",
        "name": name,
        "name_search": name.casefold(),
        "source": ("real", "sim", "sim", "sim")[number % 4],
        "robot": f"arm-{number % 7}",
        "policy_version": f"pap-v{number % 13}",
        "env_version": "table-2.1",
        "git_sha": f"{number // 500:040x}",
        "seed": str(number),
        "fps": 30.0,
        "duration_s": 12.5,
        "status": status,
        "archived_from": "ready" if status == "archived" else None,
        "metadata": metadata,
        "tags": ["night", "gripper-b"] if at_night else ["day"],
        "created_by": "key:benchmark",
        "created_at_us": created_at_us,
        "updated_at_us": created_at_us,
        "finalized_at_us": created_at_us,
    }
