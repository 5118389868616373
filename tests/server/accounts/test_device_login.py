"""Logging a machine in: it starts, a person approves it in the browser, and it fetches its key, once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from rollbook.server.accounts.device_login import new_user_code, normal_code
from rollbook.server.db.engine import NOBODY
from rollbook.server.db.open import open_database
from rollbook.server.db.tables import device_logins
from rollbook.server.queries import device_login_by_user_code
from rollbook.server.settings import Settings
from tests.portal.hostile_text import assert_harmless
from tests.server.people import House, Person, house, join, sqlite_house, web
from tests.server.running import RunningServer

__all__ = ["house", "sqlite_house"]

HTML = "<script>alert(1)</script>\"'><b>"
_numbers = count()


@pytest.fixture(scope="module")
def server(house: House) -> RunningServer:
    return house.server


@pytest.fixture(scope="module")
def owner(house: House) -> Person:
    return house.owner


@pytest.fixture
def machine(server: RunningServer) -> Iterator[httpx.Client]:
    with web(server) as client:
        yield client


def start(machine: httpx.Client, **said: str | None) -> dict[str, Any]:
    body = {"user_agent": "robotrace-python/0.3.0", "hostname": "robot-7", **said}
    answer = machine.post("/api/cli/auth/start", json=body)
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def poll(machine: httpx.Client, login: dict[str, Any]) -> httpx.Response:
    return machine.post("/api/cli/auth/poll", json={"device_code": login["device_code"]})


def decide(person: Person, login: dict[str, Any], decision: str, **fields: str) -> httpx.Response:
    return person.submit("/cli/auth", code=login["user_code"], decision=decision, **fields)


def let_expire(server: RunningServer, login: dict[str, Any]) -> None:
    """As if ten minutes had passed."""
    database = open_database(Settings.load(server.data_dir, **server.overrides).database_url)
    statement = device_logins.update().where(device_logins.c.user_code == login["user_code"])

    def expire(connection: sa.Connection) -> None:
        # names the row, as every transaction without a tenant has to
        assert device_login_by_user_code(connection, login["user_code"]) is not None
        assert connection.execute(statement.values(expires_at_us=1)).rowcount == 1

    try:
        database.write_now(NOBODY, expire)
    finally:
        database.close()


# ------------------------------------------------------------------------------------------ the wire


def test_a_login_begins_with_two_codes_and_where_to_take_them(
    server: RunningServer, machine: httpx.Client
) -> None:
    login = start(machine)
    page = f"{server.base_url}/cli/auth"
    assert re.fullmatch(
        r"[B-DF-HJKMNP-RTV-Y34679]{4}-[B-DF-HJKMNP-RTV-Y34679]{4}", login["user_code"]
    )
    assert len(login["device_code"]) == 43
    assert login == {
        "device_code": login["device_code"],
        "user_code": login["user_code"],
        "verification_uri": page,
        "verification_uri_complete": f"{page}?code={login['user_code']}",
        "interval": 2,
        "expires_in": 600,
    }
    assert poll(machine, login).json() == {"status": "pending", "interval": 2}


def test_an_approved_login_gives_a_key_once(
    server: RunningServer, owner: Person, machine: httpx.Client
) -> None:
    login = start(machine, hostname="robot-7")
    assert "Device connected" in decide(owner, login, "approve").text
    first = poll(machine, login)
    assert first.status_code == 200
    answer = first.json()
    assert answer == {
        "status": "approved",
        "api_key": answer["api_key"],
        "base_url": server.base_url,
        "client_id": server.org_id,
        "user_email": server.first_org.email,
        "key": answer["key"],
    }
    assert (answer["key"]["scope"], answer["key"]["label"]) == ("write", "login on robot-7")
    assert re.fullmatch(r"rt_[0-9A-Za-z]{10}_[0-9A-Za-z_-]{43}", answer["api_key"])
    headers = {"Authorization": f"Bearer {answer['api_key']}"}
    assert machine.post("/api/ingest/episode", json={}, headers=headers).status_code == 201
    labels = {each["key_id"]: each["label"] for each in owner.get("/api/keys").json()["keys"]}
    assert labels[answer["api_key"].split("_")[1]] == "login on robot-7"

    second = poll(machine, login)
    assert second.status_code == 410
    assert second.json()["status"] == second.json()["code"] == "consumed"
    assert second.json()["error"]


def test_a_denied_login_stays_denied(owner: Person, machine: httpx.Client) -> None:
    login = start(machine)
    assert "Device refused" in decide(owner, login, "deny").text
    for _ in range(2):
        answer = poll(machine, login)
        assert (answer.status_code, answer.json()) == (200, {"status": "denied"})
    assert decide(owner, login, "approve").status_code == 404
    assert poll(machine, login).json() == {"status": "denied"}


@pytest.mark.parametrize("approved", [False, True])
def test_a_login_that_took_too_long_has_expired(
    server: RunningServer, owner: Person, machine: httpx.Client, approved: bool
) -> None:
    login = start(machine)
    if approved:
        decide(owner, login, "approve")
    let_expire(server, login)
    answer = poll(machine, login)
    assert answer.status_code == 410
    assert answer.json()["status"] == answer.json()["code"] == "expired"
    assert decide(owner, login, "approve").status_code == 404
    assert poll(machine, {"device_code": "unknown"}).content == answer.content


def test_of_many_who_fetch_a_key_at_once_one_gets_it(owner: Person, machine: httpx.Client) -> None:
    login = start(machine, hostname="the crowd")
    decide(owner, login, "approve")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: poll(machine, login), range(8)))
    assert sorted(each.status_code for each in answers) == [200] + [410] * 7
    keys = [
        each
        for each in owner.get("/api/keys").json()["keys"]
        if each["label"] == "login on the crowd"
    ]
    assert len(keys) == 1


def test_the_key_revokes_itself(
    server: RunningServer, owner: Person, machine: httpx.Client
) -> None:
    login = start(machine)
    decide(owner, login, "approve")
    key = poll(machine, login).json()["api_key"]
    headers = {"Authorization": f"Bearer {key}"}
    ended = machine.post("/api/cli/auth/revoke", headers=headers)
    assert ended.status_code == 200
    body = ended.json()
    assert body == {
        "status": "revoked",
        "key_id": key.split("_")[1],
        "key_prefix": key[:13],
        "revoked_at": body["revoked_at"],
        "ended": {"keys": [], "webhooks": []},
        "left": {"episodes": 0, "eval_runs": 0, "scenarios": 0, "open_uploads": 0},
    }
    assert machine.post("/api/cli/auth/revoke", headers=headers).status_code == 401
    assert machine.get("/api/episodes", headers=headers).status_code == 401
    assert machine.post("/api/cli/auth/revoke").status_code == 401
    assert owner.call("POST", "/api/cli/auth/revoke").status_code == 401


@pytest.mark.parametrize("body", [[], {"user_agent": 7}, {"hostname": "x" * 1001}])
def test_a_start_that_makes_no_sense_is_refused(machine: httpx.Client, body: object) -> None:
    assert machine.post("/api/cli/auth/start", json=body).status_code == 400


@pytest.mark.parametrize("body", [[], {}, {"device_code": None}, {"device_code": "x" * 201}])
def test_a_poll_that_makes_no_sense_is_refused(machine: httpx.Client, body: object) -> None:
    assert machine.post("/api/cli/auth/poll", json=body).status_code == 400


def test_codes_are_easy_to_type() -> None:
    codes = {new_user_code() for _ in range(200)}
    assert len(codes) == 200
    assert not set("".join(codes)) & set("AEIOU01258SLZ")
    code = codes.pop()
    for typed in (code.lower(), code.replace("-", ""), f" {code} ", code.replace("-", " - ")):
        assert normal_code(typed) == code


# ------------------------------------------------------------------------------------------ the page


def test_the_page_shows_what_asks_and_from_where(owner: Person, machine: httpx.Client) -> None:
    login = start(machine, hostname=HTML, user_agent=f"{HTML} agent\u202eevil\x07")
    page = owner.get("/cli/auth", params={"code": login["user_code"].lower().replace("-", "")})
    assert page.status_code == 200
    assert login["user_code"] in page.text
    assert "127.0.0.1" in page.text
    assert_harmless(page.text, HTML)
    assert "agentevil" in page.text, "letters that cannot be seen are left out"
    assert "First" in page.text
    assert owner.get("/cli/auth").status_code == 200


def test_a_code_that_nobody_waits_under_is_said_so(owner: Person) -> None:
    page = owner.get("/cli/auth", params={"code": HTML})
    assert page.status_code == 404
    assert_harmless(page.text, "No device waits")
    assert owner.submit("/cli/auth", code="BCDF-GHJK", decision="approve").status_code == 404
    assert owner.submit("/cli/auth", code="BCDF-GHJK", decision="maybe").status_code == 400


def test_nobody_approves_without_signing_in(
    server: RunningServer, machine: httpx.Client, owner: Person
) -> None:
    login = start(machine)
    page = machine.get("/cli/auth", params={"code": login["user_code"]})
    assert page.status_code == 303
    assert page.headers["location"].startswith("/sign-in?next=%2Fcli%2Fauth%3Fcode%3D")
    fields = {"code": login["user_code"], "decision": "approve"}
    refused = machine.post("/cli/auth", data=fields, headers={"Origin": server.base_url})
    assert refused.status_code == 303
    owner.submit("/cli/auth", token="wrong", **fields)
    assert poll(machine, login).json()["status"] == "pending"


def test_the_key_is_of_the_organisation_that_was_chosen(
    server: RunningServer, owner: Person, machine: httpx.Client
) -> None:
    email = f"both-{next(_numbers)}@example.com"
    person = join(server, owner, email, "member")
    refused = start(machine)
    for org_id in (server.second_org.org_id, "unknown"):
        answer = decide(person, refused, "approve", org_id=org_id)
        assert answer.status_code == 404
    assert poll(machine, refused).json()["status"] == "pending"
    decide(person, refused, "approve", org_id=server.org_id)
    assert poll(machine, refused).json()["client_id"] == server.org_id
    person.close()


def test_a_viewer_connects_a_device_that_only_reads(
    server: RunningServer, owner: Person, machine: httpx.Client
) -> None:
    person = join(server, owner, f"viewer-{next(_numbers)}@example.com", "viewer")
    login = start(machine)
    assert "read everything" in person.get("/cli/auth", params={"code": login["user_code"]}).text
    decide(person, login, "approve")
    key = poll(machine, login).json()["api_key"]
    assert key.startswith("rv_")
    headers = {"Authorization": f"Bearer {key}"}
    assert machine.get("/api/episodes", headers=headers).status_code == 200
    assert machine.post("/api/ingest/episode", json={}, headers=headers).status_code == 403
    assert machine.post("/api/cli/auth/revoke", headers=headers).status_code == 200
    person.close()


def test_whoever_was_removed_meanwhile_connects_nothing(
    server: RunningServer, owner: Person, machine: httpx.Client
) -> None:
    person = join(server, owner, f"gone-{next(_numbers)}@example.com", "member")
    user_id = person.get("/api/whoami").json()["user"]["id"]
    login = start(machine)
    decide(person, login, "approve")
    assert owner.call("DELETE", f"/api/members/{user_id}").status_code == 200
    assert poll(machine, login).json() == {"status": "denied"}
    person.close()


def test_approvals_are_in_the_audit_log(owner: Person, machine: httpx.Client) -> None:
    approved, denied = start(machine, hostname="audited"), start(machine, hostname="audited")
    decide(owner, approved, "approve")
    decide(owner, denied, "deny")
    poll(machine, approved)
    events = owner.get("/api/audit").json()["events"]
    seen = {(each["event"], each["subject"]) for each in events}
    assert ("device.approved", f"device:{approved['user_code']}") in seen
    assert ("device.denied", f"device:{denied['user_code']}") in seen
    found = next(each for each in events if each["subject"] == f"device:{approved['user_code']}")
    assert found["detail"] == {"hostname": "audited", "device_ip": "127.0.0.1"}


# ------------------------------------------------------------------------------- the public client


def test_the_public_clients_command_line_logs_in_and_out(
    sqlite_house: House, tmp_path: Path
) -> None:
    server, owner = sqlite_house.server, sqlite_house.owner
    environment = {**os.environ, "ROBOTRACE_HOME": str(tmp_path), "NO_COLOR": "1"}
    environment.pop("PYTHONWARNINGS", None)
    command = [sys.executable, "-u", "-m", "robotrace.cli"]
    arguments = ["login", "--base-url", server.base_url, "--no-browser"]
    process = subprocess.Popen(
        [*command, *arguments], env=environment, text=True, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        code = _code_in(process.stdout)
        assert owner.get("/cli/auth", params={"code": code}).status_code == 200
        assert owner.submit("/cli/auth", code=code, decision="approve").status_code == 200
        said, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert f"Signed in as {server.first_org.email}" in said
    stored = tomllib.loads((tmp_path / "credentials").read_text())["default"]
    assert stored["base_url"] == server.base_url
    assert stored["client_id"] == server.org_id
    headers = {"Authorization": f"Bearer {stored['api_key']}"}
    url = f"{server.base_url}/api/episodes"
    assert httpx.get(url, headers=headers).status_code == 200

    who = subprocess.run([*command, "whoami"], env=environment, text=True, capture_output=True)
    assert server.first_org.email in who.stdout
    out = subprocess.run(
        [*command, "logout", "--revoke"], env=environment, text=True, capture_output=True
    )
    assert out.returncode == 0
    assert f"Revoked {stored['api_key'][:13]}" in out.stdout
    assert not (tmp_path / "credentials").exists()
    assert httpx.get(url, headers=headers).status_code == 401


def _code_in(lines: Any) -> str:
    deadline = time.monotonic() + 30
    for line in lines:
        found = re.search(r"/cli/auth\?code=([A-Z0-9-]{9})", line)
        if found is not None:
            return found[1]
        assert time.monotonic() < deadline
    raise AssertionError("no code was shown")


def test_the_public_client_says_that_a_login_was_refused(
    sqlite_house: House, tmp_path: Path
) -> None:
    server, owner = sqlite_house.server, sqlite_house.owner
    environment = {**os.environ, "ROBOTRACE_HOME": str(tmp_path), "NO_COLOR": "1"}
    arguments = ["login", "--base-url", server.base_url, "--no-browser"]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "robotrace.cli", *arguments],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        code = _code_in(process.stdout)
        assert owner.submit("/cli/auth", code=code, decision="deny").status_code == 200
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert "refused" in said
    assert not (tmp_path / "credentials").exists()
