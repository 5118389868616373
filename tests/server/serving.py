"""`rollbook serve` as whoever runs a server types it: a process of its own, on a free port."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.leash import start_tied

START_LIMIT_S = 60.0
_ROLLBOOK = "from rollbook.cli.main import main; main()"


@dataclass
class Served:
    process: subprocess.Popen[bytes]
    base_url: str
    greeting: str
    log_path: Path

    @property
    def api_key(self) -> str:
        found = re.search(r"rt_[A-Za-z0-9]{10}_\S{43}", self.greeting)
        assert found is not None, self.greeting
        return found[0]

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"}

    def stop(self) -> str:
        """What it logged, once it has ended by itself."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(START_LIMIT_S)
        return self.log_path.read_text()


@contextlib.contextmanager
def serving(
    data: Path,
    *options: object,
    environment: Mapping[str, str] | None = None,
    ready: bool = True,
) -> Iterator[Served]:
    """`environment` is added to that of the tests. One that is not to be `ready` has only to be alive.

    What it prints is kept beside the data folder.
    """
    greeting_path, log_path = data.parent / "greeting", data.parent / "log"
    command = ["serve", "--data", data, "--port", 0, *options]
    with open(greeting_path, "wb") as greeting, open(log_path, "wb") as log:
        process = start_tied(
            [sys.executable, "-u", "-c", _ROLLBOOK, *map(str, command)],
            stdout=greeting,
            stderr=log,
            env={**os.environ, **(environment or {})},
        )
    try:
        base_url = _answering(process, greeting_path, "/readyz" if ready else "/healthz")
        assert base_url is not None, log_path.read_text()
        yield Served(process, base_url, greeting_path.read_text(), log_path)
    finally:
        for child in children(process.pid):
            os.kill(child, signal.SIGKILL)
        process.kill()
        process.wait()


def _answering(process: subprocess.Popen[bytes], greeting: Path, path: str) -> str | None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        listening = re.search(r"on (http://[^, ]+),", greeting.read_text())
        try:
            if listening and httpx.get(f"{listening[1]}{path}", timeout=5).is_success:
                return listening[1]
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    return None


def children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def workers_of(server: Served) -> list[int]:
    return [
        pid
        for pid in children(server.process.pid)
        if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
