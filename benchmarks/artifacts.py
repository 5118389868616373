"""Artifacts over HTTP: one large file up and down through our signed routes, against a bare endpoint that only copies.

The bare endpoint writes what it receives to a file and reads it back: no signature, no digest, no sync to disk, no
promise that half a file is never seen. Both live in one real server, and take turns.
"""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.stores import scratch
from benchmarks.timing import Claim, best
from rollbook.server.signing import Grant, UrlSigner

_SIZE_MB = 1024
_BLOCK = 1 << 20
_SECRET = b"benchmark"
_SERVER = """
import socket, sys
from pathlib import Path
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route
from rollbook.server.blob_routes import blob_routes
from rollbook.server.local_blobs import LocalBlobs

root = Path(sys.argv[2])
blobs = LocalBlobs(root / "blobs", b"benchmark")


class Bare:
    async def __call__(self, scope, receive, send):
        path, more, size = root / "bare.bin", True, 0
        if scope["method"] == "PUT":
            with open(path, "wb") as file:
                while more:
                    message = await receive()
                    file.write(message.get("body", b""))
                    more = message.get("more_body", False)
        else:
            size = path.stat().st_size
        length = (b"content-length", str(size).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        if size:
            with open(path, "rb") as file:
                while chunk := file.read(1 << 19):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body"})


app = Starlette(routes=[*blob_routes(lambda request: blobs), Route("/bare", Bare())])
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
"""


def main(scale: float = 1.0) -> list[Claim]:
    megabytes = max(8, int(_SIZE_MB * scale))
    with scratch() as folder:
        source = Path(folder) / "source.bin"
        with open(source, "wb") as file:
            for _ in range(megabytes):
                file.write(os.urandom(_BLOCK))
        with _server(Path(folder)) as (port, process):
            before = _most_memory_mb(process)
            seconds = best(
                _runs(port, source), repeats=5 if scale > 0.1 else 1, clock=time.perf_counter
            )
            after = _most_memory_mb(process)
    print(f"artifacts: {megabytes} MB through one server process")
    for name, spent in seconds.items():
        print(f"  {name:32} {spent:8.2f} s  {megabytes * 1.048576 / spent:8.0f} MB/s")
    print(f"  server memory: {before:.0f} MB at rest, {after:.0f} MB at most")
    return [
        Claim("upload speed against a bare copy", _ratio(seconds, "up"), 0.6, "x"),
        Claim("download speed against a bare copy", _ratio(seconds, "down"), 0.6, "x"),
        Claim("server memory during uploads and downloads", after, 250, "MB", at_most=True),
    ]


def _ratio(seconds: dict[str, float], way: str) -> float:
    return seconds[f"limit: bare copy {way}"] / seconds[f"ours, signed {way}"]


def _runs(port: int, source: Path) -> dict[str, Callable[[], object]]:
    signer = UrlSigner(_SECRET)
    expires_at = signer.expiry(3600)

    def path(method: str) -> str:
        grant = Grant(method, "episodes/org/episode/video.mp4", expires_at, "video/mp4")  # type: ignore[arg-type]
        return urlsplit(signer.url("http://127.0.0.1", grant)).path

    return {
        "limit: bare copy up": lambda: _upload(port, "/bare", source),
        "ours, signed up": lambda: _upload(port, path("PUT"), source),
        "limit: bare copy down": lambda: _download(port, "/bare", source),
        "ours, signed down": lambda: _download(port, path("GET"), source),
    }


def _upload(port: int, path: str, source: Path) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, blocksize=_BLOCK)
    headers = {"Content-Type": "video/mp4", "Content-Length": str(source.stat().st_size)}
    with open(source, "rb", buffering=0) as file:
        connection.request("PUT", path, body=file, headers=headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status == 200, answer.status


def _download(port: int, path: str, source: Path) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path)
    answer = connection.getresponse()
    assert answer.status == 200, answer.status
    buffer, size = bytearray(_BLOCK), 0
    while read := answer.readinto(buffer):
        size += read
    connection.close()
    assert size == source.stat().st_size, size


@contextmanager
def _server(folder: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    process = subprocess.Popen([sys.executable, "-c", _SERVER, str(port), str(folder)])
    try:
        _wait_for(port, process)
        yield port, process
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError("the server did not start")


def _most_memory_mb(process: subprocess.Popen[bytes]) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
