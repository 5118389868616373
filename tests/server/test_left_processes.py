"""Tests that are killed leave nothing running: no PostgreSQL, no S3, no server of ours."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.leash import start_tied

_ROOT = Path(__file__).parents[2]
_HOLD = """
import os, time
from pathlib import Path
from tests.server.blob_servers import rclone_server
from tests.server.fixtures import postgres_cluster, running_server

def test_that_never_ends(postgres_cluster, running_server, tmp_path):
    with running_server() as server, rclone_server(tmp_path) as s3:
        pids = [server.process.pid, s3.process.pid, postgres_cluster.pid]
        told = Path(os.environ["PIDS"])
        told.with_suffix(".part").write_text(" ".join(map(str, [os.getpid(), *pids])))
        told.with_suffix(".part").rename(told)
        time.sleep(600)
"""
_LIMIT_S = 60.0


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGTERM, id="terminated", marks=pytest.mark.slow),
    ],
)
def test_what_tests_started_ends_with_them(tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "test_hold.py").write_text(_HOLD)
    told = tmp_path / "pids"
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "PIDS": str(told)}
    options = ("-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, "--basetemp", tmp_path / "t")
    command = [sys.executable, "-m", "pytest", *map(str, options), str(tmp_path / "test_hold.py")]
    tests = start_tied(command, cwd=tmp_path, env=environment)
    try:
        _until(lambda: told.exists() or tests.poll() is not None)
        tester, *servers = map(int, told.read_text().split())
        assert tester == tests.pid
        assert all(map(_runs, servers))
    finally:
        tests.send_signal(how)
        tests.wait()
    try:
        _until(lambda: not any(map(_runs, servers)))
        assert [pid for pid in servers if _runs(pid)] == []
    finally:
        for pid in servers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    """A process that ended and that nobody has waited for does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
