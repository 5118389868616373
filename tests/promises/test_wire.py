"""What crosses HTTP is a promise: every answer, character for character, and what OpenAPI says of it."""

from __future__ import annotations

import re

import httpx

from tests.promises.inner import RunningServer
from tests.promises.openapi_shapes import bare, problems, routes
from tests.promises.recordings import assert_kept, assert_same, load_json, load_text
from tests.promises.wire_script import wire_transcript


def test_every_answer_is_the_recorded_text(server: RunningServer) -> None:
    assert_same("wire.txt", load_text("wire.txt"), wire_transcript(server))


def test_the_openapi_document_still_says_all_that_was_recorded(server: RunningServer) -> None:
    found = bare(httpx.get(f"{server.base_url}/api/openapi.json").json())
    assert_kept("openapi.json", problems(load_json("openapi.json"), found))


def test_the_script_calls_every_recorded_route() -> None:
    called = re.findall(r"^(GET|POST|PUT|PATCH|DELETE) (/[^?\n]*)", load_text("wire.txt"), re.M)
    missed = [
        f"{method} {path}"
        for method, path in routes(load_json("openapi.json"))
        if not any(
            method == other and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), at)
            for other, at in called
        )
    ]
    assert missed == []
