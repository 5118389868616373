"""Uploads that a killed server, a killed program or a forgetful object store interrupts.

Real processes are killed in the middle of a large file. A line between them counts what is sent, so that a test sees
that what has arrived is not sent again.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.client import Client, Retries, Spool
from rollbook.errors import NotFoundError, StorageError
from tests.client.conftest import MakeClient
from tests.journeys.deployments import S3_ACCESS
from tests.server.blob_servers import BUCKET, BadLine, Served, free_port, rclone_server
from tests.server.running import RunningServer

AnyClient = Callable[..., Any]
PART = 1 << 20
SIZE = 24 * PART
CUT = 14 * PART
"""Bytes after which something is killed. No more than five parts are under way at once, so nine have arrived then."""
RESENT = 5 * PART + (PART >> 1)
"""What may be sent twice: the parts that were under way, and the requests around them."""
IMPATIENT = Retries(attempts=2, first_wait_s=0.05, longest_wait_s=0.2)

RECORDER = """
import sys
from rollbook.client import Client
client = Client(api_key=sys.argv[1], base_url=sys.argv[2], spool=sys.argv[3] or None, multipart_above=1)
if sys.argv[5] == "log":
    client.log_episode(
        name="killed", sensors=sys.argv[4], actions={"a": [1, 2]}, t_ns=[0, 1], metadata={"n": 1}, duration_s=2
    )
else:
    episode = client.start_episode(name="killed", artifacts=["sensors"])
    episode.upload("sensors", sys.argv[4])
"""


class LinedServer(RunningServer):
    """A real server that is reached through a line."""

    def __init__(self, folder: Path, **s3: Any) -> None:
        self.line = BadLine(port := free_port())
        overrides = {**s3, "public_url": self.line.url}
        super().__init__(folder, overrides, port, part_size=PART, environment=S3_ACCESS)

    def close(self) -> None:
        self.line.close()
        super().close()

    @property
    def other_api_key(self) -> str:
        return self.second_org.api_key

    @property
    def base_url(self) -> str:
        return self.line.url

    def restart(self) -> None:
        """Killed without a word, and back after a moment."""
        self.kill()
        self.start()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinedServer]:
    with LinedServer(tmp_path_factory.mktemp("interrupted")) as running:
        assert isinstance(running, LinedServer)
        yield running


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("big") / "sensors.bin"
    path.write_bytes(np.random.default_rng(0).bytes(SIZE))
    return path


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def record_and_die(server: LinedServer, line: BadLine, spool: Path, file: Path, how: str) -> None:
    """A program that is killed when `CUT` bytes have gone out."""
    arguments = [server.api_key, server.base_url, str(spool), str(file), how]
    program = subprocess.Popen([sys.executable, "-c", RECORDER, *arguments])
    line.at(line.sent + CUT, lambda: os.kill(program.pid, signal.SIGKILL))
    assert program.wait(60) == -signal.SIGKILL


def bytes_of(client: Client, episode_id: str) -> bytes:
    return client.episode(episode_id).fetch("sensors").read_bytes()


@pytest.mark.parametrize("any_client_of", ["blocking", "asyncio"], indirect=True)
def test_a_server_killed_in_the_middle_of_an_upload_gets_the_rest_when_it_is_back(
    server: LinedServer,
    any_client_of: AnyClient,
    big: Path,
    spool: Path,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The blocking client has no spool, the other one has."""
    spooled = "asyncio" in request.node.name
    client = any_client_of(
        server, multipart_above=1, retries=IMPATIENT, spool=spool if spooled else None
    )
    restarting = threading.Thread(target=server.restart)
    before = server.line.sent
    server.line.at(before + CUT, restarting.start)
    with caplog.at_level(logging.WARNING, "rollbook.client"):
        logged = client.log_episode(sensors=big)
    restarting.join()
    assert logged.status == "ready"
    assert bytes_of(client, logged.id) == big.read_bytes()
    assert server.line.sent - before < SIZE + RESENT
    told = caplog.messages[0]
    assert "cannot upload part" in told
    assert "Trying again in" in told
    assert "for up to 600 s" in told
    assert not spooled or not any(Spool(spool).folder.iterdir())


@pytest.mark.parametrize(("how", "status"), [("log", "ready"), ("start", "failed")])
def test_what_a_killed_program_left_half_sent_is_finished_by_the_next_delivery(
    server: LinedServer,
    client_of: MakeClient,
    big: Path,
    spool: Path,
    tmp_path: Path,
    how: str,
    status: str,
) -> None:
    """A whole episode ends as it was to end. One that was still being recorded ends as failed, with its files.

    The file itself may be gone: the journal has a link to it.
    """
    file = tmp_path / "sensors.bin"
    file.write_bytes(big.read_bytes())
    record_and_die(server, server.line, spool, file, how)
    file.unlink()
    assert Spool(spool).has_work()
    client = client_of(server, multipart_above=1, spool=spool)
    before = server.line.sent
    [episode_id] = client.deliver().delivered.values()
    assert server.line.sent - before < SIZE - CUT + RESENT
    found = client.episode(episode_id)
    assert (found.name, found.status) == ("killed", status)
    assert bytes_of(client, episode_id) == big.read_bytes()
    if how == "log":
        assert found.actions()["a/value"].tolist() == [1, 2]
        assert (found.metadata["n"], found.duration_s) == (1, 2)
        assert found.bytes_total == sum(each.size or 0 for each in found.artifacts)
    assert [each.id for each in client.episodes(name="killed", status=status)].count(
        episode_id
    ) == 1
    assert not Spool(spool).has_work()


@pytest.mark.slow
def test_the_next_recording_finishes_it_too(
    server: LinedServer, client_of: MakeClient, big: Path, spool: Path
) -> None:
    record_and_die(server, server.line, spool, big, "log")
    with client_of(server, multipart_above=1, spool=spool) as client:
        client.log_episode(name="the next one")
        assert client.deliver().delivered == {}, "the background delivery has done it"
    assert not Spool(spool).has_work()


def test_a_file_changed_after_its_program_was_killed_is_refused_and_never_mixed(
    server: LinedServer, client_of: MakeClient, big: Path, spool: Path, tmp_path: Path
) -> None:
    file = tmp_path / "sensors.bin"
    file.write_bytes(big.read_bytes())
    record_and_die(server, server.line, spool, file, "log")
    file.write_bytes(bytes(SIZE))
    client = client_of(server, multipart_above=1, spool=spool)
    [error] = client.deliver().refused.values()
    assert isinstance(error, StorageError)
    assert "changed after the program that recorded it was killed" in str(error)
    [name] = Spool(spool).refused()
    assert (spool / "refused" / name / "error.json").exists()


def test_a_recording_under_way_is_left_alone_by_other_deliveries(
    server: LinedServer, client_of: MakeClient, big: Path, spool: Path
) -> None:
    client, other = (
        client_of(server, multipart_above=1, spool=spool),
        client_of(server, spool=spool),
    )
    found: list[Any] = []
    server.line.at(server.line.sent + CUT, lambda: found.append(other.deliver()))
    assert client.log_episode(sensors=big).status == "ready"
    [report] = found
    assert (report.delivered, report.waiting, report.refused) == ({}, [], {})


def test_the_parts_of_an_upload_that_failed_for_good_are_removed(
    server: LinedServer, client_of: MakeClient, big: Path
) -> None:
    def enough(kind: str, sent: int, total: int) -> None:
        if sent > CUT:
            raise InterruptedError("enough")

    folder = server.data_dir / "blobs" / "uploads"
    before = set(folder.iterdir())
    with pytest.raises(InterruptedError):
        client_of(server, multipart_above=1).log_episode(sensors=big, on_progress=enough)
    assert set(folder.iterdir()) == before


# ------------------------------------------------------------------------------- an object store


@pytest.fixture(scope="module")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with rclone_server(tmp_path_factory.mktemp("rclone")) as running:
        yield running


@pytest.fixture(scope="module")
def s3_line(rclone: Served) -> Iterator[BadLine]:
    line = BadLine(rclone.port)
    yield line
    line.close()


@pytest.fixture(scope="module")
def s3_server(s3_line: BadLine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinedServer]:
    place = {"blobs_url": f"s3://{BUCKET}/parts", "s3_endpoint": s3_line.url}
    with LinedServer(tmp_path_factory.mktemp("s3-server"), **place) as running:
        assert isinstance(running, LinedServer)
        yield running


@pytest.mark.slow
def test_parts_in_an_object_store_are_not_sent_again(
    s3_server: LinedServer, s3_line: BadLine, client_of: MakeClient, big: Path, spool: Path
) -> None:
    record_and_die(s3_server, s3_line, spool, big, "log")
    client = client_of(s3_server, multipart_above=1, spool=spool)
    before = s3_line.sent
    [episode_id] = client.deliver().delivered.values()
    assert s3_line.sent - before < SIZE - CUT + RESENT
    assert bytes_of(client, episode_id) == big.read_bytes()


@pytest.mark.parametrize(
    "when", ["while it is sent", pytest.param("before it is resumed", marks=pytest.mark.slow)]
)
def test_an_upload_that_the_object_store_has_forgotten_begins_anew(
    s3_server: LinedServer,
    s3_line: BadLine,
    rclone: Served,
    client_of: MakeClient,
    big: Path,
    spool: Path,
    when: str,
) -> None:
    """This object store keeps unfinished uploads in memory, so it forgets them when it is restarted."""

    def restart() -> None:
        rclone.kill()
        rclone.start()

    client = client_of(s3_server, multipart_above=1, retries=IMPATIENT, spool=spool)
    if when == "while it is sent":
        restarting = threading.Thread(target=restart)
        s3_line.at(s3_line.sent + CUT, restarting.start)
        logged = client.log_episode(sensors=big)
        restarting.join()
        assert logged.status == "ready"
        episode_id = logged.id or ""
    else:
        record_and_die(s3_server, s3_line, spool, big, "log")
        restart()
        [episode_id] = client.deliver().delivered.values()
    assert bytes_of(client, episode_id) == big.read_bytes()


def test_an_upload_of_a_deleted_episode_ends(
    server: LinedServer, client_of: MakeClient, big: Path
) -> None:
    client = client_of(server, multipart_above=1)
    episode = client.start_episode(artifacts=["sensors"])
    server.line.at(server.line.sent + CUT, lambda: client.delete_episode(episode.id or ""))
    with pytest.raises(NotFoundError):
        episode.upload("sensors", big)
