"""The spool: episodes recorded without network, and their delivery."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.client import Retries, Spool
from rollbook.client.artifact_files import ArtifactFile
from rollbook.client.spool import SpoolEntry
from rollbook.errors import (
    AuthError,
    ChecksumMismatch,
    ConfigurationError,
    ConflictError,
    LeaseHeld,
    StorageError,
    TransportError,
    ValidationError,
)
from tests.client.conftest import AnyServer, MakeClient
from tests.client.faulty_server import FaultyServer

AnyClient = Callable[..., Any]
ANY = ""
CREATE, FINALIZE = "POST /api/ingest/episode", "/finalize"


def unplug(wire: FaultyServer) -> None:
    wire.fail(ANY, "drop", times=1_000_000)


def plug_in(wire: FaultyServer) -> None:
    wire.faults.clear()


def entry_of(spool: Path) -> SpoolEntry:
    [name] = Spool(spool).waiting()
    return SpoolEntry(spool / name)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def sensors(tmp_path: Path) -> Path:
    path = tmp_path / "run.bin"
    path.write_bytes(np.random.default_rng(0).bytes(500_000))
    return path


def test_an_empty_name_is_not_the_current_folder() -> None:
    with pytest.raises(ConfigurationError, match="spool= is empty"):
        Spool("")


def test_an_episode_without_network_waits_and_is_delivered_whole(
    wire: FaultyServer, any_client_of: AnyClient, spool: Path, sensors: Path
) -> None:
    client = any_client_of(wire, spool=spool)
    unplug(wire)
    logged = client.log_episode(
        name="offline",
        seed=5,
        sensors=sensors,
        actions={"a": [1, 2]},
        t_ns=[0, 1],
        duration_s=2,
        metadata={"note": "ü"},
        tags=["field"],
    )
    assert (logged.id, logged.status, logged.storage) == (None, "spooled", "spool")
    assert wire.episodes == {}
    frames = sensors.read_bytes()
    sensors.unlink()  # the spool has a copy of its own
    plug_in(wire)
    report = client.deliver()
    [(entry, episode_id)] = report.delivered.items()
    assert (report.refused, report.waiting, report.stopped_by) == ({}, [], None)
    found = client.episode(episode_id)
    assert (found.name, found.seed, found.status) == ("offline", 5, "ready")
    assert (found.duration_s, found.tags) == (2, ["field"])
    assert found.metadata["note"] == "ü"
    assert found.metadata["spooled_at"].endswith("Z")
    assert found.fetch("sensors").read_bytes() == frames
    assert found.actions()["a/value"].tolist() == [1, 2]
    assert Spool(spool).waiting() == []
    assert not (spool / entry).exists()
    assert client.deliver().delivered == {}


def test_a_file_changed_after_it_was_spooled_is_delivered_as_it_was(
    wire: FaultyServer, client_of: MakeClient, spool: Path, sensors: Path
) -> None:
    client = client_of(wire, spool=spool)
    unplug(wire)
    client.log_episode(sensors=sensors)
    frames = sensors.read_bytes()
    sensors.write_bytes(b"the next run")
    plug_in(wire)
    [episode_id] = client.deliver().delivered.values()
    assert wire.blobs[episode_id, "sensors"].read_bytes() == frames


def test_what_was_spooled_can_be_delivered_to_any_server(
    server: AnyServer, client_of: MakeClient, spool: Path
) -> None:
    class Nowhere:
        base_url, api_key, other_api_key = "http://127.0.0.1:9", "rt_x", ""

    client_of(Nowhere(), spool=spool).log_episode(
        name="moved", sensors={"a": np.arange(4)}, t_ns=np.arange(4)
    )
    client = client_of(server, spool=spool)
    assert len(client.deliver().waiting) == 1, "it was recorded for another server"
    report = client.deliver(for_any_server=True)
    [episode_id] = report.delivered.values()
    assert client.episode(episode_id).sensors()["a/value"].tolist() == [0, 1, 2, 3]
    assert client.deliver(for_any_server=True).delivered == {}


@pytest.mark.parametrize("gone_at", ["create", "PUT", "finalize"])
@pytest.mark.parametrize("after", [False, True])
def test_the_network_may_go_at_any_step_and_there_is_one_episode(
    wire: FaultyServer,
    any_client_of: AnyClient,
    spool: Path,
    sensors: Path,
    gone_at: str,
    after: bool,
) -> None:
    """`after`: the server has done it, and only its answer is lost."""
    client = any_client_of(wire, spool=spool, retries=Retries(attempts=1))
    route = CREATE if gone_at == "create" else gone_at
    wire.fail(route, "drop", after=after, times=1)

    def stays_gone(seen: Any) -> None:
        if route in f"{seen.method} {seen.path}":
            unplug(wire)

    wire.before = stays_gone
    logged = client.log_episode(name="one", sensors=sensors, actions={"a": [1]}, t_ns=[0])
    assert logged.status == "spooled"
    wire.before = None
    plug_in(wire)
    assert len(client.deliver().delivered) == 1
    [episode] = wire.episodes.values()
    assert episode["status"] == "ready"
    assert wire.blobs[episode["id"], "sensors"].read_bytes() == sensors.read_bytes()
    assert (episode["id"], "actions") in wire.blobs
    assert client.deliver().delivered == {}


@pytest.mark.parametrize("route", [CREATE, "/upload-urls", "PUT", "finalize"])
def test_a_delivery_that_breaks_off_goes_on_later_and_sends_nothing_twice(
    wire: FaultyServer, client_of: MakeClient, spool: Path, sensors: Path, route: str
) -> None:
    client = client_of(wire, spool=spool, retries=Retries(attempts=1))
    unplug(wire)
    client.log_episode(sensors=sensors, actions={"a": [1]}, t_ns=[0])
    plug_in(wire)
    wire.fail(route, "drop", after=True)
    for _ in range(3):
        client.deliver()
    [episode] = wire.episodes.values()
    assert episode["status"] == "ready"
    assert wire.blobs[episode["id"], "sensors"].read_bytes() == sensors.read_bytes()
    assert Spool(spool).waiting() == []
    assert len(wire.asked("PUT")) <= 3


@pytest.mark.parametrize("begun_online", [False, True])
def test_an_entry_that_comes_back_from_a_backup_makes_no_second_episode(
    wire: FaultyServer, client_of: MakeClient, spool: Path, sensors: Path, begun_online: bool
) -> None:
    client = client_of(wire, spool=spool)
    if not begun_online:
        unplug(wire)
    episode = client.start_episode(artifacts=["sensors"])
    unplug(wire)
    episode.upload("sensors", sensors)
    episode.finalize()
    shutil.copytree(spool, spool.with_name("backup"))
    plug_in(wire)
    assert len(client.deliver().delivered) == 1
    shutil.copytree(spool.with_name("backup"), spool, dirs_exist_ok=True)
    assert len(client.deliver().delivered) == 1
    [found] = wire.episodes.values()
    assert found["status"] == "ready"
    assert Spool(spool).waiting() == []


@pytest.mark.parametrize(
    ("status", "is_spooled"), [(503, True), (429, True), (400, False), (401, False)]
)
def test_what_can_be_tried_again_is_spooled_and_what_cannot_is_raised(
    wire: FaultyServer, client_of: MakeClient, spool: Path, status: int, is_spooled: bool
) -> None:
    client = client_of(wire, spool=spool, retries=Retries(attempts=1))
    wire.fail(CREATE, "answer", status=status)
    if is_spooled:
        assert client.log_episode().status == "spooled"
    else:
        with pytest.raises((ValidationError, AuthError)):
            client.log_episode()
    assert len(Spool(spool).waiting()) == is_spooled


def test_without_a_spool_the_error_is_raised(wire: FaultyServer, client_of: MakeClient) -> None:
    unplug(wire)
    client = client_of(wire)
    with pytest.raises(TransportError):
        client.log_episode()
    with pytest.raises(ConfigurationError, match="spool=FOLDER"):
        client.deliver()


def test_a_mistake_is_raised_also_without_network(
    wire: FaultyServer, client_of: MakeClient, spool: Path
) -> None:
    unplug(wire)
    with pytest.raises(ConfigurationError, match="there is no such file"):
        client_of(wire, spool=spool).log_episode(sensors="missing.mp4")
    assert Spool(spool).waiting() == []


def test_while_the_network_is_away_nobody_waits_for_it(
    wire: FaultyServer, client_of: MakeClient, spool: Path
) -> None:
    """The first call tries as often as it should, those after it once, until one succeeds."""
    client = client_of(wire, spool=spool)
    unplug(wire)
    for _ in range(3):
        client.log_episode()
    assert len(wire.asked(CREATE)) == 4 + 1 + 1
    plug_in(wire)
    assert client.log_episode().status == "ready"
    wire.fail(CREATE, "drop", times=3)
    assert client.log_episode().status == "ready"


def test_a_long_recording_moves_into_the_spool_and_stays_there(
    wire: FaultyServer, any_client_of: AnyClient, spool: Path, sensors: Path
) -> None:
    client = any_client_of(wire, spool=spool)
    with client.start_episode(name="long", artifacts=["sensors", "actions"]) as episode:
        episode.upload("sensors", sensors)
        unplug(wire)
        episode.upload("actions", {"a": [1, 2, 3]}, t_ns=[0, 1, 2])
        plug_in(wire)  # it comes back too late for this one
        episode.finalize(duration_s=3)
    assert episode.status == "spooled"
    assert episode.id is not None
    facts = entry_of(spool).facts
    assert facts.episode_id == episode.id
    assert list(facts.files) == ["actions"], "the sensors has arrived"
    assert sorted(facts.finalize["artifacts"]) == ["actions", "sensors"]
    client.deliver()
    assert client.episode(episode.id).status == "ready"
    assert len(wire.episodes) == 1


def test_an_exception_without_network_is_spooled_as_a_failure(
    wire: FaultyServer, client_of: MakeClient, spool: Path
) -> None:
    client = client_of(wire, spool=spool)
    unplug(wire)
    with pytest.raises(KeyError), client.start_episode(artifacts=[]):
        raise KeyError("arm")
    plug_in(wire)
    [episode_id] = client.deliver().delivered.values()
    assert wire.episodes[episode_id]["status"] == "failed"
    assert wire.episodes[episode_id]["metadata"]["failure_reason"] == "KeyError: 'arm'"


def test_what_was_never_finalized_is_never_delivered(
    wire: FaultyServer, client_of: MakeClient, spool: Path, sensors: Path
) -> None:
    client = client_of(wire, spool=spool)
    unplug(wire)
    episode = client.start_episode()
    episode.upload("sensors", sensors)
    plug_in(wire)
    assert client.deliver().delivered == {}
    episode.finalize()
    assert len(client.deliver().delivered) == 1


def test_the_next_success_delivers_what_waits(
    wire: FaultyServer, any_client_of: AnyClient, spool: Path, sensors: Path
) -> None:
    client = any_client_of(wire, spool=spool)
    unplug(wire)
    for number in range(3):
        client.log_episode(seed=number, sensors=sensors)
    plug_in(wire)
    client.log_episode(seed=3)
    deadline = time.monotonic() + 10
    while Spool(spool).waiting() and time.monotonic() < deadline:
        time.sleep(0.01)
    client.close()
    assert sorted(each["seed"] for each in wire.episodes.values()) == [0, 1, 2, 3]
    assert {each["status"] for each in wire.episodes.values()} == {"ready"}


def test_asking_for_a_delivery_waits_for_the_one_under_way(
    wire: FaultyServer, any_client_of: AnyClient, spool: Path
) -> None:
    client = any_client_of(wire, spool=spool)
    unplug(wire)
    client.log_episode()
    plug_in(wire)
    wire.before = lambda _: time.sleep(0.05)
    client.log_episode()
    client.deliver()
    assert len(wire.episodes) == 2
    assert {each["status"] for each in wire.episodes.values()} == {"ready"}


# --------------------------------------------------------------------------------- what goes wrong


def test_an_entry_the_server_will_not_take_is_set_aside_and_holds_nobody_back(
    wire: FaultyServer, client_of: MakeClient, spool: Path
) -> None:
    client = client_of(wire, spool=spool)
    unplug(wire)
    client.log_episode(name="bad")
    client.log_episode(name="good")
    plug_in(wire)
    wire.fail(CREATE, "answer", status=400)
    report = client.deliver()
    assert len(report.delivered) == 1
    [(name, error)] = report.refused.items()
    assert isinstance(error, ValidationError)
    assert Spool(spool).refused() == [name]
    said = json.loads((spool / "refused" / name / "error.json").read_text())
    assert said["status_code"] == 400
    assert client.deliver().delivered == {}
    assert list(client.deliver(retry_refused=True).delivered) == [name]
    assert sorted(each["name"] for each in wire.episodes.values()) == ["bad", "good"]


def test_a_refused_entry_is_sent_again_from_nothing(
    wire: FaultyServer, client_of: MakeClient, spool: Path, sensors: Path
) -> None:
    """A file that has arrived may be the reason why it was refused."""
    client = client_of(wire, spool=spool)
    unplug(wire)
    client.log_episode(sensors=sensors)
    plug_in(wire)

    def damage(seen: Any) -> None:
        if seen.method == "PUT":
            [stored] = wire.blobs.values()
            stored.write_bytes(b"damaged on the way")

    wire.after = damage
    [error] = client.deliver().refused.values()
    assert isinstance(error, ConflictError)
    wire.after = None
    [episode_id] = client.deliver(retry_refused=True).delivered.values()
    assert wire.blobs[episode_id, "sensors"].read_bytes() == sensors.read_bytes()
    assert client.episode(episode_id).status == "ready"


def test_failures_with_successes_between_them_do_not_end_a_delivery(
    wire: FaultyServer, client_of: MakeClient, spool: Path
) -> None:
    client = client_of(wire, spool=spool, retries=Retries(attempts=1))
    unplug(wire)
    for _ in range(5):
        client.log_episode()
    plug_in(wire)
    wire.seen.clear()

    numbers = iter(range(5))

    def break_some(seen: Any) -> None:
        if f"{CREATE} " in seen.route and next(numbers) % 2 == 0:
            wire.fail(FINALIZE, "answer", status=500)

    wire.before = break_some
    report = client.deliver()
    assert (len(report.delivered), len(report.waiting)) == (2, 3)


def test_a_wrong_key_keeps_everything_waiting(
    wire: FaultyServer, client_of: MakeClient, spool: Path
) -> None:
    client = client_of(wire, spool=spool)
    unplug(wire)
    client.log_episode()
    client.log_episode()
    plug_in(wire)
    report = client_of(wire, spool=spool, api_key="rt_revoked").deliver()
    assert isinstance(report.stopped_by, AuthError)
    assert len(report.waiting) == 2
    assert len(wire.asked(CREATE)) > 0
    assert len(client.deliver().delivered) == 2


def test_no_network_keeps_everything_waiting(
    wire: FaultyServer, client_of: MakeClient, spool: Path
) -> None:
    client = client_of(wire, spool=spool)
    unplug(wire)
    client.log_episode()
    client.log_episode()
    report = client.deliver()
    assert isinstance(report.stopped_by, TransportError)
    assert len(report.waiting) == len(Spool(spool).waiting()) == 2


def test_an_entry_the_server_fails_over_does_not_hold_up_the_others(
    wire: FaultyServer, client_of: MakeClient, spool: Path
) -> None:
    client = client_of(wire, spool=spool, retries=Retries(attempts=1))
    unplug(wire)
    for seed in range(4):
        client.log_episode(seed=seed)
    plug_in(wire)
    wire.fail(CREATE, "answer", status=500)
    report = client.deliver()
    assert (len(report.delivered), len(report.waiting)) == (3, 1)
    assert report.stopped_by is not None
    assert len(client.deliver().delivered) == 1
    assert sorted(each["seed"] for each in wire.episodes.values()) == [0, 1, 2, 3]


def test_a_server_that_fails_over_everything_is_left_in_peace(
    wire: FaultyServer, client_of: MakeClient, spool: Path
) -> None:
    client = client_of(wire, spool=spool, retries=Retries(attempts=1))
    unplug(wire)
    for _ in range(5):
        client.log_episode()
    plug_in(wire)
    wire.seen.clear()
    wire.fail(CREATE, "answer", status=500, times=99)
    assert len(client.deliver().waiting) == 5
    assert len(wire.seen) == 2


def test_the_courier_tries_again_after_a_failure(
    wire: FaultyServer, client_of: MakeClient, spool: Path
) -> None:
    client = client_of(wire, spool=spool, retries=Retries(attempts=1))
    unplug(wire)
    client.log_episode(seed=0)
    plug_in(wire)
    wire.after = lambda seen: unplug(wire) if "finalize" in seen.path else None
    client.log_episode(seed=1)  # it starts, and finds no network
    wire.after = None
    client.deliver()
    plug_in(wire)
    client.log_episode(seed=2)
    deadline = time.monotonic() + 10
    while Spool(spool).waiting() and time.monotonic() < deadline:
        time.sleep(0.01)
    client.close()
    assert sorted(each["seed"] for each in wire.episodes.values()) == [0, 1, 2]


def test_a_file_damaged_in_the_spool_is_never_finalized(
    wire: FaultyServer, client_of: MakeClient, spool: Path, sensors: Path
) -> None:
    client = client_of(wire, spool=spool)
    unplug(wire)
    client.log_episode(sensors=sensors)
    plug_in(wire)
    copy = entry_of(spool).folder / "sensors.npz"
    data = copy.read_bytes()
    copy.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    [error] = client.deliver().refused.values()
    assert isinstance(error, ChecksumMismatch)
    assert [each["status"] for each in wire.episodes.values()] == ["recording"]
    copy = spool / "refused" / Spool(spool).refused()[0] / "sensors.npz"
    copy.unlink()
    [error] = client.deliver(retry_refused=True).refused.values()
    assert isinstance(error, StorageError)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', "not json"])
def test_an_entry_that_cannot_be_read_is_set_aside(
    wire: FaultyServer, client_of: MakeClient, spool: Path, text: str
) -> None:
    client = client_of(wire, spool=spool)
    (spool / "0001-odd").mkdir()
    (spool / "0001-odd" / "entry.json").write_text(text)
    [error] = client.deliver().refused.values()
    assert isinstance(error, StorageError)


def test_an_episode_deleted_meanwhile_is_not_made_again(
    wire: FaultyServer, client_of: MakeClient, spool: Path, sensors: Path
) -> None:
    client = client_of(wire, spool=spool)
    episode = client.start_episode(artifacts=["sensors"])
    unplug(wire)
    episode.upload("sensors", sensors)
    episode.finalize()
    plug_in(wire)
    assert episode.id is not None
    client.delete_episode(episode.id)
    report = client.deliver()
    assert len(report.refused) == 1
    assert wire.episodes == {}


def test_an_archived_episode_is_left_as_it_is(
    wire: FaultyServer, client_of: MakeClient, spool: Path
) -> None:
    client = client_of(wire, spool=spool)
    episode = client.start_episode(artifacts=[])
    unplug(wire)
    episode.finalize()
    plug_in(wire)
    client.archive_episode(episode.id or "")
    [error] = client.deliver().refused.values()
    assert isinstance(error, ConflictError)


def test_a_large_file_goes_on_where_its_delivery_broke(
    wire: FaultyServer, client_of: MakeClient, spool: Path, sensors: Path
) -> None:
    wire.set_part_size(50_000)
    client = client_of(wire, spool=spool, multipart_above=1, retries=Retries(attempts=1))
    unplug(wire)
    client.log_episode(sensors=sensors)
    plug_in(wire)

    def cut(_: object) -> None:
        if len(wire.asked("PUT")) == 6:
            unplug(wire)

    wire.before = cut
    assert client.deliver().stopped_by is not None
    time.sleep(0.2)
    wire.before = None
    plug_in(wire)
    arrived = len(wire.parts)
    before = len(wire.asked("PUT"))
    assert len(client_of(wire, spool=spool, multipart_above=1).deliver().delivered) == 1
    assert len(wire.asked("/upload ")) == 1
    assert len(wire.asked("PUT")) - before == 10 - arrived
    [episode] = wire.episodes.values()
    assert wire.blobs[episode["id"], "sensors"].read_bytes() == sensors.read_bytes()


# ------------------------------------------------------------------------------------ sharing


def test_two_deliveries_at_once_are_one(
    wire: FaultyServer, client_of: MakeClient, spool: Path
) -> None:
    client, other = client_of(wire, spool=spool), client_of(wire, spool=spool)
    unplug(wire)
    for _ in range(3):
        client.log_episode()
    plug_in(wire)
    errors: list[Exception] = []

    def deliver_too(_: object) -> None:
        wire.before = None
        with pytest.raises(LeaseHeld) as found:
            other.deliver()
        errors.append(found.value)

    wire.before = deliver_too
    assert len(client.deliver().delivered) == 3
    assert len(errors) == 1
    assert len(wire.episodes) == 3
    assert other.deliver().delivered == {}


def test_a_delivery_holds_its_lease_for_as_long_as_it_takes(
    wire: FaultyServer, client_of: MakeClient, spool: Path
) -> None:
    client = client_of(wire, spool=Spool(spool, lease_s=0.2))
    unplug(wire)
    client.log_episode()
    plug_in(wire)
    wire.before = lambda _: time.sleep(0.6)
    thread = threading.Thread(target=client.deliver)
    thread.start()
    time.sleep(0.5)
    with pytest.raises(LeaseHeld):
        client_of(wire, spool=spool).deliver()
    thread.join(10)
    assert len(wire.episodes) == 1


def test_what_the_dead_left_is_swept_and_the_living_are_left_alone(
    wire: FaultyServer, client_of: MakeClient, spool: Path, sensors: Path
) -> None:
    client = client_of(wire, spool=spool)
    unplug(wire)
    living = client.start_episode(artifacts=["sensors"])
    living.upload("sensors", sensors)
    plug_in(wire)
    nothing_in_it, done = spool / ".draft-dead", spool / ".done-gone"
    for folder in (nothing_in_it, done):
        folder.mkdir()
        (folder / "sensors.npz").write_bytes(b"x")
    for each in spool.iterdir():
        os.utime(each, (0, 0))
    young = spool / ".draft-young"
    young.mkdir()
    assert client.deliver().delivered == {}
    assert not nothing_in_it.exists()
    assert not done.exists()
    assert young.exists()
    living.finalize()
    assert len(client.deliver().delivered) == 1


def test_a_recording_whose_program_died_is_delivered_as_failed(
    wire: FaultyServer, client_of: MakeClient, spool: Path, sensors: Path
) -> None:
    unplug(wire)
    program = (
        "import os, sys; from rollbook.client import *\n"
        "client = Client(api_key='k', base_url=sys.argv[1], spool=sys.argv[2], retries=Retries(attempts=1))\n"
        "episode = client.start_episode(name='crash', artifacts=['sensors'])\n"
        "episode.upload('sensors', sys.argv[3])\n"
        "os.kill(os.getpid(), 9)"
    )
    arguments = [sys.executable, "-c", program, wire.base_url, str(spool), str(sensors)]
    assert subprocess.run(arguments, check=False).returncode == -9
    plug_in(wire)
    client = client_of(wire, spool=spool)
    [episode_id] = client.deliver().delivered.values()
    found = client.episode(episode_id)
    assert (found.name, found.status) == ("crash", "failed")
    assert "program ended" in found.metadata["failure_reason"]
    assert found.fetch("sensors").read_bytes() == sensors.read_bytes()


def test_a_program_killed_between_copying_a_file_and_noting_it_loses_nothing(
    spool: Path, sensors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ArtifactFile("sensors", sensors, sensors.stat().st_size)
    draft = Spool(spool).draft(base_url="u", idempotency_key="k", create={}, files=[file])

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("rollbook.client.spool._write", killed)
        with pytest.raises(KeyboardInterrupt):
            draft.keep(file)
    draft.close()
    sensors.write_bytes(b"the next run")
    Spool(spool).sweep()
    assert entry_of(spool).file("sensors").path.stat().st_size == file.size


def test_a_folder_that_cannot_be_used_is_a_mistake_of_configuration(
    wire: FaultyServer, client_of: MakeClient, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="spool="):
        client_of(wire, spool=tmp_path / "file")


def test_a_full_disk_is_said_and_leaves_nothing_half(
    wire: FaultyServer, client_of: MakeClient, spool: Path, sensors: Path
) -> None:
    unplug(wire)
    program = (
        "import resource, sys; from rollbook.client import *; from rollbook.errors import StorageError\n"
        "client = Client(api_key='k', base_url=sys.argv[1], spool=sys.argv[2], retries=Retries(attempts=1))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: client.log_episode(sensors=sys.argv[3])\n"
        "except StorageError as error: sys.exit('cannot be copied' not in str(error))\n"
        "sys.exit(2)"
    )
    arguments = [sys.executable, "-c", program, wire.base_url, str(spool), str(sensors)]
    assert subprocess.run(arguments, check=False).returncode == 0
    plug_in(wire)
    client = client_of(wire, spool=spool)
    [episode_id] = client.deliver().delivered.values()
    found = client.episode(episode_id)
    assert (found.status, found.artifacts) == ("failed", [])
    assert "cannot be copied" in found.metadata["failure_reason"]


def test_there_is_no_secret_in_a_spool(
    wire: FaultyServer, client_of: MakeClient, spool: Path, sensors: Path
) -> None:
    client = client_of(wire, spool=spool)
    episode = client.start_episode(artifacts=["sensors"])
    unplug(wire)
    episode.upload("sensors", sensors)
    episode.finalize()
    text = (entry_of(spool).folder / "entry.json").read_text()
    assert wire.api_key not in text
    assert "/blobs/" not in text
    assert spool.stat().st_mode & 0o777 == 0o700
