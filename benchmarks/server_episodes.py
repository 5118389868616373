"""Episodes over HTTP: create and finalize without artifacts, by 1, 8 and 32 clients, on SQLite and on PostgreSQL.

The peer is MLflow's tracking server, which logs a run of the same fields: create, one batch of parameters and metrics,
set terminated. Both have one process that answers, take turns on the same machine with the same bare client, and wait
for their disk. Shown is the median turn; a turn is compared with its neighbour.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.http_load import Connection, Load, drive
from benchmarks.servers import Server, mlflow_server, postgres, rollbook_server
from benchmarks.stores import scratch
from benchmarks.timing import Claim

_CLIENTS = (1, 8, 32)
_SECONDS = 3.0
_TURNS = 3

Work = Callable[[Connection, int], object]


def main(scale: float = 1.0) -> list[Claim]:
    small = scale <= 0.1
    claims: list[Claim] = []
    for kind in ("SQLite", "PostgreSQL"):
        with _servers(kind) as servers:
            print(f"server episodes on {kind}, load average {os.getloadavg()[0]:.1f}")
            for clients in (1, 2) if small else _CLIENTS:
                seconds, turns = (0.2, 1) if small else (_SECONDS, _TURNS)
                claims += _compare(kind, servers, clients, seconds, turns)
            print(f"  our server's memory after all this: {servers['ours'].memory_mb:.0f} MB")
    return claims


# ---------------------------------------------------------------------------------------------- turns


@contextmanager
def _servers(kind: str) -> Iterator[dict[str, Server]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(scratch()))
        urls: tuple[str | None, str | None] = (None, None)
        if kind == "PostgreSQL":
            cluster = stack.enter_context(postgres())
            urls = (cluster.new_database(), cluster.new_database())
        servers = {"ours": stack.enter_context(rollbook_server(folder / "ours", urls[0]))}
        peer = stack.enter_context(mlflow_server(folder / "mlflow", urls[1]))
        if peer is not None:
            servers["MLflow"] = peer
        yield servers


def _compare(
    kind: str, servers: dict[str, Server], clients: int, seconds: float, turns: int
) -> list[Claim]:
    loads: dict[str, list[Load]] = {name: [] for name in servers}
    cpu_s = dict.fromkeys(servers, float("inf"))
    for _ in range(turns):
        for name, server in servers.items():
            before = server.cpu_s
            load = _turn(name, server, clients, seconds)
            loads[name].append(load)
            cpu_s[name] = min(cpu_s[name], (server.cpu_s - before) / load.pieces)
    middle = {
        name: sorted(each, key=lambda load: load.pieces_per_s)[len(each) // 2]
        for name, each in loads.items()
    }
    for name, load in middle.items():
        print(
            f"  {clients:2} clients  {name:8} {load.pieces_per_s:8.1f} episodes/s"
            f" {load.requests_per_s:8.0f} requests/s   p50 {load.percentile_ms(50):7.1f} ms"
            f"  p99 {load.percentile_ms(99):7.1f} ms   server CPU {cpu_s[name] * 1e3:6.2f} ms/episode"
        )
    name, bar = f"{kind}, {clients} clients: episodes vs MLflow's runs", 10
    if "MLflow" not in middle:
        return [Claim(name, None, bar, "x")]
    pairs = zip(loads["ours"], loads["MLflow"], strict=True)
    gained = sorted(ours.pieces_per_s / theirs.pieces_per_s for ours, theirs in pairs)
    less = cpu_s["MLflow"] / cpu_s["ours"]
    print(
        f"  {clients:2} clients  {gained[0]:.1f} to {gained[-1]:.1f} times MLflow, with {less:.1f} times less"
        " CPU of the server for each episode"
    )
    median = gained[len(gained) // 2]
    return [Claim(name, median, bar, "x")]


def _turn(name: str, server: Server, clients: int, seconds: float) -> Load:
    work = {"ours": _episode, "MLflow": _run}[name]
    connection = Connection(server.base_url, server.headers)
    work(connection, 999_999_999)  # the first one pays for what is loaded late
    connection.close()
    return drive(
        lambda: Connection(server.base_url, server.headers), work, clients=clients, seconds=seconds
    )


# ----------------------------------------------------------------------------------------- what is sent


def _fields(number: int) -> dict[str, Any]:
    return {
        "name": f"pick and place {number}",
        "source": "sim",
        "robot": f"arm-{number % 7}",
        "policy_version": f"pap-v{number % 13}",
        "env_version": "table-2.1",
        "git_sha": "8c1f3e0b5a6d4c2e9f7a1b3c5d7e9f0a1b2c3d4e",
        "seed": number,
        "fps": 30.0,
        "task": "pick",
        "duration_s": 12.5,
        "success": 1.0,
        "reward_total": 17.25,
        "collision_count": 0.0,
        "time_to_goal_s": 9.75,
    }


_DESCRIBING = ("name", "source", "robot", "policy_version", "env_version", "git_sha")
_OUTCOME = ("success", "reward_total", "collision_count", "time_to_goal_s")


def _episode(connection: Connection, number: int) -> None:
    fields = _fields(number)
    create = {name: fields[name] for name in (*_DESCRIBING, "seed", "fps")}
    create |= {"metadata": {"task": fields["task"]}, "request_uploads": []}
    made = connection.post("/api/ingest/episode", _json(create), 201)
    final = {"status": "ready", "duration_s": fields["duration_s"]}
    final["metadata"] = {name: fields[name] for name in _OUTCOME}
    episode_id = json.loads(made)["episode_id"]
    connection.post(f"/api/ingest/episode/{episode_id}/finalize", _json(final))


def _run(connection: Connection, number: int) -> None:
    fields = _fields(number)
    now_ms = int(time.time() * 1000)
    tags = [{"key": name, "value": fields[name]} for name in _DESCRIBING[1:]]
    create = {"experiment_id": "0", "run_name": fields["name"], "start_time": now_ms, "tags": tags}
    made = connection.post("/api/2.0/mlflow/runs/create", _json(create))
    run_id = json.loads(made)["run"]["info"]["run_id"]
    batch = {
        "run_id": run_id,
        "params": [{"key": name, "value": str(fields[name])} for name in ("seed", "fps", "task")],
        "metrics": [
            {"key": name, "value": fields[name], "timestamp": now_ms, "step": 0}
            for name in ("duration_s", *_OUTCOME)
        ],
    }
    connection.post("/api/2.0/mlflow/runs/log-batch", _json(batch))
    ended = {"run_id": run_id, "status": "FINISHED", "end_time": now_ms}
    connection.post("/api/2.0/mlflow/runs/update", _json(ended))


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
