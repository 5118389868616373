"""Uploads: digests, progress, large files in parts, URLs that expire, files that change."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.client import Retries, UploadUrl
from rollbook.errors import APIError, ConflictError, ServerError, TransportError, TruncatedFile
from tests.client.conftest import AnyServer, MakeClient
from tests.client.faulty_server import FaultyServer

AnyClient = Callable[..., Any]
BLOBS = "PUT /blobs"


def a_file(folder: Path, size: int, name: str = "run.bin") -> Path:
    path = folder / name
    path.write_bytes(np.random.default_rng(size).bytes(size))
    return path


def test_the_digest_of_every_artifact_is_sent_at_the_end(
    wire: FaultyServer, any_client_of: AnyClient, tmp_path: Path
) -> None:
    sensors = a_file(tmp_path, 300_000)
    any_client_of(wire).log_episode(sensors=sensors, actions={"a": [1, 2]}, t_ns=[0, 1])
    [finalize] = wire.asked("/finalize")
    claimed = finalize.json["artifacts"]
    assert claimed["sensors"] == {
        "sha256": hashlib.sha256(sensors.read_bytes()).hexdigest(),
        "size": 300_000,
    }
    assert sorted(claimed) == ["actions", "sensors"]
    assert finalize.json["bytes_total"] == sum(each["size"] for each in claimed.values())


def test_progress_goes_up_to_the_whole(
    wire: FaultyServer, any_client_of: AnyClient, tmp_path: Path
) -> None:
    seen: list[tuple[str, int, int]] = []
    client = any_client_of(wire)
    client.log_episode(
        sensors=a_file(tmp_path, 3_500_000), on_progress=lambda *all: seen.append(all)
    )
    assert [kind for kind, _, _ in seen] == ["sensors"] * len(seen)
    sent = [sent for _, sent, _ in seen]
    assert len(sent) > 2
    assert sent == sorted(set(sent))
    assert seen[-1] == ("sensors", 3_500_000, 3_500_000)


def test_progress_takes_back_what_has_to_be_sent_again(
    wire: FaultyServer, any_client_of: AnyClient, tmp_path: Path
) -> None:
    seen: list[int] = []
    wire.fail(BLOBS, "answer", status=503, times=2)
    any_client_of(wire).log_episode(
        sensors=a_file(tmp_path, 700_000), on_progress=lambda _, sent, total: seen.append(sent)
    )
    assert max(seen) == seen[-1] == 700_000
    assert seen.count(seen[0]) == 3


def test_progress_that_raises_ends_the_upload(
    wire: FaultyServer, any_client_of: AnyClient, tmp_path: Path
) -> None:
    def enough(kind: str, sent: int, total: int) -> None:
        raise InterruptedError("enough")

    with pytest.raises(InterruptedError):
        any_client_of(wire).log_episode(sensors=a_file(tmp_path, 700_000), on_progress=enough)
    assert [each["status"] for each in wire.episodes.values()] == ["failed"]


# ------------------------------------------------------------------------------------ in parts


def test_a_large_file_goes_in_parts_and_arrives_whole(
    server: AnyServer, any_client_of: AnyClient, tmp_path: Path
) -> None:
    sensors = a_file(tmp_path, 33_000_001, "sensors.bin")
    seen: list[int] = []
    client = any_client_of(server, multipart_above=1_000_000)
    logged = client.log_episode(
        sensors=sensors, on_progress=lambda _, sent, total: seen.append(sent)
    )
    found = client.episode(logged.id)
    assert found.artifacts[0].sha256 == hashlib.sha256(sensors.read_bytes()).hexdigest()
    assert found.fetch("sensors").read_bytes() == sensors.read_bytes()
    assert max(seen) == sensors.stat().st_size


def test_parts_are_named_with_their_digests(
    wire: FaultyServer, client_of: MakeClient, tmp_path: Path
) -> None:
    wire.set_part_size(400_000)
    sensors = a_file(tmp_path, 1_000_000)
    client_of(wire, multipart_above=500_000).log_episode(sensors=sensors)
    data = sensors.read_bytes()
    parts = [data[:400_000], data[400_000:800_000], data[800_000:]]
    [complete] = wire.asked("/complete")
    assert complete.json == {
        "parts": [
            {"number": i, "sha256": hashlib.sha256(part).hexdigest()}
            for i, part in enumerate(parts, start=1)
        ],
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    assert wire.asked("POST")[1].json == {"kind": "sensors", "size": 1_000_000}


def test_a_small_file_goes_in_one_piece(
    wire: FaultyServer, client_of: MakeClient, tmp_path: Path
) -> None:
    client_of(wire, multipart_above=500_000).log_episode(sensors=a_file(tmp_path, 500_000))
    assert len(wire.asked(BLOBS)) == 1
    assert wire.asked("/upload ") == []


def test_a_server_without_parts_gets_it_in_one_piece(
    wire: FaultyServer, any_client_of: AnyClient, tmp_path: Path
) -> None:
    wire.fail("/upload ", "answer", status=404, times=99)
    sensors = a_file(tmp_path, 800_000)
    logged = any_client_of(wire, multipart_above=500_000).log_episode(sensors=sensors)
    assert wire.blobs[logged.id, "sensors"].read_bytes() == sensors.read_bytes()


def test_a_part_that_fails_is_sent_again_alone(
    wire: FaultyServer, any_client_of: AnyClient, tmp_path: Path
) -> None:
    wire.set_part_size(200_000)
    wire.fail(BLOBS, "answer", status=503, times=2)
    wire.fail(BLOBS, "drop", times=1)
    sensors = a_file(tmp_path, 1_000_000)
    logged = any_client_of(wire, multipart_above=1).log_episode(sensors=sensors)
    assert wire.blobs[logged.id, "sensors"].read_bytes() == sensors.read_bytes()
    assert len(wire.asked(BLOBS)) == 5 + 3


def test_an_upload_goes_on_where_it_broke(
    wire: FaultyServer, any_client_of: AnyClient, tmp_path: Path
) -> None:
    """The second attempt sends only the parts that have not arrived."""
    wire.set_part_size(100_000)
    sensors = a_file(tmp_path, 1_000_000)
    client = any_client_of(wire, multipart_above=1, retries=Retries(attempts=1))
    episode = client.start_episode(artifacts=["sensors"])

    def cut(_: object) -> None:
        if len(wire.asked(BLOBS)) == 7:
            wire.fail(BLOBS, "drop", times=99)

    wire.before = cut
    with pytest.raises(TransportError):
        episode.upload("sensors", sensors)
    time.sleep(0.2)  # parts that were under way end
    wire.before = None
    wire.faults.clear()
    arrived = len(wire.parts)
    assert 0 < arrived < 10
    before = len(wire.asked(BLOBS))
    seen: list[int] = []
    episode.upload("sensors", sensors, on_progress=lambda _, sent, total: seen.append(sent))
    episode.finalize()
    assert len(wire.asked(BLOBS)) - before == 10 - arrived
    assert len(wire.asked("/upload ")) == 1
    assert max(seen) == 1_000_000
    assert wire.blobs[episode.id, "sensors"].read_bytes() == sensors.read_bytes()


def test_a_file_that_was_changed_in_between_starts_anew(
    wire: FaultyServer, client_of: MakeClient, tmp_path: Path
) -> None:
    wire.set_part_size(100_000)
    sensors = a_file(tmp_path, 300_000)
    client = client_of(wire, multipart_above=1)
    episode = client.start_episode(artifacts=["sensors"])
    wire.fail("/complete", "answer", status=503, times=99)
    with pytest.raises(ServerError):
        episode.upload("sensors", sensors)
    wire.faults.clear()
    other = a_file(tmp_path, 300_000, "other").read_bytes()[::-1]
    sensors.write_bytes(other)
    episode.upload("sensors", sensors)
    episode.finalize()
    assert len(wire.asked("/upload ")) == 2
    assert wire.asked("GET /api/ingest") == [], "nobody asks how far the other bytes have come"
    assert episode.id is not None
    assert wire.blobs[episode.id, "sensors"].read_bytes() == other


def test_an_upload_the_server_forgot_is_begun_again(
    wire: FaultyServer, client_of: MakeClient, tmp_path: Path
) -> None:
    sensors = a_file(tmp_path, 3_000_000)
    client = client_of(wire, multipart_above=1)
    episode = client.start_episode(artifacts=["sensors"])
    wire.fail("/complete", "answer", status=503, times=99)
    with pytest.raises(ServerError):
        episode.upload("sensors", sensors)
    wire.faults.clear()
    for part in wire.parts:
        shutil.rmtree(part.parent, ignore_errors=True)
    episode.upload("sensors", sensors)
    episode.finalize()
    assert episode.status == "ready"


def test_damage_on_the_way_is_an_error(
    wire: FaultyServer, client_of: MakeClient, tmp_path: Path
) -> None:
    def damage(seen: Any) -> None:
        if seen.path.endswith("/complete"):
            part = wire.parts[1]
            part.write_bytes(bytes(part.stat().st_size))

    wire.set_part_size(1_000_000)
    wire.before = damage
    with pytest.raises(ConflictError, match="Nothing was kept"):
        client_of(wire, multipart_above=1).log_episode(sensors=a_file(tmp_path, 3_000_000))


@pytest.mark.parametrize(
    "change",
    [
        {"part_size": 0},
        {"part_size": "many"},
        {"parts": []},
        {"parts": [{"number": 1}]},
        {"done": None},
    ],
)
def test_a_list_of_parts_that_does_not_fit_is_refused(
    wire: FaultyServer, client_of: MakeClient, tmp_path: Path, change: dict[str, Any]
) -> None:
    wire.change("/upload ", lambda begun: {**begun, **change})
    with pytest.raises(ServerError, match=r"list of parts|begin to upload sensors: .* unexpected"):
        client_of(wire, multipart_above=1).log_episode(sensors=a_file(tmp_path, 3_000_000))


# -------------------------------------------------------------------------------------- expiry


def test_an_expired_url_is_replaced_by_a_new_one(
    wire: FaultyServer, any_client_of: AnyClient, tmp_path: Path
) -> None:
    client = any_client_of(wire)
    episode = client.start_episode(artifacts=["sensors"])
    sensors = a_file(tmp_path, 10_000)
    wire.expire_urls()
    episode.upload("sensors", sensors)
    episode.finalize()
    assert len(wire.asked("/upload-urls")) == 1
    assert wire.blobs[episode.id, "sensors"].read_bytes() == sensors.read_bytes()


def test_a_url_about_to_expire_is_replaced_before_anything_is_sent(
    wire: FaultyServer, client_of: MakeClient, tmp_path: Path
) -> None:
    wire.set_url_ttl(5)
    episode = client_of(wire).start_episode(artifacts=["sensors"])
    wire.set_url_ttl(1800)
    episode.upload("sensors", a_file(tmp_path, 10_000))
    assert [each.method for each in wire.seen] == ["POST", "POST", "PUT"]


def test_expired_urls_of_parts_are_replaced(
    wire: FaultyServer, any_client_of: AnyClient, tmp_path: Path
) -> None:
    wire.set_part_size(100_000)
    sensors = a_file(tmp_path, 1_000_000)

    def expire(seen: Any) -> None:
        if len(wire.asked(BLOBS)) == 4:
            wire.expire_urls()
            wire.before = None

    wire.before = expire
    logged = any_client_of(wire, multipart_above=1).log_episode(sensors=sensors)
    assert wire.asked("GET /api/ingest"), "new URLs were asked for"
    assert wire.blobs[logged.id, "sensors"].read_bytes() == sensors.read_bytes()


def test_what_the_store_refuses_for_good_is_raised(
    wire: FaultyServer, client_of: MakeClient, tmp_path: Path
) -> None:
    wire.fail(BLOBS, "answer", status=403, times=99)
    with pytest.raises(APIError, match="cannot upload sensors") as found:
        client_of(wire).log_episode(sensors=a_file(tmp_path, 10_000))
    assert found.value.status_code == 403
    assert len(wire.asked(BLOBS)) == 2


def test_when_a_url_expires() -> None:
    assert not UploadUrl("sensors", "u", "2999-01-01T00:00:00Z").expires_soon
    assert UploadUrl("sensors", "u", "2001-01-01T00:00:00Z").expires_soon
    assert UploadUrl("sensors", "u", "2001-01-01T00:00:00").expires_soon
    assert not UploadUrl("sensors", "u", "").expires_soon
    assert not UploadUrl("sensors", "u", "tomorrow").expires_soon


# --------------------------------------------------------------------------- files that change


def test_a_file_that_shrinks_while_it_is_sent_is_noticed(
    wire: FaultyServer, any_client_of: AnyClient, tmp_path: Path
) -> None:
    sensors = a_file(tmp_path, 3_000_000)

    def shrink(kind: str, sent: int, total: int) -> None:
        sensors.write_bytes(b"short")

    with pytest.raises(TruncatedFile, match="while it was being sent"):
        any_client_of(wire).log_episode(sensors=sensors, on_progress=shrink)


def test_a_file_that_grows_while_it_is_sent_is_sent_as_it_was(
    wire: FaultyServer, client_of: MakeClient, tmp_path: Path
) -> None:
    sensors = a_file(tmp_path, 600_000)
    before = sensors.read_bytes()

    def grow(kind: str, sent: int, total: int) -> None:
        with open(sensors, "ab") as file:
            file.write(b"more")

    logged = client_of(wire).log_episode(sensors=sensors, on_progress=grow)
    assert logged.id is not None
    assert wire.blobs[logged.id, "sensors"].read_bytes() == before
