"""The OpenAPI document: it lists every route, holds what it says, and nothing it allows breaks the server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from rollbook.app import create_app
from rollbook.cli.serve import OPTIONS
from rollbook.server.http.openapi import LeanRoute, document
from rollbook.server.settings import Settings
from tests.server.fixtures import StartServer
from tests.server.running import RunningServer
from tests.server.shared_server import new_organisation, shared_server

_APP = create_app(
    Settings(
        data_dir=Path("/nowhere"),
        database_url="sqlite:////nowhere/rollbook.db",
        blobs_url="file:///nowhere",
        secret=b"never used, because it never starts",
    )
)
DOCUMENT = document(_APP)
OPERATIONS = [
    (method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods
]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def server(running_server: StartServer) -> RunningServer:
    return shared_server(running_server)


# ------------------------------------------------------------------------------------ the document


def test_every_route_of_the_api_is_documented() -> None:
    listed = {
        (method, route.path)
        for route in _APP.routes
        if isinstance(route, LeanRoute) and route.path.startswith("/api/")
        for method in route.methods or ()
    }
    assert listed - set(OPERATIONS) == {("GET", "/api/openapi.json"), ("GET", "/api/docs")}


def test_every_route_and_setting_is_on_the_page_about_the_api() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "http-api.md").read_text()
    for method, path in OPERATIONS:
        assert f"`{method} {path}`" in page, f"{method} {path}"
    for each in fields(Settings):
        assert each.name in OPTIONS or f"`{each.name}`" in page, each.name


def test_every_status_is_on_the_page_about_the_api() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "http-api.md").read_text()
    for path, methods in DOCUMENT["paths"].items():
        for method, about in methods.items():
            for status in map(int, about["responses"]):
                if status == 200:
                    continue
                shown = (
                    f"`{method.upper()} {path}` → {status}" if status < 400 else f"\n| {status} |"
                )
                assert shown in page or _is_told_in_words(page, path, status), (
                    method,
                    path,
                    status,
                )


def _is_told_in_words(page: str, path: str, status: int) -> bool:
    """In the row of its path."""
    return any(f"{path}`" in row and f" {status}" in row for row in page.splitlines())


def test_operations_have_names_of_their_own_and_all_references_lead_somewhere() -> None:
    operations = [each for methods in DOCUMENT["paths"].values() for each in methods.values()]
    names = [each["operationId"] for each in operations]
    assert len(set(names)) == len(names)
    assert all(each["summary"] for each in operations)
    text = json.dumps(DOCUMENT)
    wanted = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert wanted <= set(DOCUMENT["components"]["schemas"])


def test_every_error_has_the_one_shape() -> None:
    for path, methods in DOCUMENT["paths"].items():
        for method, about in methods.items():
            for status, answer in about["responses"].items():
                if int(status) >= 400 and status != "410":
                    [content] = answer["content"].values()
                    name = content["schema"]["$ref"].rsplit("/", 1)[1]
                    schema = DOCUMENT["components"]["schemas"][name]
                    assert {"error", "code"} <= set(schema["properties"]), (method, path, status)


def test_what_takes_a_policy_revision_says_that_another_description_is_a_conflict() -> None:
    taking = {
        (method, path)
        for path, methods in DOCUMENT["paths"].items()
        for method, about in methods.items()
        if "PolicyRevision" in _schemas_within(about.get("requestBody", {}))
    }
    assert ("post", "/api/ingest/episodes") in taking
    assert ("post", "/api/ingest/episode") in taking
    for method, path in taking:
        assert "409" in DOCUMENT["paths"][path][method]["responses"], (method, path)


def _schemas_within(part: Any) -> set[str]:
    """Names of all schemas that a part of the document refers to, directly or through other schemas."""
    found: set[str] = set()
    waiting = [part]
    while waiting:
        names = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(waiting.pop())))
        waiting += [DOCUMENT["components"]["schemas"][name] for name in names - found]
        found |= names
    return found


def test_what_needs_a_key_takes_the_cookie_of_a_person_too() -> None:
    schemes = DOCUMENT["components"]["securitySchemes"]
    for methods in DOCUMENT["paths"].values():
        for method, about in methods.items():
            if "401" not in about["responses"] or "security" not in about:
                continue
            ways = [set(each) for each in about["security"]]
            assert {"key"} in ways
            assert ({"session"} if method == "get" else {"session", "csrf_token"}) in ways
            assert set().union(*ways) <= set(schemes)


def test_the_document_and_its_page_are_served_without_a_key(server: RunningServer) -> None:
    with httpx.Client(base_url=server.base_url) as anyone:
        served = anyone.get("/api/openapi.json")
        page = anyone.get("/api/docs")
    assert served.json() == json.loads(json.dumps(DOCUMENT))
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for _, path in OPERATIONS:
        assert path in page.text


def test_the_page_fetches_nothing_and_runs_nothing(server: RunningServer) -> None:
    page = httpx.get(f"{server.base_url}/api/docs")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "<script" not in page.text
    for target in re.findall(r"(?:src|href)=['\"]([^'\"]+)", page.text):
        assert target.startswith(("#", "/api/")), target


# ---------------------------------------------------------------------------------------- fuzzing


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=lambda each: str(each))
def test_nothing_the_document_allows_or_forbids_breaks_the_server(
    server: RunningServer, method: str, path: str
) -> None:
    fuzz(server, method, path, examples=2)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=lambda each: str(each))
def test_a_long_search_finds_nothing_that_breaks_the_server(
    server: RunningServer, method: str, path: str
) -> None:
    fuzz(server, method, path, examples=60)


def fuzz(server: RunningServer, method: str, path: str, *, examples: int) -> None:
    """As an organisation of its own, with an episode, an upload, an eval run and a scenario that really are there."""
    operation = schemathesis.openapi.from_dict(DOCUMENT)[path][method]
    who = new_organisation(server)
    real = dict(_real_ids(server, who.headers))
    cases = _cases(operation, real)

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def check(case: Any) -> None:
        answer = case.call(
            base_url=server.base_url, headers=dict(who.headers), allow_redirects=False, timeout=30
        )
        case.validate_response(answer, checks=CHECKS)

    check()


def _real_ids(server: RunningServer, headers: dict[str, str]) -> Iterator[tuple[str, str]]:
    with httpx.Client(base_url=server.base_url, headers=headers) as client:
        body = {"request_uploads": ["sensors"], "name": "to be fuzzed"}
        episode_id = client.post("/api/ingest/episode", json=body).json()["episode_id"]
        upload = client.post(
            f"/api/ingest/episode/{episode_id}/upload", json={"kind": "sensors", "size": 5}
        )
        wanted = {"candidate_policy_version": "v2", "baseline_episode_ids": [episode_id]}
        run = client.post("/api/ingest/eval-run", json=wanted)
        scenario = client.post("/api/verify/promote", json={"baseline_episode_id": episode_id})
    yield "episode_id", episode_id
    yield "eval_run_id", run.json()["eval_run_id"]
    yield "scenario_id", scenario.json()["scenario_id"]
    yield "upload_id", upload.json()["upload_id"]
    yield "kind", "sensors"


def _cases(operation: Any, real: dict[str, str]) -> st.SearchStrategy[Any]:
    allowed = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    modes = [allowed, allowed.map(lambda case: _with_real_ids(case, real))]
    if operation.body or operation.query:
        forbidden = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
        modes.append(forbidden.map(lambda case: _with_real_ids(case, real)))
    return st.one_of(modes)


def _with_real_ids(case: Any, real: dict[str, str]) -> Any:
    case.path_parameters.update(
        {name: value for name, value in real.items() if name in case.path_parameters}
    )
    return case
