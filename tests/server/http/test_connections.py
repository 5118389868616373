"""What one client may ask of the server, by raw sockets against `rollbook serve`: others are answered meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from rollbook.server.blobs.open import open_blobs
from rollbook.server.settings import Settings
from tests.server.serving import Served, serving

_HEAD_TIMEOUT_S = 1.0
_WINDOW_S = 1.0
_RATE = 1000
_PER_ADDRESS = 16
_PROXY = "127.0.0.2"
_PATIENCE_S = 30.0
_MB = 1 << 20
_TICK = os.sysconf("SC_CLK_TCK")
_CHUNKED = b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
_GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = {
        "head_timeout_s": _HEAD_TIMEOUT_S,
        "rate_window_s": _WINDOW_S,
        "minimum_bytes_per_s": _RATE,
        "connections_per_address": _PER_ADDRESS,
        "trusted_proxies": _PROXY,
    }
    options = [text for name, value in settings.items() for text in ("--set", f"{name}={value}")]
    with serving(tmp_path_factory.mktemp("connections") / "data", *options) as served:
        yield served


def connected(server: Served, source: str = "127.0.0.1") -> socket.socket:
    address = ("127.0.0.1", int(server.base_url.rsplit(":", 1)[1]))
    return socket.create_connection(address, _PATIENCE_S, source_address=(source, 0))


def until_closed(connection: socket.socket) -> bytes:
    """All that comes until the server ends the connection."""
    answer = b""
    with suppress(ConnectionResetError):
        while data := connection.recv(_MB):
            answer += data
    return answer


def problem(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    return int(head.split()[1]), json.loads(body)["code"]


def cpu_s(server: Served) -> float:
    values = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(values[11]) + int(values[12])) / _TICK


def memory_of(server: Served) -> int:
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def is_answered(server: Served) -> bool:
    return httpx.get(f"{server.base_url}/healthz", timeout=_PATIENCE_S).status_code == 200


def upload_url(server: Served) -> str:
    body = {"request_uploads": ["sensors"]}
    made = httpx.post(f"{server.base_url}/api/ingest/episode", json=body, headers=server.headers)
    url: str = made.json()["upload_urls"][0]["url"]
    return url


def put_head(url: str, size: int) -> bytes:
    path = url.split("/", 3)[3]
    lines = (
        f"PUT /{path} HTTP/1.1",
        "Host: x",
        "Content-Type: application/octet-stream",
        f"Content-Length: {size}",
    )
    return "\r\n".join((*lines, "", "")).encode()


# ------------------------------------------------------------------------------------- size of a head


def sent_in_background(connection: socket.socket, *pieces: bytes) -> threading.Thread:
    def send() -> None:
        with suppress(OSError):  # the server does not read to the end
            for piece in pieces:
                connection.sendall(piece)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("begin", "piece", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Big: ", b"a" * _MB, 431),
        (b"GET /", b"a" * _MB, 431),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"a: b\r\n" * (_MB // 6), 431),
        (b"", b"\r\n" * (_MB // 2), 431),
        # the request itself is complete before these, and answered
        (_CHUNKED + b"1\r\na\r\n0\r\nX-Trailer: ", b"a" * _MB, 405),
        (_CHUNKED + b"1;extension=", b"a" * _MB, 405),
    ],
    ids=["header", "url", "many headers", "blank lines", "trailer", "chunk extension"],
)
def test_80_mb_that_are_no_body_cost_nothing_and_nobody_waits(
    server: Served, begin: bytes, piece: bytes, status: int
) -> None:
    before = cpu_s(server)
    with connected(server) as connection:
        sending = sent_in_background(connection, begin, *[piece] * 80)
        assert is_answered(server)
        assert int(until_closed(connection).split()[1]) == status
        sending.join(_PATIENCE_S)
    assert cpu_s(server) - before < 0.5


@pytest.mark.parametrize(("size", "status"), [(60 << 10, 200), (70 << 10, 431)])
def test_a_head_has_64_kb_and_the_client_sees_the_refusal(
    server: Served, size: int, status: int
) -> None:
    headers = {"X-Big": "a" * size}
    answer = httpx.get(f"{server.base_url}/healthz", headers=headers)
    assert answer.status_code == status
    if status == 431:
        assert answer.json()["code"] == "head_too_large"


def test_bytes_that_are_not_http_get_an_error_of_the_usual_shape(server: Served) -> None:
    with connected(server) as connection:
        connection.sendall(b"\x16\x03\x01 this is TLS, or nothing at all\r\n\r\n")
        assert problem(until_closed(connection)) == (400, "malformed_request")


# ------------------------------------------------------------------------------------- pace of a head


def half_a_head(connection: socket.socket) -> None:
    connection.sendall(_GET[:-4])


def a_head_in_drops(connection: socket.socket) -> None:
    def drip() -> None:
        with suppress(OSError):
            for byte in _GET[:-4] * 100:
                connection.sendall(bytes([byte]))
                time.sleep(0.05)

    threading.Thread(target=drip, daemon=True).start()


def a_second_head_in_halves(connection: socket.socket) -> None:
    connection.sendall(_GET)
    answer = b""
    while b'{"status":"ok"}' not in answer:
        answer += connection.recv(_MB)
    connection.sendall(_GET[:-4])


@pytest.mark.parametrize("begin", [half_a_head, a_head_in_drops, a_second_head_in_halves])
def test_a_head_that_does_not_become_complete_is_given_up(
    server: Served, begin: Callable[[socket.socket], None]
) -> None:
    with connected(server) as connection:
        begin(connection)
        assert problem(until_closed(connection)) == (408, "head_too_slow")


def test_a_connection_on_which_nothing_is_said_is_closed(server: Served) -> None:
    with connected(server) as connection:
        assert until_closed(connection) == b""


# --------------------------------------------------------------------------------- connections at once


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def test_300_half_open_connections_keep_nobody_out(server: Served) -> None:
    with ExitStack() as stack:
        opened = [stack.enter_context(connected(server)) for _ in range(300)]
        for each in opened:
            with suppress(OSError):
                each.sendall(b"GET /healthz HTTP/1.1\r\nX-Unfinished: ")
        assert all(is_answered(server) for _ in range(10))
        assert sum(map(is_open, opened)) <= _PER_ADDRESS


def test_connections_at_work_are_left_alone_and_one_too_many_is_refused(server: Served) -> None:
    uploads = [upload_url(server) for _ in range(_PER_ADDRESS)]
    piece, pieces = b"x" * 10 * _RATE, 20
    begun, refused = threading.Event(), threading.Event()

    def upload_all(opened: list[socket.socket]) -> None:
        for sent in range(1, pieces + 1):
            for connection in opened:
                connection.sendall(piece)
            begun.set()
            if sent == pieces - 1:
                refused.wait(_PATIENCE_S)
            time.sleep(0.05)

    with ExitStack() as stack:
        opened = [stack.enter_context(connected(server)) for _ in uploads]
        for connection, url in zip(opened, uploads, strict=True):
            connection.sendall(put_head(url, pieces * len(piece)))
        thread = threading.Thread(target=upload_all, args=(opened,))
        thread.start()
        begun.wait(_PATIENCE_S)
        with connected(server) as one_more:
            one_more.sendall(_GET)
            assert problem(until_closed(one_more)) == (503, "too_many_connections")
        refused.set()
        thread.join()
        for connection in opened:
            assert connection.recv(_MB).startswith(b"HTTP/1.1 200")
        assert is_answered(server), "they are idle now and make room"


def test_a_trusted_proxy_brings_many_clients_and_has_no_limit(server: Served) -> None:
    with ExitStack() as stack:
        opened = [stack.enter_context(connected(server, _PROXY)) for _ in range(3 * _PER_ADDRESS)]
        for connection in opened:
            connection.sendall(_GET)
            assert connection.recv(_MB).startswith(b"HTTP/1.1 200")
        assert all(map(is_open, opened))


# -------------------------------------------------------------------------------------- pace of a body


def test_a_body_that_hardly_moves_is_given_up(server: Served) -> None:
    with connected(server) as connection:
        connection.sendall(put_head(upload_url(server), 10_000))

        def drip() -> None:
            with suppress(OSError):
                for _ in range(1000):
                    connection.sendall(b"x")
                    time.sleep(0.05)

        threading.Thread(target=drip, daemon=True).start()
        assert problem(until_closed(connection)) == (408, "body_too_slow")


def test_a_slow_upload_that_keeps_moving_is_taken_whole(server: Served) -> None:
    """A robot on a bad link: it takes twice the window, with pauses."""
    pieces = [b"x" * int(_RATE * _WINDOW_S)] * 10
    with connected(server) as connection:
        connection.sendall(put_head(upload_url(server), sum(map(len, pieces))))
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(_WINDOW_S / 5)
        assert connection.recv(_MB).startswith(b"HTTP/1.1 200")


def test_a_body_that_was_refused_is_not_read_for_ever(server: Served) -> None:
    with connected(server) as connection:
        connection.sendall(
            b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"
        )

        def stream() -> None:
            with suppress(OSError):
                while True:
                    connection.sendall(b"x" * 10_000)
                    time.sleep(0.02)

        threading.Thread(target=stream, daemon=True).start()
        assert until_closed(connection).startswith(b"HTTP/1.1 405")


def test_a_download_that_nobody_reads_is_cut_off(server: Served) -> None:
    size = 32 * _MB
    url = upload_url(server)
    headers = {"Content-Type": "application/octet-stream"}
    httpx.put(url, content=b"x" * size, headers=headers, timeout=60).raise_for_status()
    path = asyncio.run(download_url(server.log_path.parent / "data")).split("/", 3)[3]
    with connected(server) as connection:
        connection.sendall(f"GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        time.sleep(_WINDOW_S + 1.5)
        assert 0 < len(until_closed(connection)) < size


async def download_url(data: Path) -> str:
    """A signed URL of the largest blob."""
    settings = Settings.load(data)
    blobs = open_blobs(settings.blobs_url, secret=settings.secret)
    largest = max([each async for each in blobs.list("")], key=lambda each: each.size)
    kind = "application/octet-stream"
    return await blobs.presign_get(largest.key, ttl_s=60, base_url="http://x", content_type=kind)


# ------------------------------------------------------------------------------------------ pipelining


def test_requests_may_be_sent_ahead_but_not_without_end(server: Served) -> None:
    ok = b'{"status":"ok"}'
    with connected(server) as connection:
        connection.sendall(_GET * 50)
        answer = b""
        while answer.count(ok) < 50:
            answer += connection.recv(_MB)
    before = memory_of(server)
    with connected(server) as connection:
        sending = sent_in_background(connection, *[_GET * 10_000] * 8)
        assert until_closed(connection).count(ok) < 10_000
        sending.join(_PATIENCE_S)
    assert memory_of(server) - before < 30 * _MB
