"""Connections: what one client may ask of the server before a request exists that could be refused.

uvicorn reads a head of any size at any pace, and a body at any pace. Here a head has a size and a deadline, bytes move
at a minimum rate in both directions, and one address has so many connections at most. Who waits for its client makes
room for others: a connection beyond the limit ends the one that has been silent longest, and is refused only when the
server is at work on all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import resource
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, NamedTuple

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from rollbook.server.http.limits import network_of_address
from rollbook.server.http.responses import RETRY_AFTER_S, json_bytes
from rollbook.server.settings import Settings

MOST_HEAD_BYTES = 64 << 10
"""Of the request line and all headers; of the trailers after a chunked body too."""
_MOST_PIPELINED = 100
"""Requests of one connection that wait for the answer to an earlier one. Each costs a few kilobytes."""
_LOOK_EVERY_S = 0.5
_SLOW_S = 5.0
"""A transfer that was too slow for so long is ended when its room is needed."""
_LINGER_S = 2.0
_LINGER_BYTES = 1 << 20
"""What is still read after a refusal: a client that is cut off while it sends may never see the answer."""
_MOST_CONNECTIONS = 10_000
_OTHER_FILES = 256
"""Open files that are left for the database, blobs and logs."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    head_timeout_s: float
    minimum_bytes_per_s: int
    rate_window_s: float
    per_address: int
    proxies: tuple[str, ...] = ()
    """Addresses and networks. All clients of a proxy come from its address, which therefore has no limit."""

    @classmethod
    def of(cls, settings: Settings) -> ConnectionLimits:
        return cls(
            head_timeout_s=settings.head_timeout_s,
            minimum_bytes_per_s=settings.minimum_bytes_per_s,
            rate_window_s=settings.rate_window_s,
            per_address=settings.connections_per_address,
            proxies=settings.trusted_proxies,
        )


class Door:
    """All connections of one process; given to uvicorn as its HTTP protocol."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._most = min(_MOST_CONNECTIONS, _most_open_files() - _OTHER_FILES)
        self._proxies = [ipaddress.ip_network(text, strict=False) for text in limits.proxies]
        # in order of arrival
        self._inside: dict[ClientConnection, None] = {}
        self._by_network: dict[str, dict[ClientConnection, None]] = {}
        self._looking = False

    def __call__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> ClientConnection:
        return ClientConnection(self, config, server_state, app_state, _loop)

    def admit(self, connection: ClientConnection) -> bool:
        """False when there is no room, because the server is at work on every other connection."""
        network = self._network_of(connection)
        neighbours = self._by_network.setdefault(network, {})
        most = 0 if self._is_proxy(connection) else self.limits.per_address
        if (most and not _has_room(neighbours, most)) or not _has_room(self._inside, self._most):
            return False
        neighbours[connection] = self._inside[connection] = None
        if not self._looking:
            self._looking = True
            self._look_later(connection.loop)
        return True

    def leave(self, connection: ClientConnection) -> None:
        self._inside.pop(connection, None)
        network = self._network_of(connection)
        neighbours = self._by_network.get(network, {})
        neighbours.pop(connection, None)
        if not neighbours:
            self._by_network.pop(network, None)

    def _network_of(self, connection: ClientConnection) -> str:
        return network_of_address(connection.client[0] if connection.client else "")

    def _is_proxy(self, connection: ClientConnection) -> bool:
        if not self._proxies or connection.client is None:
            return False
        address = ipaddress.ip_address(connection.client[0])
        return any(address in network for network in self._proxies)

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(_LOOK_EVERY_S, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """One look at all connections twice a second: cheaper than timers that every request sets and cancels."""
        now = loop.time()
        for connection in list(self._inside):
            connection.look(now)
        self._looking = bool(self._inside)
        if self._looking:
            self._look_later(loop)


def _most_open_files() -> int:
    """As many as are needed, or as the system allows: a process begins with fewer than it may have."""
    wanted = _MOST_CONNECTIONS + _OTHER_FILES
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    if now != resource.RLIM_INFINITY and now < wanted:
        # macOS says that there is no limit, and refuses more than its own
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
            return wanted
        return now
    return wanted


def _has_room(connections: dict[ClientConnection, None], most: int) -> bool:
    """Room for one more, if need be made by ending the connection that has waited longest for its client."""
    if len(connections) < most:
        return True
    waiting = [each for each in connections if each.waits_for_client]
    if not waiting:
        return False
    min(waiting, key=lambda each: each.waiting_since).end()
    return True


class _Part(Enum):
    """What the client is sending."""

    HEAD = auto()
    BODY = auto()
    NOTHING = auto()
    """A request is complete, and no byte of another has come."""


class _Progress(NamedTuple):
    since: float
    size: int
    """Bytes at that time."""


class ClientConnection(HttpToolsProtocol):
    def __init__(
        self,
        door: Door,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._door = door
        self._limits = door.limits
        self._heard_at = self.loop.time()
        self._received = self._received_before = 0
        """Bytes, now and before the last ones."""
        self._part = _Part.HEAD
        self._heads = 0
        self._head_since = self._heard_at
        self._head_left = MOST_HEAD_BYTES
        self._got_body = False
        self._beside_body = 0
        """Bytes since the last piece of the body that were no body: sizes of chunks, and trailers."""
        self._sending = _Progress(self._heard_at, 0)
        """Bytes of the body that had come."""
        self._reading: _Progress | None = None
        """Bytes that wait to be sent, while the client does not read as fast as we write."""
        self._refused = False
        self._linger_left = _LINGER_BYTES

    # ---------------------------------------------------------------------------------- what arrives

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._door.admit(self):
            text = "too many connections from this address; close some, or try again shortly"
            self.transport.write(_answer(503, "too_many_connections", text))
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._linger_left -= len(data)
            if self._linger_left < 0:
                self.transport.abort()
            return
        self._heard_at = self.loop.time()
        self._received_before, self._received = self._received, self._received + len(data)
        if self._part is _Part.NOTHING:
            self._expect_head()
        if self._part is _Part.HEAD and len(data) > self._head_left:
            rest = data[self._head_left :]
            self._take(data[: self._head_left])
            data = rest
        self._take(data)

    def _take(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        part, heads = self._part, self._heads
        super().data_received(data)
        if self._part is _Part.HEAD:
            # of a head that began in the middle of these bytes it is not known how many are its own
            self._head_left -= len(data) if heads == self._heads else 0
            if self._head_left <= 0:
                self._refuse_large_head("head")
        elif self._part is _Part.BODY and part is _Part.BODY:
            self._beside_body = 0 if self._got_body else self._beside_body + len(data)
            self._got_body = False
            if self._beside_body > MOST_HEAD_BYTES:
                self._refuse_large_head("trailer")

    def _expect_head(self) -> None:
        self._part = _Part.HEAD
        self._heads += 1
        self._head_since = self._heard_at
        self._head_left = MOST_HEAD_BYTES

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._part is not _Part.HEAD:
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._part = _Part.BODY
        self._beside_body = 0
        # the beginning of the body comes with the head
        self._sending = _Progress(self._heard_at, self._received_before)
        if len(self.pipeline) >= _MOST_PIPELINED:
            self.end()
            return
        super().on_headers_complete()
        # trailers are not added to the headers of a request that is being answered
        self.headers = []

    def on_body(self, body: bytes) -> None:
        self._got_body = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._part = _Part.NOTHING
        super().on_message_complete()

    # ------------------------------------------------------------------------------------ what is sent

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading = _Progress(self.loop.time(), self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reading = None

    # --------------------------------------------------------------------------------------- deadlines

    @property
    def waits_for_client(self) -> bool:
        """Nothing is lost but the client's own delay when this connection ends now."""
        now = self.loop.time()
        if self._refused or self._is_slow_reader(now, _SLOW_S):
            return True
        if self._part is _Part.BODY:
            return self._wants_body and self._is_slow_sender(now, _SLOW_S)
        return self._is_answered

    @property
    def waiting_since(self) -> float:
        return self._head_since if self._part is _Part.HEAD else self._heard_at

    @property
    def _is_answered(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete

    @property
    def _wants_body(self) -> bool:
        """False while the server itself is late: it does not read, or has not asked for the body yet."""
        return not self.flow.read_paused and not self.cycle.waiting_for_100_continue

    def look(self, now: float) -> None:
        if self._refused:
            return
        if self._is_slow_reader(now, self._limits.rate_window_s):
            self.transport.abort()
        elif self._part is _Part.HEAD:
            self._look_at_head(now)
        elif self._part is _Part.BODY:
            self._look_at_body(now)

    def _look_at_head(self, now: float) -> None:
        if now - self._head_since <= self._limits.head_timeout_s or not self._is_answered:
            return
        if self._head_left == MOST_HEAD_BYTES:
            self.end()  # not a byte came: nobody waits for an answer
        else:
            text = f"the head of the request was not complete within {self._limits.head_timeout_s:g} s; send it again"
            self._refuse(408, "head_too_slow", text)

    def _look_at_body(self, now: float) -> None:
        window_s = self._limits.rate_window_s
        if not self._wants_body and not self._is_answered:
            self._sending = _Progress(now, self._received)
        elif self._is_slow_sender(now, window_s):
            least = self._limits.minimum_bytes_per_s
            text = f"the body came at less than {least} bytes/s for {window_s:g} s; send it again"
            self._refuse(408, "body_too_slow", text)
        elif now - self._sending.since > window_s:
            if self._is_answered:
                self.end()  # a body that was refused is read no longer than this, however fast it comes
            self._sending = _Progress(now, self._received)

    def _is_slow_sender(self, now: float, after_s: float) -> bool:
        return self._is_slow(
            self._received - self._sending.size, now - self._sending.since, after_s
        )

    def _is_slow_reader(self, now: float, after_s: float) -> bool:
        if self._reading is None:
            return False
        left = self.transport.get_write_buffer_size()
        return self._is_slow(self._reading.size - left, now - self._reading.since, after_s)

    def _is_slow(self, count: int, seconds: float, after_s: float) -> bool:
        return seconds > after_s and count < self._limits.minimum_bytes_per_s * seconds

    # ---------------------------------------------------------------------------------------- refusals

    def end(self) -> None:
        self._door.leave(self)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls when the bytes are not HTTP."""
        self._refuse(400, "malformed_request", "this is not an HTTP request; check the client")

    def _refuse_large_head(self, what: str) -> None:
        text = f"the {what} of the request has more than {MOST_HEAD_BYTES} bytes; send fewer or shorter headers"
        self._refuse(431, "head_too_large", text)

    def _refuse(self, status: int, code: str, text: str) -> None:
        """Answers if this connection has no other answer under way, and ends the connection in any case."""
        unanswered = not self._is_answered
        if self.pipeline or (unanswered and self.cycle.response_started):
            self.transport.abort()
            return
        if unanswered:
            # as if the client had left: nothing more is sent for this request
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(_answer(status, code, text))
        self.flow.resume_reading()
        self.transport.write_eof()
        self._refused = True
        self.loop.call_later(_LINGER_S, self.transport.abort)


def _answer(status: int, code: str, text: str) -> bytes:
    body = json_bytes({"error": text, "code": code})
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
        *([f"retry-after: {RETRY_AFTER_S}"] if status == 503 else []),
    ]
    return "\r\n".join((*lines, "", "")).encode() + body
