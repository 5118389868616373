"""What a key of each scope can do with real episodes, runs and uploads, and what ends when it is revoked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollbook.contracts.wire.keys import SCOPES, KeyScope
from rollbook.server.accounts.keys import new_api_key
from rollbook.server.accounts.roles import machine, person
from rollbook.server.context import Caller, ServerContext
from rollbook.server.db.engine import Tenant
from rollbook.server.db.open import open_database
from rollbook.server.db.sqlite import SqliteDatabase
from rollbook.server.http.responses import Problem
from rollbook.server.queries import Scope
from rollbook.server.settings import Settings
from tests.server.episodes.test_upkeep import Server
from tests.server.people import House, Person, house, join, web
from tests.server.running import RunningServer
from tests.server.tenants import new_organisation

__all__ = ["house"]

_numbers = count()
_UNKNOWN = "01890000-0000-7000-8000-000000000000"
_DATA = b"ten bytes."


class Robot:
    """A machine with a key of its own."""

    def __init__(self, server: RunningServer, key: str) -> None:
        self.key = key
        self.key_id = key.split("_")[1]
        self.http = web(server, Authorization=f"Bearer {key}")

    def episode(self, **body: Any) -> str:
        made = self.http.post("/api/ingest/episode", json=body)
        assert made.status_code == 201, made.text
        episode_id: str = made.json()["episode_id"]
        return episode_id

    def run(self, *baselines: str) -> str:
        body = {"candidate_policy_version": "v2", "baseline_episode_ids": baselines}
        made = self.http.post("/api/ingest/eval-run", json=body)
        assert made.status_code == 201, made.text
        run_id: str = made.json()["eval_run_id"]
        return run_id

    def status(self, method: str, path: str, body: Any = None) -> int:
        return self.http.request(method, path, json=body).status_code


@pytest.fixture(scope="module")
def server(house: House) -> RunningServer:
    return house.server


@pytest.fixture(scope="module")
def owner(house: House) -> Person:
    return house.owner


@pytest.fixture(scope="module")
def robots(server: RunningServer) -> Iterator[dict[KeyScope, Robot]]:
    made = {scope: Robot(server, server.new_key(scope).api_key) for scope in SCOPES}
    yield made
    for each in made.values():
        each.http.close()


def new_robot(owner: Person, server: RunningServer, scope: KeyScope) -> Robot:
    made = owner.call("POST", "/api/keys", json={"scope": scope, "label": "robot"})
    assert made.status_code == 201, made.text
    return Robot(server, made.json()["api_key"])


def in_database(server: RunningServer, work: Any) -> Any:
    org_id = server.org_id
    url = Settings.load(server.data_dir, **server.overrides).database_url
    with closing(open_database(url)) as database:
        return database.write_now(
            Tenant(org_id=org_id), lambda connection: work(Scope(connection, org_id))
        )


# -------------------------------------------------------------------------------------- reading only


def test_a_read_only_key_gets_no_upload_url_and_ends_no_upload(
    owner: Person, robots: dict[KeyScope, Robot]
) -> None:
    robot = robots["write"]
    episode = robot.episode(request_uploads=["sensors"])
    at = f"/api/ingest/episode/{episode}/upload"
    sha256 = hashlib.sha256(_DATA).hexdigest()
    wanted = {"kind": "sensors", "size": len(_DATA), "sha256": "0" * 64}
    begun = robot.http.post(at, json=wanted).json()
    upload = f"{at}/{begun['upload_id']}"
    reader = robots["read"]
    looked = reader.http.get(upload)
    assert (looked.status_code, looked.json()["code"]) == (403, "forbidden")
    assert "url" not in looked.text

    assert httpx.put(begun["parts"][0]["url"], content=_DATA).status_code == 200
    for method, path, body in (
        ("POST", f"{upload}/complete", {}),
        ("DELETE", upload, None),
        ("POST", f"/api/ingest/episode/{episode}/upload-urls", {}),
        ("POST", at, wanted),
    ):
        assert reader.status(method, path, body) == 403
    assert [part["number"] for part in robot.http.get(upload).json()["done"]] == [1]
    done = robot.http.post(f"{upload}/complete", json={"sha256": sha256})
    assert (done.status_code, done.json()["sha256"]) == (200, sha256)


def test_a_caller_who_only_reads_writes_nothing_even_when_a_route_forgets_to_ask(
    sqlite_database: SqliteDatabase, tmp_path: Path
) -> None:
    org = new_organisation(sqlite_database)
    org.write(lambda scope: scope.create_key("Known00000", "hash", prefix="rv"))
    readers = (
        person(org.org_id, org.owner_id, "viewer"),
        machine(org.org_id, "Known00000", "read"),
    )
    for caller in readers:

        async def write(context: ServerContext, caller: Caller = caller) -> None:
            await context.write(caller, lambda scope: scope.create_episode({}))

        with pytest.raises(Problem) as refused:
            Server(sqlite_database, tmp_path).run(write)
        assert (refused.value.status, refused.value.code) == (403, "forbidden")
    assert org.read(lambda scope: scope.quota_usage()).episodes == 0


# -------------------------------------------------------------------------------------------- ingest


def test_an_ingest_key_records_and_reads_back_what_it_recorded(
    robots: dict[KeyScope, Robot],
) -> None:
    robot = robots["ingest"]
    episode = robot.episode(request_uploads=["sensors", "actions"])
    at = f"/api/ingest/episode/{episode}"
    [url] = robot.http.post(f"{at}/upload-urls", json={"request_uploads": ["actions"]}).json()[
        "upload_urls"
    ]
    sent = httpx.put(
        url["url"], content=_DATA, headers={"Content-Type": "application/octet-stream"}
    )
    assert sent.status_code == 200
    begun = robot.http.post(f"{at}/upload", json={"kind": "sensors", "size": len(_DATA)}).json()
    assert httpx.put(begun["parts"][0]["url"], content=_DATA).status_code == 200
    upload = f"{at}/upload/{begun['upload_id']}"
    assert robot.status("GET", upload) == 200
    assert robot.status("POST", f"{upload}/complete", {}) == 200
    assert robot.status("POST", f"{at}/finalize", {"status": "failed"}) == 200
    assert robot.http.get(f"/api/episodes/{episode}").json()["status"] == "failed"
    found = robot.http.post("/api/episodes/lookup", json={"ids": [episode]}).json()
    assert [each["id"] for each in found["episodes"]] == [episode]
    assert robot.status("DELETE", f"/api/episodes/{episode}") == 403, "it only adds"


def test_an_ingest_key_sees_nothing_that_others_recorded(robots: dict[KeyScope, Robot]) -> None:
    other, robot = robots["write"], robots["ingest"]
    episode = other.episode(request_uploads=["sensors"], name="of another robot")
    at = f"/api/ingest/episode/{episode}"
    begun = other.http.post(f"{at}/upload", json={"kind": "sensors", "size": len(_DATA)}).json()
    assert httpx.put(begun["parts"][0]["url"], content=_DATA).status_code == 200
    upload = f"upload/{begun['upload_id']}"
    for method, path, body in (
        ("GET", "/api/episodes/{}", None),
        ("GET", "/api/episodes/{}/artifact/sensors", None),
        ("POST", "/api/ingest/episode/{}/finalize", {"status": "ready"}),
        ("POST", "/api/ingest/episode/{}/upload-urls", {"request_uploads": ["actions"]}),
        ("POST", "/api/ingest/episode/{}/upload", {"kind": "actions", "size": 10}),
        ("GET", f"/api/ingest/episode/{{}}/{upload}", None),
        ("POST", f"/api/ingest/episode/{{}}/{upload}/complete", {}),
        ("DELETE", f"/api/ingest/episode/{{}}/{upload}", None),
    ):
        answers = [
            robot.http.request(method, path.format(each), json=body) for each in (episode, _UNKNOWN)
        ]
        assert [each.status_code for each in answers] == [404, 404], path
        assert answers[0].content == answers[1].content
    looked = robot.http.post("/api/episodes/lookup", json={"ids": [episode]}).json()
    assert looked == {"episodes": [], "missing": [episode]}
    wanted = {"artifacts": [{"episode_id": episode, "kind": "sensors"}]}
    [artifact] = robot.http.post("/api/episodes/artifacts", json=wanted).json()["artifacts"]
    assert (artifact["data"], artifact["url"]) == (None, None)
    ended = {"episodes": [{"episode_id": episode, "status": "ready"}]}
    [result] = robot.http.post("/api/ingest/episodes/finalize", json=ended).json()["results"]
    assert result["status_code"] == 404
    assert robot.status("GET", "/api/episodes") == 403
    assert other.http.get(f"/api/episodes/{episode}").json()["status"] == "recording"
    assert other.status("POST", f"{at}/{upload}/complete", {}) == 200


def test_an_ingest_key_gets_no_episode_by_the_idempotency_key_of_another(
    robots: dict[KeyScope, Robot],
) -> None:
    headers = {"Idempotency-Key": f"shared {next(_numbers)}"}
    body = {"name": "the same", "request_uploads": ["sensors"]}
    first = robots["write"].http.post("/api/ingest/episode", json=body, headers=headers).json()
    answer = robots["ingest"].http.post("/api/ingest/episode", json=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_conflict")
    assert first["episode_id"] not in answer.text
    again = robots["write"].http.post("/api/ingest/episode", json=body, headers=headers).json()
    assert again["episode_id"] == first["episode_id"]


# ------------------------------------------------------------------------------------------ deleting


def test_a_key_deletes_only_what_it_recorded_unless_it_is_an_admin_key(
    owner: Person, robots: dict[KeyScope, Robot]
) -> None:
    robot, admin = robots["write"], robots["admin"]
    theirs = owner.call("POST", "/api/ingest/episode", json={}).json()["episode_id"]
    run = {"candidate_policy_version": "v2", "baseline_episode_ids": [theirs]}
    their_run = owner.call("POST", "/api/ingest/eval-run", json=run).json()["eval_run_id"]
    refused = robot.http.delete(f"/api/episodes/{theirs}")
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert "recorded itself" in refused.json()["error"]
    assert robot.status("DELETE", f"/api/eval-runs/{their_run}") == 403
    assert owner.get(f"/api/episodes/{theirs}").status_code == 200
    assert owner.get(f"/api/eval-runs/{their_run}").status_code == 200

    mine = robot.episode()
    my_run = robot.run(mine)
    assert robot.status("DELETE", f"/api/eval-runs/{my_run}") == 200
    assert robot.status("DELETE", f"/api/episodes/{mine}") == 200
    assert admin.status("DELETE", f"/api/eval-runs/{their_run}") == 200
    assert admin.status("DELETE", f"/api/episodes/{theirs}") == 200


def test_a_robot_does_not_get_rid_of_a_scenario_by_deleting_its_episode(
    robots: dict[KeyScope, Robot],
) -> None:
    robot, admin = robots["write"], robots["admin"]
    episode = robot.episode()
    promoted = {"baseline_episode_id": episode, "severity": "info"}
    scenario = admin.http.post("/api/verify/promote", json=promoted).json()["scenario_id"]
    at = f"/api/scenarios/{scenario}"
    assert robot.status("DELETE", f"/api/episodes/{episode}") == 403
    assert robot.status("PATCH", at, {"active": False}) == 403
    assert robot.status("PATCH", at, {"severity": "info"}) == 403
    assert robot.status("DELETE", at) == 403
    assert admin.status("PATCH", at, {"active": False}) == 200
    assert robot.status("DELETE", f"/api/episodes/{episode}") == 403, "also a disabled one"
    assert admin.status("DELETE", f"/api/episodes/{episode}") == 200


# ------------------------------------------------------------------------------------------ revoking


def test_revoking_a_key_ends_the_keys_that_it_had_made(
    server: RunningServer, owner: Person
) -> None:
    """As older releases let it: the audit log says which key made which."""
    parent = new_robot(owner, server, "write")
    made = {name: new_api_key("rb") for name in ("child", "grandchild", "unrelated")}

    def make(scope: Scope) -> None:
        maker = {"child": parent.key_id, "grandchild": made["child"][1], "unrelated": "Another000"}
        for name, (_, key_id, secret_hash) in made.items():
            scope.create_key(key_id, secret_hash, prefix="rb", created_by=server.first_org.user_id)
            scope.audit("key.created", actor=f"key:{maker[name]}", subject=f"key:{key_id}")

    in_database(server, make)
    keys = {name: Robot(server, full) for name, (full, _, _) in made.items()}
    assert {each.status("GET", "/api/whoami") for each in keys.values()} == {200}
    told = owner.call("DELETE", f"/api/keys/{parent.key_id}").json()
    assert told["ended"]["keys"] == [made["child"][1], made["grandchild"][1]]
    statuses = {name: each.status("GET", "/api/whoami") for name, each in keys.items()}
    assert statuses == {"child": 401, "grandchild": 401, "unrelated": 200}
    events = owner.get("/api/audit").json()["events"]
    revoked = [each["subject"] for each in events if each["event"] == "key.revoked"][:3]
    ended = {parent.key_id, made["child"][1], made["grandchild"][1]}
    assert set(revoked) == {f"key:{each}" for each in ended}
    again = owner.call("DELETE", f"/api/keys/{parent.key_id}").json()
    assert (again["ended"], again["left"]) == (None, None)
    for each in (parent, *keys.values()):
        each.http.close()


def test_revoking_a_key_ends_its_webhooks_and_counts_what_it_recorded(
    server: RunningServer, owner: Person
) -> None:
    robot = new_robot(owner, server, "admin")
    hook = {"url": "https://leak.example", "events": ["eval_run.completed"]}
    made = robot.http.post("/api/webhooks", json=hook).json()["id"]
    kept = owner.call("POST", "/api/webhooks", json=hook).json()["id"]
    episode = robot.episode(request_uploads=["sensors"])
    robot.episode()
    robot.run(episode)
    robot.http.post("/api/verify/promote", json={"baseline_episode_id": episode})
    upload = {"kind": "sensors", "size": 10}
    robot.http.post(f"/api/ingest/episode/{episode}/upload", json=upload).raise_for_status()
    told = owner.call("DELETE", f"/api/keys/{robot.key_id}").json()
    assert told["ended"] == {"keys": [], "webhooks": [made]}
    assert told["left"] == {"episodes": 2, "eval_runs": 1, "scenarios": 1, "open_uploads": 1}
    hooks = {each["id"] for each in owner.get("/api/webhooks").json()["webhooks"]}
    assert kept in hooks
    assert made not in hooks
    event = owner.get("/api/audit").json()["events"][0]
    assert (event["event"], event["subject"]) == ("webhook.deleted", made)
    assert event["detail"] == {"with_key": robot.key_id}
    owner.call("DELETE", f"/api/webhooks/{kept}")
    robot.http.close()


def test_a_key_revokes_itself_and_only_an_admin_key_others(
    server: RunningServer, owner: Person
) -> None:
    target = new_robot(owner, server, "read")
    for scope in SCOPES:
        robot = new_robot(owner, server, scope)
        expected = 200 if scope == "admin" else 403
        assert robot.status("DELETE", f"/api/keys/{target.key_id}") == expected
        assert robot.status("DELETE", f"/api/keys/{robot.key_id}") == 200
        assert robot.status("DELETE", f"/api/keys/{robot.key_id}") == 401
        robot.http.close()
    assert target.status("GET", "/api/whoami") == 401
    target.http.close()


def test_a_member_with_a_smaller_role_loses_the_keys_that_are_too_great_for_it(
    server: RunningServer, owner: Person
) -> None:
    person = join(server, owner, f"keys-{next(_numbers)}@example.com", "admin")
    user_id = person.get("/api/whoami").json()["user"]["id"]
    robots = {scope: new_robot(person, server, scope) for scope in SCOPES}

    def alive() -> list[KeyScope]:
        return [each for each in SCOPES if robots[each].status("GET", "/api/whoami") == 200]

    told = owner.call("PATCH", f"/api/members/{user_id}", json={"role": "member"}).json()
    assert told["revoked_keys"] == [robots["admin"].key_id]
    assert alive() == ["ingest", "read", "write"]
    owner.call("PATCH", f"/api/members/{user_id}", json={"role": "viewer"}).raise_for_status()
    assert alive() == ["read"]
    owner.call("DELETE", f"/api/members/{user_id}").raise_for_status()
    assert alive() == []
    for each in robots.values():
        each.http.close()
    person.close()


# -------------------------------------------------------------------------------------- device logins


def _login(server: RunningServer, **body: Any) -> dict[str, str]:
    with web(server) as machine:
        started = machine.post("/api/cli/auth/start", json={"hostname": "arm-3", **body})
        assert started.status_code == 200, started.text
        login: dict[str, str] = started.json()
        return login


def _fetched(server: RunningServer, login: dict[str, str]) -> dict[str, Any]:
    with web(server) as machine:
        body = {"device_code": login["device_code"]}
        polled: dict[str, Any] = machine.post("/api/cli/auth/poll", json=body).json()
        return polled


@pytest.mark.parametrize("scope", [None, *SCOPES])
def test_a_device_gets_the_scope_that_it_asked_for_and_a_person_saw(
    server: RunningServer, owner: Person, scope: KeyScope | None
) -> None:
    login = _login(server, scope=scope, label="left arm")
    page = owner.get("/cli/auth", params={"code": login["user_code"]}).text
    words = {
        None: "record, read and evaluate",
        "ingest": "record episodes, and read those that it recorded",
        "read": "read everything",
        "write": "record, read and evaluate",
        "admin": "also change scenarios and webhooks",
    }
    assert words[scope] in page
    assert "left arm" in page
    owner.submit("/cli/auth", code=login["user_code"], decision="approve")
    key = _fetched(server, login)["key"]
    assert (key["scope"], key["label"]) == (scope or "write", "left arm")
    assert key["created_by"] == server.first_org.user_id


def test_nobody_approves_a_device_that_may_do_more_than_they(
    server: RunningServer, owner: Person
) -> None:
    for role, scope, status in (
        ("viewer", "ingest", 403),
        ("viewer", "read", 200),
        ("member", "admin", 403),
        ("member", "write", 200),
        ("admin", "admin", 200),
    ):
        person = join(server, owner, f"{role}-{next(_numbers)}@example.com", role)
        login = _login(server, scope=scope)
        answer = person.submit("/cli/auth", code=login["user_code"], decision="approve")
        assert answer.status_code == status, (role, scope)
        assert _fetched(server, login)["status"] == ("approved" if status == 200 else "pending")
        person.close()


def test_whoever_lost_the_role_since_they_approved_connects_nothing(
    server: RunningServer, owner: Person
) -> None:
    person = join(server, owner, f"was-{next(_numbers)}@example.com", "admin")
    user_id = person.get("/api/whoami").json()["user"]["id"]
    login = _login(server, scope="admin")
    person.submit("/cli/auth", code=login["user_code"], decision="approve")
    owner.call("PATCH", f"/api/members/{user_id}", json={"role": "member"}).raise_for_status()
    assert _fetched(server, login) == {"status": "denied"}
    person.close()
