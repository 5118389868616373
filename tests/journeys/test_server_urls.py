"""Signed URLs in the wrong hands, at the wrong time, or changed on the way: small and team servers refuse alike."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest

from rollbook.client import Client
from rollbook.contracts.wire import uploads
from rollbook.server.blobs.signing import Grant, UrlSigner
from tests.journeys.conftest import Deploy
from tests.journeys.nursery import MortalServer, Nursery, plain_client
from tests.journeys.recorders import BYTES, CREATE

EVIL = "evil.example"
TTL_S = 4
REFUSED = (400, 403)
"""Which of them an S3 says to an expired URL differs."""


@pytest.fixture(scope="module")
def server(
    nursery: Nursery, deploy: Deploy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MortalServer]:
    """Its URLs are soon over; all tests of one deployment share it."""
    folder = tmp_path_factory.mktemp("urls")
    ends = {"upload_ttl_s": TTL_S, "download_ttl_s": TTL_S}
    with MortalServer(nursery, folder / "data", deploy(), **ends) as server:
        yield server


@pytest.fixture
def client(server: MortalServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def storage() -> Iterator[httpx.Client]:
    """Whoever has a URL and nothing else."""
    with plain_client() as client:
        yield client


def start(client: httpx.Client) -> tuple[str, str]:
    made = client.post(CREATE, json={"request_uploads": ["sensors"]}).raise_for_status().json()
    return made["episode_id"], made["upload_urls"][0]["url"]


def finalize(client: httpx.Client, episode_id: str) -> dict[str, Any]:
    answer = client.post(f"{CREATE}/{episode_id}/finalize", json={"status": "ready"})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = client.get(f"/api/episodes/{episode_id}").json()
    return body


def recorded(client: httpx.Client, storage: httpx.Client, data: bytes) -> str:
    episode_id, url = start(client)
    assert storage.put(url, content=data, headers=BYTES).is_success
    assert finalize(client, episode_id)["missing_artifacts"] == []
    return episode_id


def location(client: httpx.Client, episode_id: str) -> str:
    answer = client.get(f"/api/episodes/{episode_id}/artifact/sensors")
    assert answer.status_code == 302, answer.text
    return answer.headers["location"]


# ---------------------------------------------------------------------------------------------- time


@pytest.mark.parametrize(
    "deploy", ["small", pytest.param("team", marks=pytest.mark.slow)], indirect=True
)
def test_a_url_ends_when_its_time_is_over_and_a_new_one_is_there_for_the_asking(
    client: httpx.Client, storage: httpx.Client
) -> None:
    whole_id = recorded(client, storage, b"whole")
    download = location(client, whole_id)
    late_id, late = start(client)
    time.sleep(TTL_S + 1.1)
    assert storage.put(late, content=b"late", headers=BYTES).status_code in REFUSED
    assert finalize(client, late_id)["missing_artifacts"] == ["sensors"]
    assert storage.get(download).status_code in REFUSED

    assert storage.get(location(client, whole_id)).content == b"whole"
    minted = client.post(f"{CREATE}/{late_id}/upload-urls", json={}).json()
    url = minted["upload_urls"][0]["url"]
    assert storage.put(url, content=b"in time", headers=BYTES).is_success
    assert finalize(client, late_id)["missing_artifacts"] == []


class WrongClock(datetime):
    ahead = timedelta()

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> WrongClock:
        return cls.fromtimestamp((datetime.now(tz) + cls.ahead).timestamp(), tz)


@pytest.mark.parametrize("ahead", [timedelta(days=-1), timedelta(days=1)], ids=["behind", "ahead"])
def test_a_robot_whose_clock_is_wrong_records_all_the_same(
    server: MortalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: timedelta
) -> None:
    (tmp_path / "sensors.bin").write_bytes(b"at some time")
    monkeypatch.setattr(uploads, "datetime", WrongClock)
    monkeypatch.setattr(WrongClock, "ahead", ahead)
    key, cache = server.api_key, tmp_path / "cache"
    with Client(api_key=key, base_url=server.base_url, cache=cache) as robot:
        made = robot.log_episode(sensors=tmp_path / "sensors.bin")
        assert made.id is not None
        assert robot.episode(made.id).fetch("sensors").read_bytes() == b"at some time"


@pytest.mark.parametrize("deploy", ["small"], indirect=True)
def test_urls_of_a_process_whose_clock_is_off_last_shorter_or_longer_and_never_for_good(
    server: MortalServer, client: httpx.Client, storage: httpx.Client
) -> None:
    """Several processes may sign with one secret, and their clocks differ. In a team the clock of S3 counts."""
    episode_id, _ = start(client)
    secret = (server.data_dir / "secret.key").read_bytes()
    key = f"episodes/{server.org_id}/{episode_id}/sensors.npz"

    def put_signed_by_one_that_is(ahead_s: float) -> int:
        signer = UrlSigner(secret, clock=lambda: time.time() + ahead_s)
        grant = Grant("PUT", key, signer.expiry(1800), BYTES["Content-Type"])
        url = signer.url(server.base_url, grant)
        return storage.put(url, content=b"x", headers=BYTES).status_code

    assert [put_signed_by_one_that_is(s) for s in (-1700, 0, 1700)] == [200, 200, 200]
    assert [put_signed_by_one_that_is(s) for s in (-1801, -86_400)] == [403, 403]


# ------------------------------------------------------------------------------------ altered, replayed


def altered(url: str, other: str) -> Iterator[str]:
    """Every part of a URL that somebody might want to be another."""
    if "X-Amz-Signature" in url:
        yield from altered_for_s3(url, other)
        return
    place, _, token = url.rpartition("/")
    grant, _, signature = token.partition(".")
    other_grant = other.rpartition("/")[2].partition(".")[0]
    yield f"{place}/{grant}.{flipped(signature)}"
    yield f"{place}/{flipped(grant)}.{signature}"
    yield f"{place}/{other_grant}.{signature}"
    yield f"{place}/{grant}"
    yield f"{place}/{grant}."
    yield f"{place}/{token}/../{token[:-1]}"


def altered_for_s3(url: str, other: str) -> Iterator[str]:
    split = urlsplit(url)
    query = {name: values[0] for name, values in parse_qs(split.query).items()}
    for name in ("X-Amz-Signature", "X-Amz-Credential"):
        yield split._replace(query=urlencode({**query, name: flipped(query[name])})).geturl()
    yield split._replace(query=urlencode({**query, "X-Amz-Expires": "604800"})).geturl()
    yield split._replace(path=urlsplit(other).path).geturl()
    yield split._replace(query="").geturl()


def flipped(text: str) -> str:
    middle = len(text) // 2
    return text[:middle] + ("A" if text[middle] != "A" else "B") + text[middle + 1 :]


def test_an_upload_url_that_was_changed_stores_nothing(
    client: httpx.Client, storage: httpx.Client
) -> None:
    (episode_id, url), (another_id, other) = start(client), start(client)
    for changed in altered(url, other):
        answer = storage.put(changed, content=b"forged", headers=BYTES)
        assert 400 <= answer.status_code < 500, changed
    for wrong in ({"Content-Type": "text/html"}, {}):
        assert storage.put(url, content=b"forged", headers=wrong).status_code in REFUSED
    assert storage.get(url).status_code in REFUSED, "a URL to put with is none to get with"
    for each in (episode_id, another_id):
        assert finalize(client, each)["missing_artifacts"] == ["sensors"]


def test_a_download_url_that_was_changed_shows_nothing(
    client: httpx.Client, storage: httpx.Client
) -> None:
    whole_id, other_id = (recorded(client, storage, data) for data in (b"whole", b"other"))
    other = location(client, other_id)
    for changed in altered(location(client, whole_id), other):
        assert 400 <= storage.get(changed).status_code < 500, changed
    url = location(client, whole_id)
    assert storage.put(url, content=b"forged", headers=BYTES).status_code in REFUSED
    assert storage.get(url).content == b"whole"


def test_urls_end_with_their_episode(client: httpx.Client, storage: httpx.Client) -> None:
    episode_id = recorded(client, storage, b"soon gone")
    download = location(client, episode_id)
    assert storage.get(download).content == b"soon gone"
    assert client.delete(f"/api/episodes/{episode_id}").status_code == 200
    assert storage.get(download).status_code == 404


# ------------------------------------------------------------------------------------ forged hosts


FORGED = (
    {"Host": EVIL},
    {"X-Forwarded-Host": EVIL, "X-Forwarded-Proto": "https", "Forwarded": f"host={EVIL}"},
    {"X-Original-URL": f"http://{EVIL}/", "X-Rewrite-URL": f"http://{EVIL}/"},
    {"Origin": f"http://{EVIL}", "Referer": f"http://{EVIL}/"},
)


def test_no_header_leads_a_url_elsewhere(client: httpx.Client, storage: httpx.Client) -> None:
    episode_id = recorded(client, storage, b"here")
    other_id, _ = start(client)
    asked: tuple[tuple[str, str, Any], ...] = (
        ("POST", CREATE, {"request_uploads": ["video"]}),
        ("POST", f"{CREATE}/{other_id}/upload-urls", {}),
        ("POST", f"{CREATE}/{other_id}/upload", {"kind": "video", "size": 9}),
        ("GET", f"/api/episodes/{episode_id}/artifact/sensors", None),
        ("POST", "/api/cli/auth/start", {}),
        ("GET", "/sign-in", None),
        ("GET", "/no/such/page", None),
    )
    for forged in FORGED:
        for method, path, body in asked:
            answer = client.request(method, path, json=body, headers=forged)
            assert answer.status_code < 500
            assert f"//{EVIL}" not in answer.text
            assert EVIL not in str(answer.headers)
