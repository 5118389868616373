"""The fast lane: it takes what it knows, and leaves everything else to the general way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from rollbook.evals.fast_lane import FastLane


class Answering:
    """Listens, and answers each request with the next of `answers`; keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.asked: list[bytes] = []
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/blobs/x?token=1"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                wire, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            with wire:
                while request := wire.recv(1 << 16):
                    self.asked.append(request)
                    answer = self.answers.pop(0)
                    wire.sendall(answer)
                    if b"length" not in answer.lower() or b"9999" in answer:
                        break

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(5)


@pytest.fixture
def server() -> Iterator[Answering]:
    answering = Answering()
    yield answering
    answering.close()


@pytest.fixture
def lane() -> Iterator[FastLane]:
    made = FastLane()
    yield made
    made.close()


def ok(body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(body), more, body)


def test_files_go_over_one_connection(server: Answering, lane: FastLane) -> None:
    server.answers = [ok(b"hello"), ok(b"{}"), ok(b"again")]
    assert lane.get(server.url, 5) == b"hello"
    assert lane.put(server.url, "application/octet-stream", b"bytes")
    assert lane.get(server.url, 5) == b"again"
    assert server.connections == 1
    assert server.asked[0].startswith(b"GET /blobs/x?token=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert server.asked[1].endswith(b"Content-Length: 5\r\n\r\nbytes")
    assert b"authorization" not in b"".join(server.asked).lower()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        ok(b"hello", b"Content-Encoding: gzip\r\n"),
        ok(b"other length"),
        b"no HTTP at all\r\n\r\n",
        b"",
    ],
)
def test_anything_unusual_is_left_to_the_general_way(
    server: Answering, lane: FastLane, answer: bytes
) -> None:
    server.answers = [answer, ok(b"hello")]
    assert lane.get(server.url, 5) is None
    assert lane.get(server.url, 5) in (b"hello", None)


@pytest.mark.parametrize(
    "ask",
    [
        lambda lane: lane.get("ftp://127.0.0.1/x", 5),
        lambda lane: lane.get("http://127.0.0.1:9/x", 5),
        lambda lane: lane.get("http://127.0.0.1:9/x", None),
        lambda lane: lane.get("http://127.0.0.1:9/x", 1 << 40),
        lambda lane: lane.get("http://127.0.0.1:9/ä", 5),
        lambda lane: lane.get("http:///x", 5),
    ],
)
def test_what_it_cannot_reach_it_does_not_try(
    lane: FastLane, ask: Callable[[FastLane], bytes | None]
) -> None:
    assert ask(lane) is None


def test_after_it_was_closed_it_does_nothing(server: Answering) -> None:
    lane = FastLane()
    server.answers = [ok(b"hello")]
    assert lane.get(server.url, 5) == b"hello"
    lane.close()
    assert lane.get(server.url, 5) is None


def test_it_stays_out_of_the_way_of_a_proxy(
    server: Answering, monkeypatch: pytest.MonkeyPatch, lane: FastLane
) -> None:
    from rollbook.evals import fast_lane

    fast_lane._goes_through_proxy.cache_clear()
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert lane.get(server.url, 5) is None
    fast_lane._goes_through_proxy.cache_clear()
    assert server.connections == 0
