"""The real server in the process of the test, behind a layer that fails when it is told to.

Every answer is that of the real server, on SQLite and local files. The layer writes down what came in, so that a test
can see what the SDK really sent; it loses requests and answers, and changes answers into what another server might say.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rollbook.app import create_app
from rollbook.contracts.episode import FILE_NAMES, ArtifactKind
from rollbook.server.blobs.file_blobs import LocalBlobs
from rollbook.server.bootstrap import bootstrap
from rollbook.server.db.migrate import migrate
from rollbook.server.db.open import open_database
from rollbook.server.episodes import uploads
from rollbook.server.logs import _NOISY
from rollbook.server.settings import Settings

_KINDS: dict[str, ArtifactKind] = {name: kind for kind, name in FILE_NAMES.items()}
_UNSEEN = "x-unseen"
"""A request with this header is a look of the test itself: neither written down nor broken."""


@dataclass
class Seen:
    """One request as it came in."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def route(self) -> str:
        """The space at the end lets a test name the end of a path."""
        return f"{self.method} {self.path} "

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Fault:
    """For the next `times` requests whose method and path contain `route`."""

    route: str
    do: Literal["answer", "drop", "hang", "cut"]
    times: int = 1
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    after: bool = False
    """Only once the request has been acted on, so that the answer alone is lost."""
    cut_after: int = 0
    """Bytes of the answer that get through before the connection breaks."""


class FaultyServer:
    def __init__(self, folder: Path) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        self.base_url = f"http://127.0.0.1:{port}"
        self._listening = listening
        self._settings = Settings.load(
            folder, host="127.0.0.1", port=port, log_level="error", transcode_videos=False
        )
        self._part_sizes = (uploads._DEFAULT_PART, uploads._LEAST_PART)
        migrate(self._settings.database_url)
        self._app = create_app(self._settings)
        config = uvicorn.Config(
            _Faulty(self, self._app),
            log_level="critical",
            lifespan="on",
            http="h11",
            timeout_keep_alive=75,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listening]}, daemon=True
        )
        with _logging_as_it_was():
            self._thread.start()
            while not self._server.started:
                assert self._thread.is_alive(), "the server did not start"
                time.sleep(0.005)
        self.reset()

    def reset(self) -> None:
        """As new: nothing stored, since there is a new organisation, and nothing to break."""
        self._org_id, self.api_key = self._new_organisation()
        self.seen: list[Seen] = []
        self.faults: list[Fault] = []
        self.changes: list[tuple[str, Callable[[Any], Any]]] = []
        self.knows_ranges = True
        """False: a request for a part of a file is answered with the whole."""
        self.before: Callable[[Seen], None] | None = None
        self.after: Callable[[Seen], None] | None = None
        uploads._DEFAULT_PART, uploads._LEAST_PART = self._part_sizes
        self.set_url_ttl(1800)
        self._set_clock_ahead(0)

    @property
    def other_api_key(self) -> str:
        """Of somebody else."""
        return self._new_organisation()[1]

    def _new_organisation(self) -> tuple[str, str]:
        with closing(open_database(self._settings.database_url)) as database:
            made = bootstrap(database, "Another")
        return made.org_id, made.api_key

    def stop(self) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(10)

    # ------------------------------------------------------------------------- what goes wrong

    def fail(self, route: str, do: Literal["answer", "drop", "hang", "cut"], **facts: Any) -> None:
        self.faults.append(Fault(route, do, **facts))

    def change(self, route: str, how: Callable[[Any], Any]) -> None:
        """Changes the JSON of every answer of a route, into what another server might say."""
        self.changes.append((route, how))

    def set_part_size(self, size: int) -> None:
        uploads._DEFAULT_PART = uploads._LEAST_PART = size

    def set_url_ttl(self, seconds: int) -> None:
        """For the upload URLs that are signed from now on."""
        object.__setattr__(self._settings, "upload_ttl_s", seconds)

    def expire_urls(self) -> None:
        """All that were signed so far."""
        self._set_clock_ahead(3600)

    def _set_clock_ahead(self, seconds: float) -> None:
        blobs = self._app.state.context.blobs
        assert isinstance(blobs, LocalBlobs)
        blobs.signer._clock = lambda: time.time() + seconds

    # ------------------------------------------------------------------------ what it was asked

    def asked(self, route: str) -> list[Seen]:
        return [each for each in self.seen if route in each.route]

    # ---------------------------------------------------------------------------- what it keeps

    @property
    def episodes(self) -> dict[str, dict[str, Any]]:
        """By id, oldest first, as the API shows them to the first organisation."""
        headers = {"Authorization": f"Bearer {self.api_key}", _UNSEEN: "1"}
        asked = {"with_archived": "true", "limit": "200"}
        answer = httpx.get(f"{self.base_url}/api/episodes", params=asked, headers=headers)
        return {each["id"]: each for each in reversed(answer.raise_for_status().json()["episodes"])}

    @property
    def blobs(self) -> dict[tuple[str, ArtifactKind], Path]:
        """By episode and kind."""
        stored = (self._folder("objects") / "episodes" / self._org_id).glob("*/*")
        return {(each.parent.name, _KINDS[each.name]): each for each in stored}

    @property
    def parts(self) -> list[Path]:
        """Of uploads that are under way, in order."""
        ours = f"episodes/{self._org_id}/"
        keys = self._folder("uploads").glob("*/key")
        under_way = [key.parent for key in keys if key.read_text().startswith(ours)]
        return sorted(part for each in under_way for part in each.glob("0*"))

    def _folder(self, name: str) -> Path:
        return self._settings.data_dir / "blobs" / name


@contextlib.contextmanager
def _logging_as_it_was() -> Iterator[None]:
    """A server owns the logs of its process. Here they belong to the tests."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    levels = {name: logging.getLogger(name).level for name in _NOISY}
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)
        for name, before in levels.items():
            logging.getLogger(name).setLevel(before)


# --------------------------------------------------------------------------------------- faults


class _Faulty:
    """Between the network and the routes: writes down what comes in, and breaks what is to be broken."""

    def __init__(self, server: FaultyServer, app: ASGIApp) -> None:
        self._server = server
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {k.decode().lower(): v.decode() for k, v in scope.get("headers", ())}
        if scope["type"] != "http" or _UNSEEN in headers:
            await self._app(scope, receive, send)
            return
        seen = Seen(scope["method"], scope["path"], scope["query_string"].decode(), headers)
        server = self._server
        server.seen.append(seen)
        fault = next((f for f in server.faults if f.route in seen.route), None)
        if fault is not None:
            fault.times -= 1
            if not fault.times:
                server.faults.remove(fault)
        if server.before is not None:
            server.before(seen)
        if not server.knows_ranges:
            scope["headers"] = [each for each in scope["headers"] if each[0] != b"range"]

        async def noted() -> Message:
            message = await receive()
            seen.body += message.get("body", b"")
            return message

        if fault is None or fault.after or fault.do == "cut":
            out = _held_back(send, fault) if fault is not None else send
            for route, how in server.changes:
                if route in seen.route:
                    out = _changed(out, how)
            await self._app(scope, noted, _telling(out, server.after, seen))
            if fault is None or fault.do == "cut":
                return
        await _break(fault, noted if not fault.after else None, send)


def _telling(send: Send, tell: Callable[[Seen], None] | None, seen: Seen) -> Send:
    """The request has been acted on and the answer is about to leave."""

    async def telling(message: Message) -> None:
        if message["type"] == "http.response.start" and tell is not None:
            tell(seen)
        await send(message)

    return telling


def _changed(send: Send, how: Callable[[Any], Any]) -> Send:
    """The head waits until the length of the new body is known."""
    head: list[Message] = []

    async def changed(message: Message) -> None:
        if message["type"] == "http.response.start":
            head.append(message)
            return
        body = json.dumps(how(json.loads(message["body"]))).encode()
        kept = [(k, v) for k, v in head[0]["headers"] if k.lower() != b"content-length"]
        length = (b"content-length", str(len(body)).encode())
        await send({**head[0], "headers": [*kept, length]})
        await send({"type": "http.response.body", "body": body})

    return changed


def _held_back(send: Send, fault: Fault) -> Send:
    """Nothing of the answer leaves, or its first bytes only."""

    async def held(message: Message) -> None:
        if fault.do != "cut":
            return
        if message["type"] == "http.response.body":
            body = message.get("body", b"")[: fault.cut_after]
            await send({**message, "body": body, "more_body": True})
            await asyncio.sleep(0.05)
            _abort(send)
            return
        await send(message)

    return held


async def _break(fault: Fault, receive: Receive | None, send: Send) -> None:
    if fault.do == "drop":
        _abort(send)
    elif fault.do == "hang":
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(5)
        _abort(send)
    else:
        while receive is not None and (await receive()).get("more_body"):
            pass
        headers = [(k.lower().encode(), v.encode()) for k, v in fault.headers.items()]
        await send({"type": "http.response.start", "status": fault.status, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"error": "as told", "code": "told"}'})


def _abort(send: Send) -> None:
    """The connection breaks, as when a cable is pulled: uvicorn's send belongs to the request it answers."""
    send.__self__.transport.abort()  # type: ignore[attr-defined]
