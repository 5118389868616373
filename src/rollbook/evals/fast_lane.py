"""The fast lane: small files to and from signed addresses, over connections that stay open.

A replay moves thousands of small files, and for those the SDK's general way spends more time on a request than the
server does. This one knows one case: a plain answer of known length. Whenever anything else happens it says so, and the
caller takes the general way, which knows about retries, proxies, expired addresses and what to tell people.
"""

from __future__ import annotations

import http.client
import ssl
import threading
import urllib.request
from contextlib import suppress
from functools import cache
from urllib.parse import urlsplit

LARGEST_BYTES = 16 << 20
_TIMEOUT_S = 60.0
_HEADERS = {"Accept": "*/*", "Accept-Encoding": "identity"}


class FastLane:
    """Threads may share one; each has connections of its own. Whoever made it closes it."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self._all: list[http.client.HTTPConnection] = []
        self._closed = False

    def get(self, url: str, size: int | None) -> bytes | None:
        """The whole file, if it came in one piece and has this size."""
        if size is None or size > LARGEST_BYTES:
            return None
        data = self._ask("GET", url, _HEADERS, None)
        return data if data is not None and len(data) == size else None

    def put(self, url: str, content_type: str, data: bytes) -> bool:
        if len(data) > LARGEST_BYTES:
            return False
        return self._ask("PUT", url, {**_HEADERS, "Content-Type": content_type}, data) is not None

    def _ask(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None
    ) -> bytes | None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or _goes_through_proxy(parts.scheme, parts.netloc):
            return None
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection = self._connection(parts.scheme, parts.netloc)
        if connection is None:
            return None
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            data = answer.read(LARGEST_BYTES + 1)
        except (OSError, http.client.HTTPException, AttributeError):
            # the last one: it was closed by another thread just now
            connection.close()
            return None
        if answer.status not in (200, 201, 204) or not answer.isclosed():
            connection.close()
            return None
        return data

    def _connection(self, scheme: str, host: str) -> http.client.HTTPConnection | None:
        """One that the other side has closed meanwhile opens again by itself, after one request in vain."""
        known: dict[str, http.client.HTTPConnection] = self._local.__dict__
        name = f"{scheme}://{host}"
        with self._lock:
            if self._closed:
                return None
            if name not in known:
                known[name] = _new_connection(scheme, host)
                self._all.append(known[name])
        return known[name]

    def close(self) -> None:
        """All of them, also in the middle of something: whoever is at it takes the general way."""
        with self._lock:
            self._closed = True
            for connection in self._all:
                with suppress(OSError):
                    connection.close()
            self._all.clear()


def _new_connection(scheme: str, host: str) -> http.client.HTTPConnection:
    if scheme == "https":
        return http.client.HTTPSConnection(host, timeout=_TIMEOUT_S, context=_trust())
    return http.client.HTTPConnection(host, timeout=_TIMEOUT_S)


@cache
def _trust() -> ssl.SSLContext:
    return ssl.create_default_context()


@cache
def _goes_through_proxy(scheme: str, netloc: str) -> bool:
    if scheme not in urllib.request.getproxies():
        return False
    return not urllib.request.proxy_bypass(netloc)
