"""Worker processes and their parent while the database is away: what dies is replaced, and nothing is left over."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.postgres_cluster import PostgresCluster
from tests.server.serving import START_LIMIT_S, Served, serving, workers_of


@pytest.fixture
def own_cluster() -> Iterator[PostgresCluster]:
    """One that may go away without others noticing."""
    cluster = PostgresCluster()
    yield cluster
    cluster.close()


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def events(server: Served, name: str) -> list[dict[str, Any]]:
    lines = map(json.loads, server.log_path.read_text().splitlines())
    return [line for line in lines if line["event"] == name]


def is_ready(server: Served) -> bool:
    try:
        return httpx.get(f"{server.base_url}/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def accepts_nobody(server: Served) -> bool:
    try:
        httpx.get(f"{server.base_url}/healthz", timeout=5)
    except httpx.ConnectError:
        return True
    except httpx.TransportError:
        return False
    return False


@pytest.mark.slow
def test_workers_that_die_while_the_database_is_away_are_replaced_when_it_is_back(
    own_cluster: PostgresCluster, tmp_path: Path
) -> None:
    options = ("--workers", 2, "--database", own_cluster.new_database(migrated=True))
    with serving(tmp_path / "data", *options) as server:
        killed = workers_of(server)
        own_cluster.pause()
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        # both are dead and replaced, and a replacement could not start either
        wait_until(lambda: len(events(server, "worker_died")) > 2, "the deaths are logged")
        assert server.process.poll() is None, server.log_path.read_text()
        own_cluster.resume()
        wait_until(lambda: is_ready(server), "it serves again")
        wait_until(lambda: len(workers_of(server)) == 2, "both workers are there again")

        died = {each["pid"]: each for each in events(server, "worker_died")}
        assert [died[pid]["signal"] for pid in killed] == ["SIGKILL", "SIGKILL"]
        assert {each["status"] for pid, each in died.items() if pid not in killed} == {3}
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(START_LIMIT_S) == 0, "it was asked to end"


def test_workers_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--workers", 2) as server:
        workers = workers_of(server)
        server.process.kill()
        server.process.wait()
        wait_until(lambda: accepts_nobody(server), "nobody listens on the port any more")
        wait_until(lambda: not any(map(is_running, workers)), "the workers have ended")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
