"""`rollbook serve` and `rollbook server …`, as whoever runs a server types them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollbook.server.settings import Settings
from tests.command import rollbook
from tests.server.serving import START_LIMIT_S, Served, serving, workers_of

_CREATE = "/api/ingest/episode"
_PAGE = os.sysconf("SC_PAGE_SIZE")


def as_json(*arguments: object) -> Any:
    ended = rollbook(*arguments, "--json")
    return json.loads(ended.stdout)


def memory_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


# ------------------------------------------------------------------------------------------- serve


_SIGN_IN = r"sign in\s+http://127\.0\.0\.1:\d+/sign-in\?token=(\S{20,})"


def test_the_first_start_makes_all_that_is_needed_and_shows_the_key_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data) as first:
        assert memory_of(first.process.pid) < 150e6
        link = re.search(_SIGN_IN, first.greeting)
        assert link is not None
        made = httpx.post(f"{first.base_url}{_CREATE}", json={}, headers=first.headers)
        assert made.status_code == 201
        modes = [path.stat().st_mode & 0o777 for path in (data, data / "secret.key")]
        assert modes == [0o700, 0o600]
        log = first.stop()
        assert first.api_key not in log
    assert [json.loads(line)["event"] for line in log.splitlines()].count("started") == 1

    other = as_json("server", "bootstrap", "--data", data, "--org", "Umbrella")
    with serving(data) as second:
        assert "API key" not in second.greeting
        # the owner has no password yet, so nobody could sign in without a new link
        another = re.search(_SIGN_IN, second.greeting)
        assert another is not None
        assert another[1] != link[1]
        path = f"{second.base_url}/api/episodes/{made.json()['episode_id']}"
        assert httpx.get(path, headers=first.headers).status_code == 200
        headers = {"Authorization": f"Bearer {other['api_key']}"}
        assert httpx.get(path, headers=headers).status_code == 404
        whoami = httpx.get(f"{second.base_url}/api/whoami", headers=headers).json()
        assert whoami["organisation"]["id"] == other["org_id"]


def test_metrics_and_public_urls_have_addresses_of_their_own_and_work_is_finished(
    tmp_path: Path,
) -> None:
    metrics, public = free_address(), "https://rollbook.example.com"
    options = ("--metrics", metrics, "--public-url", public, "--set", "quota_episodes=1")
    with serving(tmp_path / "data", *options) as server:
        body = {"request_uploads": ["sensors"]}
        headers = {**server.headers, "Host": "evil.example"}
        made = httpx.post(f"{server.base_url}{_CREATE}", json=body, headers=headers).json()
        url = made["upload_urls"][0]["url"]
        assert url.startswith(f"{public}/blobs/")
        assert httpx.get(f"{server.base_url}/metrics").status_code == 404
        shown = httpx.get(f"http://{metrics}/metrics").text
        assert 'rollbook_episodes_total{what="created"} 1.0' in shown
        assert "process_resident_memory_bytes" in shown
        assert made["episode_id"] not in shown
        over = httpx.post(f"{server.base_url}{_CREATE}", json={}, headers=server.headers)
        assert over.json()["code"] == "quota_exceeded"

        here = url.replace(public, server.base_url)
        assert upload_while_stopping(server, here) == 200
    stored = list((tmp_path / "data" / "blobs" / "objects").rglob("sensors.npz"))
    assert [each.stat().st_size for each in stored] == [100_000]


def upload_while_stopping(server: Served, url: str) -> int:
    """The status of an upload that had begun when the server was told to stop."""
    statuses: list[int] = []
    under_way = threading.Event()

    def slowly() -> Iterator[bytes]:
        for _ in range(10):
            yield b"x" * 10_000
            under_way.set()
            time.sleep(0.05)

    def upload() -> None:
        headers = {"Content-Type": "application/octet-stream"}
        statuses.append(httpx.put(url, content=slowly(), headers=headers).status_code)

    thread = threading.Thread(target=upload)
    thread.start()
    under_way.wait()
    time.sleep(0.2)
    log = server.stop()
    thread.join()
    assert '"level":"error"' not in log
    return statuses[0]


@pytest.mark.slow
def test_several_workers_share_a_port_and_their_metrics(tmp_path: Path) -> None:
    metrics = free_address()
    with serving(tmp_path / "data", "--workers", 2, "--metrics", metrics) as server:
        made = set()
        for _ in range(24):  # a new connection each, so that both come to their turn
            answer = httpx.post(f"{server.base_url}{_CREATE}", json={}, headers=server.headers)
            made.add(answer.json()["episode_id"])
        path = f"{server.base_url}/api/episodes?limit=200"
        listed = httpx.get(path, headers=server.headers).json()
        assert {each["id"] for each in listed["episodes"]} == made
        shown = httpx.get(f"http://{metrics}/metrics").text
        counted = 'rollbook_requests_total{method="POST",route="/api/ingest/episode",status="201"}'
        assert f"{counted} 24.0" in shown
        assert "rollbook_processes 3.0" in shown, "the parent and two workers"
        assert "rollbook_database_connections 10.0" in shown, "one writes and four read, in each"
        assert "rollbook_upkeep_last_turn_timestamp_seconds" in shown
        workers = workers_of(server)
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline and len(set(workers_of(server)) - {workers[0]}) < 2:
            time.sleep(0.1)
        assert len(set(workers_of(server)) - {workers[0]}) == 2, "another takes its place"
        assert httpx.get(path, headers=server.headers).status_code == 200
        shown = httpx.get(f"http://{metrics}/metrics").text
        assert f'rollbook_process_resident_bytes{{pid="{workers[1]}"}}' in shown
        assert f'pid="{workers[0]}"' not in shown
        assert "rollbook_database_connections 15.0" not in shown, "the dead one is not counted"
        server.stop()


# ---------------------------------------------------------------------------------------- refusals


def test_a_port_that_is_taken_is_said_before_anything_is_made(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = rollbook("serve", "--data", tmp_path / "data", "--port", port)
    assert ended.returncode == 2
    assert "choose another --port" in ended.stderr
    assert not (tmp_path / "data" / "rollbook.db").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--database", "mysql://x"], "database: expected sqlite:///PATH or postgresql://…"),
        (["--blobs", "ftp://x"], "blobs: 'ftp' is not supported"),
        (["--public-url", "rollbook.example.com"], "is not an address such as"),
        (["--metrics", "9321"], "is not HOST:PORT"),
        (["--set", "quota=5"], "there is no setting 'quota'"),
        (["--set", "quota_bytes=much"], "expected a whole number, at least 0"),
        (["--set", "port=1"], "expected NAME=VALUE, for a setting that has no option of its own"),
    ],
)
def test_an_option_that_cannot_be_is_said_at_once(
    tmp_path: Path, options: list[str], said: str
) -> None:
    ended = rollbook("serve", "--data", tmp_path / "data", "--port", 0, *options)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "API key" not in ended.stdout


def test_processes_that_start_together_agree_on_one_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        loaded = list(pool.map(Settings.load, [tmp_path / "data"] * 8))
    assert len({each.secret for each in loaded}) == 1
    assert [each.name for each in (tmp_path / "data").iterdir()] == ["secret.key"]
    assert loaded[0].secret.hex() not in repr(loaded[0])
    assert "secret" not in loaded[0].portable()


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    assert rollbook("server", "migrate", "--data", tmp_path / "data").returncode == 0
    (tmp_path / "data" / "secret.key").chmod(0o644)
    ended = rollbook("server", "doctor", "--data", tmp_path / "data")
    assert ended.returncode == 1
    assert "chmod 600" in ended.stderr


# ---------------------------------------------------------------------------------- looking after


def test_bootstrap_makes_organisations_that_share_nothing(tmp_path: Path) -> None:
    made = [
        as_json("server", "bootstrap", "--data", tmp_path / "data", "--org", name)
        for name in ("Acme", "Umbrella")
    ]
    for name in ("org_id", "user", "api_key", "sign_in_link"):
        assert made[0][name] != made[1][name]


def test_migrate_says_what_it_did(tmp_path: Path) -> None:
    first, again = (as_json("server", "migrate", "--data", tmp_path / "data") for _ in range(2))
    assert first["applied"][-1] == first["revision"]
    assert again == {"applied": [], "revision": first["revision"]}


def test_the_doctor_says_what_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    data = tmp_path / "data"

    def findings() -> dict[str, dict[str, Any]]:
        found = as_json("server", "doctor", "--data", data)["findings"]
        return {each["subject"]: each for each in found}

    ill = findings()
    assert ill["database"]["code"] == "not_migrated"
    assert "rollbook server migrate" in ill["database"]["detail"]
    made = as_json("server", "bootstrap", "--data", data, "--org", "Acme")
    well = findings()
    assert all(each["passed"] for each in well.values()), well
    assert well[f"organisation {made['org_id']}"]["detail"] == "0 episodes, 0 bytes"
    data.chmod(0o755)
    assert findings()["data folder"]["code"] == "open_to_others"


def test_a_backup_becomes_the_same_server_again(tmp_path: Path) -> None:
    data, away, back = tmp_path / "data", tmp_path / "backup", tmp_path / "back"
    made = as_json("server", "bootstrap", "--data", data, "--org", "Acme")
    saved = as_json("server", "backup", away, "--data", data)
    assert saved["files"] >= 2
    assert rollbook("server", "backup", away, "--data", data).returncode == 1, "never over another"
    assert as_json("server", "restore", away, "--data", back)["bytes"] == saved["bytes"]
    assert (back / "secret.key").read_bytes() == (data / "secret.key").read_bytes()
    found = as_json("server", "doctor", "--data", back)["findings"]
    assert f"organisation {made['org_id']}" in [each["subject"] for each in found]
    (away / "rollbook.db").write_bytes(b"damaged")
    ended = rollbook("server", "restore", away, "--data", tmp_path / "other")
    assert ended.returncode == 1
    assert not (tmp_path / "other").exists()
