"""The fast lane: small files to and from signed addresses, over connections that stay open.

A replay moves thousands of small files, and for those the SDK's general way spends more time on a request than the
server does. This one knows one case: an HTTP/1.1 answer of stated length. Whenever anything else happens it says so,
and the caller takes the general way, which knows about retries, proxies, expired addresses and what to tell people.
What arrives is compared with its SHA-256 by the caller, and what is sent by the server, so no mistake here goes unseen.
"""

from __future__ import annotations

import socket
import ssl
import threading
import urllib.request
from contextlib import suppress
from functools import cache
from urllib.parse import urlsplit

LARGEST_BYTES = 16 << 20
_LARGEST_HEAD = 64 << 10
_TIMEOUT_S = 60.0
_PIECE = 1 << 18
_PORTS = {"http": 80, "https": 443}


class FastLane:
    """Threads may share one; each has connections of its own. Whoever made it closes it."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self._all: list[socket.socket] = []
        self._closed = False

    def get(self, url: str, size: int | None) -> bytes | None:
        """The whole file, if it came in one piece and has this size."""
        if size is None or size > LARGEST_BYTES:
            return None
        data = self._ask("GET", url, "Accept: */*\r\nAccept-Encoding: identity\r\n", b"")
        return data if data is not None and len(data) == size else None

    def put(self, url: str, content_type: str, data: bytes) -> bool:
        if len(data) > LARGEST_BYTES:
            return False
        headers = f"Content-Type: {content_type}\r\nContent-Length: {len(data)}\r\n"
        return self._ask("PUT", url, headers, data) is not None

    def close(self) -> None:
        """All of them, also in the middle of something: whoever is at it takes the general way."""
        with self._lock:
            self._closed = True
            for each in self._all:
                with suppress(OSError):
                    each.close()
            self._all.clear()

    def _ask(self, method: str, url: str, headers: str, body: bytes) -> bytes | None:
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname or not url.isascii():
            return None
        if "\r" in url or "\n" in url or _goes_through_proxy(parts.scheme, parts.netloc):
            return None
        path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        head = f"{method} {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n{headers}\r\n"
        name = f"{parts.scheme}://{parts.netloc}"
        try:
            wire = self._connected(name, parts.scheme, parts.hostname, parts.port)
            if wire is None:
                return None
            wire.sendall(head.encode("ascii") + body)
            answer = _answer(wire)
        except (OSError, ValueError):
            answer = None
        if answer is None:
            self._drop(name)
        return answer

    def _connected(
        self, name: str, scheme: str, host: str, port: int | None
    ) -> socket.socket | None:
        """One that the other side has closed meanwhile costs one request in vain, and is opened again after that."""
        known: dict[str, socket.socket] = self._local.__dict__
        if name not in known:
            wire = socket.create_connection((host, port or _PORTS[scheme]), _TIMEOUT_S)
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if scheme == "https":
                wire = _trust().wrap_socket(wire, server_hostname=host)
            known[name] = wire
            with self._lock:
                self._all.append(wire)
        with self._lock:
            if not self._closed:
                return known[name]
        self._drop(name)
        return None

    def _drop(self, name: str) -> None:
        wire = self._local.__dict__.pop(name, None)
        if wire is not None:
            with suppress(OSError):
                wire.close()
            with self._lock, suppress(ValueError):
                self._all.remove(wire)


def _answer(wire: socket.socket) -> bytes | None:
    """The body of a success whose length was stated; None for everything else."""
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        piece = wire.recv(_PIECE)
        if not piece or len(data) > _LARGEST_HEAD:
            return None
        data += piece
    head = data[:end].lower()
    length = _length(head)
    if not head.startswith((b"http/1.1 200 ", b"http/1.1 201 ")) or length is None:
        return None
    pieces, missing = [data[end + 4 :]], length - (len(data) - end - 4)
    while missing > 0:
        piece = wire.recv(min(missing, _PIECE))
        if not piece:
            return None
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces) if missing == 0 else None


def _length(head: bytes) -> int | None:
    """None also where the connection is not to be used again, or where the body comes in another form."""
    for unusual in (b"\r\ntransfer-encoding:", b"\r\ncontent-encoding:", b"\r\nconnection: close"):
        if unusual in head:
            return None
    if head.count(b"\r\ncontent-length:") != 1:
        return None
    text = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0].strip()
    return int(text) if text.isdigit() and int(text) <= LARGEST_BYTES else None


@cache
def _trust() -> ssl.SSLContext:
    return ssl.create_default_context()


@cache
def _goes_through_proxy(scheme: str, netloc: str) -> bool:
    if scheme not in urllib.request.getproxies():
        return False
    return not urllib.request.proxy_bypass(netloc)
