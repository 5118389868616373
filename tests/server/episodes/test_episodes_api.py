"""Episodes over HTTP, on SQLite and on PostgreSQL: what a robot, a training job and a person get."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from tests.server.fixtures import StartServer
from tests.server.people import shared_house
from tests.server.running import Access, RunningServer
from tests.server.shared_server import new_organisation, shared_server

EVERYTHING: dict[str, Any] = {
    "name": "night run 7",
    "source": "sim",
    "robot": "arm-3",
    "policy_version": "pi0-2",
    "env_version": "kitchen-4",
    "git_sha": "0123abc",
    "seed": 12345678901234567890123,
    "fps": 29.97,
    "metadata": {"task": {"name": "pick", "attempt": 3}, "note": "<b>'; DROP TABLE episodes; --"},
    "tags": ["night", "arm"],
}


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, running_server: StartServer) -> RunningServer:
    if request.param == "sqlite":
        return shared_server(running_server)
    return shared_house(request, "postgres").server


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def with_key(server: RunningServer, api_key: str) -> Access:
    return replace(server.first_org, api_key=api_key)


def create(client: httpx.Client, **values: Any) -> str:
    answer = client.post("/api/ingest/episode", json=values)
    assert answer.status_code == 201, answer.text
    episode_id: str = answer.json()["episode_id"]
    return episode_id


def finalize(client: httpx.Client, episode_id: str, **values: Any) -> httpx.Response:
    return client.post(
        f"/api/ingest/episode/{episode_id}/finalize", json={"status": "ready", **values}
    )


def read(client: httpx.Client, episode_id: str) -> dict[str, Any]:
    answer = client.get(f"/api/episodes/{episode_id}")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def found(client: httpx.Client, **params: Any) -> list[str]:
    answer = client.get("/api/episodes", params=params)
    assert answer.status_code == 200, answer.text
    return [each["id"] for each in answer.json()["episodes"]]


# --------------------------------------------------------------------------------- create and read


def test_nothing_has_to_be_said_about_an_episode(client: httpx.Client) -> None:
    answer = client.post("/api/ingest/episode", json={})
    assert answer.status_code == 201
    body = answer.json()
    episode_id = body.pop("episode_id")
    assert body == {"status": "recording", "storage": "r2", "upload_urls": []}
    episode = read(client, episode_id)
    assert (episode["source"], episode["name"], episode["metadata"]) == ("real", None, {})


def test_what_was_said_is_what_is_read(client: httpx.Client) -> None:
    episode = read(client, create(client, **EVERYTHING))
    assert {name: episode[name] for name in EVERYTHING} == EVERYTHING
    assert episode["status"] == "recording"
    assert episode["artifacts"] == episode["missing_artifacts"] == []
    made = datetime.fromisoformat(episode["created_at"])
    assert episode["created_at"].endswith("Z")
    assert abs((datetime.now(UTC) - made).total_seconds()) < 60


def test_trace_context_is_kept_in_the_metadata(client: httpx.Client) -> None:
    otel = {
        "trace_id": "a" * 32,
        "span_id": "b" * 16,
        "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
    }
    episode = read(client, create(client, otel=otel, metadata={"a": 1}))
    assert episode["metadata"] == {"a": 1, "otel": otel}


def test_a_name_that_the_server_does_not_know_is_passed_over(client: httpx.Client) -> None:
    assert read(client, create(client, name="a", from_the_future=[1, 2]))["name"] == "a"


def test_typed_metadata_has_the_shape_it_says(client: httpx.Client) -> None:
    wrong = {"arm": {"__type": "robotrace.Pose3D", "translation": [1, 2], "rotation": [0, 0, 0, 1]}}
    for path, body in (
        ("/api/ingest/episode", {"metadata": wrong}),
        (f"/api/ingest/episode/{create(client)}/finalize", {"status": "ready", "metadata": wrong}),
    ):
        answer = client.post(path, json=body)
        assert answer.status_code == 400
        assert answer.json()["field"] == "arm.translation"
    later = {"x": {"__type": "robotrace.Hologram", "beams": 3}}
    assert read(client, create(client, metadata=later))["metadata"] == later


def test_the_same_idempotency_key_gives_the_first_episode_again(client: httpx.Client) -> None:
    key = {"Idempotency-Key": f"robot-1-{time.time_ns()}"}
    first = client.post("/api/ingest/episode", json={"name": "a"}, headers=key)
    again = client.post("/api/ingest/episode", json={"name": "a"}, headers=key)
    other = client.post("/api/ingest/episode", json={"name": "b"}, headers=key)
    assert first.status_code == again.status_code == 201
    assert again.json()["episode_id"] == first.json()["episode_id"]
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")


# ---------------------------------------------------------------------------------------- finalize


def test_finalize_ends_a_recording(client: httpx.Client) -> None:
    episode_id = create(client, metadata={"a": 1, "b": 1}, fps=10)
    answer = finalize(client, episode_id, duration_s=12.5, bytes_total=7, metadata={"b": 2})
    assert answer.status_code == 200
    assert set(answer.json()) == {"episode_id", "status", "updated_at"}
    assert (answer.json()["episode_id"], answer.json()["status"]) == (episode_id, "ready")
    episode = read(client, episode_id)
    assert (episode["duration_s"], episode["bytes_total"], episode["fps"]) == (12.5, 7, 10)
    assert episode["metadata"] == {"a": 1, "b": 2}
    assert episode["updated_at"] == answer.json()["updated_at"]


def test_finalize_again_never_takes_the_status_back(client: httpx.Client) -> None:
    episode_id = create(client)
    assert finalize(client, episode_id).json()["status"] == "ready"
    again = finalize(client, episode_id, status="failed", metadata={"late": True})
    assert (again.status_code, again.json()["status"]) == (200, "ready")
    assert read(client, episode_id)["metadata"] == {"late": True}


def test_a_failure_says_when_and_why(client: httpx.Client) -> None:
    one = create(client)
    finalize(client, one, status="failed", duration_s=5, failure_time_s=99)
    assert read(client, one)["failure_time_s"] == 5
    other = create(client)
    finalize(client, other, status="failed", failure={"time_s": 1.25, "reason": "gripper slipped"})
    episode = read(client, other)
    assert episode["failure_time_s"] == 1.25
    assert episode["metadata"]["failure_reason"] == "gripper slipped"
    assert finalize(client, create(client), status="failed", failure_time_s=-1).status_code == 400


def test_finalize_needs_a_status_and_a_known_one(client: httpx.Client) -> None:
    episode_id = create(client)
    path = f"/api/ingest/episode/{episode_id}/finalize"
    for body in ({}, {"status": "archived"}, {"status": "recording"}, {"status": None}):
        assert client.post(path, json=body).status_code == 400
    assert read(client, episode_id)["status"] == "recording"


def test_an_archived_episode_is_closed_until_it_is_restored(client: httpx.Client) -> None:
    episode_id = create(client, name="kept away")
    archived = client.post(f"/api/episodes/{episode_id}/archive")
    assert (archived.status_code, archived.json()["status"]) == (200, "archived")
    for answer in (
        finalize(client, episode_id),
        client.post(f"/api/episodes/{episode_id}/tags", json={"add": ["x"]}),
        client.post(f"/api/ingest/episode/{episode_id}/upload-urls", json={}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "episode_archived")
    assert episode_id not in found(client)
    assert episode_id in found(client, with_archived="true")
    assert episode_id in found(client, status="archived")
    assert client.post(f"/api/episodes/{episode_id}/restore").json()["status"] == "recording"
    assert finalize(client, episode_id).status_code == 200


def test_a_batch_is_finalized_one_by_one(client: httpx.Client, server: RunningServer) -> None:
    good, other = create(client), create(client)
    with server.client(server.second_org) as neighbour:
        foreign = create(neighbour)
        sent = [
            {"episode_id": good, "status": "ready", "duration_s": 1},
            {"episode_id": foreign, "status": "ready"},
            {"episode_id": other, "status": "failed", "failure_time_s": 0.5},
            {"episode_id": good, "status": "ready", "artifacts": {"video": {"size": 3}}},
        ]
        answer = client.post("/api/ingest/episodes/finalize", json={"episodes": sent})
        assert answer.status_code == 200
        results = answer.json()["results"]
        assert [each["episode_id"] for each in results] == [good, foreign, other, good]
        assert results[0] == {
            "episode_id": good,
            "status": "ready",
            "updated_at": results[0]["updated_at"],
        }
        assert (results[1]["status_code"], results[1]["code"]) == (404, "not_found")
        assert results[2]["status"] == "failed"
        assert (results[3]["status_code"], results[3]["code"]) == (409, "artifact_mismatch")
        assert read(neighbour, foreign)["status"] == "recording"
    assert read(client, other)["failure_time_s"] == 0.5


# ----------------------------------------------------------------------------------------- find


def test_every_filter_finds_its_episodes_and_no_others(client: httpx.Client) -> None:
    mark = f"m{time.time_ns()}"
    wanted = create(client, **{**EVERYTHING, "policy_version": mark})
    finalize(client, wanted)
    create(client, policy_version=mark, name="another", metadata={"task": {"name": "place"}})
    for name, value in (
        ("env_version", "kitchen-4"),
        ("git_sha", "0123abc"),
        ("seed", EVERYTHING["seed"]),
        ("source", "sim"),
        ("robot", "arm-3"),
        ("name", "NIGHT"),
        ("status", "ready"),
        ("tag", ["night", "arm"]),
        ("metadata.task.name", "pick"),
        ("metadata.task.attempt", "3"),
        ("metadata.note", EVERYTHING["metadata"]["note"]),
    ):
        assert found(client, policy_version=mark, **{name: value}) == [wanted], name
    assert found(client, policy_version=mark, tag=["night", "day"]) == []
    assert len(found(client, policy_version=mark)) == 2


def test_a_list_can_be_cut_by_time(client: httpx.Client) -> None:
    mark = f"m{time.time_ns()}"
    first = create(client, policy_version=mark)
    between = read(client, first)["created_at"]
    second = create(client, policy_version=mark)
    later = read(client, second)["created_at"]
    assert found(client, policy_version=mark, created_after=between) == [second, first]
    assert found(client, policy_version=mark, created_after=later) == [second]
    assert found(client, policy_version=mark, created_before=later) == [first]
    assert found(client, policy_version=mark, created_before="1970-01-01") == []


def test_pages_give_every_episode_once_newest_first(client: httpx.Client) -> None:
    mark = f"m{time.time_ns()}"
    made = [create(client, policy_version=mark) for _ in range(7)]
    seen: list[str] = []
    cursor = None
    while True:
        params = {"policy_version": mark, "limit": "3", **({"cursor": cursor} if cursor else {})}
        page = client.get("/api/episodes", params=params).json()
        assert len(page["episodes"]) <= 3
        seen += [each["id"] for each in page["episodes"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == made[::-1]


def test_a_cursor_is_of_one_search(client: httpx.Client) -> None:
    mark = f"m{time.time_ns()}"
    for _ in range(2):
        create(client, policy_version=mark)
    page = client.get("/api/episodes", params={"policy_version": mark, "limit": 1}).json()
    other = {"policy_version": "another", "limit": "1", "cursor": page["next_cursor"]}
    assert client.get("/api/episodes", params=other).status_code == 400


# ---------------------------------------------------------------------------------------- change


def test_tags_are_added_and_removed(client: httpx.Client) -> None:
    episode_id = create(client, tags=["a", "b"])
    path = f"/api/episodes/{episode_id}/tags"
    answer = client.post(path, json={"add": ["c", "a"], "remove": ["b", "never there"]})
    assert (answer.status_code, answer.json()["tags"]) == (200, ["a", "c"])
    mark = f"t{time.time_ns()}"
    client.post(path, json={"add": [mark]})
    assert found(client, tag=mark) == [episode_id]
    client.post(path, json={"remove": [mark]})
    assert found(client, tag=mark) == []


def test_a_deleted_episode_is_gone(client: httpx.Client) -> None:
    mark = f"m{time.time_ns()}"
    episode_id = create(client, policy_version=mark, request_uploads=["sensors"])
    answer = client.delete(f"/api/episodes/{episode_id}")
    assert (answer.status_code, answer.json()) == (200, {"id": episode_id, "deleted": True})
    assert client.get(f"/api/episodes/{episode_id}").status_code == 404
    assert client.delete(f"/api/episodes/{episode_id}").status_code == 404
    assert found(client, policy_version=mark, with_archived="true") == []


# ------------------------------------------------------------------------------------ who may


def routes_of(episode_id: str, upload_id: str) -> list[tuple[str, str, Any]]:
    episode, ingest = f"/api/episodes/{episode_id}", f"/api/ingest/episode/{episode_id}"
    return [
        ("GET", episode, None),
        ("GET", f"{episode}/artifact/sensors", None),
        ("POST", f"{episode}/tags", {"add": ["mine"]}),
        ("POST", f"{episode}/archive", None),
        ("POST", f"{episode}/restore", None),
        ("POST", f"{ingest}/finalize", {"status": "failed"}),
        ("POST", f"{ingest}/upload-urls", {}),
        ("POST", f"{ingest}/upload", {"kind": "sensors", "size": 5}),
        ("GET", f"{ingest}/upload/{upload_id}", None),
        ("POST", f"{ingest}/upload/{upload_id}/complete", {}),
        ("DELETE", f"{ingest}/upload/{upload_id}", None),
        ("DELETE", episode, None),
    ]


def test_an_id_of_somebody_else_and_an_unknown_id_are_the_same_404(
    client: httpx.Client, server: RunningServer
) -> None:
    unknown = "01890000-0000-7000-8000-000000000000"
    with server.client(server.second_org) as neighbour:
        foreign = create(neighbour, request_uploads=["sensors"])
        started = neighbour.post(
            f"/api/ingest/episode/{foreign}/upload", json={"kind": "sensors", "size": 5}
        ).json()
        before = read(neighbour, foreign)
        theirs = routes_of(foreign, started["upload_id"])
        for (method, path, body), (_, nowhere, _) in zip(
            theirs, routes_of(unknown, unknown), strict=True
        ):
            seen = client.request(method, path, json=body)
            missing = client.request(method, nowhere, json=body)
            assert seen.status_code == missing.status_code == 404, path
            assert seen.content == missing.content, path
            assert _stable(seen) == _stable(missing), path
        assert read(neighbour, foreign) == before
        assert foreign not in found(client, with_archived="true", limit=200)


def _stable(answer: httpx.Response) -> dict[str, str]:
    return {k: v for k, v in answer.headers.items() if k not in ("date", "x-request-id")}


def test_a_key_may_come_in_three_headers(server: RunningServer) -> None:
    ways = [
        {"Authorization": f"Bearer {server.api_key}"},
        {"Authorization": f"bearer  {server.api_key}"},
        {"X-RoboTrace-Key": server.api_key},
        {"X-Rollbook-Key": server.api_key},
    ]
    with httpx.Client(base_url=server.base_url) as nobody:
        answers = [nobody.get("/api/episodes?limit=1", headers=headers) for headers in ways]
    assert [answer.status_code for answer in answers] == [200] * len(ways)


def test_every_bad_key_gets_the_same_answer_on_every_route(server: RunningServer) -> None:
    good = server.api_key
    altered = good[:-1] + ("A" if good[-1] != "A" else "B")
    bad: list[dict[str, str]] = [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": f"Basic {good}"},
        {"Authorization": f"Bearer {altered}"},
        {"Authorization": f"Bearer rt_{'x' * 10}_{'y' * 43}"},
        {"Authorization": f"Bearer {good}x"},
        {"X-RoboTrace-Key": "rt_' OR 1=1 --"},
        {"Authorization": "Bearer nonsense", "X-Rollbook-Key": good},
    ]
    routes = [
        *routes_of("x", "y"),
        ("POST", "/api/ingest/episode", {}),
        ("GET", "/api/episodes", None),
    ]
    with httpx.Client(base_url=server.base_url) as nobody:
        seen = {
            (answer.status_code, answer.text)
            for answer in (
                *(nobody.get("/api/episodes", headers=headers) for headers in bad),
                *(nobody.request(method, path, json=body) for method, path, body in routes),
            )
        }
    assert len(seen) == 1
    assert next(iter(seen))[0] == 401


def test_a_revoked_key_does_nothing_from_the_next_request_on(
    server: RunningServer, client: httpx.Client
) -> None:
    key = server.new_key("write").api_key
    key_id = key.split("_")[1]
    with server.client(with_key(server, key)) as short:
        episode_id = create(short)
        assert read(short, episode_id)["created_by"] == f"key:{key_id}"
        assert short.delete(f"/api/keys/{key_id}").status_code == 200
        for answer in (
            short.get(f"/api/episodes/{episode_id}"),
            short.post("/api/ingest/episode", json={}),
            finalize(short, episode_id),
        ):
            assert answer.status_code == 401
    assert read(client, episode_id)["status"] == "recording"


def test_a_read_only_key_reads_and_changes_nothing(
    server: RunningServer, client: httpx.Client
) -> None:
    episode_id = create(client)
    with server.client(server.new_key("read")) as viewer:
        assert viewer.get(f"/api/episodes/{episode_id}").status_code == 200
        for method, path, body in routes_of(episode_id, "x"):
            if method != "GET" or "/upload/" in path:
                answer = viewer.request(method, path, json=body)
                assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), path


# -------------------------------------------------------------------------------------- quotas


def test_a_quota_of_episodes_is_kept_also_by_many_at_once(running_server: StartServer) -> None:
    server = shared_server(running_server)
    with server.client(new_organisation(server, quota_episodes=3)) as client:
        with ThreadPoolExecutor(6) as pool:
            calls = [pool.submit(client.post, "/api/ingest/episode", json={}) for _ in range(6)]
        made = sorted((call.result() for call in calls), key=lambda answer: answer.status_code)
        assert [each.status_code for each in made] == [201, 201, 201, 403, 403, 403]
        assert made[-1].json()["code"] == "quota_exceeded"
        client.delete(f"/api/episodes/{made[0].json()['episode_id']}")
        assert client.post("/api/ingest/episode", json={}).status_code == 201
        assert client.post("/api/ingest/episode", json={}).status_code == 403
