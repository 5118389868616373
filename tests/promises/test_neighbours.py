"""A client and a server that are one minor version apart understand each other.

tests/golden/previous holds what crossed HTTP before this version: every answer of that server, and every request of
that SDK. It is replaced when a version is released, by the recordings of the version before. The next version is not
known; it may add keys, and neither side may mind. The public client, an older one still, is in tests/interop.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.promises.inner import RunningServer, described_routes
from tests.promises.transcripts import Transcript

PREVIOUS = Path(__file__).parents[1] / "golden" / "previous"
_METHODS = ("GET ", "POST ", "PUT ", "PATCH ", "DELETE ")


@dataclass(frozen=True)
class Message:
    """A JSON text of the previous version, and the type that this version reads it with."""

    where: str
    text: str
    shape: type

    def __str__(self) -> str:
        return self.where


def answers() -> Iterator[Message]:
    """Of the previous server."""
    method = path = ""
    status: int | None = None
    for line in (PREVIOUS / "wire.txt").read_text("utf-8").splitlines():
        if line.startswith(_METHODS):
            method, _, path = line.partition(" ")
            status = None
        elif line.startswith("→ "):
            status = int(line.split()[1]) if "application/json" in line else None
        elif not line:
            status = None
        elif status is not None and line.startswith("{"):
            shape = _route(method, path).get(status)
            if shape is not None:
                yield Message(f"{status} {method} {path}", line.replace("<number>", "1"), shape)


def requests() -> Iterator[Message]:
    """Of the previous SDK."""
    method = path = ""
    for line in (PREVIOUS / "sdk.txt").read_text("utf-8").splitlines():
        if line.startswith(_METHODS):
            method, _, path = line.partition(" ")
        elif line.startswith("  {"):
            shape = _route(method, path).get("takes")
            assert shape is not None, f"{method} {path} takes no body any more"
            yield Message(f"{method} {path}", line.strip(), shape)


@cache
def _route(method: str, path: str) -> dict[int | str, type]:
    """The types of a route: of its answers by status, and of what it takes."""
    bare = path.partition("?")[0]
    for known, template, shapes in described_routes():
        if known == method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), bare):
            return shapes
    return {}


ANSWERS, REQUESTS = list(answers()), list(requests())


def test_the_recordings_are_there() -> None:
    assert len(ANSWERS) > 100
    assert len(REQUESTS) > 10


@pytest.mark.parametrize("message", [*ANSWERS, *REQUESTS], ids=str)
def test_a_message_of_the_previous_version_is_read(message: Message) -> None:
    """A new key needs a default: the previous version does not send it."""
    msgspec.json.decode(message.text, type=message.shape)


@pytest.mark.parametrize("message", [*ANSWERS, *REQUESTS], ids=str)
def test_keys_that_a_later_version_adds_are_passed_over(message: Message) -> None:
    later = {**json.loads(message.text), "of_a_later_version": {"a": [1, None]}}
    msgspec.json.decode(json.dumps(later), type=message.shape)


def test_a_server_takes_what_a_later_client_sends(server: RunningServer) -> None:
    told = Transcript(server.base_url)
    try:
        body: dict[str, Any] = {"name": "later", "of_a_later_version": {"a": 1}}
        made = told.call("POST", "/api/ingest/episode", body, key=server.api_key)
        path = f"/api/ingest/episode/{made['episode_id']}/finalize"
        sent = {"status": "ready", "of_a_later_version": [1]}
        assert told.call("POST", path, sent, key=server.api_key)["status"] == "ready"
    finally:
        told.close()
