"""`rollbook login`, `keys` and `episodes`, against a real server."""

from __future__ import annotations

import io
import json
import re
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from rollbook.cli import login as login_module
from rollbook.client import Client
from rollbook.client.credentials import Profile, credentials_path, read_profile, write_profile
from tests.command import Ended, rollbook
from tests.server.fixtures import StartServer, running_server
from tests.server.people import Person
from tests.server.running import RunningServer

__all__ = ["running_server"]


@pytest.fixture(scope="module")
def server(running_server: StartServer) -> Iterator[RunningServer]:
    with running_server(sign_ins_per_minute=100_000) as started:
        yield started


@pytest.fixture(scope="module")
def owner(server: RunningServer) -> Iterator[Person]:
    person = Person(server).sign_in_by_link(server.first_org)
    yield person
    person.close()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ROLLBOOK_API_KEY", "ROLLBOOK_BASE_URL", "ROLLBOOK_QUIET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROLLBOOK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def signed_in(server: RunningServer) -> None:
    write_profile(Profile(api_key=server.api_key, base_url=server.base_url))


def decided(person: Person, decision: str, *arguments: object) -> Ended:
    """Logs in while somebody at a browser reads the code and decides."""
    return decided_about(person, decision, "login", *arguments)


def decided_about(person: Person, decision: str, *command: object) -> Ended:
    out, err = io.StringIO(), io.StringIO()

    def decide() -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            printed = out.getvalue() + err.getvalue()
            if found := re.search(r"^ +([A-Z0-9]{4}-[A-Z0-9]{4})$", printed, re.MULTILINE):
                person.submit("/cli/auth", code=found[1], decision=decision)
                return
            time.sleep(0.02)

    browser = threading.Thread(target=decide)
    browser.start()
    try:
        return rollbook(*command, "--no-browser", out=out, err=err)
    finally:
        browser.join()


# -------------------------------------------------------------------------------------------- login


def test_a_machine_logs_in_and_out(server: RunningServer, owner: Person) -> None:
    result = decided(owner, "approve", "--base-url", server.base_url + "/")
    assert result.returncode == 0, result.stderr
    assert f"{server.base_url}/cli/auth?code=" in result.stdout
    assert f"signed in as {server.first_org.email}" in result.stdout
    stored = read_profile()
    assert stored is not None
    assert stored.api_key not in result.stdout
    assert (stored.base_url, stored.org_id) == (server.base_url, server.org_id)
    assert stat.S_IMODE(credentials_path().stat().st_mode) == 0o600

    who = rollbook("whoami", "--json").json
    assert who["organisation"] == "First"
    assert who["user_email"] == server.first_org.email
    assert who["key_prefix"] == stored.api_key[:13]
    assert stored.api_key not in rollbook("whoami").stdout

    again = rollbook("login", "--base-url", server.base_url)
    assert again.returncode == 0
    assert "already signed in" in again.stdout
    assert read_profile() == stored

    out = rollbook("logout", "--revoke")
    assert out.returncode == 0
    assert f"revoked {stored.api_key[:13]}" in out.stdout
    assert read_profile() is None
    headers = {"Authorization": f"Bearer {stored.api_key}"}
    assert httpx.get(f"{server.base_url}/api/whoami", headers=headers).status_code == 401


def test_a_login_that_is_refused_stores_nothing(server: RunningServer, owner: Person) -> None:
    result = decided(owner, "deny", "--base-url", server.base_url)
    assert result.returncode == 1
    assert "refused" in result.stderr
    assert not credentials_path().exists()


@pytest.mark.usefixtures("signed_in")
def test_another_login_of_a_profile_replaces_it(server: RunningServer, owner: Person) -> None:
    before = read_profile()
    result = decided(owner, "approve", "--force", "--profile", "default")
    assert result.returncode == 0, result.stderr
    after = read_profile()
    assert before is not None
    assert after is not None
    assert after.base_url == before.base_url
    assert after.api_key != before.api_key


def test_a_login_nobody_answers_ends(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_module, "_LOGIN_LASTS_S", 0.1)
    result = rollbook("login", "--no-browser", "--base-url", server.base_url)
    assert result.returncode == 1
    assert "in time" in result.stderr


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://x", "http://"])
def test_what_is_no_server_is_refused_before_anything_is_sent(url: str) -> None:
    result = rollbook("login", "--no-browser", "--base-url", url or "x")
    assert result.returncode == 2
    assert "--base-url" in result.stderr


def test_a_server_that_is_not_there_is_said_so() -> None:
    result = rollbook("login", "--no-browser", "--base-url", "http://127.0.0.1:9")
    assert result.returncode == 1
    assert "cannot be reached" in result.stderr


def test_a_key_over_plain_http_is_warned_of() -> None:
    result = rollbook("login", "--no-browser", "--base-url", "http://rollbook.invalid:9")
    assert "without https" in result.stderr


# --------------------------------------------------------------------------------- logout and whoami


@pytest.mark.usefixtures("signed_in")
def test_without_revoking_the_key_goes_on_working(server: RunningServer) -> None:
    result = rollbook("logout")
    assert result.returncode == 0
    assert "--revoke" in result.stdout
    assert read_profile() is None
    with server.client() as client:
        assert client.get("/api/whoami").status_code == 200


def test_there_is_nothing_to_log_out_of_or_to_be() -> None:
    for command in (("logout",), ("logout", "--revoke"), ("whoami",), ("keys", "list")):
        result = rollbook(*command)
        assert result.returncode == 2
        assert result.stderr


def test_a_key_that_cannot_be_revoked_is_forgotten_and_told(server: RunningServer) -> None:
    write_profile(Profile(api_key=server.api_key, base_url="http://127.0.0.1:9"))
    result = rollbook("logout", "--revoke")
    assert result.returncode == 1
    assert "may still work" in result.stderr
    assert read_profile() is None


def test_a_key_that_was_revoked_already_is_no_trouble(server: RunningServer) -> None:
    write_profile(Profile(api_key="rt_0123456789_" + "x" * 43, base_url=server.base_url))
    result = rollbook("logout", "--revoke")
    assert result.returncode == 0
    assert "already revoked" in result.stdout


def test_whoami_says_what_is_wrong(server: RunningServer) -> None:
    write_profile(Profile(api_key="rt_0123456789_" + "x" * 43, base_url=server.base_url))
    refused = rollbook("whoami", "--json")
    assert refused.returncode == 1
    assert json.loads(refused.stderr)["status_code"] == 401
    write_profile(Profile(api_key=server.api_key, base_url="http://127.0.0.1:9"))
    away = rollbook("whoami", "--json")
    assert away.returncode == 0
    assert away.json["checked"] is False
    assert "cannot be reached" in away.stderr


def test_the_environment_comes_before_the_profile(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLBOOK_API_KEY", server.second_org.api_key)
    monkeypatch.setenv("ROLLBOOK_BASE_URL", server.base_url)
    assert rollbook("whoami", "--json").json["organisation"] == "Second"


# --------------------------------------------------------------------------------------------- keys


@pytest.mark.usefixtures("signed_in")
def test_a_key_is_made_when_a_person_approves_it(server: RunningServer, owner: Person) -> None:
    printed = decided_about(owner, "approve", "keys", "create", "--label", "arm 3")
    assert printed.returncode == 0, printed.stderr
    key = printed.stdout.strip()
    assert re.fullmatch(r"ri_[0-9A-Za-z]{10}_[0-9A-Za-z_-]{43}", key), "it only records"
    assert "with the scope ingest" in printed.stderr
    made = decided_about(
        owner, "approve", "keys", "create", "--scope", "write", "--label", "arm 4", "--json"
    ).json
    assert made["api_key"].startswith("rt_")
    assert (made["key"]["scope"], made["key"]["label"]) == ("write", "arm 4")
    reading = decided_about(owner, "approve", "keys", "create", "--read-only", "--json").json
    assert reading["key"]["scope"] == "read"
    denied = decided_about(owner, "deny", "keys", "create")
    assert (denied.returncode, denied.stdout) == (1, "")
    both = rollbook("keys", "create", "--read-only", "--scope", "admin")
    assert both.returncode == 2

    listed = rollbook("keys", "list")
    assert "arm 3" in listed.stdout
    assert "ingest" in listed.stdout
    assert key[:13] in listed.stdout
    assert key not in listed.stdout
    assert len(rollbook("keys", "list", "--json", "--limit", 1).json) == 1
    assert key not in server.log_path.read_text()


def test_keys_are_revoked_with_a_login_that_may_administer(
    server: RunningServer, owner: Person
) -> None:
    target = owner.call("POST", "/api/keys", json={"scope": "write"}).json()["api_key"]
    write_profile(Profile(api_key=server.api_key, base_url=server.base_url))
    refused = rollbook("keys", "revoke", target)
    assert refused.returncode == 1
    assert "somebody else's" in refused.stderr
    result = decided(owner, "approve", "--base-url", server.base_url, "--force", "--scope", "admin")
    assert result.returncode == 0, result.stderr
    assert rollbook("whoami", "--json").json["scope"] == "admin"
    with Client(api_key=target, base_url=server.base_url, verbose=False) as client:
        client.start_episode(artifacts=())
    ended = rollbook("keys", "revoke", target)
    assert ended.stdout.splitlines() == [
        f"revoked {target[:13]}",
        "made with this key, and kept: 1 episodes",
    ]
    assert target not in server.log_path.read_text()
    again = rollbook("keys", "revoke", target.split("_")[1], "--json").json
    assert (again["status"], again["left"]) == ("revoked", None)
    unknown = rollbook("keys", "revoke", "rb_0123456789")
    assert unknown.returncode == 1
    assert "no such key" in unknown.stderr
    assert rollbook("keys", "revoke", "../episodes").returncode == 2


# ----------------------------------------------------------------------------------------- episodes


@pytest.fixture
def episode_id(server: RunningServer, tmp_path: Path, signed_in: None) -> str:
    with Client(verbose=False) as client:
        episode = client.log_episode(
            name="pick 12",
            policy_version="v4",
            tags=["nightly"],
            metadata={"task": {"name": "pick"}},
            sensors={"/joint_states/position": np.arange(12.0).reshape(4, 3)},
            t_ns=np.arange(4) * 1_000_000,
        )
    assert episode.id is not None
    return episode.id


def test_episodes_are_found_and_shown(episode_id: str) -> None:
    for wanted in (
        ("--policy-version", "v4"),
        ("--tag", "nightly"),
        ("--metadata", "task.name=pick"),
        ("--name", "pick"),
        ("--limit", 0),
    ):
        found = rollbook("episodes", "list", "--json", *wanted).json
        assert episode_id in [each["id"] for each in found], wanted
    assert rollbook("episodes", "list", "--json", "--policy-version", "v5").json == []
    assert episode_id in rollbook("episodes", "list").stdout
    assert rollbook("episodes", "list", "--metadata", "nonsense").returncode == 2

    shown = rollbook("episodes", "show", episode_id, "--json").json
    assert shown["metadata"]["task"] == {"name": "pick"}
    assert [each["kind"] for each in shown["artifacts"]] == ["sensors"]
    text = rollbook("episodes", "show", episode_id).stdout
    assert "pick 12" in text
    assert shown["artifacts"][0]["sha256"] in text
    assert "/joint_states/position  float64  4 x 3" in text
    assert shown["artifacts"][0]["arrays"][0]["rows"] == 4
    assert rollbook("episodes", "show", "unknown").returncode == 1


def test_an_artifact_that_cannot_be_read_is_shown_as_such(episode_id: str, tmp_path: Path) -> None:
    (tmp_path / "page.npz").write_bytes(b"<html>502 Bad Gateway</html>")
    with Client(verbose=False) as client:
        broken = client.log_episode(sensors=tmp_path / "page.npz").id
    shown = rollbook("episodes", "show", broken).stdout
    assert "not readable: sensors.npz: archive is not a whole zip archive" in shown
    record = rollbook("episodes", "show", broken, "--json").json["artifacts"][0]
    assert (record["readable"], record["arrays"]) == (False, [])


def test_an_episode_is_downloaded_and_nothing_is_replaced_unasked(
    episode_id: str, tmp_path: Path
) -> None:
    folder = tmp_path / "fetched"
    first = rollbook("episodes", "download", episode_id, "--to", folder, "--json")
    assert first.returncode == 0, first.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["episode.json", "sensors.npz"]
    with np.load(folder / "sensors.npz", allow_pickle=False) as arrays:
        assert arrays["/joint_states/position"].shape == (4, 3)
    assert json.loads((folder / "episode.json").read_text())["id"] == episode_id

    again = rollbook("episodes", "download", episode_id, "--to", folder)
    assert again.returncode == 1
    assert "--replace" in again.stderr
    assert rollbook("episodes", "download", episode_id, "--to", folder, "--replace").returncode == 0
    missing = rollbook(
        "episodes", "download", episode_id, "--only", "video", "--to", tmp_path / "x"
    )
    assert missing.returncode == 1
    assert rollbook("episodes", "download", "../up").returncode == 2


def test_an_episode_is_deleted_when_one_means_it(
    episode_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert rollbook("episodes", "delete", episode_id).returncode == 1
    assert rollbook("episodes", "show", episode_id).returncode == 0
    assert rollbook("episodes", "delete", episode_id, "--yes", "--json").json == {
        "deleted": [episode_id]
    }
    assert rollbook("episodes", "show", episode_id).returncode == 1


@pytest.mark.usefixtures("signed_in")
def test_what_was_recorded_without_network_is_delivered(
    server: RunningServer, tmp_path: Path
) -> None:
    from rollbook.client import Retries

    spool = tmp_path / "spool"
    with Client(
        api_key=server.api_key,
        base_url="http://127.0.0.1:9",
        spool=spool,
        verbose=False,
        retries=Retries(attempts=1),
    ) as client:
        client.log_episode(name="in the field")
    kept = rollbook("episodes", "deliver", spool, "--json").json
    assert len(kept["waiting"]) == 1, "it was for another server"
    sent = rollbook("episodes", "deliver", spool, "--any-server")
    assert sent.returncode == 0, sent.stderr
    assert "1 delivered, none waiting" in sent.stdout
    assert rollbook("episodes", "list", "--json", "--name", "in the field").json
    assert rollbook("episodes", "deliver", tmp_path / "nowhere").returncode == 2
