"""Load over loopback: so many clients, each on a connection of its own, sending as fast as they are answered.

The client is a bare socket, so that what is measured is the server: a friendlier one costs more than our answer does.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import numpy as np

_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"


class Connection:
    """One client. It keeps its connection and remembers how long every answer took."""

    def __init__(self, base_url: str, headers: dict[str, str] | None = None) -> None:
        place = urlsplit(base_url)
        assert place.hostname is not None
        self._socket = socket.create_connection((place.hostname, place.port or 80), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines = {"Host": place.netloc, "Content-Type": "application/json", **(headers or {})}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode()
        self.seconds: list[float] = []

    def post(self, path: str, body: bytes, expected: int = 200) -> bytes:
        head = b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n" % (path.encode(), len(body))
        return self._answered(head + self._headers + b"\r\n" + body, expected)

    def get(self, path: str, expected: int = 200) -> bytes:
        return self._answered(
            b"GET %s HTTP/1.1\r\n" % path.encode() + self._headers + b"\r\n", expected
        )

    def close(self) -> None:
        self._socket.close()

    def _answered(self, request: bytes, expected: int) -> bytes:
        began = time.perf_counter()
        self._socket.sendall(request)
        status, body = self._answer()
        self.seconds.append(time.perf_counter() - began)
        if status != expected:
            raise RuntimeError(f"{status} instead of {expected}: {body[:500]!r}")
        return body

    def _answer(self) -> tuple[int, bytes]:
        data = b""
        while _HEAD_END not in data:
            data += self._more()
        head, _, body = data.partition(_HEAD_END)
        lines = head.lower().split(b"\r\n")
        length = next(int(line[len(_LENGTH) :]) for line in lines if line.startswith(_LENGTH))
        while len(body) < length:
            body += self._more()
        return int(head[9:12]), body

    def _more(self) -> bytes:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the server closed the connection")
        return data


@dataclass(frozen=True)
class Load:
    """What one turn came to."""

    clients: int
    pieces: int
    """Of work, each of one or more requests."""
    wall_s: float
    request_s: list[float] = field(repr=False)

    @property
    def pieces_per_s(self) -> float:
        return self.pieces / self.wall_s

    @property
    def requests_per_s(self) -> float:
        return len(self.request_s) / self.wall_s

    def percentile_ms(self, percent: float) -> float:
        return float(np.percentile(self.request_s, percent)) * 1e3


def drive(
    connect: Callable[[], Connection],
    work: Callable[[Connection, int], object],
    *,
    clients: int,
    seconds: float,
) -> Load:
    """Every client does `work(connection, number)` again and again until the time is over."""
    connections = [connect() for _ in range(clients)]
    counts = [0] * clients
    failures: list[BaseException] = []
    gate = threading.Barrier(clients + 1)

    def run(client: int) -> None:
        try:
            gate.wait()
            ends = time.perf_counter() + seconds
            while time.perf_counter() < ends:
                work(connections[client], client * 1_000_000 + counts[client])
                counts[client] += 1
        except BaseException as error:  # noqa: BLE001 - told by the one who waits
            failures.append(error)

    threads = [threading.Thread(target=run, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    gate.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    wall_s = time.perf_counter() - began
    for connection in connections:
        connection.close()
    if failures:
        raise failures[0]
    taken = [each for connection in connections for each in connection.seconds]
    return Load(clients, sum(counts), wall_s, taken)
