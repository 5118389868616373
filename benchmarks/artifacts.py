"""Artifacts over HTTP: one large file up and down through our signed routes, against a bare endpoint that only copies.

Ours is `rollbook serve` as an operator starts it. The bare one is the least that an ASGI server can do: it writes what
it receives to a file, syncs it as we do, and reads it back in blocks as large as ours; no signature, no digest, no
promise that half a file is never seen. Both use the same disk and the same event loop, and take turns. An upload is of
a new file on both sides: what the turn before left is removed first, so that neither pays for making room.
"""

from __future__ import annotations

import http.client
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.servers import Server, rollbook_server
from benchmarks.stores import scratch
from benchmarks.timing import Claim
from rollbook.server.blobs.files import _CHUNK
from rollbook.server.blobs.signing import Grant, UrlSigner
from rollbook.server.settings import Settings

_SIZE_MB = 1024
_TURNS = 5
_BLOCK = 1 << 20
_KEY = "episodes/org/episode/video.mp4"
_BARE = """
import os, socket, sys
import uvicorn

path = sys.argv[2]


async def app(scope, receive, send):
    more, size = True, 0
    if scope["method"] == "PUT":
        with open(path, "wb") as file:
            while more:
                message = await receive()
                file.write(message.get("body", b""))
                more = message.get("more_body", False)
            file.flush()
            os.fsync(file.fileno())
    else:
        size = os.stat(path).st_size
    length = (b"content-length", str(size).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    if size:
        with open(path, "rb") as file:
            while chunk := file.read(int(sys.argv[3])):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body"})


listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off")).run([listening])
"""


def main(scale: float = 1.0) -> list[Claim]:
    megabytes = max(8, int(_SIZE_MB * scale))
    with scratch() as folder:
        source = Path(folder) / "source.bin"
        with open(source, "wb") as file:
            for _ in range(megabytes):
                file.write(os.urandom(_BLOCK))
        with (
            rollbook_server(Path(folder) / "ours") as ours,
            _bare(Path(folder) / "bare.bin") as bare,
        ):
            runs = _runs(ours, bare, Path(folder) / "ours" / "data", source)
            left = [Path(folder) / "bare.bin", Path(folder) / "ours/data/blobs/objects" / _KEY]
            seconds, cpu_s = _timed(runs, ours, left, _TURNS if scale > 0.1 else 1)
            most = ours.peak_memory_mb
    print(f"artifacts: {megabytes} MB, one server process each, load {os.getloadavg()[0]:.1f}")
    for name, spent in seconds.items():
        speeds = [megabytes * 1.048576 / each for each in spent]
        print(
            f"  {name:24} {statistics.median(speeds):6.0f} MB/s ({min(speeds):.0f} to {max(speeds):.0f})"
            f"   CPU of our server {cpu_s[name]:5.2f} s"
        )
    print(f"  memory of our server: {most:.0f} MB at most")
    return [
        Claim("upload speed against a bare copy", _ratio(seconds, "up"), 0.6, "x"),
        Claim("download speed against a bare copy", _ratio(seconds, "down"), 0.6, "x"),
        Claim("server memory during uploads and downloads", most, 250, "MB", at_most=True),
    ]


def _ratio(seconds: dict[str, list[float]], way: str) -> float:
    """The median of what neighbouring turns give: what slows one down slows the other."""
    pairs = zip(seconds[f"limit: bare copy {way}"], seconds[f"ours, signed {way}"], strict=True)
    return statistics.median(bare / ours for bare, ours in pairs)


def _timed(
    runs: dict[str, Callable[[], object]], ours: Server, left: list[Path], turns: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    cpu_s = dict.fromkeys(runs, float("inf"))
    for turn in range(turns):
        for path in left if turn else ():
            path.unlink()
        for name, run in runs.items():
            before, began = ours.cpu_s, time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
            cpu_s[name] = min(cpu_s[name], ours.cpu_s - before)
    return seconds, cpu_s


def _runs(ours: Server, bare: int, data: Path, source: Path) -> dict[str, Callable[[], object]]:
    signer = UrlSigner(Settings.load(data).secret)
    expires_at = signer.expiry(3600)
    port = int(ours.base_url.rpartition(":")[2])

    def path(method: str) -> str:
        grant = Grant(method, _KEY, expires_at, "video/mp4")  # type: ignore[arg-type]
        return urlsplit(signer.url("http://127.0.0.1", grant)).path

    return {
        "limit: bare copy up": lambda: _upload(bare, "/", source),
        "ours, signed up": lambda: _upload(port, path("PUT"), source),
        "limit: bare copy down": lambda: _download(bare, "/", source),
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
def _bare(path: Path) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    process = subprocess.Popen([sys.executable, "-c", _BARE, str(port), str(path), str(_CHUNK)])
    try:
        _wait_for(port, process)
        yield port
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
