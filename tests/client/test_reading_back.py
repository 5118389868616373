"""Reading back: finding episodes, their artifacts, and the cache that keeps them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from rollbook.client import Retries
from rollbook.client.cache import Cache
from rollbook.client.http import Answer
from rollbook.client.recorded import RecordedCore
from rollbook.client.runtime import finish
from rollbook.contracts.episode import ArtifactKind
from rollbook.errors import (
    ChecksumMismatch,
    ConfigurationError,
    InvalidValue,
    NotFoundError,
    ServerError,
    StorageError,
    TransportError,
)
from tests.client.conftest import AnyServer, MakeClient
from tests.client.faulty_server import FaultyServer, Seen

AnyClient = Callable[..., Any]


def cache_folder() -> Path:
    return Path(os.environ["ROLLBOOK_HOME"]) / "cache"


# ------------------------------------------------------------------------------------- finding


def test_episodes_are_found_by_what_they_are(server: AnyServer, any_client_of: AnyClient) -> None:
    client = any_client_of(server)
    mark = uuid4().hex
    first = client.log_episode(
        name=f"Alpha {mark}",
        policy_version=mark,
        seed=3,
        tags=["night", mark],
        metadata={"task": {"name": "pick"}, "attempt": 2, "ok": True},
    )
    second = client.log_episode(
        policy_version=mark, source="sim", status="failed", tags=[mark], robot="r2"
    )

    def ids(**wanted: Any) -> list[str]:
        return [each.id for each in client.episodes(policy_version=mark, **wanted)]

    assert ids() == [second.id, first.id], "the newest first"
    assert ids(status="failed") == [second.id]
    assert ids(source="sim", robot="r2") == [second.id]
    assert ids(seed=3) == [first.id]
    assert ids(name="alpha") == [first.id]
    assert ids(tag="night") == [first.id]
    assert ids(tag=["night", mark]) == [first.id]
    assert ids(tag=["night", "day"]) == []
    assert ids(metadata={"task": {"name": "pick"}}) == [first.id]
    assert ids(metadata={"attempt": 2, "ok": True}) == [first.id]
    assert ids(metadata={"attempt": 3}) == []
    assert ids(limit=1) == [second.id]
    assert ids(limit=0) == []
    now = datetime.now(UTC)
    assert ids(since=now - timedelta(hours=1)) == [second.id, first.id]
    assert ids(since=now + timedelta(hours=1)) == []
    assert ids(until=now - timedelta(hours=1)) == []


def test_all_pages_are_walked(server: AnyServer, any_client_of: AnyClient) -> None:
    client = any_client_of(server)
    mark = uuid4().hex
    logged = [client.log_episode(policy_version=mark, seed=i).id for i in range(7)]
    import rollbook.client.listing as listing

    before = listing.LARGEST_PAGE
    listing.LARGEST_PAGE = 3
    try:
        assert [each.id for each in client.episodes(policy_version=mark)] == logged[::-1]
        assert [each.seed for each in client.episodes(policy_version=mark, limit=5)] == [
            6,
            5,
            4,
            3,
            2,
        ]
    finally:
        listing.LARGEST_PAGE = before


def test_nothing_is_fetched_before_it_is_asked_for(
    wire: FaultyServer, client_of: MakeClient
) -> None:
    found = client_of(wire).episodes(policy_version="v1")
    assert wire.seen == []
    assert list(found) == []
    assert len(wire.seen) == 1


def test_a_search_that_makes_no_sense_is_refused_at_once(
    wire: FaultyServer, client_of: MakeClient
) -> None:
    client = client_of(wire)
    for wrong in ({"limit": -1}, {"since": datetime(2026, 1, 1)}, {"metadata": {"a": [1]}}):
        with pytest.raises(ConfigurationError):
            client.episodes(**wrong)
    with pytest.raises(ConfigurationError, match="without an id"):
        client.episode("")


def test_an_id_is_a_name_and_never_a_path(wire: FaultyServer, client_of: MakeClient) -> None:
    with pytest.raises(NotFoundError):
        client_of(wire).episode("../ingest/episode?x=1#y")
    [seen] = wire.seen
    assert seen.path.startswith("/api/episodes/")
    assert seen.query == ""


def test_an_answer_that_is_no_list_or_no_episode_is_said_to_be_none(
    wire: FaultyServer, client_of: MakeClient
) -> None:
    client = client_of(wire)
    logged = client.log_episode()
    wire.change("GET /api/episodes/", lambda episode: {**episode, "seed": "seven"})
    wire.change("GET /api/episodes ", lambda _: {"rows": []})
    with pytest.raises(
        ServerError, match=r"cannot read the episode: .* answered something unexpected"
    ):
        client.episode(logged.id or "")
    with pytest.raises(
        ServerError, match=r"cannot list episodes: .* answered something unexpected"
    ):
        list(client.episodes())


def test_episodes_are_archived_restored_and_deleted(
    server: AnyServer, any_client_of: AnyClient
) -> None:
    client = any_client_of(server)
    mark = uuid4().hex
    episode = client.episode(client.log_episode(policy_version=mark).id)
    episode.archive()
    assert client.episode(episode.id).status == "archived"
    assert list(client.episodes(policy_version=mark)) == []
    assert len(list(client.episodes(policy_version=mark, with_archived=True))) == 1
    episode.restore()
    assert client.episode(episode.id).status == "ready"
    client.archive_episode(episode.id)
    client.restore_episode(episode.id)
    episode.delete()
    with pytest.raises(NotFoundError):
        client.episode(episode.id)
    with pytest.raises(NotFoundError):
        client.delete_episode(episode.id)


# ----------------------------------------------------------------------------------- artifacts


def test_an_artifact_is_downloaded_once(server: AnyServer, any_client_of: AnyClient) -> None:
    client = any_client_of(server)
    logged = client.log_episode(sensors={"a": np.arange(3)}, t_ns=[0, 1, 2])
    found = client.episode(logged.id)
    path = found.fetch("sensors")
    assert path == cache_folder() / hashlib.sha256(path.read_bytes()).hexdigest()
    before = path.stat().st_ino
    assert found.sensors()["a/value"].tolist() == [0, 1, 2]
    assert client.episode(logged.id).fetch("sensors") == path
    assert path.stat().st_ino == before


def test_what_is_not_there_is_not_found(server: AnyServer, any_client_of: AnyClient) -> None:
    found = any_client_of(server).log_episode()
    episode = any_client_of(server).episode(found.id)
    for read in (episode.sensors, episode.actions, episode.video):
        with pytest.raises(NotFoundError, match="has no"):
            read()
    with pytest.raises(ConfigurationError, match="lidar"):
        episode.fetch("lidar")


def test_an_artifact_is_copied_to_where_it_is_wanted(
    wire: FaultyServer, any_client_of: AnyClient, tmp_path: Path
) -> None:
    client = any_client_of(wire)
    video = tmp_path / "run.mp4"
    video.write_bytes(content := b"\0\0\0\x08ftyp and frames")
    found = client.episode(client.log_episode(video=video).id)
    assert found.video().read_bytes() == content
    assert found.download("video", tmp_path / "copy.mp4") == tmp_path / "copy.mp4"
    assert (tmp_path / "copy.mp4").read_bytes() == content


def test_a_damaged_file_in_the_cache_is_fetched_again(
    wire: FaultyServer, any_client_of: AnyClient
) -> None:
    client = any_client_of(wire)
    found = client.episode(client.log_episode(sensors={"a": [1]}, t_ns=[0]).id)
    path = found.fetch("sensors")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"?")
    assert found.fetch("sensors").read_bytes() == whole
    path.write_bytes(b"")
    assert found.sensors()["a/value"].tolist() == [1]


def test_what_arrives_otherwise_than_promised_is_not_kept(
    wire: FaultyServer, any_client_of: AnyClient
) -> None:
    client = any_client_of(wire)
    logged = client.log_episode(sensors={"a": [1]}, t_ns=[0])
    found = client.episode(logged.id)
    blob = wire.blobs[logged.id, "sensors"]
    data = blob.read_bytes()

    def replace_after_signing(other: bytes) -> None:
        blob.write_bytes(data)

        def replace(seen: Seen) -> None:
            if "/blobs/" in seen.path:
                blob.write_bytes(other)

        wire.before = replace

    replace_after_signing(bytes(len(data)))
    with pytest.raises(ChecksumMismatch, match="download it again"):
        found.fetch("sensors")
    replace_after_signing(data + b"more")
    with pytest.raises(ChecksumMismatch, match="and has more"):
        found.fetch("sensors")
    assert list(cache_folder().iterdir()) == []


def test_a_pickle_from_the_server_is_refused(
    wire: FaultyServer, any_client_of: AnyClient, tmp_path: Path
) -> None:
    client = any_client_of(wire)
    evil = tmp_path / "sensors.npz"
    np.savez(evil, a=np.array([{"code": "here"}], object))
    found = client.episode(client.log_episode(sensors=evil).id)
    with pytest.raises(InvalidValue):
        found.sensors()


def test_a_download_goes_on_where_it_broke(wire: FaultyServer, any_client_of: AnyClient) -> None:
    """The connection breaks three times; every byte is sent once."""
    client = any_client_of(wire)
    logged = client.log_episode(sensors={"a": np.arange(30_000.0)}, t_ns=np.arange(30_000))
    size = len(wire.blobs[logged.id, "sensors"].read_bytes())
    wire.fail("GET /blobs", "cut", cut_after=100_000)
    wire.fail("GET /blobs", "cut", cut_after=150_000)
    wire.fail("GET /blobs", "drop")
    sensors = client.episode(logged.id).sensors()
    assert sensors["a/value"].sum() == np.arange(30_000.0).sum()
    starts = [
        int(each.headers.get("range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        for each in wire.asked("GET /blobs")
    ]
    assert starts == sorted(starts)
    assert starts[0] == 0
    assert 0 < starts[-1] < size


def test_a_download_may_break_any_number_of_times_as_long_as_it_goes_on(
    wire: FaultyServer, any_client_of: AnyClient
) -> None:
    """Attempts are counted from the last one that brought bytes."""
    client = any_client_of(wire, retries=Retries(attempts=2, first_wait_s=0.001))
    logged = client.log_episode(sensors={"a": np.arange(30_000.0)}, t_ns=np.arange(30_000))
    for _ in range(5):
        wire.fail("GET /blobs", "cut", cut_after=10_000)
    assert client.episode(logged.id).sensors()["a/value"].size == 30_000
    assert len(wire.asked("GET /blobs")) == 6


def test_a_server_that_sends_the_whole_again_is_read_from_its_beginning(
    wire: FaultyServer, any_client_of: AnyClient
) -> None:
    """Bytes, size and digest of the first attempt are dropped."""
    client = any_client_of(wire)
    logged = client.log_episode(sensors={"a": np.arange(30_000.0)}, t_ns=np.arange(30_000))
    wire.knows_ranges = False
    wire.fail("GET /blobs", "cut", cut_after=100_000)
    path = client.episode(logged.id).fetch("sensors")
    assert path.read_bytes() == wire.blobs[logged.id, "sensors"].read_bytes()
    assert "range" in wire.asked("GET /blobs")[1].headers


def test_a_download_url_that_has_expired_is_replaced(
    wire: FaultyServer, client_of: MakeClient
) -> None:
    client = client_of(wire)
    logged = client.log_episode(sensors={"a": [1]}, t_ns=[0])
    record = client.episode(logged.id or "").record
    expired: dict[ArtifactKind, str] = {"sensors": f"{wire.base_url}/blobs/expired"}
    core = RecordedCore(client.connection, client.cache, record, expired)
    assert finish(core.fetch("sensors")).read_bytes()


def test_a_download_that_never_comes_is_a_transport_error_and_leaves_nothing(
    wire: FaultyServer, client_of: MakeClient
) -> None:
    client = client_of(wire, retries=Retries(attempts=2, first_wait_s=0.001))
    logged = client.log_episode(sensors={"a": [1]}, t_ns=[0])
    wire.fail("GET /blobs", "drop", times=99)
    with pytest.raises(TransportError, match="download sensors"):
        client.episode(logged.id or "").fetch("sensors")
    assert len(wire.asked("GET /blobs")) == 2
    assert list(cache_folder().iterdir()) == []


def test_a_part_that_was_not_asked_for_is_refused(tmp_path: Path) -> None:
    file = Cache(tmp_path).incoming("test", 10)
    file.begin(Answer(200, {}, b""))
    file.write(b"abc")
    with pytest.raises(ServerError, match="another part"):
        file.begin(Answer(206, {"content-range": "bytes 5-9/10"}, b""))
    file.begin(Answer(206, {"content-range": "bytes 3-9/10"}, b""))
    file.write(b"defghij")
    assert file.is_whole
    assert file.finish() == hashlib.sha256(b"abcdefghij").hexdigest()


# --------------------------------------------------------------------------------------- cache


def kept(cache: Cache, data: bytes) -> Path:
    file = cache.incoming("test", len(data))
    file.begin(Answer(200, {}, b""))
    file.write(data)
    return cache.keep(file, hashlib.sha256(data).hexdigest())


def test_the_cache_stays_below_its_limit_and_keeps_what_was_used_last(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", limit_bytes=250)
    paths = [kept(cache, bytes([i]) * 100) for i in range(2)]
    for age, path in enumerate(paths):
        os.utime(path, (1000 + age, 1000 + age))
    assert cache.find(paths[0].name) == paths[0]
    third = kept(cache, b"3" * 100)
    assert paths[0].exists()
    assert not paths[1].exists()
    assert third.exists()


def test_a_file_beyond_the_limit_is_still_given(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", limit_bytes=10)
    kept(cache, b"small")
    path = kept(cache, b"x" * 100)
    assert path.read_bytes() == b"x" * 100
    assert [each.name for each in cache.folder.iterdir()] == [path.name]


def test_leftovers_of_dead_downloads_go_in_time(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    first = kept(cache, b"first")
    old, young = cache.folder / ".old.part", cache.folder / ".young.part"
    old.touch()
    young.touch()
    os.utime(old, (0, 0))
    second = kept(Cache(cache.folder), b"second")
    assert sorted(cache.folder.iterdir()) == sorted([first, second, young])


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "A" * 64, "a" * 63])
def test_only_a_digest_names_a_file_of_the_cache(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError, match="not a SHA-256"):
        Cache(tmp_path).find(name)


def test_a_cache_that_cannot_be_written_is_a_storage_error(
    wire: FaultyServer, client_of: MakeClient, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    client = client_of(wire, cache=tmp_path / "file")
    logged = client.log_episode(sensors={"a": [1]}, t_ns=[0])
    with pytest.raises(StorageError):
        client.episode(logged.id or "").fetch("sensors")
