"""A small server that speaks our wire protocol, over real HTTP, and fails when it is told to.

It keeps everything in memory and shows what it was asked, so that a test can see what the SDK really sent. What it
answers is what the real server answers; tests that need no faults run against both.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

KINDS = ("video", "sensors", "actions")
TYPES = dict.fromkeys(KINDS, "application/octet-stream") | {"video": "video/mp4"}
FIRST_KEY = "rt_0123456789_" + "a" * 43
SECOND_KEY = "rt_9876543210_" + "b" * 43


class Refused(Exception):
    def __init__(self, status: int, code: str, error: str) -> None:
        self.status, self.code, self.error = status, code, error


@dataclass
class Seen:
    """One request as it came in."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes = b""

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


@dataclass
class Blob:
    data: bytes
    sha256: str


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class WireServer:
    def __init__(self) -> None:
        self.base_url = ""
        self.api_key, self.other_api_key = FIRST_KEY, SECOND_KEY
        self.reset()
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def reset(self) -> None:
        self.episodes: dict[str, dict[str, Any]] = {}
        self.blobs: dict[tuple[str, str], Blob] = {}
        self.keys: dict[tuple[str, str], tuple[bytes, str]] = {}
        self.tokens: dict[str, dict[str, Any]] = {}
        self.uploads: dict[str, dict[str, Any]] = {}
        self.seen: list[Seen] = []
        self.faults: list[Fault] = []
        self.before: Callable[[Seen], None] | None = None
        self.after: Callable[[Seen], None] | None = None
        self.url_ttl_s = 1800.0
        self.has_parts = True
        self.has_storage = True
        self.part_answer: dict[str, Any] = {}
        self.answer_to_list: dict[str, Any] | None = None
        self.part_size = 1 << 20

    def fail(self, route: str, do: Literal["answer", "drop", "hang", "cut"], **facts: Any) -> None:
        self.faults.append(Fault(route, do, **facts))

    def asked(self, route: str) -> list[Seen]:
        return [each for each in self.seen if route in f"{each.method} {each.path}"]

    # ------------------------------------------------------------------------------ running

    def start(self) -> None:
        config = uvicorn.Config(
            _Faulty(self, self._app()),
            port=0,
            log_level="critical",
            lifespan="off",
            http="h11",
            timeout_keep_alive=75,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.base_url = f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(10)

    def _app(self) -> Starlette:
        def refused(_: Request, error: Exception) -> Response:
            assert isinstance(error, Refused)
            body = {"error": error.error, "code": error.code}
            return JSONResponse(body, error.status, headers={"X-Request-ID": "r-1"})

        ingest = "/api/ingest/episode"
        return Starlette(
            routes=[
                Route(ingest, self.create, methods=["POST"]),
                Route(f"{ingest}/{{id}}/upload-urls", self.mint, methods=["POST"]),
                Route(f"{ingest}/{{id}}/upload", self.begin, methods=["POST"]),
                Route(f"{ingest}/{{id}}/upload/{{upload}}", self.parts, methods=["GET"]),
                Route(
                    f"{ingest}/{{id}}/upload/{{upload}}/complete", self.complete, methods=["POST"]
                ),
                Route(f"{ingest}/{{id}}/finalize", self.finalize, methods=["POST"]),
                Route("/api/episodes", self.list),
                Route("/api/episodes/{id}", self.read, methods=["GET"]),
                Route("/api/episodes/{id}", self.delete, methods=["DELETE"]),
                Route("/api/episodes/{id}/archive", self.archive, methods=["POST"]),
                Route("/api/episodes/{id}/restore", self.restore, methods=["POST"]),
                Route("/api/episodes/{id}/artifact/{kind}", self.artifact),
                Route("/blobs/{token}", self.put_blob, methods=["PUT"]),
                Route("/blobs/{token}", self.get_blob, methods=["GET"]),
            ],
            exception_handlers={Refused: refused},
        )

    # ------------------------------------------------------------------------------- ingest

    async def create(self, request: Request) -> Response:
        org = self._org(request)
        body = await _object(request)
        if body.get("source", "real") not in ("real", "sim", "replay"):
            raise Refused(400, "invalid_value", "source is not one of real, sim, replay")
        if len(body.get("name") or "") > 200:
            raise Refused(400, "invalid_text", "name is too long")
        key = request.headers.get("idempotency-key")
        first = self.keys.get((org, key)) if key else None
        if first is not None:
            if first[0] != await request.body():
                raise Refused(409, "idempotency_conflict", "the key was used for another request")
            return self._created(request, self.episodes[first[1]])
        episode_id = str(uuid.uuid4())
        metadata = dict(body.get("metadata") or {})
        if "otel" in body:
            metadata["otel"] = body["otel"]
        episode = {
            **{name: body.get(name) for name in ("name", "robot", "policy_version", "env_version")},
            **{name: body.get(name) for name in ("git_sha", "seed", "fps")},
            **dict.fromkeys(("duration_s", "bytes_total", "failure_time_s")),
            "id": episode_id,
            "org": org,
            "source": body.get("source", "real"),
            "status": "recording",
            "metadata": metadata,
            "tags": body.get("tags") or [],
            "requested": list(body.get("request_uploads") or []),
            "created_at": now(),
            "updated_at": now(),
            "finalized": 0,
        }
        self.episodes[episode_id] = episode
        if key:
            self.keys[org, key] = (await request.body(), episode_id)
        return self._created(request, episode)

    def _created(self, request: Request, episode: dict[str, Any]) -> Response:
        body = {
            "episode_id": episode["id"],
            "status": episode["status"],
            "storage": "r2" if self.has_storage else "unconfigured",
            "upload_urls": self._urls(request, episode, self._open(episode)),
        }
        return JSONResponse(body, 201)

    def _open(self, episode: dict[str, Any]) -> list[str]:
        """A finalized episode gets no URLs for what it has."""
        if not self.has_storage:
            return []
        ended = episode["finalized"] > 0
        return [k for k in episode["requested"] if not (ended and (episode["id"], k) in self.blobs)]

    async def mint(self, request: Request) -> Response:
        episode = self._mine(request)
        kinds = (await _object(request))["request_uploads"]
        if episode["finalized"] and any((episode["id"], kind) in self.blobs for kind in kinds):
            raise Refused(409, "artifact_stored", "it is stored and finalized")
        episode["requested"] = list(dict.fromkeys([*episode["requested"], *kinds]))
        facts = {"episode_id": episode["id"], "storage": "r2"}
        return JSONResponse({**facts, "upload_urls": self._urls(request, episode, kinds)})

    async def finalize(self, request: Request) -> Response:
        episode = self._mine(request)
        body = await _object(request)
        if episode["status"] == "archived":
            raise Refused(409, "episode_archived", "the episode is archived; restore it first")
        for kind, claimed in (body.get("artifacts") or {}).items():
            blob = self.blobs.get((episode["id"], kind))
            if blob is None or claimed != {"sha256": blob.sha256, "size": len(blob.data)}:
                raise Refused(409, "artifact_mismatch", f"{kind} is not what was sent")
        episode["finalized"] += 1
        if episode["status"] == "recording":
            episode["status"] = body["status"]
        for name in ("duration_s", "fps", "bytes_total", "failure_time_s"):
            episode[name] = body.get(name, episode[name])
        episode["metadata"] |= body.get("metadata") or {}
        episode["updated_at"] = now()
        facts = {"status": episode["status"], "updated_at": episode["updated_at"]}
        return JSONResponse({"episode_id": episode["id"], **facts})

    # ------------------------------------------------------------------------------- parts

    async def begin(self, request: Request) -> Response:
        episode = self._mine(request)
        if not self.has_parts:
            raise Refused(404, "not_found", "there is no such route")
        body = await _object(request)
        upload_id = uuid.uuid4().hex
        self.uploads[upload_id] = {
            "episode": episode["id"],
            "kind": body["kind"],
            "size": body["size"],
            "count": math.ceil(body["size"] / self.part_size),
            "parts": {},
        }
        return self._upload_state(request, upload_id)

    async def parts(self, request: Request) -> Response:
        self._mine(request)
        return self._upload_state(request, self._upload(request))

    def _upload(self, request: Request) -> str:
        upload_id: str = request.path_params["upload"]
        if upload_id not in self.uploads:
            raise Refused(404, "not_found", "there is no such upload")
        return upload_id

    def _upload_state(self, request: Request, upload_id: str) -> Response:
        upload = self.uploads[upload_id]
        missing = [n for n in range(1, upload["count"] + 1) if n not in upload["parts"]]
        urls = [
            {"number": n, "url": self._token(request, upload=upload_id, part=n)} for n in missing
        ]
        done = [{"number": n, "size": len(data)} for n, data in sorted(upload["parts"].items())]
        body = {
            "upload_id": upload_id,
            "kind": upload["kind"],
            "size": upload["size"],
            "part_size": self.part_size,
            "part_count": upload["count"],
            "expires_at": now(),
            "completed": False,
        }
        return JSONResponse({**body, "parts": urls, "done": done, **self.part_answer}, 201)

    async def complete(self, request: Request) -> Response:
        episode = self._mine(request)
        upload_id = self._upload(request)
        upload = self.uploads[upload_id]
        body = await _object(request)
        for part in body["parts"]:
            data = upload["parts"].get(part["number"], b"")
            if hashlib.sha256(data).hexdigest() != part["sha256"]:
                raise Refused(409, "artifact_mismatch", f"part {part['number']} is another one")
        whole = b"".join(data for _, data in sorted(upload["parts"].items()))
        sha256 = hashlib.sha256(whole).hexdigest()
        if sha256 != body["sha256"]:
            raise Refused(409, "artifact_mismatch", "the whole is another one")
        self.blobs[episode["id"], upload["kind"]] = Blob(whole, sha256)
        facts = {"upload_id": upload_id, "kind": upload["kind"]}
        return JSONResponse({**facts, "size": len(whole), "sha256": sha256})

    # ------------------------------------------------------------------------------- blobs

    async def put_blob(self, request: Request) -> Response:
        allowed = self._allowed(request)
        data = await request.body()
        if "upload" in allowed:
            self.uploads[allowed["upload"]]["parts"][allowed["part"]] = data
        else:
            if request.headers.get("content-type") != TYPES[allowed["kind"]]:
                raise Refused(403, "signature", "the content type was not signed")
            blob = Blob(data, hashlib.sha256(data).hexdigest())
            self.blobs[allowed["episode"], allowed["kind"]] = blob
        return Response(status_code=200)

    async def get_blob(self, request: Request) -> Response:
        allowed = self._allowed(request)
        data = self.blobs[allowed["episode"], allowed["kind"]].data
        asked = request.headers.get("range", "")
        if not asked:
            return Response(data, headers={"Accept-Ranges": "bytes"})
        start = int(asked.removeprefix("bytes=").split("-")[0])
        if start >= len(data):
            raise Refused(416, "range", "there is nothing there")
        where = f"bytes {start}-{len(data) - 1}/{len(data)}"
        return Response(data[start:], 206, headers={"Content-Range": where})

    def _allowed(self, request: Request) -> dict[str, Any]:
        assert "authorization" not in request.headers, "a key was sent to a signed URL"
        allowed = self.tokens.get(request.path_params["token"])
        if allowed is None or time.time() > allowed["until"]:
            raise Refused(403, "expired", "this URL is not valid any more")
        return allowed

    def _token(self, request: Request, **allowed: Any) -> str:
        token = uuid.uuid4().hex
        self.tokens[token] = {**allowed, "until": time.time() + self.url_ttl_s}
        return f"{request.base_url}blobs/{token}"

    def _urls(self, request: Request, episode: dict[str, Any], kinds: list[str]) -> list[Any]:
        until = datetime.fromtimestamp(time.time() + self.url_ttl_s, UTC).isoformat()
        return [
            {
                "kind": kind,
                "url": self._token(request, episode=episode["id"], kind=kind),
                "expires_at": until.replace("+00:00", "Z"),
                "public_url": None,
            }
            for kind in kinds
        ]

    # ------------------------------------------------------------------------------- reading

    async def list(self, request: Request) -> Response:
        org = self._org(request)
        if self.answer_to_list is not None:
            return JSONResponse(self.answer_to_list)
        found = [
            each
            for each in reversed(self.episodes.values())
            if each["org"] == org
            and ("with_archived" in request.query_params or each["status"] != "archived")
            and all(
                _matches(each, name, value) for name, value in request.query_params.multi_items()
            )
        ]
        start = int(request.query_params.get("cursor", "0"))
        end = start + int(request.query_params.get("limit", "50"))
        following = str(end) if end < len(found) else None
        page = [self._shown(each) for each in found[start:end]]
        return JSONResponse({"episodes": page, "next_cursor": following})

    async def read(self, request: Request) -> Response:
        return JSONResponse(self._shown(self._mine(request)))

    async def delete(self, request: Request) -> Response:
        episode = self.episodes.pop(self._mine(request)["id"])
        return JSONResponse({"id": episode["id"], "deleted": True})

    async def archive(self, request: Request) -> Response:
        episode = self._mine(request)
        episode |= {"before": episode["status"], "status": "archived"}
        return JSONResponse(self._shown(episode))

    async def restore(self, request: Request) -> Response:
        episode = self._mine(request)
        episode["status"] = episode.pop("before", episode["status"])
        return JSONResponse(self._shown(episode))

    async def artifact(self, request: Request) -> Response:
        episode, kind = self._mine(request), request.path_params["kind"]
        if (episode["id"], kind) not in self.blobs:
            raise Refused(404, "not_found", f"the episode has no {kind}")
        return RedirectResponse(self._token(request, episode=episode["id"], kind=kind), 302)

    def _shown(self, episode: dict[str, Any]) -> dict[str, Any]:
        hidden = {"org", "requested", "finalized", "before"}
        artifacts = [
            {"kind": kind, "size": len(blob.data), "sha256": blob.sha256}
            for (owner, kind), blob in self.blobs.items()
            if owner == episode["id"]
        ]
        shown = {name: value for name, value in episode.items() if name not in hidden}
        return {**shown, "artifacts": artifacts}

    # -------------------------------------------------------------------------------- access

    def _org(self, request: Request) -> str:
        keys = {f"Bearer {self.api_key}": "first", f"Bearer {self.other_api_key}": "second"}
        org = keys.get(request.headers.get("authorization", ""))
        if org is None:
            raise Refused(401, "unauthorized", "the API key is missing, wrong or revoked")
        return org

    def _mine(self, request: Request) -> dict[str, Any]:
        episode = self.episodes.get(request.path_params["id"])
        if episode is None or episode["org"] != self._org(request):
            self._org(request)
            raise Refused(404, "not_found", "there is no such episode")
        return episode


async def _object(request: Request) -> dict[str, Any]:
    body = json.loads(await request.body(), parse_constant=lambda name: 1 / 0)
    assert isinstance(body, dict)
    return body


def _matches(episode: dict[str, Any], name: str, wanted: str) -> bool:
    if name in ("limit", "cursor", "with_archived"):
        return True
    if name == "tag":
        return wanted in episode["tags"]
    if name in ("created_after", "created_before"):
        stamp = str(episode["created_at"])
        return stamp >= wanted if name == "created_after" else stamp < wanted
    if name == "name":
        return wanted.casefold() in (episode["name"] or "").casefold()
    if name.startswith("metadata."):
        value: Any = episode["metadata"]
        for part in name.split(".")[1:]:
            value = value.get(part) if isinstance(value, dict) else None
        return wanted in (value, json.dumps(value))
    return str(episode[name]) == wanted


# --------------------------------------------------------------------------------------- faults


class _Faulty:
    """Between the network and the routes: writes down what comes in, and breaks what is to be broken."""

    def __init__(self, server: WireServer, app: ASGIApp) -> None:
        self._server = server
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {k.decode().lower(): v.decode() for k, v in scope["headers"]}
        seen = Seen(scope["method"], scope["path"], scope["query_string"].decode(), headers)
        server = self._server
        server.seen.append(seen)
        fault = next((f for f in server.faults if f.route in f"{seen.method} {seen.path}"), None)
        if fault is not None:
            fault.times -= 1
            if not fault.times:
                server.faults.remove(fault)
        if server.before is not None:
            server.before(seen)

        async def noted() -> Message:
            message = await receive()
            seen.body += message.get("body", b"")
            return message

        if fault is None or fault.after or fault.do == "cut":
            out = _held_back(send, fault) if fault is not None else send
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
