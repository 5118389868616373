"""A full disk, a database that is restarted, storage that is gone: clean faults meanwhile, then it goes on by itself.

The server is never restarted here. What it acknowledged before, during and after is there in the end.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.journeys.deployments import SMALL, team
from tests.journeys.nursery import MortalServer, Nursery, plain_client
from tests.journeys.recorders import (
    BYTES,
    CREATE,
    Ledger,
    Lost,
    Recorder,
    audit,
    content,
    is_clean_fault,
    recording,
)
from tests.server.blob_servers import Served
from tests.server.postgres_cluster import PostgresCluster

pytestmark = pytest.mark.slow

LONGEST_ANSWER_S = 20.0
LONGEST_WAIT_S = 60.0


@pytest.fixture
def in_a_team(
    nursery: Nursery, postgres_cluster: PostgresCluster, s3: Served, tmp_path: Path
) -> Iterator[MortalServer]:
    deployment = team(postgres_cluster, s3)
    with MortalServer(nursery, tmp_path / "data", deployment) as server:
        yield server


def answered(client: httpx.Client, method: str, path: str, **options: Any) -> httpx.Response:
    """Whatever the answer, it comes in time."""
    began = time.monotonic()
    answer = client.request(method, path, **options)
    assert time.monotonic() - began < LONGEST_ANSWER_S
    return answer


def wait_for_more(ledger: Ledger, count: int) -> None:
    deadline = time.monotonic() + LONGEST_WAIT_S
    while len(ledger.finalized) < count:
        assert time.monotonic() < deadline, "it does not recover by itself"
        time.sleep(0.02)


# --------------------------------------------------------------------------------------- the database


def restart_the_database(server: MortalServer, cluster: PostgresCluster, times: int) -> None:
    ledger = Ledger()
    with server.client() as client:
        for _ in range(times):
            with recording(server, ledger):
                wait_for_more(ledger, len(ledger.finalized) + 2)
                cluster.pause()
                try:
                    without_a_database(client)
                finally:
                    cluster.resume()
                wait_for_more(ledger, len(ledger.finalized) + 4)
        faults = [each for each in ledger.refused if is_clean_fault(each)]
        assert faults, "nobody noticed"
        assert ledger.cut.total() == 0, "an answer did not come at all"
        audit(client, ledger)


def without_a_database(client: httpx.Client) -> None:
    assert is_clean_fault(answered(client, "POST", CREATE, json={}))
    for path in ("/api/episodes", "/readyz"):
        assert is_clean_fault(answered(client, "GET", path))
    assert answered(client, "GET", "/healthz").status_code == 200


def test_a_database_that_is_restarted_under_load_costs_nothing_but_time(
    in_a_team: MortalServer, postgres_cluster: PostgresCluster
) -> None:
    restart_the_database(in_a_team, postgres_cluster, times=1)


def test_a_database_that_is_restarted_again_and_again(
    in_a_team: MortalServer, postgres_cluster: PostgresCluster
) -> None:
    restart_the_database(in_a_team, postgres_cluster, times=6)


def test_connections_that_are_cut_in_the_middle_of_work_are_replaced(
    in_a_team: MortalServer, postgres_cluster: PostgresCluster
) -> None:
    """As an operator does who ends sessions, and as a firewall does that forgets them."""
    ledger = Ledger()
    with in_a_team.client() as client:
        with recording(in_a_team, ledger):
            cut = sum(cut_connections(in_a_team, postgres_cluster) for _ in range(20))
            wait_for_more(ledger, len(ledger.finalized) + 4)
        assert cut > 0
        assert all(is_clean_fault(each) for each in ledger.refused)
        assert ledger.cut.total() == 0, "an answer did not come at all"
        audit(client, ledger)


def cut_connections(server: MortalServer, cluster: PostgresCluster) -> int:
    time.sleep(0.05)
    database = str(server.deployment.database_url).split("/")[3].split("?")[0]
    statement = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
    with psycopg.connect(cluster.admin_url(), autocommit=True) as connection:
        return len(connection.execute(statement, [database]).fetchall())


# ---------------------------------------------------------------------------------------- the storage


def test_storage_that_is_gone_is_a_fault_and_then_it_goes_on(
    in_a_team: MortalServer, s3: Served
) -> None:
    with in_a_team.client() as client:
        stored, waiting = (upload(client, data) for data in (b"stored", b"waiting"))
        assert finalize(client, stored).json()["status"] == "ready"
        s3.kill()
        try:
            without_storage(client, stored, waiting)
        finally:
            s3.start()
        ready_by = time.monotonic() + 30
        while (
            client.get("/readyz").status_code != 200
        ):  # the first question may wait for a lost connection
            assert time.monotonic() < ready_by, "it does not find the storage again"
            time.sleep(0.1)
        assert finalize(client, waiting).json()["status"] == "ready"
        for episode_id, data in ((stored, b"stored"), (waiting, b"waiting")):
            assert download(client, episode_id) == data


def without_storage(client: httpx.Client, stored: str, waiting: str) -> None:
    begin = {"kind": "actions", "size": 9}
    for answer in (
        answered(client, "POST", f"{CREATE}/{waiting}/finalize", json={"status": "ready"}),
        answered(client, "POST", f"{CREATE}/{waiting}/upload", json=begin),
        answered(client, "GET", f"/api/episodes/{stored}/artifact/sensors"),
        answered(client, "GET", "/readyz"),
    ):
        assert is_clean_fault(answer)
    assert client.get(f"/api/episodes/{waiting}").json()["status"] == "recording"
    assert client.get(f"/api/episodes/{stored}").json()["status"] == "ready"
    assert client.post(CREATE, json={"name": "metadata only"}).status_code == 201


def test_storage_that_stops_and_starts_under_load_costs_nothing_but_time(
    in_a_team: MortalServer, s3: Served
) -> None:
    ledger = Ledger()
    with in_a_team.client() as client:
        for _ in range(6):
            with recording(in_a_team, ledger):
                wait_for_more(ledger, len(ledger.finalized) + 2)
                s3.kill()
                time.sleep(0.5)
                s3.start()
                wait_for_more(ledger, len(ledger.finalized) + 4)
        ours = [each for each in ledger.refused if each.request.url.port == in_a_team.port]
        assert all(is_clean_fault(each) for each in ours if not has_to_begin_again(each))
        audit(client, ledger)


def has_to_begin_again(answer: httpx.Response) -> bool:
    """This S3 keeps parts in memory: an upload that it forgot is one that nobody can complete."""
    return answer.status_code == 404 and str(answer.request.url).endswith("/complete")


def upload(client: httpx.Client, data: bytes) -> str:
    made = client.post(CREATE, json={"request_uploads": ["sensors"]}).json()
    with plain_client() as storage:
        put = storage.put(made["upload_urls"][0]["url"], content=data, headers=BYTES)
    assert put.is_success
    return str(made["episode_id"])


def finalize(client: httpx.Client, episode_id: str) -> httpx.Response:
    return client.post(f"{CREATE}/{episode_id}/finalize", json={"status": "ready"})


def download(client: httpx.Client, episode_id: str) -> bytes:
    answer = client.get(f"/api/episodes/{episode_id}/artifact/sensors")
    assert answer.status_code == 302, answer.text
    with plain_client() as storage:
        return storage.get(answer.headers["location"]).raise_for_status().content


# ------------------------------------------------------------------------------------------- the disk


def a_disk_of(megabytes: int, folder: Path) -> list[str]:
    """To be put before a command: what it starts finds a small disk of its own at the folder, gone when it ends."""
    mount = f'mount -t tmpfs -o size={megabytes}m tmpfs "$0" && exec "$@"'
    for unshare in (["unshare", "-m"], ["unshare", "-rm"]):
        before = [*unshare, "sh", "-c", mount, str(folder)]
        with suppress(FileNotFoundError):
            if subprocess.run([*before, "true"], capture_output=True).returncode == 0:
                return before
    pytest.skip("no small disk can be made here: that needs `unshare` and the right to mount")


@pytest.fixture
def on_a_small_disk(tmp_path: Path) -> Iterator[MortalServer]:
    disk = tmp_path / "disk"
    disk.mkdir()
    with (
        closing(Nursery(tmp_path, {}, before=a_disk_of(24, disk))) as nursery,
        MortalServer(nursery, disk / "data", SMALL) as server,
    ):
        yield server


def test_on_a_full_disk_it_says_so_keeps_what_it_has_and_goes_on_when_there_is_room(
    on_a_small_disk: MortalServer,
) -> None:
    server, ledger = on_a_small_disk, Ledger()
    # the disk is mounted for the server alone; this is the way to look at it
    data_dir = Path(f"/proc/{server.nursery.pid}/root{server.data_dir}")
    recorder = Recorder(server, ledger, 0)
    with server.client() as client, closing(recorder):
        recorder.record("before")
        fill(data_dir.parent / "ballast")
        on_the_full_disk(recorder, client)
        audit(client, ledger)
        (data_dir.parent / "ballast").unlink()
        assert client.get("/readyz").status_code == 200
        for name in ("after", "in the end"):  # the last one in parts
            recorder.record(name)
        assert list((data_dir / "blobs" / "incoming").iterdir()) == []
        server.kill()
        server.start()
        assert ledger.finalized == {"before", "after", "in the end"}
        assert client.get("/api/episodes", params={"name": "lost"}).json()["episodes"] == []
        audit(client, ledger)


def on_the_full_disk(recorder: Recorder, client: httpx.Client) -> None:
    names = map("full {}".format, range(99))
    for name in [name for name in names if len(content(name)) > 200_000][:8]:
        assert is_clean_fault(refusal(recorder, name))
    lost = {"name": "lost", "metadata": {"filler": "x" * 200_000}}
    for _ in range(3):
        assert is_clean_fault(client.post(CREATE, json=lost))
    assert client.get("/healthz").status_code == 200
    assert is_clean_fault(client.get("/readyz"))


def refusal(recorder: Recorder, name: str) -> httpx.Response:
    with pytest.raises(Lost) as lost:
        recorder.record(name)
    assert lost.value.answer is not None, "the answer has to come, whatever it says"
    return lost.value.answer


def fill(ballast: Path) -> None:
    with open(ballast, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
