"""A receiver of webhooks for tests: a real HTTP server that keeps what it is sent and answers as it is told."""

from __future__ import annotations

import hashlib
import hmac
import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_LIMIT_S = 20.0


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes
    at_s: float

    @property
    def told(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.body)
        return told

    @property
    def delivery(self) -> str:
        return self.headers["rollbook-delivery"]

    def is_signed_with(self, secret: str) -> bool:
        said = dict(part.split("=", 1) for part in self.headers["rollbook-signature"].split(","))
        signed = hmac.new(secret.encode(), f"{said['t']}.".encode() + self.body, hashlib.sha256)
        return said["v1"] == signed.hexdigest() and abs(self.at_s - int(said["t"])) < 60


class Receiver:
    """`answer` gives the status of each request, with the number of those before it."""

    def __init__(
        self, answer: Callable[[int], int] = lambda _: 200, tls: ssl.SSLContext | None = None
    ) -> None:
        self.scheme = "http" if tls is None else "https"
        self.received: list[Received] = []
        self.answer = answer
        self._changed = threading.Condition()
        keeper = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): text for name, text in self.headers.items()}
                status = keeper.keep(Received(self.path, headers, body, time.time()))
                self.send_response(status)
                self.send_header("Location", f"{keeper.url}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                return

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A sender that gives up in the middle is what some tests are about."""

        self._server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def keep(self, received: Received) -> int:
        with self._changed:
            before = len(self.received)
            self.received.append(received)
            self._changed.notify_all()
        return self.answer(before)

    def wait_for(self, count: int, limit_s: float = _LIMIT_S) -> list[Received]:
        with self._changed:
            there = self._changed.wait_for(lambda: len(self.received) >= count, limit_s)
        assert there, f"{len(self.received)} came, {count} were expected"
        return list(self.received)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
