"""Servers that are killed often: forked from a process that has loaded everything, so that a start takes a moment.

What runs in a child is the command `rollbook` itself, and it dies of `kill -9` like any other process.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from tests.journeys.deployments import Deployment
from tests.leash import tie

_LIMIT_S = 60.0
_PORTS = range(20_000, 30_000)
"""Below those that the system hands out, so that nobody takes one while its server is dead."""
_NURSERY = """
import json, os, sys
import alembic.command, alembic.script, psycopg, uvicorn
import rollbook.app, rollbook.server.bootstrap, rollbook.server.doctor
from rollbook.cli.main import main

os.write(1, b"ready\\n")
for line in sys.stdin:
    arguments, printed = json.loads(line)
    child = os.fork()
    if not child:
        os.dup2(os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.close(0)
        sys.argv = ["rollbook", *arguments]
        main()
    os.write(1, b"%d\\n" % child)
    os.write(1, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def plain_client(**options: Any) -> httpx.Client:
    """For loopback alone: certificates take longer to load than a whole recording."""
    return httpx.Client(verify=False, timeout=60, **options)


class Nursery:
    """One child at a time. `before` is put before the command, to start it in surroundings of its own."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], before: Sequence[str] = ()
    ) -> None:
        self.log, self._printed = folder / "log", folder / "printed"
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [*before, sys.executable, "-c", _NURSERY],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **environment},
            )
        self.pid = self._process.pid
        tie(self.pid)
        self._child: int | None = None
        assert self._heard() == "ready", self.log.read_text()

    def begin(self, *arguments: object) -> None:
        """A command, in a new child that lives until it has done its work or is killed."""
        assert self._child is None, "one at a time"
        assert self._process.stdin is not None
        asked = [list(map(str, arguments)), str(self._printed)]
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        self._child = int(self._heard())
        tie(self._child)

    def run(self, *arguments: object) -> str:
        """What a command that ends well has printed."""
        self.begin(*arguments)
        status = self._ended()
        printed = self._printed.read_text()
        assert status == 0, f"{arguments} ended with {status}:\n{printed}\n{self.log.read_text()}"
        return printed

    def kill(self) -> None:
        """Nothing where nothing runs."""
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)
            self._ended()

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ended(self) -> int:
        """The status; -1 when whoever stopped the tests has ended the nursery as well."""
        self._child = None
        return int(self._heard() or -1)

    def _heard(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()


class MortalServer:
    """`rollbook serve`. `kill` and `start` again keep the data, the port and the organisation."""

    def __init__(
        self, nursery: Nursery, data_dir: Path, deployment: Deployment, **settings: object
    ) -> None:
        self.nursery = nursery
        self.data_dir = data_dir
        self.deployment = deployment
        self.port = _quiet_port()
        self.org_id = self.api_key = ""
        self._settings = [f"--set={name}={value}" for name, value in settings.items()]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"}

    def client(self) -> httpx.Client:
        """Does not follow redirects."""
        return plain_client(base_url=self.base_url, headers=self.headers)

    def prepare(self) -> None:
        """An organisation, made before anything listens."""
        options = ["--data", self.data_dir, *self.deployment.database_options]
        said = self.nursery.run("server", "bootstrap", *options, "--org", "Mortal", "--json")
        made = json.loads(said)
        self.org_id, self.api_key = made["org_id"], made["api_key"]

    def begin(self) -> None:
        """Returns at once: it may not have come far."""
        options = ["--data", self.data_dir, "--port", self.port, "--log-level", "warning"]
        self.nursery.begin("serve", *options, *self.deployment.options, *self._settings)

    def start(self) -> None:
        self.begin()
        deadline = time.monotonic() + _LIMIT_S
        with plain_client(base_url=self.base_url) as client:
            while not _answers(client):
                assert time.monotonic() < deadline, self.nursery.log.read_text()
                time.sleep(0.02)

    def kill(self) -> None:
        self.nursery.kill()

    def doctor(self) -> str:
        """Counts again what is noted about each organisation, and fails where that does not agree."""
        return self.nursery.run(
            "server", "doctor", "--data", self.data_dir, *self.deployment.options
        )

    def __enter__(self) -> Self:
        self.prepare()
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()


def _quiet_port() -> int:
    while True:
        port = random.choice(_PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False
