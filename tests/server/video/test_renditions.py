"""A video that browsers do not play: kept as it was recorded, with a copy beside it that they do."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollbook.server.episodes.artifacts import check_artifacts
from rollbook.server.queries import ArtifactRow
from rollbook.server.video.inspect_video import KEYFRAME_GAP_S, probe
from rollbook.server.video.renditions import make_pending
from tests.server.blob_servers import (
    ACCESS_KEY,
    BUCKET,
    REGION,
    SECRET_KEY,
    create_bucket,
    moto_server,
)
from tests.server.episodes.server_without_http import Server
from tests.server.episodes.test_upkeep import org, recording, server
from tests.server.episodes.test_uploads_api import created, download, finalize
from tests.server.fixtures import StartServer
from tests.server.running import RunningServer
from tests.server.serving import children
from tests.server.tenants import Organisation
from tests.server.video.test_video import Clip

__all__ = ["org", "server"]

VIDEO = {"Content-Type": "video/mp4"}
_LIMIT_S = 60.0
FOREIGN = {
    "MPEG-4 Part 2": Clip("mpeg4"),
    "HEVC": Clip("libx265"),
    "4:4:4": Clip("libx264", "yuv444p"),
}


@pytest.fixture(scope="module")
def live(running_server: StartServer) -> Iterator[RunningServer]:
    with running_server() as started:
        yield started


@pytest.fixture(scope="module")
def client(live: RunningServer) -> Iterator[httpx.Client]:
    with live.client() as client:
        yield client


def recorded(client: httpx.Client, content: bytes) -> str:
    episode_id, urls = created(client, "video")
    assert httpx.put(urls["video"], content=content, headers=VIDEO).is_success
    assert finalize(client, episode_id).status_code == 200
    return episode_id


def video_of(client: httpx.Client, episode_id: str) -> dict[str, Any]:
    [artifact] = client.get(f"/api/episodes/{episode_id}").json()["artifacts"]
    found: dict[str, Any] = artifact
    return found


def ended(client: httpx.Client, episode_id: str) -> dict[str, Any]:
    """The artifact, once its rendition waits no longer."""
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        artifact = video_of(client, episode_id)
        if artifact["rendition"] != "pending":
            return artifact
        time.sleep(0.05)
    raise AssertionError("it never ended")


def playable(client: httpx.Client, episode_id: str, kind: str = "video") -> httpx.Response:
    path = f"/api/episodes/{episode_id}/artifact/{kind}"
    answer = client.get(path, params={"rendition": "playable"})
    return httpx.get(answer.headers["location"]) if answer.status_code == 302 else answer


# ----------------------------------------------------------------------------------- over the wire


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_video_is_kept_and_gets_a_copy_that_browsers_play(
    client: httpx.Client, tmp_path: Path, name: str
) -> None:
    content = FOREIGN[name].write(tmp_path).read_bytes()
    episode_id = recorded(client, content)
    assert video_of(client, episode_id)["rendition"] in ("pending", "ready")
    artifact = ended(client, episode_id)
    assert (artifact["rendition"], artifact["playable"]) == ("ready", False)
    assert "browsers do not" in artifact["detail"]
    assert (artifact["size"], artifact["sha256"]) == (
        len(content),
        hashlib.sha256(content).hexdigest(),
    )
    assert download(client, episode_id, "video").content == content, "unasked, what was recorded"

    copy = playable(client, episode_id)
    assert (copy.status_code, copy.headers["content-type"]) == (200, "video/mp4")
    (tmp_path / "copy.mp4").write_bytes(copy.content)
    facts = probe(tmp_path / "copy.mp4")
    assert (facts.playable, facts.codec, facts.faststart, facts.frames) == (True, "h264", True, 30)
    assert facts.keyframe_gap_s is not None
    assert facts.keyframe_gap_s <= KEYFRAME_GAP_S


def test_the_copy_goes_with_its_episode(
    live: RunningServer, client: httpx.Client, tmp_path: Path
) -> None:
    episode_id = recorded(client, Clip("mpeg4").write(tmp_path).read_bytes())
    ended(client, episode_id)
    folder = live.data_dir / "blobs"
    assert len([path for path in folder.rglob("*.mp4") if episode_id in str(path)]) == 2
    assert client.delete(f"/api/episodes/{episode_id}").is_success
    assert [path for path in folder.rglob("*") if path.is_file() and episode_id in str(path)] == []


def test_a_copy_that_is_gone_is_made_again_when_it_is_asked_for(
    live: RunningServer, client: httpx.Client, tmp_path: Path
) -> None:
    episode_id = recorded(client, Clip("mpeg4").write(tmp_path).read_bytes())
    ended(client, episode_id)
    [copy] = [
        path
        for path in (live.data_dir / "blobs").rglob("*.playable.mp4")
        if episode_id in str(path)
    ]
    copy.unlink()
    missing = playable(client, episode_id)
    assert (missing.status_code, missing.json()["code"]) == (404, "rendition_pending")
    assert ended(client, episode_id)["rendition"] == "ready"
    assert playable(client, episode_id).status_code == 200


def test_what_browsers_play_already_is_given_as_it_is(client: httpx.Client, tmp_path: Path) -> None:
    content = Clip("libx264").write(tmp_path).read_bytes()
    episode_id = recorded(client, content)
    assert video_of(client, episode_id)["rendition"] is None
    assert playable(client, episode_id).content == content


def test_what_has_no_copy_says_why(client: httpx.Client) -> None:
    episode_id = recorded(client, b"not a video at all")
    assert video_of(client, episode_id)["rendition"] is None
    answer = playable(client, episode_id)
    assert (answer.status_code, answer.json()["code"]) == (404, "no_rendition")
    assert "this is not a video" in answer.json()["error"]
    assert playable(client, episode_id, "sensors").json()["code"] == "not_found"
    path = f"/api/episodes/{episode_id}/artifact/video"
    wrong = client.get(path, params={"rendition": "smaller"})
    assert (wrong.status_code, wrong.json()["where"]) == (400, "rendition")


def test_a_large_upload_in_parts_gets_a_copy_as_well(client: httpx.Client, tmp_path: Path) -> None:
    content = Clip("mpeg4").write(tmp_path).read_bytes()
    episode_id, _ = created(client)
    path = f"/api/ingest/episode/{episode_id}/upload"
    begun = client.post(path, json={"kind": "video", "size": len(content)}).json()
    assert httpx.put(begun["parts"][0]["url"], content=content).is_success
    assert client.post(f"{path}/{begun['upload_id']}/complete", json={}).is_success
    assert finalize(client, episode_id).is_success
    assert ended(client, episode_id)["rendition"] == "ready"


@pytest.mark.slow
def test_on_s3_as_well(
    running_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_REGION", REGION)
    content = Clip("libx265").write(tmp_path).read_bytes()
    with moto_server(tmp_path) as s3:
        create_bucket(s3)
        place = {"blobs_url": f"s3://{BUCKET}/some/prefix", "s3_endpoint": s3.url}
        with running_server(**place) as started, started.client() as client:
            episode_id = recorded(client, content)
            assert ended(client, episode_id)["rendition"] == "ready"
            assert download(client, episode_id, "video").content == content
            (tmp_path / "copy.mp4").write_bytes(playable(client, episode_id).content)
            assert probe(tmp_path / "copy.mp4").playable


@pytest.mark.slow
def test_turned_off_or_too_much_of_it_is_marked_and_nothing_more(
    running_server: StartServer, tmp_path: Path
) -> None:
    content = Clip("mpeg4").write(tmp_path).read_bytes()
    for settings, rendition, why in (
        ({"transcode_videos": False}, None, "browsers do not play mpeg4"),
        ({"transcode_limit_s": 1.0}, None, "browsers do not play mpeg4"),
        ({"transcode_limit_bytes": 1000}, "failed", "more than the 1000 bytes"),
    ):
        with running_server(**settings) as started, started.client() as client:
            episode_id = recorded(client, content)
            artifact = ended(client, episode_id)
            assert (artifact["rendition"], artifact["playable"]) == (rendition, False), settings
            assert why in artifact["detail"]
            assert playable(client, episode_id).json()["code"] == "no_rendition"
            assert download(client, episode_id, "video").content == content


@pytest.mark.slow
def test_a_server_that_is_killed_goes_on_where_it_was(
    running_server: StartServer, tmp_path: Path
) -> None:
    long = Clip("mpeg4", frames=600, width=640, height=480).write(tmp_path)
    content = long.read_bytes()
    with running_server() as started, started.client() as client:
        episode_id = recorded(client, content)
        assert started.process is not None
        pid = started.process.pid
        workers = _until_begun(pid)
        assert video_of(client, episode_id)["rendition"] == "pending"
        started.kill()
        _expect_gone(workers)
        left = list((started.data_dir / "renditions").iterdir())
        started.start()
        with started.client() as again:
            assert ended(again, episode_id)["rendition"] == "ready"
            assert download(again, episode_id, "video").content == content
            assert playable(again, episode_id).status_code == 200
        assert left
        assert list((started.data_dir / "renditions").iterdir()) == []


def _until_begun(pid: int) -> list[int]:
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        working = [
            child
            for child in children(pid)
            if b"transcode" in Path(f"/proc/{child}/cmdline").read_bytes()
        ]
        if working:
            time.sleep(0.5)
            return working
        time.sleep(0.01)
    raise AssertionError("nothing was transcoded")


def _expect_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(os.path.exists(f"/proc/{pid}") for pid in pids):
        time.sleep(0.1)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


# ------------------------------------------------------------------------ on both databases, without


def waiting(server: Server, org: Organisation, content: bytes) -> ArtifactRow:
    """A video whose copy is still to be made."""
    episode = recording(org, "video")
    key = episode.artifacts[0].object_key
    server.put(key, content)
    facts = {
        "status": "stored",
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
        "playable": False,
        "detail": "foreign",
        "rendition": "pending",
        "rendition_key": key.replace(".mp4", ".1.playable.mp4"),
    }
    org.write(lambda scope: scope.set_artifact(episode.id, "video", **facts))
    return now(org, episode.id)


def now(org: Organisation, episode_id: str) -> ArtifactRow:
    found = org.read(lambda scope: scope.artifact(episode_id, "video"))
    assert found is not None
    return found


def make(server: Server, org: Organisation) -> int:
    return server.run(lambda context: make_pending(context, [org.org_id]))


def test_what_waits_is_made_and_kept_by_upkeep(
    server: Server, org: Organisation, tmp_path: Path
) -> None:
    artifact = waiting(server, org, Clip("mpeg4").write(tmp_path).read_bytes())
    assert make(server, org) == 1
    after = now(org, artifact.episode_id)
    assert (after.rendition, after.detail) == ("ready", "foreign")
    assert make(server, org) == 0
    server.later_us = 2 * 86_400_000_000
    org.write(lambda scope: scope.finalize_episode(artifact.episode_id, {"status": "ready"}))
    server.do_upkeep()
    assert server.keys() == sorted([artifact.object_key, artifact.rendition_key or ""])


def test_without_pyav_a_video_is_kept_and_marked_not_playable(
    server: Server, org: Organisation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbook.server.episodes.artifacts.find_spec", lambda name: None)
    episode = recording(org, "video")
    server.put(episode.artifacts[0].object_key, Clip("mpeg4").write(tmp_path).read_bytes())
    [finding] = server.run(lambda context: check_artifacts(context, episode.artifacts, {}))
    assert (finding.changes["status"], finding.changes["playable"]) == ("stored", False)
    assert "PyAV" in finding.changes["detail"]
    assert finding.changes["rendition"] is None


def test_other_bytes_in_its_place_are_not_transcoded(
    server: Server, org: Organisation, tmp_path: Path
) -> None:
    artifact = waiting(server, org, Clip("mpeg4").write(tmp_path).read_bytes())
    server.put(artifact.object_key, Clip("mpeg4", frames=5).write(tmp_path).read_bytes())
    make(server, org)
    after = now(org, artifact.episode_id)
    assert after.rendition == "failed"
    assert "other bytes" in (after.detail or "")
    assert server.keys() == [artifact.object_key]


def test_a_video_that_brings_the_server_down_does_so_three_times_at_most(
    server: Server, org: Organisation
) -> None:
    artifact = waiting(server, org, b"deadly")
    for _ in range(3):
        begun = org.write(lambda scope: scope.begin_rendition(3))
        assert begun is not None
    assert org.write(lambda scope: scope.begin_rendition(3)) is None
    after = now(org, artifact.episode_id)
    assert after.rendition == "failed"
    assert after.detail == "foreign; transcoding it was tried 3 times and never ended"


def test_a_copy_of_what_was_deleted_meanwhile_is_not_needed(
    server: Server, org: Organisation
) -> None:
    artifact = waiting(server, org, b"short-lived")
    org.write(lambda scope: scope.begin_rendition(3))
    org.write(lambda scope: scope.delete_episode(artifact.episode_id))
    assert not org.write(lambda scope: scope.end_rendition(artifact, "ready", None))


def test_the_copy_of_replaced_bytes_is_to_go(server: Server, org: Organisation) -> None:
    artifact = waiting(server, org, b"first")
    emptied = {"status": "requested", "rendition": None, "rendition_key": None}
    org.write(lambda scope: scope.set_artifact(artifact.episode_id, "video", **emptied))
    doomed = org.read(lambda scope: scope.doomed_objects())
    assert [each.object_key for each in doomed] == [artifact.rendition_key]
    assert not org.write(lambda scope: scope.end_rendition(artifact, "ready", None))
