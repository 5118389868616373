"""Bad bodies and bad text on every route that takes a body: refused in the one shape of errors, or taken as they are.

What a route takes is read from the document that the server itself gives out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from tests.journeys.conftest import Deploy
from tests.journeys.nursery import MortalServer, Nursery
from tests.journeys.recorders import CREATE

BODY_LIMIT = 100_000
NOT_REACHED = (403, 404)
"""Some routes are for people who have signed in, and some are about what is not there."""
NASTY = {
    "code": "'; DROP TABLE episodes; --\"><script>alert(1)</script>{{7*7}} ${7*7} %s %n",
    "path": "../../../../etc/passwd\r\nSet-Cookie: x=y\r\n\r\n﷽﷽﷽",
    "nul": "nul \x00 inside",
    "half a pair": "\ud800 without its half",
}
NEEDED = {
    "status": "ready",
    "episodes": [],
    "kind": "sensors",
    "role": "member",
    "size": 9,
    "number": 1,
    "trace_id": "0" * 32,
    "span_id": "0" * 16,
}
"""For what a body cannot be without, where it is not any text."""


class Taker(NamedTuple):
    """A route that takes JSON. Where its path names an episode or an upload, there is one."""

    method: str
    path: str
    schema: dict[str, Any]

    def sent(
        self, client: httpx.Client, content: bytes, content_type: str = "application/json"
    ) -> httpx.Response:
        headers = {"Content-Type": content_type}
        return client.request(self.method, self.path, content=content, headers=headers)


class Described(NamedTuple):
    takers: list[Taker]
    schemas: dict[str, Any]


@pytest.fixture(scope="module")
def server(
    nursery: Nursery, deploy: Deploy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MortalServer]:
    folder = tmp_path_factory.mktemp("input")
    generous = dict.fromkeys(("requests_per_s", "requests_burst", "sign_ins_per_minute"), 100_000)
    limits = {"body_limit_bytes": BODY_LIMIT, **generous}
    with MortalServer(nursery, folder / "data", deploy(), **limits) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: MortalServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def described(client: httpx.Client) -> Described:
    document = client.get("/api/openapi.json").json()
    episode_id = client.post(CREATE, json={"name": "first"}).json()["episode_id"]
    begun = client.post(f"{CREATE}/{episode_id}/upload", json={"kind": "sensors", "size": 9})
    ids = {"{episode_id}": episode_id, "{upload_id}": begun.json()["upload_id"]}
    takers = []
    for path, methods in document["paths"].items():
        for name, value in ids.items():
            path = path.replace(name, value)
        for method, about in methods.items():
            for content in about.get("requestBody", {}).get("content", {}).values():
                takers.append(Taker(method.upper(), path, content["schema"]))
    assert len(takers) > 10
    return Described(takers, document["components"]["schemas"])


# ----------------------------------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    ("content", "content_type", "status", "code"),
    [
        (b'{"a": NaN}', "application/json", 400, "malformed_json"),
        (b'{"a": -Infinity}', "application/json", 400, "malformed_json"),
        (b'{"a": "' + b"x" * BODY_LIMIT + b'"}', "application/json", 413, "body_too_large"),
        (b"{}", "text/plain", 415, "unsupported_media_type"),
        (b"a=b", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
    ],
    ids=["nan", "infinity", "oversized", "text", "form"],
)
def test_no_route_takes_a_body_that_is_not_what_it_should_be(
    client: httpx.Client,
    described: Described,
    content: bytes,
    content_type: str,
    status: int,
    code: str,
) -> None:
    refused = 0
    for taker in described.takers:
        answer = taker.sent(client, content, content_type)
        if answer.status_code in NOT_REACHED:
            continue
        assert (answer.status_code, answer.json()["code"]) == (status, code), taker
        refused += 1
    assert refused > 8


# ------------------------------------------------------------------------------------------ texts


def with_text(schema: dict[str, Any], schemas: dict[str, Any], text: str) -> Iterator[Any]:
    """Every smallest value of that shape that holds the text somewhere."""
    for option in schema.get("anyOf", [schema]):
        option = schemas.get(option.get("$ref", "").rpartition("/")[2], option)
        if option.get("type") == "string":
            yield text
        elif option.get("type") == "array":
            for each in with_text(option.get("items", {}), schemas, text):
                yield [each]
        elif "properties" in option:
            needed = {name: NEEDED.get(name, "none") for name in option.get("required", ())}
            for name, inner in option["properties"].items():
                for each in with_text(inner, schemas, text):
                    yield {**needed, name: each}
        elif option.get("type") == "object":
            yield {text: text}


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY)
def test_any_text_anywhere_is_taken_or_refused_and_breaks_nothing(
    client: httpx.Client, described: Described, text: str
) -> None:
    statuses: Counter[int] = Counter()
    for taker in described.takers:
        for body in with_text(taker.schema, described.schemas, text):
            answer = taker.sent(client, json.dumps(body).encode())
            assert answer.status_code < 500, (taker, body, answer.text)
            assert answer.headers["content-type"] == "application/json"
            assert "set-cookie" not in answer.headers
            if answer.status_code >= 400:
                assert answer.json()["error"]
            statuses[answer.status_code] += 1
    assert statuses.total() > 30
    assert client.get("/readyz").status_code == 200
    names = [each["name"] for each in client.get("/api/episodes?limit=200").json()["episodes"]]
    assert "first" in names
    storable = not {"\x00", "\ud800"} & set(text)
    assert (text in names) is storable, "as it was sent, or not at all"
    assert (statuses[201] > 0) is storable
