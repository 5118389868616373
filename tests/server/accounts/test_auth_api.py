"""Who a request comes from: keys, cookies, and everything that only looks like one of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from rollbook.contracts.wire.keys import SCOPES
from rollbook.server.accounts.keys import new_api_key
from tests.portal.hostile_text import assert_harmless
from tests.server.fixtures import StartServer
from tests.server.people import PASSWORD, House, Person, csrf_in, join, sqlite_house, web
from tests.server.running import RunningServer

__all__ = ["sqlite_house"]

_GUEST = "guest@example.com"

HTML = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def server(sqlite_house: House) -> RunningServer:
    return sqlite_house.server


@pytest.fixture(scope="module")
def owner(sqlite_house: House) -> Person:
    return sqlite_house.owner


@pytest.fixture(scope="module")
def guest(server: RunningServer, owner: Person) -> Iterator[Person]:
    person = join(server, owner, _GUEST, "viewer")
    yield person
    person.close()


@pytest.fixture
def nobody(server: RunningServer) -> Iterator[httpx.Client]:
    with web(server) as client:
        yield client


def new_key(owner: Person, **body: Any) -> tuple[str, dict[str, Any]]:
    answer = owner.call("POST", "/api/keys", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()["api_key"], answer.json()["key"]


def with_key(server: RunningServer, key: str) -> httpx.Client:
    return web(server, Authorization=f"Bearer {key}")


# -------------------------------------------------------------------------------------------- keys


def test_every_way_to_have_no_key_gets_the_same_answer(
    server: RunningServer, owner: Person, nobody: httpx.Client
) -> None:
    revoked, facts = new_key(owner)
    assert owner.call("DELETE", f"/api/keys/{facts['key_id']}").status_code == 200
    right = server.api_key
    wrong_secret = right[:-4] + ("aaaa" if right[-4:] != "aaaa" else "bbbb")
    attempts = [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer nonsense"},
        {"Authorization": f"Basic {right}"},
        {"Authorization": f"Bearer {right}x"},
        {"Authorization": f"Bearer {new_api_key()[0]}"},
        {"Authorization": f"Bearer {wrong_secret}"},
        {"Authorization": f"Bearer {revoked}"},
        {"Authorization": f"Bearer rb{right[2:]}"},
        {"X-RoboTrace-Key": "nonsense"},
        {"X-Rollbook-Key": revoked},
        {"Cookie": "rollbook_session=nonsense"},
    ]
    for path in ("/api/whoami", "/api/keys", "/api/episodes", "/api/members"):
        answers = [nobody.get(path, headers=each) for each in attempts]
        assert {each.status_code for each in answers} == {401}
        assert len({each.content for each in answers}) == 1
        assert answers[0].json()["code"] == "unauthorized"
        assert {each.headers["www-authenticate"] for each in answers} == {"Bearer"}


def test_a_key_may_come_in_any_of_the_three_headers(
    server: RunningServer, nobody: httpx.Client
) -> None:
    key = server.api_key
    for headers in (
        {"Authorization": f"Bearer {key}"},
        {"Authorization": f"bearer {key}"},
        {"X-RoboTrace-Key": key},
        {"X-Rollbook-Key": key},
    ):
        answer = nobody.get("/api/whoami", headers=headers)
        assert answer.status_code == 200
        assert answer.json()["organisation"] == {"id": server.org_id, "name": "First"}
        assert answer.json()["key"]["key_prefix"] == key[:13]
        assert answer.json()["user"] is None


def test_a_key_that_is_wrong_is_refused_whatever_cookie_comes_with_it(owner: Person) -> None:
    answer = owner.get("/api/whoami", headers={"Authorization": "Bearer nonsense"})
    assert answer.status_code == 401


def test_a_new_key_is_shown_once_works_and_ends_at_once(
    server: RunningServer, owner: Person
) -> None:
    key, facts = new_key(owner, label="arm 3", scope="write")
    assert key.startswith(f"rb_{facts['key_id']}_")
    assert (facts["label"], facts["role"], facts["scope"]) == ("arm 3", "member", "write")
    admin_key = server.new_key("admin").api_key
    with with_key(server, key) as client, with_key(server, admin_key) as admin:
        assert client.post("/api/ingest/episode", json={}).status_code == 201
        listed = admin.get("/api/keys")
        assert key not in listed.text
        assert facts["key_id"] in {each["key_id"] for each in listed.json()["keys"]}

        ended = admin.delete(f"/api/keys/{facts['key_id']}").json()
        assert ended["status"] == "revoked"
        assert ended["revoked_at"].endswith("Z")
        assert client.post("/api/ingest/episode", json={}).status_code == 401
        assert client.get("/api/episodes").status_code == 401

        again = admin.delete(f"/api/keys/{facts['key_id']}").json()
        assert again["revoked_at"] == ended["revoked_at"]
        rows = {each["key_id"]: each for each in admin.get("/api/keys").json()["keys"]}
        assert rows[facts["key_id"]]["revoked_at"] == ended["revoked_at"]


def test_a_read_only_key_reads_and_changes_nothing(server: RunningServer, owner: Person) -> None:
    key, facts = new_key(owner, role="viewer")
    assert key.startswith("rv_")
    assert (facts["role"], facts["scope"]) == ("viewer", "read")
    with with_key(server, server.api_key) as full:
        episode_id = full.post("/api/ingest/episode", json={}).json()["episode_id"]
    with with_key(server, key) as client:
        assert client.get("/api/whoami").json()["role"] == "viewer"
        assert client.get(f"/api/episodes/{episode_id}").status_code == 200
        assert client.get("/api/episodes").status_code == 200
        for method, path, body in (
            ("POST", "/api/ingest/episode", {}),
            ("POST", f"/api/ingest/episode/{episode_id}/finalize", {"status": "ready"}),
            ("DELETE", f"/api/episodes/{episode_id}", None),
            ("POST", f"/api/episodes/{episode_id}/archive", None),
            ("POST", "/api/keys", {}),
            ("POST", "/api/keys", {"role": "viewer"}),
            ("DELETE", f"/api/keys/{server.api_key.split('_')[1]}", None),
        ):
            answer = client.request(method, path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), path
        assert client.get("/api/keys").status_code == 403


def test_a_key_cannot_be_turned_into_one_that_may_do_more(
    server: RunningServer, owner: Person
) -> None:
    key, _ = new_key(owner, role="viewer")
    for prefix in ("rt", "rb", "ri", "ra"):
        with with_key(server, prefix + key[2:]) as client:
            assert client.get("/api/whoami").status_code == 401


def test_a_key_manages_no_people(server: RunningServer) -> None:
    user_id = server.first_org.user_id
    with with_key(server, server.api_key) as client:
        for method, path, body in (
            ("GET", "/api/members", None),
            ("PATCH", f"/api/members/{user_id}", {"role": "viewer"}),
            ("DELETE", f"/api/members/{user_id}", None),
            ("POST", "/api/invitations", {"email": "a@b.example"}),
            ("GET", "/api/invitations", None),
            ("GET", "/api/audit", None),
            ("POST", "/api/password", {"new_password": PASSWORD}),
            ("POST", "/api/sign-out", None),
            ("POST", "/api/organisation", {"org_id": server.org_id}),
        ):
            answer = client.request(method, path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), path
            assert "sign in" in answer.json()["error"]


def test_no_key_makes_a_key(server: RunningServer, owner: Person) -> None:
    """Else whoever finds a key on a robot keeps access after it is revoked."""
    before = owner.get("/api/keys").json()["keys"]
    for scope in SCOPES:
        with with_key(server, server.new_key(scope).api_key) as client:
            for asked in SCOPES:
                answer = client.post("/api/keys", json={"scope": asked})
                assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
                assert "sign in as a person" in answer.json()["error"]
    assert len(owner.get("/api/keys").json()["keys"]) == len(before) + len(SCOPES)


def test_without_a_wish_a_key_only_records(server: RunningServer, owner: Person) -> None:
    key, facts = new_key(owner)
    assert key.startswith("ri_")
    assert facts["scope"] == "ingest"
    assert facts["created_by"] == server.first_org.user_id
    asked = {"scope": "admin", "role": "viewer"}
    refused = owner.call("POST", "/api/keys", json=asked)
    assert (refused.status_code, refused.json()["where"]) == (400, "$.scope")


def test_the_last_use_of_a_key_is_noted(server: RunningServer, owner: Person) -> None:
    key, facts = new_key(owner, scope="write")
    assert facts["last_used_at"] is None
    with with_key(server, key) as client:
        client.get("/api/whoami")
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            rows = {each["key_id"]: each for each in client.get("/api/keys").json()["keys"]}
            first = rows[facts["key_id"]]["last_used_at"]
            if first is not None:
                break
        assert first is not None
        client.get("/api/whoami")
        rows = {each["key_id"]: each for each in client.get("/api/keys").json()["keys"]}
        assert rows[facts["key_id"]]["last_used_at"] == first, "once a minute is enough"


@pytest.mark.parametrize(
    "body",
    [
        {"label": "x" * 201},
        {"label": "a\x00b"},
        {"label": 7},
        {"role": "owner"},
        {"role": "admin"},
        {"scope": "everything"},
        [],
        "text",
    ],
)
def test_a_key_that_makes_no_sense_is_not_made(owner: Person, body: object) -> None:
    before = owner.get("/api/keys").json()
    answer = owner.call("POST", "/api/keys", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert owner.get("/api/keys").json()["keys"][0]["key_id"] == before["keys"][0]["key_id"]


@pytest.mark.slow
def test_a_wrong_key_takes_as_long_whatever_is_wrong_with_it(
    server: RunningServer, nobody: httpx.Client
) -> None:
    """Medians of requests taken in turn: what differs by a hash or a lookup is lost in the noise of a request."""
    wrong = {
        "unknown": new_api_key()[0],
        "wrong secret": server.api_key[:-4] + ("aaaa" if server.api_key[-4:] != "aaaa" else "bbbb"),
    }
    times: dict[str, list[float]] = {name: [] for name in wrong}
    for _ in range(300):
        for name, key in wrong.items():
            began = time.perf_counter()
            nobody.get("/api/whoami", headers={"Authorization": f"Bearer {key}"})
            times[name].append(time.perf_counter() - began)
    medians = [statistics.median(each) for each in times.values()]
    assert max(medians) / min(medians) < 1.5


# ------------------------------------------------------------------------------------------ cookies


def test_a_session_cookie_is_kept_from_scripts_and_other_sites(
    server: RunningServer, owner: Person
) -> None:
    person = Person(server)
    accepted = _fresh_person(server, owner, person)
    cookie = accepted.headers["set-cookie"]
    assert cookie.startswith("rollbook_session=")
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Path=/" in cookie
    assert "Domain" not in cookie
    assert "Secure" not in cookie
    person.close()


def _fresh_person(server: RunningServer, owner: Person, person: Person) -> httpx.Response:
    invited = owner.call("POST", "/api/invitations", json={"email": _new_email()})
    token = invited.json()["url"].partition("token=")[2]
    answer = person.http.post(
        "/api/invitations/accept", json={"token": token, "password": PASSWORD}
    )
    assert answer.status_code == 200, answer.text
    person.csrf = answer.json()["csrf_token"]
    return answer


def _new_email() -> str:
    return f"{time.time_ns()}@example.com"


def test_the_cookie_is_not_in_the_database(server: RunningServer, owner: Person) -> None:
    token = owner.http.cookies["rollbook_session"]
    stored = b"".join(path.read_bytes() for path in server.data_dir.glob("rollbook.db*"))
    assert owner.csrf.encode() in stored, "the session itself is there"
    assert token.encode() not in stored
    assert server.api_key.encode() not in stored


def test_a_change_by_cookie_needs_the_token_and_our_origin(
    server: RunningServer, owner: Person
) -> None:
    ours = server.base_url
    for headers, code in (
        ({"Origin": ours}, "csrf"),
        ({"Origin": ours, "X-CSRF-Token": ""}, "csrf"),
        ({"Origin": ours, "X-CSRF-Token": "wrong"}, "csrf"),
        ({"Origin": ours, "X-CSRF-Token": owner.csrf[:-1]}, "csrf"),
        ({"X-CSRF-Token": owner.csrf}, "other_origin"),
        ({"Origin": "null", "X-CSRF-Token": owner.csrf}, "other_origin"),
        ({"Origin": "https://evil.example", "X-CSRF-Token": owner.csrf}, "other_origin"),
        ({"Origin": ours + ".evil.example", "X-CSRF-Token": owner.csrf}, "other_origin"),
        ({"Origin": ours.replace("http:", "https:"), "X-CSRF-Token": owner.csrf}, "other_origin"),
    ):
        for path in ("/api/keys", "/api/ingest/episode", "/api/invitations", "/api/sign-out"):
            answer = owner.http.post(path, json={}, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, code), (path, headers)
    assert owner.call("POST", "/api/ingest/episode", json={}).status_code == 201
    assert owner.get("/api/whoami").json()["user"]["email"] == server.first_org.email


def test_a_form_needs_the_token_and_our_origin(server: RunningServer, owner: Person) -> None:
    ours = server.base_url
    for path in (
        "/keys",
        "/keys/0123456789/revoke",
        "/members/x/role",
        "/members/x/remove",
        "/invitations",
        "/invitations/x/withdraw",
        "/cli/auth",
        "/password",
        "/sign-out",
    ):
        answers = [
            owner.http.post(path, data={"csrf_token": owner.csrf}),
            owner.http.post(
                path, data={"csrf_token": owner.csrf}, headers={"Origin": "http://evil.example"}
            ),
            owner.http.post(path, data={"x": "y"}, headers={"Origin": ours}),
            owner.http.post(path, data={"csrf_token": "wrong"}, headers={"Origin": ours}),
            owner.http.post(
                path, data={"x": "y"}, headers={"Origin": ours, "X-CSRF-Token": owner.csrf}
            ),
        ]
        assert [each.status_code for each in answers] == [403] * 5, path
        assert all("text/html" in each.headers["content-type"] for each in answers)
    assert owner.get("/keys").status_code == 200, "still signed in"


@pytest.mark.parametrize("path", ["/sign-in", "/invitation"])
def test_nobody_is_signed_in_by_a_form_on_another_site(nobody: httpx.Client, path: str) -> None:
    for headers in ({}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
        answer = nobody.post(path, data={"token": "x", "password": "y"}, headers=headers)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


def test_nobody_is_signed_in_by_a_script_on_another_site(nobody: httpx.Client) -> None:
    headers = {"Origin": "https://evil.example"}
    answer = nobody.post("/api/sign-in", json={"token": "x"}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "other_origin")
    plain = {"Content-Type": "text/plain"}
    answer = nobody.post("/api/sign-in", content=b'{"token":"x"}', headers=plain)
    assert answer.status_code == 415


def test_another_persons_token_is_worth_nothing(server: RunningServer, owner: Person) -> None:
    other = join(server, owner, _new_email(), "admin")
    answer = owner.call("POST", "/api/keys", json={}, headers={"X-CSRF-Token": other.csrf})
    assert (answer.status_code, answer.json()["code"]) == (403, "csrf")
    other.close()


# ---------------------------------------------------------------------------------------- the server


def test_a_forged_host_gets_no_links_to_itself(server: RunningServer, nobody: httpx.Client) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:80", "127.0.0.1@evil"):
        headers = {"Host": host}
        answer = nobody.post("/api/cli/auth/start", json={}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "host_not_allowed")
        forged = {"Host": host, "Origin": f"http://{host}"}
        assert nobody.post("/sign-in", data={"token": "x"}, headers=forged).status_code == 400
    headers = {"X-Forwarded-Host": "evil.example", "Forwarded": "host=evil.example"}
    answer = nobody.post("/api/cli/auth/start", json={}, headers=headers)
    assert answer.json()["verification_uri"] == f"{server.base_url}/cli/auth"


def test_over_https_the_cookie_is_secure_and_links_lead_to_the_public_name(
    running_server: StartServer,
) -> None:
    public = "https://rollbook.example.com"
    with running_server(public_url=public) as server:
        client = web(server)
        forged = {"Host": "evil.example", "Origin": public}
        fields = {"token": server.first_org.sign_in_token}
        refused = client.post("/sign-in", data=fields, headers={"Origin": server.base_url})
        assert refused.status_code == 403
        assert public in refused.text
        answer = client.post("/sign-in", data=fields, headers=forged)
        assert answer.status_code == 303
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-rollbook_session=")
        assert "; Secure" in cookie
        started = client.post("/api/cli/auth/start", json={}, headers={"Host": "evil.example"})
        assert started.json()["verification_uri"] == f"{public}/cli/auth"
        token = cookie.partition("=")[2].partition(";")[0]
        for name, status in (("rollbook_session", 303), ("__Host-rollbook_session", 200)):
            page = client.get("/keys", headers={"Cookie": f"{name}={token}"})
            assert page.status_code == status
        client.close()


def test_pages_load_nothing_from_elsewhere_and_run_only_our_files(
    server: RunningServer, owner: Person
) -> None:
    for path in ("/sign-in?token=x", "/keys", "/members", "/password", "/cli/auth", "/invitation"):
        answer = owner.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "form-action 'self'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"
        for forbidden in ("<style", "style=", "onclick", "http://", "https://"):
            assert forbidden not in answer.text, (path, forbidden)
        assert_harmless(answer.text)


def test_labels_are_shown_as_text(server: RunningServer, owner: Person) -> None:
    page = owner.submit("/keys", label=HTML, scope="read")
    assert page.status_code == 200
    assert_harmless(page.text, HTML)


def test_a_key_is_made_and_revoked_on_its_page(server: RunningServer, owner: Person) -> None:
    before = owner.get("/keys").text
    token = csrf_in(before)
    page = owner.submit("/keys", token=token, label="from the page", scope="write")
    found = page.text.split("<pre>")[1].split("</pre>")[0]
    with with_key(server, found) as client:
        assert client.post("/api/ingest/episode", json={}).status_code == 201
        assert found not in owner.get("/keys").text, "shown once"
        key_id = found.split("_")[1]
        gone = owner.submit(f"/keys/{key_id}/revoke", token=token)
        assert (gone.status_code, gone.headers["location"]) == (303, "/keys")
        assert client.post("/api/ingest/episode", json={}).status_code == 401
    assert owner.submit("/keys", scope="owner").status_code == 400


def test_pages_ask_who_is_there_and_come_back(nobody: httpx.Client) -> None:
    for path in ("/keys", "/members", "/password"):
        answer = nobody.get(path)
        assert answer.status_code == 303
        assert answer.headers["location"] == f"/sign-in?next=%2F{path[1:]}"
    answer = nobody.get("/cli/auth?code=BCDF-GHJK")
    assert answer.headers["location"] == "/sign-in?next=%2Fcli%2Fauth%3Fcode%3DBCDF-GHJK"


@pytest.mark.parametrize(
    "next_path",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/\t/evil.example",
        "/\n/evil.example",
        "javascript:alert(1)",
        " //evil.example",
        "http:evil.example",
        "/" + "x" * 2000,
        "",
    ],
)
def test_nobody_is_sent_elsewhere_after_signing_in(
    owner: Person, guest: Person, nobody: httpx.Client, next_path: str
) -> None:
    page = nobody.get("/sign-in", params={"next": next_path})
    assert 'name="next" value="/portal"' in page.text
    signed_in = owner.get("/sign-in", params={"next": next_path})
    assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/portal")
    answer = guest.submit("/sign-in", email=_GUEST, password=PASSWORD, next=next_path)
    assert (answer.status_code, answer.headers["location"]) == (303, "/portal")


def test_one_is_brought_back_to_where_one_was_going(nobody: httpx.Client) -> None:
    page = nobody.get("/sign-in", params={"next": "/cli/auth?code=BCDF-GHJK"})
    assert 'value="/cli/auth?code=BCDF-GHJK"' in page.text


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"{}", "application/json", 415),
        (b"x" * 70_000, "application/x-www-form-urlencoded", 413),
        (b"a=1&" * 2001, "application/x-www-form-urlencoded", 400),
        (b"email=%ff%fe", "application/x-www-form-urlencoded", 400),
        (b"email=\xff", "application/x-www-form-urlencoded", 400),
    ],
)
def test_a_form_that_is_none_is_refused(
    server: RunningServer,
    nobody: httpx.Client,
    content: bytes,
    content_type: str,
    status: int,
) -> None:
    headers = {"Origin": server.base_url, "Content-Type": content_type}
    answer = nobody.post("/sign-in", content=content, headers=headers)
    assert answer.status_code == status


def test_secrets_stand_in_no_log(
    server: RunningServer, owner: Person, nobody: httpx.Client
) -> None:
    token = server.second_org.sign_in_token
    nobody.get("/sign-in", params={"token": token})
    nobody.post("/api/sign-in", json={"email": "a@b.example", "password": "hidden password"})
    nobody.get("/api/whoami", headers={"Authorization": f"Bearer {server.api_key}"})
    log = server.log_path.read_text()
    cookie = owner.http.cookies["rollbook_session"]
    for secret in (token, "hidden password", server.api_key, cookie, owner.csrf):
        assert secret not in log
