"""Bad input and bad days: every refusal has one shape, says what to do, and leaves the server as it was."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.server.blob_servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, rclone_server
from tests.server.fixtures import StartServer
from tests.server.postgres_cluster import PostgresCluster
from tests.server.running import RunningServer
from tests.server.shared_server import BODY_LIMIT, shared_server

CREATE = "/api/ingest/episode"


@pytest.fixture(scope="module")
def server(running_server: StartServer) -> RunningServer:
    return shared_server(running_server)


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def post(client: httpx.Client, content: bytes, **headers: str) -> httpx.Response:
    sent = {"Content-Type": "application/json", **headers}
    return client.post(CREATE, content=content, headers=sent)


def is_problem(answer: httpx.Response, status: int, code: str) -> bool:
    body = answer.json()
    assert isinstance(body["error"], str)
    assert body["error"], "every refusal says what to do"
    assert answer.headers["content-type"] == "application/json"
    return (answer.status_code, body["code"]) == (status, code)


# ------------------------------------------------------------------------------------ bad bodies


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json",
        b"{",
        b'{"name": "a"} {}',
        b'{"metadata": {"x": NaN}}',
        b'{"metadata": {"x": Infinity}}',
        b'{"metadata": {"x": -Infinity}}',
        b'{"name": "\xff\xfe"}',
        b'{"name": "\xed\xa0\x80"}',
        b'{"name": "\\ud800"}',
        b"\xef\xbb\xbf{}",
        b'{"metadata": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
        b'{"metadata": {"a": ' + b"[" * 20000 + b"]" * 20000 + b"}}",
    ],
)
def test_what_is_not_json_is_refused(client: httpx.Client, content: bytes) -> None:
    assert is_problem(post(client, content), 400, "malformed_json")


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ([], "$"),
        ({"source": "dream"}, "$.source"),
        ({"name": "n" * 201}, "$.name"),
        ({"robot": "r" * 121}, "$.robot"),
        ({"request_uploads": ["audio"]}, "$.request_uploads[0]"),
        ({"request_uploads": "video"}, "$.request_uploads"),
        ({"seed": 1.5}, "$.seed"),
        ({"seed": True}, "$.seed"),
        ({"fps": -1}, "$.fps"),
        ({"metadata": []}, "$.metadata"),
        ({"tags": [1]}, "$.tags[0]"),
        ({"tags": ["t"] * 101}, "$.tags"),
        ({"otel": {"trace_id": "x", "span_id": "y", "traceparent": "z"}}, "$.otel.trace_id"),
    ],
)
def test_what_is_wrong_is_refused_by_its_place(client: httpx.Client, body: Any, where: str) -> None:
    answer = client.post(CREATE, json=body)
    assert is_problem(answer, 400, "invalid_value")
    assert answer.json()["where"] == where


@pytest.mark.parametrize(
    "metadata",
    [
        {"a": 10**400},
        {"k" * 300: 1},
        {"a": {"b": "\x00"}},
        {"nul\x00": 1},
        {"deep": json.loads("[" * 40 + "]" * 40)},
        {str(n): n for n in range(5001)},
    ],
)
def test_metadata_that_cannot_be_kept_is_refused(
    client: httpx.Client, metadata: dict[str, Any]
) -> None:
    content = json.dumps({"metadata": metadata}).encode()
    answer = post(client, content)
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_a_number_too_great_for_anything_is_refused(client: httpx.Client) -> None:
    assert is_problem(post(client, b'{"metadata": {"x": 1e999}}'), 400, "invalid_value")
    assert is_problem(post(client, b'{"seed": ' + b"9" * 5000 + b"}"), 400, "invalid_value")
    assert is_problem(client.post(CREATE, json={"seed": 10**41}), 400, "invalid_number")


def test_an_oversized_body_is_refused_whether_it_says_so_or_not(client: httpx.Client) -> None:
    large = b'{"name": "' + b"x" * BODY_LIMIT + b'"}'
    assert is_problem(post(client, large), 413, "body_too_large")
    chunks = iter([large[i : i + 1000] for i in range(0, len(large), 1000)])
    unannounced = client.post(CREATE, content=chunks, headers={"Content-Type": "application/json"})
    assert is_problem(unannounced, 413, "body_too_large")
    fits = b'{"metadata": {"a": "' + b"x" * (BODY_LIMIT - 100) + b'"}}'
    assert post(client, fits).status_code == 201


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/xml",
    ],
)
def test_another_content_type_is_refused(client: httpx.Client, content_type: str) -> None:
    answer = post(client, b"{}", **{"Content-Type": content_type})
    assert is_problem(answer, 415, "unsupported_media_type")


def test_json_may_name_its_charset(client: httpx.Client) -> None:
    answer = post(client, b"{}", **{"Content-Type": "Application/JSON; charset=utf-8"})
    assert answer.status_code == 201


NASTY = [
    "'; DROP TABLE episodes; --",
    "<script>alert(1)</script>",
    "../../../../etc/passwd",
    "{{7*7}} ${7*7} %s %n",
    "‮ 👩‍🚀 \u0000".rstrip("\u0000") + "\x07",
    "a\r\nSet-Cookie: x=y",
    "﷽" * 50,
]


@pytest.mark.parametrize("text", NASTY)
def test_any_text_comes_back_as_it_was(client: httpx.Client, text: str) -> None:
    names = ("name", "robot", "policy_version", "env_version", "git_sha")
    sent = {**dict.fromkeys(names, text), "tags": [text], "metadata": {text: text}}
    made = client.post(CREATE, json=sent)
    assert made.status_code == 201, made.text
    episode_id = made.json()["episode_id"]
    episode = client.get(f"/api/episodes/{episode_id}").json()
    assert {name: episode[name] for name in sent} == sent
    for name in (*names, "tag", f"metadata.{text}"):
        answer = client.get("/api/episodes", params={name: text, "limit": 200})
        assert episode_id in [each["id"] for each in answer.json()["episodes"]], name


def test_nul_is_refused_in_every_text(client: httpx.Client) -> None:
    bad = "a\x00b"
    for body in (
        *({name: bad} for name in ("name", "robot", "policy_version", "env_version", "git_sha")),
        {"tags": [bad]},
        {"metadata": {"a": bad}},
        {"metadata": {bad: 1}},
    ):
        assert is_problem(client.post(CREATE, json=body), 400, "invalid_text"), body
    key = {"Idempotency-Key": "k" * 256}
    assert is_problem(client.post(CREATE, json={}, headers=key), 400, "invalid_text")
    for name in ("name", "robot", "tag", "metadata.a", "seed"):
        answer = client.get("/api/episodes", params={name: bad})
        assert answer.status_code == (400 if name == "seed" else 200)


# ---------------------------------------------------------------------------------- bad addresses


@pytest.mark.parametrize(
    "query",
    [
        "polcy_version=a",
        "metadata.=a",
        "limit=0",
        "limit=201",
        "limit=x",
        "limit=٣",
        "seed=1.5",
        "seed=" + "9" * 99,
        "status=dead",
        "source=dream",
        "created_after=yesterday",
        "created_before=2026-13-01",
        "with_archived=perhaps",
        "cursor=x",
        "cursor=bm90IGEgY3Vyc29y",
        "name=a&name=b",
        "metadata.a=1&metadata.a=2",
        "&".join(f"tag={n}" for n in range(30)),
    ],
)
def test_a_search_that_cannot_be_meant_is_refused(client: httpx.Client, query: str) -> None:
    answer = client.get(f"/api/episodes?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]


@pytest.mark.parametrize(
    "bad_id",
    [
        "..",
        "../../etc/passwd",
        "%2e%2e%2f",
        "a\x00b",
        "' OR '1'='1",
        "x" * 3000,
        "<b>",
        "\udcff",
        "*",
    ],
)
def test_no_id_leads_anywhere_but_to_an_episode(client: httpx.Client, bad_id: str) -> None:
    quoted = quote(bad_id, safe="", errors="surrogateescape")
    for path in (f"/api/episodes/{quoted}", f"/api/episodes/{quoted}/artifact/{quoted}"):
        assert is_problem(client.get(path), 404, "not_found")
    path = f"/api/ingest/episode/{quoted}/finalize"
    assert is_problem(client.post(path, json={"status": "ready"}), 404, "not_found")


def test_what_is_not_there_is_a_404_and_never_a_redirect(client: httpx.Client) -> None:
    for path in ("/nothing", "/api/episodes/", "/api/ingest/episode/", "//api/episodes", "/api"):
        assert is_problem(client.get(path), 404, "not_found"), path
    answer = client.put("/api/episodes", json={})
    assert is_problem(answer, 405, "method_not_allowed")
    assert "GET" in answer.headers["allow"]


def test_whatever_a_client_accepts_it_gets_json(client: httpx.Client) -> None:
    for accept in ("text/html", "image/png;q=1", "nonsense", ""):
        answer = client.get("/api/episodes?limit=1", headers={"Accept": accept})
        assert answer.status_code == 200


def test_answers_are_not_for_caches_and_not_for_sniffing(client: httpx.Client) -> None:
    for path in ("/api/episodes?limit=1", "/nothing", "/healthz"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


# ----------------------------------------------------------------------------------- request ids


def test_a_request_id_is_kept_when_it_is_harmless(client: httpx.Client) -> None:
    def sent(request_id: str) -> str:
        return client.get("/healthz", headers={"X-Request-Id": request_id}).headers["x-request-id"]

    assert sent("robot-7.run_12") == "robot-7.run_12"
    for bad in ("short", "x" * 65, 'a"b\\c<d>efgh', "with space here"):
        assert sent(bad) != bad
    assert sent("") != sent("")


def test_the_log_has_no_secret_and_one_line_for_each_request(
    server: RunningServer, client: httpx.Client
) -> None:
    body = {"request_uploads": ["sensors"], "name": "a secret name"}
    made = client.post(CREATE, json=body, headers={"X-Request-Id": "find-this-line"}).json()
    url = made["upload_urls"][0]["url"]
    httpx.put(url, content=b"x", headers={"Content-Type": "application/octet-stream"})
    client.get("/api/episodes?name=private-search-term")
    log = server.log_path.read_text()
    for secret in (server.api_key, url.rsplit("/", 1)[1][:40], "private-search-term", body["name"]):
        assert str(secret) not in log
    lines = [json.loads(line) for line in log.splitlines()]
    mine = [line for line in lines if line.get("request_id") == "find-this-line"]
    assert len(mine) == 1
    assert (mine[0]["route"], mine[0]["status"], mine[0]["method"]) == (CREATE, 201, "POST")
    assert mine[0]["org_id"] == server.org_id


# ---------------------------------------------------------------------------------- bad days


def test_a_client_that_leaves_in_the_middle_harms_nobody(
    server: RunningServer, client: httpx.Client
) -> None:
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.port)) as leaving:
            head = f"POST {CREATE} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            auth = f"Authorization: Bearer {server.api_key}\r\nContent-Length: 100\r\n\r\n"
            leaving.sendall((head + auth + '{"name":').encode())
    assert client.post(CREATE, json={}).status_code == 201
    assert "request_failed" not in server.log_path.read_text()


def finalize(client: httpx.Client, episode_id: str) -> httpx.Response:
    return client.post(f"/api/ingest/episode/{episode_id}/finalize", json={"status": "ready"})


def test_a_full_disk_is_a_503_and_then_it_goes_on(
    server: RunningServer, client: httpx.Client
) -> None:
    """The disk is full for the server alone: its files may not grow."""
    kept = client.post(CREATE, json={"name": "before"}).json()["episode_id"]
    upload = client.post(CREATE, json={"request_uploads": ["sensors"]}).json()
    url, headers = upload["upload_urls"][0]["url"], {"Content-Type": "application/octet-stream"}
    assert server.process is not None
    pid = server.process.pid
    unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, unlimited[1]))
    try:
        refused = [
            client.post(CREATE, json={"name": "lost", "metadata": {"filler": "x" * 100_000}}),
            finalize(client, kept),
            httpx.put(url, content=b"y" * 100_000, headers=headers),
        ]
        for answer in refused:
            assert answer.status_code == 503, answer.text
            assert int(answer.headers["retry-after"]) > 0
            assert set(answer.json()) >= {"error", "code"}
        assert client.get(f"/api/episodes/{kept}").json()["status"] == "recording"
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
    assert httpx.put(url, content=b"y" * 100_000, headers=headers).is_success
    for episode_id in (kept, upload["episode_id"]):
        assert finalize(client, episode_id).json()["status"] == "ready"
    assert client.get("/api/episodes?name=lost").json()["episodes"] == []


def test_a_blob_store_that_is_gone_is_a_503_and_then_it_goes_on(
    server: RunningServer, client: httpx.Client
) -> None:
    made = client.post(CREATE, json={"request_uploads": ["sensors"]}).json()
    headers = {"Content-Type": "application/octet-stream"}
    assert httpx.put(made["upload_urls"][0]["url"], content=b"x", headers=headers).is_success
    blobs, unmounted = server.data_dir / "blobs", server.data_dir / "unmounted"
    blobs.rename(unmounted)
    try:
        down = finalize(client, made["episode_id"])
        assert is_problem(down, 503, "blob_store_unavailable")
        assert is_problem(client.get("/readyz"), 503, "not_ready")
        assert client.get("/healthz").status_code == 200
        assert client.post(CREATE, json={"name": "metadata only"}).status_code == 201
    finally:
        unmounted.rename(blobs)
    assert client.get("/readyz").status_code == 200
    assert finalize(client, made["episode_id"]).json()["status"] == "ready"


@pytest.mark.slow
def test_a_database_that_is_restarted_is_a_503_and_then_it_goes_on(
    running_server: StartServer,
) -> None:
    """A cluster of its own: others must not lose their connections."""
    with closing(PostgresCluster()) as cluster:
        url = cluster.new_database(migrated=True)
        with running_server(database_url=url) as server, server.client() as client:
            kept = client.post(CREATE, json={"name": "before"}).json()["episode_id"]
            cluster.pause()
            assert is_problem(client.post(CREATE, json={}), 503, "database_unavailable")
            assert client.get("/readyz").status_code == 503
            assert client.get("/healthz").status_code == 200
            cluster.resume()
            assert client.get("/readyz").status_code == 200
            assert client.get(f"/api/episodes/{kept}").json()["name"] == "before"
            assert client.post(CREATE, json={}).status_code == 201


@pytest.mark.slow
def test_an_s3_that_is_down_is_a_503_and_then_it_goes_on(
    running_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_REGION", REGION)
    with rclone_server(tmp_path) as s3:
        place = {"blobs_url": f"s3://{BUCKET}/episodes", "s3_endpoint": s3.url}
        with running_server(**place) as server, server.client() as client:
            made = client.post(CREATE, json={"request_uploads": ["sensors"]}).json()
            headers = {"Content-Type": "application/octet-stream"}
            assert httpx.put(
                made["upload_urls"][0]["url"], content=b"x", headers=headers
            ).is_success
            s3.kill()
            down = finalize(client, made["episode_id"])
            assert is_problem(down, 503, "blob_store_unavailable")
            assert is_problem(client.get("/readyz"), 503, "not_ready")
            kept = client.post(CREATE, json={}).json()["episode_id"]
            assert finalize(client, kept).is_success
            s3.start()
            assert finalize(client, made["episode_id"]).json()["status"] == "ready"
            path = f"/api/episodes/{made['episode_id']}/artifact/sensors"
            assert client.get(path, follow_redirects=True).content == b"x"
