"""Real servers for tests of blobs: our own routes, two S3 servers, and a bad line to put in front of one.

What each S3 server gets wrong is written down here, so that a test says which promise it cannot check where.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from tests.leash import start_tied

ACCESS_KEY, SECRET_KEY = "rollbook-tests", "rollbook-tests-secret"
BUCKET = "rollbook"
REGION = "eu-central-1"
SECRET = b"the secret of a test"
_START_LIMIT_S = 30.0
_CHILD = """
import socket, sys
from pathlib import Path
import uvicorn
from starlette.applications import Starlette
from rollbook.server.blobs.routes import blob_routes
from rollbook.server.blobs.file_blobs import LocalBlobs

port, root, secret, idle_s = sys.argv[1:]
blobs = LocalBlobs(Path(root), bytes.fromhex(secret))
listening = socket.create_server(("127.0.0.1", int(port)))
app = Starlette(routes=blob_routes(lambda request: blobs, idle_s=float(idle_s)))
uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_keep_alive=75)).run(sockets=[listening])
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@dataclass
class Served:
    """A process that listens; `kill` and `start` again keep the port."""

    command: Callable[[int], list[str]]
    log: Path
    port: int = 0
    environment: dict[str, str] | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.port = self.port or free_port()
        with open(self.log, "ab") as log:
            self.process = start_tied(
                self.command(self.port), stdout=log, stderr=log, env=self.environment
            )
        deadline = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            time.sleep(0.02)
        self.kill()
        raise AssertionError(f"the server did not start:\n{self.log.read_text()}")

    def kill(self) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()


@contextmanager
def frozen(server: Served) -> Iterator[None]:
    """Stopped where it is: connections stay open, and nothing is answered."""
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.process.pid, signal.SIGCONT)


def blob_server(folder: Path, *, idle_s: float = 60) -> Served:
    """Our routes over `folder/blobs`."""
    root = folder / "blobs"

    def command(port: int) -> list[str]:
        return [sys.executable, "-c", _CHILD, str(port), str(root), SECRET.hex(), str(idle_s)]

    return Served(command, folder / "blob-server.log")


def rclone_server(folder: Path) -> Served:
    (folder / "s3" / BUCKET).mkdir(parents=True)
    program = Path(sys.executable).with_name("rclone")

    def command(port: int) -> list[str]:
        options = ["--addr", f"127.0.0.1:{port}", "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}"]
        return [str(program), "serve", "s3", *options, "--config", "", str(folder / "s3")]

    return Served(command, folder / "rclone.log")


def moto_server(folder: Path) -> Served:
    """Has no bucket yet: see `create_bucket`."""

    def command(port: int) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]

    return Served(command, folder / "moto.log")


def create_bucket(server: Served) -> None:
    body = (
        '<CreateBucketConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<LocationConstraint>{REGION}</LocationConstraint></CreateBucketConfiguration>"
    )
    httpx.put(f"{server.url}/{BUCKET}", content=body, timeout=10).raise_for_status()


class BadLine:
    """Stands before a server and, when told to, answers in its place or cuts it off in mid-sentence."""

    def __init__(self, behind: int) -> None:
        self._behind = behind
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.refuse = 0
        """Connections to answer with 503."""
        self.cut: list[int] = []
        """For each of the next connections, how many bytes of the answer come through."""
        self.answers: list[bytes] = []
        """For each of the next connections, the whole answer to its first request, instead of the server's."""
        self.connections = 0
        self.sent = 0
        """Bytes that went to the server."""
        self._at: tuple[int, Callable[[], None]] | None = None
        self._counting = threading.Lock()
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def at(self, sent: int, act: Callable[[], None]) -> None:
        """Acts once, in the middle of a request, when so many bytes have gone to the server."""
        self._at = (sent, act)

    def _count(self, sent: int) -> None:
        with self._counting:
            self.sent += sent
            act = self._at
            if act is None or self.sent < act[0]:
                return
            self._at = None
        act[1]()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client:
            if self.refuse > 0:
                self.refuse -= 1
                client.recv(65536)
                client.sendall(
                    b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )
                return
            if self.answers:
                answer = self.answers.pop(0)
                client.recv(65536)
                client.sendall(answer)
                return
            most = self.cut.pop(0) if self.cut else None
            with (
                suppress(
                    ConnectionRefusedError
                ),  # nobody is there: the client sees a cut connection
                socket.create_connection(("127.0.0.1", self._behind)) as server,
            ):
                sending = threading.Thread(
                    target=_copied, args=(client, server, None, self._count), daemon=True
                )
                sending.start()
                _copied(server, client, most)


def _copied(
    source: socket.socket,
    target: socket.socket,
    most: int | None,
    count: Callable[[int], None] | None = None,
) -> None:
    with suppress(OSError):
        while most is None or most > 0:
            data = source.recv(65536 if most is None else min(65536, most))
            if not data:
                break
            target.sendall(data)
            if count is not None:
                count(len(data))
            most = None if most is None else most - len(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
