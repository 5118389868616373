"""What goes wrong at our server becomes the right exception of the public client, and carries what we say about it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command import rollbook
from tests.interop.conftest import MakeRobotraceClient, Portal, portal_of
from tests.interop.crowded_proxy import CrowdedProxy
from tests.interop.public_client import robotrace
from tests.server.serving import Served, serving


def said(error: Any) -> dict[str, Any]:
    """Our answer, which the exception carries whole, and whose text is its own."""
    body: dict[str, Any] = error.response_body
    assert str(error) == body["error"]
    assert body["code"]
    return body


# --------------------------------------------------------------------------------- of what was asked


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"name": "x" * 201}, "$.name"),
        ({"source": "dream"}, "$.source"),
        ({"artifacts": ["smell"]}, "$.request_uploads"),
        ({"metadata": {"pose": {"__type": "robotrace.Pose3D"}}}, "pose"),
    ],
)
def test_400_is_a_validation_error_that_names_the_field(
    robotrace_client: Any, wrong: dict[str, Any], field: str
) -> None:
    with pytest.raises(robotrace.ValidationError) as refused:
        robotrace_client.start_episode(**wrong)
    assert refused.value.status_code == 400
    assert field in said(refused.value)["error"]


@pytest.mark.parametrize("key", ["nonsense", "rt_0123456789_" + "x" * 43])
def test_401_is_an_auth_error(
    portal: Portal, robotrace_client_of: MakeRobotraceClient, key: str
) -> None:
    client = robotrace_client_of(portal.base_url, key)
    with pytest.raises(robotrace.AuthError) as refused:
        client.log_episode()
    assert refused.value.status_code == 401
    assert "API key" in said(refused.value)["error"]
    assert key not in str(refused.value.response_body)


def test_401_also_for_a_key_that_was_revoked_a_moment_ago(
    portal: Portal, robotrace_client_of: MakeRobotraceClient
) -> None:
    key = portal.new_key("write")
    client = robotrace_client_of(portal.base_url, key)
    episode = client.start_episode(artifacts=())
    ends = {"Authorization": f"Bearer {key}"}
    assert portal.http.post("/api/cli/auth/revoke", headers=ends).is_success
    with pytest.raises(robotrace.AuthError):
        episode.finalize()
    assert portal.episode(episode.id)["status"] == "recording"


def test_403_is_a_plain_api_error(portal: Portal, robotrace_client_of: MakeRobotraceClient) -> None:
    with pytest.raises(robotrace.APIError) as refused:
        robotrace_client_of(portal.base_url, portal.new_key("read")).log_episode()
    assert type(refused.value) is robotrace.APIError
    assert refused.value.status_code == 403
    assert said(refused.value)["code"] == "forbidden"


def test_404_is_not_found_for_the_unknown_and_for_what_is_somebody_elses(
    portal: Portal, robotrace_client: Any, robotrace_client_of: MakeRobotraceClient
) -> None:
    made = rollbook("server", "bootstrap", "--data", portal.data_dir, "--org", "Other", "--json")
    other = robotrace_client_of(portal.base_url, json.loads(made.stdout)["api_key"])
    theirs = other.start_episode(artifacts=())
    answers = []
    for episode_id in (theirs.id, "00000000-0000-7000-8000-000000000000"):
        mine = robotrace_client.start_episode(artifacts=())
        mine.id = episode_id
        with pytest.raises(robotrace.NotFoundError) as refused:
            mine.finalize()
        assert refused.value.status_code == 404
        answers.append(said(refused.value))
    assert answers[0] == answers[1]
    theirs.finalize()
    assert theirs.status == "ready"


def test_409_is_a_conflict_when_the_episode_was_archived(
    portal: Portal, robotrace_client: Any
) -> None:
    episode = robotrace_client.start_episode(artifacts=())
    assert portal.http.post(f"/api/episodes/{episode.id}/archive").is_success
    with pytest.raises(robotrace.ConflictError) as refused:
        episode.finalize()
    assert refused.value.status_code == 409
    assert "archived" in said(refused.value)["error"]


# ---------------------------------------------------------------------------------- of signed uploads


def test_an_upload_that_was_tampered_with_is_refused_and_the_episode_says_why(
    portal: Portal, robotrace_client: Any, tmp_path: Path
) -> None:
    path = tmp_path / "sensors.npz"
    path.write_bytes(b"1234")
    episode = robotrace_client.start_episode(artifacts=["sensors"])
    granted, _, signature = episode.upload_urls["sensors"].url.rpartition(".")
    altered = f"{granted}.{signature[::-1]}"
    episode.upload_urls["sensors"] = robotrace.UploadUrl("sensors", altered, "", None)
    with pytest.raises(robotrace.APIError) as refused, episode:
        episode.upload("sensors", path)
    assert refused.value.status_code == 403
    assert "signature_invalid" in refused.value.response_body
    read = portal.episode(episode.id)
    assert read["status"] == "failed"
    assert "upload failed" in read["metadata"]["failure_reason"]
    assert read["artifacts"] == []


# ------------------------------------------------------------------------------ of servers in trouble


@pytest.fixture(scope="module")
def slow_down(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One request a second for each key, and no more."""
    data = tmp_path_factory.mktemp("slow-down") / "data"
    with serving(data, "--set", "requests_per_s=1", "--set", "requests_burst=1") as served:
        yield served


def test_429_is_waited_for_when_an_episode_is_created(
    slow_down: Served, robotrace_client_of: MakeRobotraceClient
) -> None:
    client = robotrace_client_of(slow_down.base_url, slow_down.api_key)
    began = time.monotonic()
    logged = [client.log_episode() for _ in range(2)]
    assert time.monotonic() - began >= 0.9, "the second one had to wait"
    assert [each.status for each in logged] == ["ready", "ready"]
    assert len({each.id for each in logged}) == 2


def test_429_is_a_rate_limit_error_with_the_seconds_to_wait(
    tmp_path: Path, robotrace_client_of: MakeRobotraceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robotrace._http.MAX_ATTEMPTS", 1)
    rate = ("--set", "requests_per_s=0.05", "--set", "requests_burst=1")
    with serving(tmp_path / "data", *rate) as served:
        client = robotrace_client_of(served.base_url, served.api_key)
        first = client.start_episode(artifacts=())
        with pytest.raises(robotrace.RateLimitError) as refused:
            client.start_episode(artifacts=())
        first.finalize()
        assert first.status == "ready", "what has begun may always end"
    assert refused.value.status_code == 429
    assert 1 <= refused.value.retry_after <= 20
    assert f"wait {refused.value.retry_after} seconds" in said(refused.value)["error"]


@pytest.mark.slow
def test_429_of_an_upload_is_waited_for_and_the_same_bytes_are_sent_again(
    tmp_path: Path, robotrace_client_of: MakeRobotraceClient
) -> None:
    """Our server never refuses a signed upload for its rate; what stands before it may."""
    path = tmp_path / "sensors.npz"
    path.write_bytes(bytes(range(256)) * 1000)
    with CrowdedProxy(refused_uploads=2, retry_after="1") as proxy:
        options = ("--public-url", proxy.base_url)
        with serving(tmp_path / "data", *options) as served:
            proxy.target = served.base_url
            logged = robotrace_client_of(proxy.base_url, served.api_key).log_episode(sensors=path)
            portal = portal_of(served, tmp_path / "data")
            with portal.http:
                assert portal.episode(logged.id)["status"] == "ready"
                assert portal.artifact(logged.id, "sensors") == path.read_bytes()
    assert proxy.uploads == [429, 429, 200]


@pytest.mark.slow
def test_5xx_is_a_server_error_that_says_what_is_wrong(
    tmp_path: Path, robotrace_client_of: MakeRobotraceClient
) -> None:
    """S3 does not answer: what was uploaded cannot be looked at, so nothing is finalized."""
    environment = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "eu-1"}
    options = ("--blobs", "s3://robots/here", "--s3-endpoint", "http://127.0.0.1:9")
    data = tmp_path / "data"
    with serving(data, *options, environment=environment, ready=False) as served:
        client = robotrace_client_of(served.base_url, served.api_key)
        episode = client.start_episode(artifacts=["sensors"])
        with pytest.raises(robotrace.ServerError) as refused:
            episode.finalize()
        without = client.log_episode(metadata={"needs": "no S3"})
        portal = portal_of(served, data)
        with portal.http:
            assert portal.episode(episode.id)["status"] == "recording"
    assert refused.value.status_code == 503
    assert said(refused.value)["code"] == "blob_store_unavailable"
    assert without.status == "ready"


def test_a_server_that_is_not_there_is_a_transport_error(
    robotrace_client_of: MakeRobotraceClient,
) -> None:
    client = robotrace_client_of("http://127.0.0.1:9", "rt_0123456789_" + "x" * 43)
    with pytest.raises(robotrace.TransportError):
        client.log_episode()
