"""The server of a demo: a process of its own, on the data in the folder of the demo."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollbook.cli.demo.demo_folder import DemoFolder
from rollbook.cli.demo.rollouts import STORES
from rollbook.cli.serve import prepare_database, settings_of
from rollbook.client.credentials import Profile, read_profile, write_profile
from rollbook.errors import ConfigurationError, TransportError
from rollbook.lazy import needs

if TYPE_CHECKING:
    from rollbook.client import Client
    from rollbook.server.settings import Settings

_USUAL_PORT = 8321
_STOP_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class DemoServer:
    url: str
    client: Client
    settings: Settings

    def sign_in_link(self) -> str | None:
        """A link that signs in once; None when the owner has set a password."""
        from rollbook.server.bootstrap import owner_link
        from rollbook.server.db.open import open_database

        with closing(open_database(self.settings.database_url)) as database:
            token = owner_link(database)
        return None if token is None else f"{self.url}/sign-in?token={token}"

    def register(self, places: list[Path]) -> None:
        """As an admin does in the portal, so that the rollouts can be looked at there."""
        with needs("the demo"):
            import httpx

        known = self.client.call("list the stores", "GET", "/api/stores")["stores"]
        new = {str(place) for place in places} - {each["place"] for each in known}
        link = self.sign_in_link() if new else None
        if link is None:
            return
        with httpx.Client(base_url=self.url, headers={"Origin": self.url}) as browser:
            signed_in = browser.post("/api/sign-in", json={"token": link.partition("token=")[2]})
            token = signed_in.raise_for_status().json()["csrf_token"]
            for place in sorted(new):
                body, headers = {"place": place}, {"X-CSRF-Token": token}
                browser.post("/api/stores", json=body, headers=headers).raise_for_status()


@contextmanager
def demo_server(folder: DemoFolder) -> Iterator[DemoServer]:
    """Runs during the `with` block."""
    from rollbook.client import Client

    data = folder / "server"
    # the portal shows rollouts in the mesh of their flat, which is in the source store
    roots = [str(folder / name) for name in (*STORES.values(), "sources")]
    port = _free_port()
    settings = settings_of(data, port=port, store_roots=roots)
    made, _ = prepare_database(settings)
    url = settings.local_url
    if made is not None:
        write_profile(Profile(api_key=made.api_key, base_url=url))
    profile = read_profile()
    if profile is None:
        message = f"the key of {data} is lost; remove {folder.path}, or name another folder"
        raise ConfigurationError(message=message)
    command = [sys.executable, "-m", "rollbook", "serve", "--data", str(data), "--port", str(port)]
    for root in roots:
        command += ["--store-root", root]
    own = {name: value for name, value in os.environ.items() if not name.startswith("ROLLBOOK_")}
    with (
        open(data / "log.txt", "wb") as log,
        subprocess.Popen(
            command, env=own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
        ) as process,
    ):
        assert process.stdout is not None
        try:
            if not process.stdout.readline():
                detail = (data / "log.txt").read_text(errors="replace")[-500:]
                raise TransportError(message=f"the server did not start: {detail}")
            with Client(api_key=profile.api_key, base_url=url, verbose=False) as client:
                yield DemoServer(url, client, settings)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _free_port() -> int:
    """The port of `rollbook serve`, unless something listens there."""
    for wanted in (_USUAL_PORT, 0):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", wanted))
            except OSError:
                continue
            port: int = tried.getsockname()[1]
            return port
    raise ConfigurationError(message="no port of 127.0.0.1 is free")
