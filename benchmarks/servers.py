"""Servers to measure, each a process of its own: ours as an operator starts it, a PostgreSQL, and MLflow's if it is
installed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.server.postgres_cluster import PostgresCluster

_ROLLBOOK = "from rollbook.cli.main import main; main()"
_KEY = re.compile(r"rt_[A-Za-z0-9]{10}_\S{43}")
_URL = re.compile(r"http://127\.0\.0\.1:\d+")
_START_LIMIT_S = 180.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MLFLOW_AT_ITS_QUICKEST = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_SQLALCHEMYSTORE_POOL_SIZE": "64",
}
"""With the pool it has by itself, some of 32 clients wait for a connection until they are refused."""


@dataclass(frozen=True)
class Server:
    pid: int
    base_url: str
    started_s: float
    """From the command to the first answer."""
    headers: dict[str, str]
    folder: Path | None = None
    """What the server printed is there."""

    @property
    def cpu_s(self) -> float:
        """Spent so far by all its processes."""
        return sum(_cpu_s(pid) for pid in _family(self.pid))

    @property
    def memory_mb(self) -> float:
        return sum(_memory_mb(pid, "VmRSS") for pid in _family(self.pid))

    @property
    def peak_memory_mb(self) -> float:
        return sum(_memory_mb(pid, "VmHWM") for pid in _family(self.pid))


@contextmanager
def rollbook_server(folder: Path, database_url: str | None = None) -> Iterator[Server]:
    """`rollbook serve` on `folder/data`, with every default but the database; the first start gives a key."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ["serve", "--data", str(folder / "data"), "--port", "0"]
    options += [] if database_url is None else ["--database", database_url]
    printed, log = folder / "printed", folder / "log"
    began = time.perf_counter()
    with open(printed, "wb") as out, open(log, "ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _ROLLBOOK, *options], stdout=out, stderr=errors
        )
    try:
        base_url = _said(process, printed, log)
        _wait_for(process, f"{base_url}/healthz", log)
        started_s = time.perf_counter() - began
        key = _KEY.search(printed.read_text())
        headers = {} if key is None else {"Authorization": f"Bearer {key[0]}"}
        yield Server(process.pid, base_url, started_s, headers, folder)
    finally:
        _end(process)


def _said(process: subprocess.Popen[bytes], printed: Path, log: Path) -> str:
    """Where it listens: it takes a free port and says which."""
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        found = _URL.search(printed.read_text())
        if found is not None:
            return found[0]
        time.sleep(0.01)
    raise RuntimeError(f"the server did not start:\n{log.read_text()[-3000:]}")


@contextmanager
def mlflow_server(folder: Path, database_url: str | None = None) -> Iterator[Server | None]:
    """Its tracking server: one worker, as ours has, and neither job runners nor telemetry. None if there is none."""
    if importlib.util.find_spec("mlflow") is None:
        print("  MLflow: not installed, not measured")
        yield None
        return
    folder.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
    database = database_url or f"sqlite:///{folder / 'mlflow.db'}"
    # named, because which driver is taken by default differs between releases of what it uses
    database = database.replace("postgresql://", "postgresql+psycopg2://")
    options = ["--backend-store-uri", database, "--default-artifact-root", str(folder / "files")]
    options += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    began = time.perf_counter()
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *options],
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, **_MLFLOW_AT_ITS_QUICKEST},
        )
    try:
        base_url = f"http://127.0.0.1:{port}"
        _wait_for(process, f"{base_url}/health", folder / "log")
        yield Server(process.pid, base_url, time.perf_counter() - began, {})
    finally:
        _end(process)


def _wait_for(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.01)
    raise RuntimeError(f"the server did not start:\n{log.read_text()[-3000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """With the workers it started, which outlive it when it has to be killed."""
    workers = _family(process.pid)[1:]
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        for pid in workers:
            os.kill(pid, signal.SIGKILL)


@contextmanager
def postgres() -> Iterator[PostgresCluster]:
    """As durable as it is shipped: the one for tests does not wait for the disk."""
    cluster = PostgresCluster()
    try:
        with psycopg.connect(cluster.admin_url(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM RESET ALL")
            connection.execute("SELECT pg_reload_conf()")
        yield cluster
    finally:
        cluster.close()


# --------------------------------------------------------------------------------- what a process spends


def _family(pid: int) -> list[int]:
    """Itself first, then whatever it started."""
    found = [pid]
    for each in found:
        for task in _tasks(each):
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _tasks(pid: int) -> list[Path]:
    folder = Path(f"/proc/{pid}/task")
    return list(folder.iterdir()) if folder.exists() else []


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _memory_mb(pid: int, what: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    resident = next(line for line in lines if line.startswith(what))
    return int(resident.split()[1]) * 1024 / 1e6
