"""A proxy in front of a real server, which answers wrongly or not at all when it is told to."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

import httpx

_HOP = ("connection", "transfer-encoding", "content-encoding", "content-length")


@dataclass
class Fault:
    """For requests whose method and path contain `route`, as often as `times` says."""

    route: str
    status: int | None = 500
    """None: the connection is closed without a word."""
    times: int = 1_000_000
    after: bool = False
    """Once the server has acted: only its answer is lost."""


@dataclass
class FaultyProxy:
    target: str
    faults: list[Fault] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    """Method and path of every request."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._http = httpx.Client(timeout=60)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def count(self, route: str) -> int:
        return sum(route in each for each in self.seen)

    def fault(self, route: str) -> Fault | None:
        with self._lock:
            self.seen.append(route)
            for each in self.faults:
                if each.route in route and each.times > 0:
                    each.times -= 1
                    return each
        return None

    def __enter__(self) -> FaultyProxy:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._http.close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                fault = proxy.fault(f"{self.command} {self.path}")
                if fault is None or fault.after:
                    status, headers, content = self._asked(body)
                if fault is None:
                    self._answer(status, headers, content)
                elif fault.status is None:
                    self.close_connection = True
                else:
                    self._answer(fault.status, {"Content-Type": "application/json"}, b"{}")

            do_POST = do_PUT = do_DELETE = do_GET

            def _asked(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
                headers = {name: value for name, value in self.headers.items() if name != "Host"}
                url = proxy.target + self.path
                answer = proxy._http.request(self.command, url, content=body, headers=headers)
                kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
                here = answer.content.replace(proxy.target.encode(), proxy.base_url.encode())
                return answer.status_code, kept, here

            def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                return

        return Handler
