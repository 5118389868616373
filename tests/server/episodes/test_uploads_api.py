"""Artifacts on their way in and out: signed URLs, what is checked at finalize, large files in parts."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rollbook.app import create_app
from rollbook.server.blobs.file_blobs import LocalBlobs
from rollbook.server.bootstrap import bootstrap
from rollbook.server.db.migrate import migrate
from rollbook.server.db.open import open_database
from rollbook.server.settings import Settings
from tests.server.blob_servers import (
    ACCESS_KEY,
    BUCKET,
    REGION,
    SECRET_KEY,
    create_bucket,
    moto_server,
)
from tests.server.fixtures import StartServer
from tests.server.running import Access, RunningServer
from tests.server.shared_server import ARTIFACT_LIMIT, new_organisation, shared_server

OCTETS = {"Content-Type": "application/octet-stream"}
MB = 1 << 20


@pytest.fixture(scope="module")
def local(running_server: StartServer) -> RunningServer:
    return shared_server(running_server)


@pytest.fixture(scope="module", params=["local", pytest.param("s3", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest, running_server: StartServer) -> Iterator[RunningServer]:
    """On local disk, whose URLs are ours, and on S3, whose URLs go past us."""
    if request.param == "local":
        yield shared_server(running_server)
        return
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        patch.setenv("AWS_REGION", REGION)
        with moto_server(Path(folder)) as s3:
            create_bucket(s3)
            place = {"blobs_url": f"s3://{BUCKET}/some/prefix", "s3_endpoint": s3.url}
            with running_server(artifact_limit_bytes=ARTIFACT_LIMIT, **place) as started:
                yield started


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def storage() -> Iterator[httpx.Client]:
    """Speaks to signed URLs, with no key at all."""
    with httpx.Client(timeout=30) as client:
        yield client


def created(client: httpx.Client, *kinds: str) -> tuple[str, dict[str, str]]:
    answer = client.post("/api/ingest/episode", json={"request_uploads": kinds})
    assert answer.status_code == 201, answer.text
    body = answer.json()
    return body["episode_id"], {each["kind"]: each["url"] for each in body["upload_urls"]}


def finalize(client: httpx.Client, episode_id: str, **values: Any) -> httpx.Response:
    path = f"/api/ingest/episode/{episode_id}/finalize"
    return client.post(path, json={"status": "ready", **values})


def recorded(client: httpx.Client, storage: httpx.Client, content: bytes) -> tuple[str, str]:
    """A finalized episode with sensors; its id, and the URL they were put to."""
    episode_id, urls = created(client, "sensors")
    assert storage.put(urls["sensors"], content=content, headers=OCTETS).is_success
    assert finalize(client, episode_id).is_success
    return episode_id, urls["sensors"]


def download(client: httpx.Client, episode_id: str, kind: str = "sensors") -> httpx.Response:
    return client.get(f"/api/episodes/{episode_id}/artifact/{kind}", follow_redirects=True)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# ------------------------------------------------------------------------------------- signed URLs


def test_every_slot_that_is_asked_for_gets_a_url(client: httpx.Client) -> None:
    kinds = ["actions", "video", "sensors", "actions"]
    body = client.post("/api/ingest/episode", json={"request_uploads": kinds}).json()
    assert body["storage"] == "r2"
    assert [each["kind"] for each in body["upload_urls"]] == ["actions", "video", "sensors"]
    for each in body["upload_urls"]:
        assert set(each) == {"kind", "url", "expires_at", "public_url"}
        assert each["public_url"] is None
        assert each["url"].startswith("http://127.0.0.1:")
        left = datetime.fromisoformat(each["expires_at"]) - datetime.now(UTC)
        assert 1700 < left.total_seconds() <= 1800


def test_what_is_put_is_what_comes_back(client: httpx.Client, storage: httpx.Client) -> None:
    content = os.urandom(300_000)
    episode_id, _ = recorded(client, storage, content)
    redirect = client.get(f"/api/episodes/{episode_id}/artifact/sensors")
    assert (redirect.status_code, redirect.headers["cache-control"]) == (302, "no-store")
    answer = storage.get(redirect.headers["location"])
    assert (answer.status_code, answer.content) == (200, content)
    part = storage.get(redirect.headers["location"], headers={"Range": "bytes=100-199"})
    assert (part.status_code, part.content) == (206, content[100:200])
    episode = client.get(f"/api/episodes/{episode_id}").json()
    [artifact] = episode["artifacts"]
    assert (artifact["kind"], artifact["size"]) == ("sensors", len(content))
    assert artifact["sha256"] == sha256(content)
    assert artifact["playable"] is None


def test_an_empty_slot_is_a_404(client: httpx.Client, storage: httpx.Client) -> None:
    episode_id, urls = created(client, "sensors", "actions")
    for kind in ("sensors", "actions", "video", "nonsense"):
        assert download(client, episode_id, kind).status_code == 404
    storage.put(urls["actions"], content=b"early", headers=OCTETS)
    assert download(client, episode_id, "actions").status_code == 404, "nobody has looked at it yet"
    assert finalize(client, episode_id).status_code == 200
    assert download(client, episode_id, "actions").content == b"early"
    assert download(client, episode_id, "sensors").status_code == 404
    episode = client.get(f"/api/episodes/{episode_id}").json()
    assert episode["missing_artifacts"] == ["sensors"]


def test_an_upload_that_comes_after_finalize_counts_at_the_next_one(
    client: httpx.Client, storage: httpx.Client
) -> None:
    episode_id, urls = created(client, "sensors")
    assert finalize(client, episode_id).is_success
    assert storage.put(urls["sensors"], content=b"late", headers=OCTETS).is_success
    assert download(client, episode_id).status_code == 404
    assert finalize(client, episode_id).is_success
    assert download(client, episode_id).content == b"late"


def test_new_urls_are_signed_for_what_is_missing(
    client: httpx.Client, storage: httpx.Client
) -> None:
    episode_id, _ = created(client, "sensors", "actions")
    path = f"/api/ingest/episode/{episode_id}/upload-urls"
    minted = client.post(path, json={})
    assert minted.status_code == 200
    assert {each["kind"] for each in minted.json()["upload_urls"]} == {"sensors", "actions"}
    [video] = client.post(path, json={"request_uploads": ["video"]}).json()["upload_urls"]
    assert storage.put(video["url"], content=b"v", headers={"Content-Type": "video/mp4"}).is_success
    urls = {each["kind"]: each["url"] for each in minted.json()["upload_urls"]}
    assert storage.put(urls["sensors"], content=b"s", headers=OCTETS).is_success
    assert finalize(client, episode_id).is_success
    again = client.post(path, json={}).json()["upload_urls"]
    assert [each["kind"] for each in again] == ["actions"]
    stored = client.post(path, json={"request_uploads": ["sensors"]})
    assert (stored.status_code, stored.json()["code"]) == (409, "artifact_stored")


def test_a_replayed_create_gives_no_url_to_what_is_stored(
    client: httpx.Client, storage: httpx.Client
) -> None:
    key = {"Idempotency-Key": os.urandom(8).hex()}
    body = {"request_uploads": ["sensors", "actions"]}
    first = client.post("/api/ingest/episode", json=body, headers=key).json()
    assert storage.put(first["upload_urls"][0]["url"], content=b"s", headers=OCTETS).is_success
    again = client.post("/api/ingest/episode", json=body, headers=key).json()
    assert [each["kind"] for each in again["upload_urls"]] == ["sensors", "actions"]
    finalize(client, first["episode_id"])
    late = client.post("/api/ingest/episode", json=body, headers=key).json()
    assert [each["kind"] for each in late["upload_urls"]] == ["actions"]
    assert late["status"] == "ready"


# ------------------------------------------------------------------------- what finalize looks at


def test_claims_that_are_true_are_accepted(client: httpx.Client, storage: httpx.Client) -> None:
    episode_id, urls = created(client, "sensors")
    storage.put(urls["sensors"], content=b"abc", headers=OCTETS)
    claim = {"sensors": {"sha256": sha256(b"abc"), "size": 3}}
    for _ in range(2):
        assert finalize(client, episode_id, artifacts=claim).status_code == 200


@pytest.mark.parametrize(
    "claim",
    [
        {"sensors": {"size": 4}},
        {"sensors": {"sha256": sha256(b"other")}},
        {"sensors": {"size": 3, "sha256": sha256(b"other")}},
        {"video": {"size": 3}},
        {"actions": {"sha256": sha256(b"abc")}},
    ],
)
def test_a_claim_that_is_not_true_finalizes_nothing(
    client: httpx.Client, storage: httpx.Client, claim: dict[str, Any]
) -> None:
    episode_id, urls = created(client, "sensors", "actions")
    storage.put(urls["sensors"], content=b"abc", headers=OCTETS)
    answer = finalize(client, episode_id, artifacts=claim)
    assert (answer.status_code, answer.json()["code"]) == (409, "artifact_mismatch")
    assert [each["kind"] for each in answer.json()["artifacts"]] == list(claim)
    assert client.get(f"/api/episodes/{episode_id}").json()["status"] == "recording"
    assert download(client, episode_id).status_code in (404, 409)


def test_what_did_not_match_can_be_sent_again(client: httpx.Client, storage: httpx.Client) -> None:
    episode_id, urls = created(client, "sensors")
    claim = {"sensors": {"sha256": sha256(b"whole"), "size": 5}}
    storage.put(urls["sensors"], content=b"who", headers=OCTETS)
    assert finalize(client, episode_id, artifacts=claim).status_code == 409
    assert finalize(client, episode_id).status_code == 409, "what was announced stays announced"
    assert download(client, episode_id).status_code == 409
    storage.put(urls["sensors"], content=b"whole", headers=OCTETS)
    assert finalize(client, episode_id, artifacts=claim).status_code == 200
    assert download(client, episode_id).content == b"whole"


def test_bytes_that_are_replaced_after_finalize_are_not_given_out(
    client: httpx.Client, storage: httpx.Client
) -> None:
    episode_id, url = recorded(client, storage, b"the truth")
    assert storage.put(url, content=b"the truth", headers=OCTETS).is_success
    assert download(client, episode_id).content == b"the truth", "the same bytes again are fine"
    assert storage.put(url, content=b"something else", headers=OCTETS).is_success
    for _ in range(2):
        answer = download(client, episode_id)
        assert (answer.status_code, answer.json()["code"]) == (409, "artifact_refused")
    assert client.get(f"/api/episodes/{episode_id}").json()["missing_artifacts"] == ["sensors"]
    assert finalize(client, episode_id).status_code == 409, "not by the way either"
    assert storage.put(url, content=b"the truth", headers=OCTETS).is_success
    assert finalize(client, episode_id).status_code == 200
    assert download(client, episode_id).content == b"the truth"


def test_replaced_bytes_are_noticed_in_the_same_second_and_of_the_same_size(
    client: httpx.Client, storage: httpx.Client
) -> None:
    """S3 tells when an object was written to the second."""
    for number in range(3):
        episode_id, url = recorded(client, storage, b"the truth")
        assert storage.put(url, content=b"a lie 000", headers=OCTETS).is_success
        assert download(client, episode_id).status_code == 409, number


def test_replaced_bytes_are_noticed_by_finalize_too_and_taken_only_when_they_are_announced(
    client: httpx.Client, storage: httpx.Client
) -> None:
    episode_id, url = recorded(client, storage, b"the truth")
    assert storage.put(url, content=b"a better truth", headers=OCTETS).is_success
    assert finalize(client, episode_id).status_code == 409
    claim = {"sensors": {"sha256": sha256(b"a better truth")}}
    assert finalize(client, episode_id, artifacts=claim).status_code == 200
    assert download(client, episode_id).content == b"a better truth"


def test_while_it_is_recorded_an_artifact_can_be_uploaded_anew(
    client: httpx.Client, storage: httpx.Client
) -> None:
    episode_id, _ = created(client)
    for content in (b"first", b"other"):
        begun = start(client, episode_id, kind="sensors", size=5)
        assert send(storage, begun["parts"][0]["url"], content).is_success
        path = f"/api/ingest/episode/{episode_id}/upload/{begun['upload_id']}/complete"
        assert client.post(path, json={}).json()["sha256"] == sha256(content)
    assert finalize(client, episode_id).is_success
    assert download(client, episode_id).content == b"other"


def test_a_video_says_whether_a_browser_can_show_it(
    client: httpx.Client, storage: httpx.Client, tmp_path: Path
) -> None:
    for codec, playable in (("libx264", True), ("mpeg4", False), (None, False)):
        episode_id, urls = created(client, "video")
        content = b"not a video at all" if codec is None else clip(tmp_path / "a.mp4", codec)
        storage.put(urls["video"], content=content, headers={"Content-Type": "video/mp4"})
        assert finalize(client, episode_id).status_code == 200
        [artifact] = client.get(f"/api/episodes/{episode_id}").json()["artifacts"]
        assert artifact["playable"] is playable, codec
        assert (artifact["detail"] is None) is playable
        assert artifact["sha256"] == sha256(content)
        answer = download(client, episode_id, "video")
        assert (answer.content, answer.headers["content-type"]) == (content, "video/mp4")


def clip(path: Path, codec: str) -> bytes:
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for shade in range(5):
            frame = np.full((48, 64, 3), shade * 40, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return path.read_bytes()


# ------------------------------------------------------------------------------- delete and quota


def test_deleting_an_episode_removes_its_bytes(client: httpx.Client, storage: httpx.Client) -> None:
    episode_id, _ = recorded(client, storage, b"gone soon")
    location = client.get(f"/api/episodes/{episode_id}/artifact/sensors").headers["location"]
    assert storage.get(location).status_code == 200
    assert client.delete(f"/api/episodes/{episode_id}").is_success
    assert not storage.get(location).is_success


def test_a_quota_of_bytes_is_kept(local: RunningServer, storage: httpx.Client) -> None:
    with local.client(new_organisation(local, quota_bytes=1000)) as client:
        first, _ = recorded(client, storage, b"x" * 600)
        episode_id, urls = created(client, "sensors", "actions")
        assert storage.put(urls["sensors"], content=b"x" * 401, headers=OCTETS).status_code == 413
        started = client.post(
            f"/api/ingest/episode/{episode_id}/upload", json={"kind": "sensors", "size": 401}
        )
        assert (started.status_code, started.json()["code"]) == (403, "quota_exceeded")
        for url in urls.values():  # each fits by itself
            assert storage.put(url, content=b"x" * 300, headers=OCTETS).is_success
        answer = finalize(client, episode_id)
        assert (answer.status_code, answer.json()["code"]) == (403, "quota_exceeded")
        assert client.get(f"/api/episodes/{episode_id}").json()["status"] == "recording"
        assert client.delete(f"/api/episodes/{first}").is_success
        assert finalize(client, episode_id).is_success


# --------------------------------------------------------------------------------------- in parts


def start(client: httpx.Client, episode_id: str, **values: Any) -> dict[str, Any]:
    answer = client.post(f"/api/ingest/episode/{episode_id}/upload", json=values)
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


def send(storage: httpx.Client, url: str, content: bytes) -> httpx.Response:
    return storage.put(url, content=content)


CONTENT = os.urandom(11 * MB)
PART = 5 * MB
PIECES = [CONTENT[at : at + PART] for at in range(0, len(CONTENT), PART)]


def test_a_large_file_goes_up_in_parts_and_can_stop_in_between(
    client: httpx.Client, storage: httpx.Client
) -> None:
    episode_id, _ = created(client)
    begun = start(client, episode_id, kind="sensors", size=len(CONTENT), part_size=PART)
    path = f"/api/ingest/episode/{episode_id}/upload/{begun['upload_id']}"
    assert [each["number"] for each in begun["parts"]] == [1, 2, 3]
    assert (begun["part_size"], begun["part_count"], begun["done"]) == (PART, 3, [])
    assert send(storage, begun["parts"][1]["url"], PIECES[1]).is_success
    assert send(storage, begun["parts"][0]["url"], PIECES[0][:100]).is_success, "cut short"

    state = client.get(path).json()
    assert state["done"] == [{"number": 2, "size": PART}]
    assert [each["number"] for each in state["parts"]] == [1, 3]
    early = client.post(f"{path}/complete", json={})
    assert (early.status_code, early.json()["code"]) == (409, "parts_missing")
    assert early.json()["missing"] == [1, 3]

    for each in state["parts"]:
        assert send(storage, each["url"], PIECES[each["number"] - 1]).is_success
    parts = [{"number": n + 1, "sha256": sha256(piece)} for n, piece in enumerate(PIECES)]
    body = {"parts": parts, "sha256": sha256(CONTENT)}
    done = client.post(f"{path}/complete", json=body)
    assert done.status_code == 200, done.text
    assert done.json() == {
        "upload_id": begun["upload_id"],
        "kind": "sensors",
        "size": len(CONTENT),
        "sha256": sha256(CONTENT),
    }
    assert client.post(f"{path}/complete", json=body).json() == done.json(), "again is the same"
    assert client.get(path).json()["completed"] is True
    assert finalize(client, episode_id).is_success
    assert download(client, episode_id).content == CONTENT


def test_a_file_in_parts_that_is_not_what_was_announced_is_removed(
    client: httpx.Client, storage: httpx.Client
) -> None:
    for announced, completed in (
        ({"sha256": sha256(b"something else")}, {}),
        ({}, {"sha256": sha256(b"something else")}),
        ({}, {"parts": [{"number": 1, "sha256": sha256(b"something else")}]}),
    ):
        episode_id, _ = created(client, "sensors")
        begun = start(client, episode_id, kind="sensors", size=5, **announced)
        path = f"/api/ingest/episode/{episode_id}/upload/{begun['upload_id']}"
        send(storage, begun["parts"][0]["url"], b"bytes")
        answer = client.post(f"{path}/complete", json=completed)
        assert (answer.status_code, answer.json()["code"]) == (409, "artifact_mismatch")
        assert client.get(path).status_code == 404
        assert finalize(client, episode_id).is_success
        assert download(client, episode_id).status_code == 404


def test_an_upload_that_the_store_has_lost_is_not_found(
    local: RunningServer, storage: httpx.Client
) -> None:
    """Its client starts a new one. The URLs of the lost one would lead nowhere."""
    with local.client() as client:
        episode_id, _ = created(client, "sensors")
        begun = start(client, episode_id, kind="sensors", size=5)
        path = f"/api/ingest/episode/{episode_id}/upload/{begun['upload_id']}"
        send(storage, begun["parts"][0]["url"], b"bytes")
        _forget_upload(local, episode_id)
        for answer in (client.get(path), client.post(f"{path}/complete", json={})):
            assert (answer.status_code, answer.json()["code"]) == (404, "upload_not_found")


def test_a_store_that_stops_when_an_upload_begins_does_not_make_the_server_deny_the_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new upload has no parts. The store that forgot it says so when the first part is sent."""
    start_multipart = LocalBlobs.start_multipart

    async def begun_and_forgotten(self: LocalBlobs, key: str, *, content_type: str) -> str:
        upload = await start_multipart(self, key, content_type=content_type)
        await self.abort_multipart(key, upload)
        return upload

    monkeypatch.setattr(LocalBlobs, "start_multipart", begun_and_forgotten)
    settings = Settings.load(tmp_path / "data")
    migrate(settings.database_url)
    with closing(open_database(settings.database_url)) as database:
        key = bootstrap(database, "Acme").api_key

    async def begin() -> httpx.Response:
        app = create_app(settings)
        headers = {"Authorization": f"Bearer {key}"}
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            made = (await client.post("/api/ingest/episode", json={}, headers=headers)).json()
            path = f"/api/ingest/episode/{made['episode_id']}/upload"
            return await client.post(path, json={"kind": "sensors", "size": 5}, headers=headers)

    answer = asyncio.run(begin())
    assert answer.status_code == 201, answer.text
    assert [each["number"] for each in answer.json()["parts"]] == [1]


def test_an_upload_that_was_joined_but_not_noted_has_all_its_parts(
    local: RunningServer, storage: httpx.Client
) -> None:
    """As when the server is killed between both: nothing has to be sent again."""
    with local.client() as client:
        episode_id, _ = created(client, "sensors")
        begun = start(client, episode_id, kind="sensors", size=5)
        path = f"/api/ingest/episode/{episode_id}/upload/{begun['upload_id']}"
        joined = local.data_dir / "blobs" / "objects" / _forget_upload(local, episode_id)
        joined.parent.mkdir(parents=True)
        joined.write_bytes(b"bytes")
        state = client.get(path).json()
        assert (state["done"], state["parts"]) == ([{"number": 1, "size": 5}], [])
        done = client.post(f"{path}/complete", json={"sha256": sha256(b"bytes")})
        assert (done.status_code, done.json()["size"]) == (200, 5)


def _forget_upload(server: RunningServer, episode_id: str) -> str:
    """Removes the parts of the only upload of an episode. Returns the key of the blob."""
    keys = (server.data_dir / "blobs" / "uploads").glob("*/key")
    [key] = (each for each in keys if episode_id in each.read_text())
    name = key.read_text()
    shutil.rmtree(key.parent)
    return name


def test_an_upload_can_be_given_up(client: httpx.Client, storage: httpx.Client) -> None:
    episode_id, _ = created(client)
    begun = start(client, episode_id, kind="actions", size=5)
    path = f"/api/ingest/episode/{episode_id}/upload/{begun['upload_id']}"
    url = begun["parts"][0]["url"]
    assert send(storage, url, b"bytes").is_success
    assert client.delete(path).json() == {"upload_id": begun["upload_id"], "aborted": True}
    assert client.delete(path).status_code == client.get(path).status_code == 404
    assert not send(storage, url, b"bytes").is_success


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ({"kind": "sensors", "size": 0}, 400),
        ({"kind": "sensors", "size": -1}, 400),
        ({"kind": "audio", "size": 5}, 400),
        ({"kind": "sensors"}, 400),
        ({"kind": "sensors", "size": 20 * MB, "part_size": 1 * MB}, 400),
        ({"kind": "sensors", "size": ARTIFACT_LIMIT + 1}, 413),
        ({"kind": "sensors", "size": 5, "sha256": "abc"}, 400),
    ],
)
def test_an_upload_that_cannot_be_is_refused(
    client: httpx.Client, values: dict[str, Any], status: int
) -> None:
    episode_id, _ = created(client)
    answer = client.post(f"/api/ingest/episode/{episode_id}/upload", json=values)
    assert answer.status_code == status
    assert answer.json()["error"]


def test_parts_other_than_those_expected_are_refused(
    client: httpx.Client, storage: httpx.Client
) -> None:
    episode_id, _ = created(client)
    begun = start(client, episode_id, kind="sensors", size=5)
    assert send(storage, begun["parts"][0]["url"], b"too long").status_code in (200, 413)
    state = client.get(f"/api/ingest/episode/{episode_id}/upload/{begun['upload_id']}").json()
    assert (state["done"], [each["number"] for each in state["parts"]]) == ([], [1])
    wrong = [{"number": 2}]
    path = f"/api/ingest/episode/{episode_id}/upload/{begun['upload_id']}/complete"
    assert client.post(path, json={"parts": wrong}).status_code == 400


# -------------------------------------------------------------------------------- where URLs lead


def hosted(server: RunningServer, who: Access, host: str) -> httpx.Response:
    return httpx.post(
        f"{server.base_url}/api/ingest/episode",
        json={"request_uploads": ["video"]},
        headers={**who.headers, "Host": host, "X-Forwarded-Host": "evil.example"},
    )


def test_a_forged_host_never_ends_up_in_a_url(local: RunningServer) -> None:
    for forged in (
        "evil.example",
        f"evil.example:{local.port}",
        f"127.0.0.1:{local.port + 1}",
        f"127.0.0.1:{local.port}@evil.example",
        "localhost.evil.example",
    ):
        answer = hosted(local, local.first_org, forged)
        assert (answer.status_code, answer.json()["code"]) == (400, "host_not_allowed"), forged
        assert "upload_urls" not in answer.json()
    for own in (f"127.0.0.1:{local.port}", f"LocalHost:{local.port}"):
        answer = hosted(local, local.first_org, own)
        assert answer.json()["upload_urls"][0]["url"].startswith(f"http://{own.lower()}/")
    metadata_only = httpx.post(
        f"{local.base_url}/api/ingest/episode",
        json={},
        headers={**local.first_org.headers, "Host": "evil.example"},
    )
    assert metadata_only.status_code == 201, "no URL is made, so nothing can be led astray"
