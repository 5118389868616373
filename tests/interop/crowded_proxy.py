"""A proxy in front of a server that is too busy for the first uploads, as a load balancer can be."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

import httpx

_HOP = ("connection", "transfer-encoding", "content-encoding", "content-length")


class CrowdedProxy:
    """Passes everything on to `target`, but for the first `refused_uploads` PUTs."""

    def __init__(self, *, refused_uploads: int, retry_after: str) -> None:
        self.target = ""
        self.retry_after = retry_after
        self.uploads: list[int] = []
        """The status that each PUT was answered with."""
        self._refused = refused_uploads
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> CrowdedProxy:
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

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._pass_on()

            def do_POST(self) -> None:
                self._pass_on()

            def do_PUT(self) -> None:
                if len(proxy.uploads) < proxy._refused:
                    self.rfile.read(int(self.headers["Content-Length"]))
                    proxy.uploads.append(429)
                    self._answer(429, {"Retry-After": proxy.retry_after}, b"too many")
                else:
                    proxy.uploads.append(self._pass_on())

            def _pass_on(self) -> int:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                headers = {name: value for name, value in self.headers.items() if name != "Host"}
                answer = httpx.request(
                    self.command, proxy.target + self.path, content=body, headers=headers
                )
                kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
                self._answer(answer.status_code, kept, answer.content)
                return answer.status_code

            def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                return

        return Handler
