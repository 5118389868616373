"""A real server for tests: its own process on a free port, with two organisations that must never see each other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from rollbook.contracts.wire.keys import KeyScope
from tests.leash import start_tied

_START_LIMIT_S = 30.0
_CHILD = """
import json, socket, sys
import uvicorn
from pathlib import Path
from rollbook.app import create_app
from rollbook.server.http.connections import ConnectionLimits, Door
from rollbook.server.settings import Settings

asked = json.loads(sys.argv[1])
if asked["part_size"]:
    from rollbook.server.episodes import uploads
    uploads._DEFAULT_PART = uploads._LEAST_PART = asked["part_size"]
listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listening.bind(("127.0.0.1", asked["port"]))
port = listening.getsockname()[1]
Path(asked["port_file"]).write_text(str(port))
settings = Settings.load(Path(asked["data_dir"]), host="127.0.0.1", port=port, **asked["overrides"])
# longer than a client keeps an idle connection, as `rollbook serve` has it
config = uvicorn.Config(
    create_app(settings),
    http=Door(ConnectionLimits.of(settings)),
    lifespan="on",
    log_level="warning",
    server_header=False,
    proxy_headers=False,
    timeout_keep_alive=75,
)
uvicorn.Server(config).run(sockets=[listening])
"""


@dataclass(frozen=True)
class Access:
    """What one organisation holds in its hand."""

    org_id: str
    user_id: str
    email: str
    api_key: str
    sign_in_token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"}


def new_key_beside(
    data_dir: Path, org_id: str, scope: KeyScope, user_id: str | None = None, **settings: Any
) -> str:
    """Made in the database, beside the running server: over HTTP only people make keys."""
    from rollbook.server.accounts.keys import PREFIX_OF_SCOPE, new_api_key
    from rollbook.server.db.engine import Tenant
    from rollbook.server.db.open import open_database
    from rollbook.server.queries import Scope
    from rollbook.server.settings import Settings

    prefix = PREFIX_OF_SCOPE[scope]
    key, key_id, secret_hash = new_api_key(prefix)
    with closing(open_database(Settings.load(data_dir, **settings).database_url)) as database:
        database.write_now(
            Tenant(org_id=org_id),
            lambda connection: Scope(connection, org_id).create_key(
                key_id, secret_hash, prefix=prefix, created_by=user_id
            ),
        )
    return key


@dataclass
class RunningServer:
    """`start` once; `kill` and `start` again keep the data folder and the port."""

    data_dir: Path
    overrides: dict[str, Any] = field(default_factory=dict)
    port: int = 0
    part_size: int = 0
    """Of uploads for which the client names none; 0 for that of the server."""
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    first_org: Access = field(init=False)
    second_org: Access = field(init=False)
    clients: list[httpx.Client] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def api_key(self) -> str:
        return self.first_org.api_key

    @property
    def org_id(self) -> str:
        return self.first_org.org_id

    @property
    def log_path(self) -> Path:
        return self.data_dir / "server.log"

    def client(self, who: Access | None = None, **options: Any) -> httpx.Client:
        """Speaks as the first organisation unless told otherwise; does not follow redirects. Closed with the server."""
        headers = (who or self.first_org).headers
        client = httpx.Client(base_url=self.base_url, headers=headers, timeout=120, **options)
        self.clients.append(client)
        return client

    def new_key(self, scope: KeyScope, who: Access | None = None) -> Access:
        """The same organisation with another key."""
        access = who or self.first_org
        key = new_key_beside(self.data_dir, access.org_id, scope, access.user_id, **self.overrides)
        return replace(access, api_key=key)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.kill()

    def prepare(self) -> None:
        """Two organisations, made before anything listens."""
        from rollbook.server.bootstrap import bootstrap
        from rollbook.server.db.migrate import migrate
        from rollbook.server.db.open import open_database
        from rollbook.server.settings import Settings

        url = Settings.load(self.data_dir, **self.overrides).database_url
        migrate(url)
        database = open_database(url)
        try:
            made = [bootstrap(database, name) for name in ("First", "Second")]
        finally:
            database.close()
        self.first_org, self.second_org = (
            Access(each.org_id, each.user_id, each.email, each.api_key, each.sign_in_token)
            for each in made
        )

    def start(self) -> None:
        port_file = self.data_dir / "port"
        port_file.unlink(missing_ok=True)
        asked = {
            "port": self.port,
            "port_file": str(port_file),
            "data_dir": str(self.data_dir),
            "overrides": self.overrides,
            "part_size": self.part_size,
        }
        with open(self.log_path, "ab") as log:
            self.process = start_tied(
                [sys.executable, "-c", _CHILD, json.dumps(asked)],
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
            )
        self._wait_until_ready(port_file)

    def _wait_until_ready(self, port_file: Path) -> None:
        deadline = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < deadline:
            if self.process is None or self.process.poll() is not None:
                break
            if port_file.exists() and (text := port_file.read_text()):
                self.port = int(text)
                if self._answers():
                    return
            time.sleep(0.05)
        self.kill()
        raise AssertionError(f"the server did not start:\n{self.log_path.read_text()}")

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.base_url}/healthz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def stop(self) -> int:
        """As an operator does: it is to finish what it has begun. Returns the exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        return self._end(signal.SIGKILL)

    def _end(self, how: int) -> int:
        if self.process is None:
            return 0
        if self.process.poll() is None:
            os.kill(self.process.pid, how)
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.process = None

    def __enter__(self) -> RunningServer:
        self.prepare()
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
