"""The lists of the portal with 1e5 episodes and 1e3 eval runs, on SQLite and on PostgreSQL: how long each page takes,
and how large it is.

The limit beside it is measured in the same run: a page of the same frame with almost nothing on it. It is what signing
in, four statements and rendering cost; the rest is the list itself.
"""

from __future__ import annotations

import json
import os
import re
import urllib.request
from functools import partial
from typing import Any

import numpy as np
import psycopg

from benchmarks.http_load import Connection
from benchmarks.server_search import filled
from benchmarks.servers import Server
from benchmarks.timing import Claim
from rollbook.server.db.columns import new_id

_EPISODES, _RUNS, _PAIRS, _ROUNDS = 100_000, 1000, 40, 20
_BAR_MS, _BAR_KB = 100, 150
_TOKEN = re.compile(r"/sign-in\?token=(\S+)")
_EMPTY_PAGE = "/portal/organisations"
_NO_SUCH_THING = "nobody+ever+called+it+that"


def main(scale: float = 1.0) -> list[Claim]:
    full = scale > 0.1
    count, runs, rounds = (
        (int(_EPISODES * scale), int(_RUNS * scale), _ROUNDS) if full else (500, 20, 2)
    )
    claims = []
    for kind in ("SQLite", "PostgreSQL"):
        with filled(kind, count, _one_run, partial(_more_runs, count=runs)) as (server, admin_url):
            print(
                f"portal lists on {kind}, {count:,} episodes, {runs:,} eval runs, "
                f"load {os.getloadavg()[0]:.1f}"
            )
            if admin_url is not None:
                with psycopg.connect(admin_url, autocommit=True) as admin:
                    admin.execute("VACUUM ANALYZE")
            claims += _measure(kind, server, count, rounds)
    return claims


def _pages(count: int) -> dict[str, str]:
    middle = f"{count // 2:08x}"
    episodes = "/portal/episodes"
    return {
        "overview": "/portal",
        "newest episodes": episodes,
        "oldest episodes": f"{episodes}?sort=oldest",
        "too many to sort by name": f"{episodes}?sort=a-z",
        "one policy of 13": f"{episodes}?policy_version=pap-v3",
        "one policy, one tag, failed": f"{episodes}?policy_version=pap-v3&tag=day&status=failed",
        "one seed, by length": f"{episodes}?seed={count // 2}&sort=longest",
        "part of a common name": f"{episodes}?name=place",
        "a name nobody has": f"{episodes}?name={_NO_SUCH_THING}",
        "a metadata value of 10": f"{episodes}?metadata.task.name=pick-3",
        "archived, since a day": f"{episodes}?status=archived&created_after=2025-07-01",
        "eval runs": "/portal/evals",
        "eval runs of one candidate": "/portal/evals?candidate=pap-v3",
        "trends": "/portal/trends",
        "scenarios": "/portal/scenarios",
        "lineage": "/portal/lineage",
        "lineage of one version": "/portal/lineage?version=pap-v3",
        "stores": "/portal/stores",
        "find an id": f"/portal/find?q={middle}-0000",
        "find a name": f"/portal/find?q={_NO_SUCH_THING}",
    }


def _measure(kind: str, server: Server, count: int, rounds: int) -> list[Claim]:
    slowest = largest = 0.0
    connection = Connection(server.base_url, {"Cookie": _session(server)})
    floor_ms, _ = _timed(connection, _EMPTY_PAGE, rounds)
    for name, path in _pages(count).items():
        # a single hit of the search is opened, which is an answer without a page
        expected = 303 if name == "find an id" else 200
        ms, size_kb = _timed(connection, path, rounds, expected)
        slowest, largest = max(slowest, float(np.percentile(ms, 95))), max(largest, size_kb)
        print(
            f"  {name:30} {size_kb:6.1f} kB   p50 {np.median(ms):6.1f} ms  "
            f"p95 {np.percentile(ms, 95):6.1f} ms   (an empty page {np.median(floor_ms):.1f} ms)"
        )
    connection.close()
    return [
        Claim(f"portal on {kind}: p95 of the slowest list page", slowest, _BAR_MS, "ms", True),
        Claim(f"portal on {kind}: largest list page", largest, _BAR_KB, "kB", True),
    ]


def _timed(
    connection: Connection, path: str, rounds: int, expected: int = 200
) -> tuple[list[float], float]:
    """Milliseconds of every answer, and the size of one in kB."""
    size = len(connection.get(path, expected))
    connection.seconds.clear()
    for _ in range(rounds):
        connection.get(path, expected)
    return [each * 1e3 for each in connection.seconds], size / 1e3


def _session(server: Server) -> str:
    """The cookie of the owner, by the link that the server printed."""
    assert server.folder is not None
    token = _TOKEN.search((server.folder / "printed").read_text())
    assert token is not None, "the server prints a link while the owner has no password"
    body = json.dumps({"token": token[1]}).encode()
    request = urllib.request.Request(
        f"{server.base_url}/api/sign-in", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        cookie: str = answer.headers["Set-Cookie"]
    return cookie.partition(";")[0]


# ------------------------------------------------------------------------------------------ eval runs


def _one_run(connection: Connection) -> None:
    """A run with a real summary, which the others repeat."""
    many = {"episodes": [{"policy_version": "pap-v2"}] * _PAIRS}
    made = json.loads(connection.post("/api/ingest/episodes", json.dumps(many).encode(), 201))
    ids = [each["episode_id"] for each in made["episodes"]]
    asked = {
        "name": "Nightly",
        "candidate_policy_version": "pap-v3",
        "baseline_policy_version": "pap-v2",
        "baseline_episode_ids": ids,
    }
    answer = connection.post("/api/ingest/eval-run", json.dumps(asked).encode(), 201)
    run_id = json.loads(answer)["eval_run_id"]
    rng = np.random.default_rng(1)
    results = {"results": [_result(each, rng) for each in ids]}
    path = f"/api/ingest/eval-run/{run_id}"
    connection.post(f"{path}/results", json.dumps(results).encode())
    connection.post(f"{path}/finalize", b'{"status":"completed"}')


def _result(baseline: str, rng: np.random.Generator) -> dict[str, Any]:
    metrics: dict[str, Any] = {
        "evidence": dict.fromkeys(("success", "reward_total"), "closed_loop")
    }
    for side, rate in (("baseline", 0.6), ("candidate", 0.8)):
        metrics[f"success_{side}"] = bool(rng.random() < rate)
        metrics[f"reward_total_{side}"] = float(rng.normal(rate))
    return {"baseline_episode_id": baseline, "status": "complete", "metrics": metrics}


def _more_runs(driver: Any, count: int) -> None:
    """The same row with other ids, times and candidates."""
    found = driver.execute("SELECT * FROM eval_runs")
    names = [each[0] for each in found.description]
    row = dict(zip(names, found.fetchone(), strict=True))
    mark = "?" if type(driver).__module__.startswith("sqlite3") else "%s"
    statement = (
        f"INSERT INTO eval_runs ({', '.join(names)}) VALUES ({', '.join([mark] * len(names))})"
    )
    cursor = driver.cursor()
    for number in range(count):
        made = {
            **row,
            "id": new_id(),
            "idempotency_key": None,
            "name": f"Nightly {number}",
            "candidate_policy_version": f"pap-v{number % 13}",
            "created_at_us": row["created_at_us"] - number * 60_000_000,
        }
        values = [json.dumps(v) if isinstance(v, dict | list) else v for v in made.values()]
        cursor.execute(statement, values)
