"""People: how they come in, what they may do, and how they are kept out. On both databases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count

import httpx
import pytest

from rollbook.server.accounts.invitations import MOST_OPEN_INVITATIONS
from rollbook.server.accounts.manage_keys import MOST_LIVE_KEYS
from rollbook.server.accounts.passwords import checked_password
from rollbook.server.accounts.roles import PEOPLE_MAY, Action
from rollbook.server.bootstrap import Bootstrapped, bootstrap
from rollbook.server.db.columns import now_us
from rollbook.server.db.engine import Tenant
from rollbook.server.db.open import open_database
from rollbook.server.http.responses import Problem
from rollbook.server.queries import ROLES, Scope
from rollbook.server.settings import Settings
from tests.portal.hostile_text import assert_harmless
from tests.server.people import PASSWORD, House, Person, house, join, web
from tests.server.running import RunningServer

__all__ = ["house"]

HTML = "<script>alert(1)</script>\"'><b>"
_numbers = count()


@pytest.fixture(scope="module")
def server(house: House) -> RunningServer:
    return house.server


@pytest.fixture(scope="module")
def owner(house: House) -> Person:
    return house.owner


@pytest.fixture(scope="module")
def other_owner(house: House) -> Person:
    return house.other_owner


@pytest.fixture
def nobody(server: RunningServer) -> Iterator[httpx.Client]:
    with web(server, Origin=server.base_url) as client:
        yield client


def new_email() -> str:
    return f"person-{next(_numbers)}@example.com"


def user_id_of(person: Person) -> str:
    found: str = person.get("/api/whoami").json()["user"]["id"]
    return found


def new_organisation(
    server: RunningServer, name: str | None = None, more: Callable[[Scope], None] | None = None
) -> Bootstrapped:
    """Made beside the running server, with whatever else is to be in it."""
    url = Settings.load(server.data_dir, **server.overrides).database_url
    with closing(open_database(url)) as database:
        made = bootstrap(database, name or f"Organisation {next(_numbers)}")
        if more is not None:
            org_id = made.org_id
            database.write_now(
                Tenant(org_id=org_id), lambda connection: more(Scope(connection, org_id))
            )
        return made


def new_link(server: RunningServer) -> str:
    return new_organisation(server).sign_in_token


def signed_in(server: RunningServer, made: Bootstrapped) -> Person:
    person = Person(server)
    answer = person.http.post("/api/sign-in", json={"token": made.sign_in_token})
    person.csrf = answer.json()["csrf_token"]
    return person


# ------------------------------------------------------------------------------------------ signing in


def test_a_link_signs_in_once(server: RunningServer, nobody: httpx.Client) -> None:
    token = new_link(server)
    page = nobody.get("/sign-in", params={"token": token})
    assert page.status_code == 200
    assert "set-cookie" not in page.headers, "looking at it spends nothing"
    answer = nobody.post("/sign-in", data={"token": token, "next": "/members"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/members")
    assert nobody.get("/members").status_code == 200
    with web(server, Origin=server.base_url) as second:
        again = second.post("/sign-in", data={"token": token})
        assert again.status_code == 401
        assert "used already" in again.text
        as_json = second.post("/api/sign-in", json={"token": token})
        assert (as_json.status_code, as_json.json()["code"]) == (401, "link_invalid")


def test_of_many_who_use_a_link_at_once_one_comes_in(server: RunningServer) -> None:
    token = new_link(server)

    def use(_number: int) -> int:
        return client.post("/api/sign-in", json={"token": token}).status_code

    with web(server) as client, ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(use, range(8))) == [200] + [401] * 7


def test_an_unknown_address_and_a_wrong_password_get_the_same_answer(
    server: RunningServer, owner: Person, nobody: httpx.Client
) -> None:
    email = new_email()
    join(server, owner, email, "viewer").close()
    bodies = [
        {"email": email, "password": "wrong password"},
        {"email": "nobody@example.com", "password": PASSWORD},
        {"email": server.first_org.email, "password": PASSWORD},
        {"email": "not an address\x00", "password": ""},
    ]
    answers = [nobody.post("/api/sign-in", json=body) for body in bodies]
    assert {each.status_code for each in answers} == {401}
    assert len({each.content for each in answers}) == 1
    form = nobody.post("/sign-in", data=bodies[0])
    assert form.status_code == 401
    assert answers[0].json()["error"] in form.text


def test_a_password_signs_in_however_the_address_is_written(
    server: RunningServer, owner: Person, nobody: httpx.Client
) -> None:
    email = new_email()
    join(server, owner, email, "viewer").close()
    fields = {"email": f"  {email.upper()} ", "password": PASSWORD}
    answer = nobody.post("/sign-in", data=fields)
    assert answer.status_code == 303
    assert nobody.get("/api/whoami").json()["user"]["email"] == email


def test_signing_out_ends_the_session_for_good(server: RunningServer, owner: Person) -> None:
    person = join(server, owner, new_email(), "member")
    before = person.http.cookies["rollbook_session"]
    assert person.call("POST", "/api/sign-out").json() == {"status": "signed_out"}
    assert "rollbook_session" not in person.http.cookies
    with web(server, Cookie=f"rollbook_session={before}") as thief:
        assert thief.get("/api/whoami").status_code == 401
    person.close()


def test_signing_out_by_form_ends_the_session_too(server: RunningServer, owner: Person) -> None:
    person = join(server, owner, new_email(), "member")
    answer = person.submit("/sign-out")
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert person.get("/keys").status_code == 303
    person.close()


def test_signing_in_again_ends_the_session_before(server: RunningServer, owner: Person) -> None:
    email = new_email()
    person = join(server, owner, email, "member")
    before = person.http.cookies["rollbook_session"]
    person.sign_in(email)
    assert person.http.cookies["rollbook_session"] != before
    with web(server, Cookie=f"rollbook_session={before}") as thief:
        assert thief.get("/api/whoami").status_code == 401
    person.close()


def test_a_new_password_ends_every_other_session(server: RunningServer, owner: Person) -> None:
    email, new = new_email(), "another few good words"
    person = join(server, owner, email, "member")
    elsewhere = Person(server).sign_in(email)
    wrong = {"current_password": "wrong", "new_password": new}
    refused = person.call("POST", "/api/password", json=wrong)
    assert (refused.status_code, refused.json()["code"]) == (403, "wrong_password")
    changed = person.call(
        "POST", "/api/password", json={"current_password": PASSWORD, "new_password": new}
    )
    assert changed.status_code == 200
    assert elsewhere.get("/api/whoami").status_code == 401
    assert person.get("/api/whoami").status_code == 200
    old = elsewhere.http.post("/api/sign-in", json={"email": email, "password": PASSWORD})
    assert old.status_code == 401
    elsewhere.sign_in(email, new)
    for each in (person, elsewhere):
        each.close()


def test_whoever_came_by_link_sets_a_password_on_its_page(server: RunningServer) -> None:
    person = Person(server)
    token = new_link(server)
    answer = person.http.post("/api/sign-in", json={"token": token}).json()
    person.csrf, email = answer["csrf_token"], answer["user"]["email"]
    assert "Current password" not in person.get("/password").text
    assert person.submit("/password", new_password="short").status_code == 400
    done = person.submit("/password", new_password=PASSWORD)
    assert done.status_code == 200
    assert "Current password" in person.get("/password").text
    Person(server).sign_in(email).close()
    person.close()


@pytest.mark.parametrize(
    "password", ["", "short", "x" * 11, "x" * 1001, "a" * 40, "  ann@example.com  "]
)
def test_a_password_that_would_be_guessed_is_not_taken(password: str) -> None:
    with pytest.raises(Problem) as refused:
        checked_password(password, "ann@example.com")
    assert (refused.value.status, refused.value.code) == (400, "weak_password")


@pytest.mark.parametrize(
    "password", ["correct horse battery", "пароль из слов", "🙂🙃😀😁😂🤣😃😄😅😆😉😊"]
)
def test_any_long_password_is_taken(password: str) -> None:
    assert checked_password(password, "ann@example.com") == password


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"email": "a@b.example"},
        {"password": "x"},
        {"email": 1, "password": "x"},
        {"email": "a@b.example", "password": "x" * 2000},
        {"token": "x" * 300},
        [],
        None,
    ],
)
def test_a_sign_in_that_makes_no_sense_is_refused(nobody: httpx.Client, body: object) -> None:
    answer = nobody.post("/api/sign-in", json=body)
    assert answer.status_code in (400, 415)
    assert set(answer.json()) >= {"error", "code"}


# ----------------------------------------------------------------------------------------- invitations


def test_an_invitation_is_accepted_once_and_makes_a_member(
    server: RunningServer, owner: Person, nobody: httpx.Client
) -> None:
    email = new_email()
    made = owner.call("POST", "/api/invitations", json={"email": email, "role": "viewer"})
    assert made.status_code == 201
    url = made.json()["url"]
    assert url.startswith(f"{server.base_url}/invitation?token=")
    token = url.partition("token=")[2]
    listed = owner.get("/api/invitations")
    assert email in {each["email"] for each in listed.json()["invitations"]}
    assert token not in listed.text

    page = nobody.get(url)
    assert email in page.text
    assert "First" in page.text
    weak = nobody.post("/invitation", data={"token": token, "password": "short"})
    assert weak.status_code == 400
    fields = {"token": token, "password": PASSWORD, "name": HTML}
    answer = nobody.post("/invitation", data=fields)
    assert (answer.status_code, answer.headers["location"]) == (303, "/portal")
    assert nobody.get("/api/whoami").json()["role"] == "viewer"

    assert nobody.get(url).status_code == 404
    again = nobody.post("/api/invitations/accept", json={"token": token, "password": PASSWORD})
    assert (again.status_code, again.json()["code"]) == (404, "invitation_invalid")
    assert_harmless(owner.get("/members").text, HTML)


def test_whoever_has_an_account_joins_with_its_password(
    server: RunningServer, owner: Person, other_owner: Person
) -> None:
    email = new_email()
    person = join(server, owner, email, "member")
    made = other_owner.call("POST", "/api/invitations", json={"email": email, "role": "admin"})
    token = made.json()["url"].partition("token=")[2]
    stranger = Person(server)
    wrong = stranger.http.post(
        "/api/invitations/accept", json={"token": token, "password": "a password of my own"}
    )
    assert (wrong.status_code, wrong.json()["code"]) == (401, "sign_in_failed")
    right = stranger.http.post(
        "/api/invitations/accept", json={"token": token, "password": PASSWORD}
    )
    assert right.status_code == 200
    assert right.json()["organisation"]["id"] == server.second_org.org_id
    assert right.json()["role"] == "admin"

    switched = person.call("POST", "/api/organisation", json={"org_id": server.second_org.org_id})
    assert switched.json()["organisation"]["name"] == "Second"
    assert person.get("/api/whoami").json()["role"] == "admin"
    for each in (person, stranger):
        each.close()


def test_nobody_switches_to_an_organisation_of_others(server: RunningServer, owner: Person) -> None:
    answers = [
        owner.call("POST", "/api/organisation", json={"org_id": org_id})
        for org_id in (server.second_org.org_id, "unknown")
    ]
    assert {each.status_code for each in answers} == {404}
    assert len({each.content for each in answers}) == 1
    assert owner.get("/api/whoami").json()["organisation"]["id"] == server.org_id


def test_a_withdrawn_invitation_lets_nobody_in(owner: Person, nobody: httpx.Client) -> None:
    made = owner.call("POST", "/api/invitations", json={"email": new_email()}).json()
    token = made["url"].partition("token=")[2]
    answer = owner.call("DELETE", f"/api/invitations/{made['id']}")
    assert answer.json() == {"id": made["id"], "status": "withdrawn"}
    body = {"token": token, "password": PASSWORD}
    assert nobody.post("/api/invitations/accept", json=body).status_code == 404
    assert owner.call("DELETE", f"/api/invitations/{made['id']}").status_code == 404


def test_members_are_not_invited_again(server: RunningServer, owner: Person) -> None:
    answer = owner.call("POST", "/api/invitations", json={"email": server.first_org.email})
    assert (answer.status_code, answer.json()["code"]) == (409, "already_member")


@pytest.mark.parametrize(
    "email", ["", "no address", "@", "a@", "a b@c.example", "x" * 330, "a\x00@b.c"]
)
def test_what_is_no_address_is_not_invited(owner: Person, email: str) -> None:
    answer = owner.call("POST", "/api/invitations", json={"email": email})
    assert answer.status_code == 400


def test_people_are_managed_on_their_page(server: RunningServer, owner: Person) -> None:
    email = new_email()
    page = owner.submit("/invitations", email=email, role="member")
    assert page.status_code == 200
    url = page.text.split("<pre>")[1].split("</pre>")[0]
    person = Person(server)
    fields = {"token": url.partition("token=")[2], "password": PASSWORD}
    joined = person.http.post("/invitation", data=fields, headers={"Origin": server.base_url})
    assert joined.status_code == 303
    user_id = user_id_of(person)
    assert owner.submit(f"/members/{user_id}/role", role="admin").status_code == 303
    assert person.get("/api/whoami").status_code == 401, "a new role needs a new session"
    assert person.sign_in(email).get("/api/whoami").json()["role"] == "admin"
    assert owner.submit(f"/members/{user_id}/role", role="king").status_code == 400
    assert owner.submit(f"/members/{user_id}/remove").status_code == 303
    assert person.get("/api/whoami").status_code == 401
    person.close()


def test_names_and_addresses_are_shown_as_text(server: RunningServer) -> None:
    person = signed_in(server, new_organisation(server, name=HTML))
    made = person.call("POST", "/api/invitations", json={"email": "<b>x</b>@example.com"})
    assert made.status_code == 201
    invitation = made.json()["url"].removeprefix(server.base_url)
    for path in ("/portal", "/keys", "/members", "/portal/organisations", invitation):
        page = person.get(path)
        assert page.status_code == 200
        assert_harmless(page.text, HTML)
    for path in ("/password", "/cli/auth"):
        assert_harmless(person.get(path).text)
    person.close()


def test_keys_and_invitations_do_not_pile_up_without_end(server: RunningServer) -> None:
    def fill(scope: Scope) -> None:
        for number in range(MOST_LIVE_KEYS):
            scope.create_key(f"{number:010}", "0" * 64)
        for number in range(MOST_OPEN_INVITATIONS):
            later = now_us() + 10**9
            token_hash = f"{scope.org_id}{number}"
            scope.invite(
                f"{number}@x.example", "member", token_hash=token_hash, expires_at_us=later
            )

    person = signed_in(server, new_organisation(server, more=fill))
    key = person.call("POST", "/api/keys", json={})
    assert (key.status_code, key.json()["code"]) == (409, "too_many_keys")
    invited = person.call("POST", "/api/invitations", json={"email": "one-more@x.example"})
    assert (invited.status_code, invited.json()["code"]) == (409, "too_many_invitations")
    assert person.call("DELETE", "/api/keys/0000000000").status_code == 200
    person.close()


# ----------------------------------------------------------------------------------------------- roles


@pytest.fixture(scope="module")
def cast(server: RunningServer, owner: Person) -> Iterator[dict[str, Person]]:
    """One person of each role."""
    people = {role: join(server, owner, new_email(), role) for role in ROLES}
    yield people
    for person in people.values():
        person.close()


@pytest.mark.parametrize("role", ROLES)
def test_what_a_role_may_do_is_what_the_server_lets_it_do(
    server: RunningServer, owner: Person, cast: dict[str, Person], role: str
) -> None:
    person = cast[role]
    target = join(server, owner, new_email(), "member")
    theirs = target.call("POST", "/api/keys", json={}).json()["key"]["key_id"]
    invitation = owner.call("POST", "/api/invitations", json={"email": new_email()}).json()["id"]
    path = f"/api/members/{user_id_of(target)}"
    tried: list[tuple[Action, str, str, object]] = [
        ("read", "GET", "/api/episodes", None),
        ("record", "POST", "/api/ingest/episode", {}),
        ("see_own_keys", "GET", "/api/keys", None),
        ("make_keys", "POST", "/api/keys", {"role": "viewer"}),
        ("record", "POST", "/api/keys", {"role": "member"}),
        ("see_members", "GET", "/api/members", None),
        ("invite", "POST", "/api/invitations", {"email": new_email()}),
        ("invite", "GET", "/api/invitations", None),
        ("invite", "DELETE", f"/api/invitations/{invitation}", None),
        ("see_audit_log", "GET", "/api/audit", None),
        ("manage_webhooks", "GET", "/api/webhooks", None),
        (
            "manage_webhooks",
            "POST",
            "/api/webhooks",
            {"url": "https://hook.example", "events": ["eval_run.completed"]},
        ),
        ("change_roles", "PATCH", path, {"role": "admin"}),
        ("revoke_any_key", "DELETE", f"/api/keys/{theirs}", None),
        ("remove_members", "DELETE", path, None),
    ]
    for action, method, at, body in tried:
        answer = person.call(method, at, json=body)
        if role in PEOPLE_MAY[action]:
            assert answer.status_code in (200, 201), (action, answer.text)
        else:
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), action
    target.close()


def test_a_viewer_keeps_keys_that_only_look(cast: dict[str, Person], server: RunningServer) -> None:
    viewer = cast["viewer"]
    made = viewer.call("POST", "/api/keys", json={"label": "notebook"}).json()
    assert made["key"]["role"] == "viewer"
    listed = viewer.get("/api/keys").json()["keys"]
    assert {each["created_by"] for each in listed} == {user_id_of(viewer)}
    assert ">write:" not in viewer.get("/keys").text
    assert viewer.call("DELETE", f"/api/keys/{made['key']['key_id']}").status_code == 200
    first = server.api_key.split("_")[1]
    assert viewer.call("DELETE", f"/api/keys/{first}").status_code == 403


def test_only_owners_have_power_over_owners(server: RunningServer, cast: dict[str, Person]) -> None:
    admin, path = cast["admin"], f"/api/members/{user_id_of(cast['owner'])}"
    for answer in (
        admin.call("PATCH", path, json={"role": "viewer"}),
        admin.call("DELETE", path),
        admin.call("PATCH", f"/api/members/{user_id_of(admin)}", json={"role": "owner"}),
        admin.call("POST", "/api/invitations", json={"email": new_email(), "role": "owner"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert "owner" in answer.json()["error"]


def test_an_organisation_is_never_left_without_an_owner(
    server: RunningServer, other_owner: Person
) -> None:
    path = f"/api/members/{server.second_org.user_id}"
    for answer in (
        other_owner.call("PATCH", path, json={"role": "admin"}),
        other_owner.call("DELETE", path),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "last_owner")


def test_whoever_may_only_look_from_now_on_loses_keys_that_may_do_more(
    server: RunningServer, owner: Person
) -> None:
    email = new_email()
    person = join(server, owner, email, "member")
    full = person.call("POST", "/api/keys", json={}).json()
    reading = person.call("POST", "/api/keys", json={"role": "viewer"}).json()
    path = f"/api/members/{user_id_of(person)}"
    changed = owner.call("PATCH", path, json={"role": "viewer"}).json()
    assert changed["member"]["role"] == "viewer"
    assert changed["revoked_keys"] == [full["key"]["key_id"]]
    assert _status(server, full["api_key"]) == 401
    assert _status(server, reading["api_key"]) == 200
    assert person.call("POST", "/api/ingest/episode", json={}).status_code == 401
    person.sign_in(email)
    assert person.call("POST", "/api/ingest/episode", json={}).status_code == 403
    person.close()


def test_a_role_that_stays_the_same_ends_no_session(server: RunningServer, owner: Person) -> None:
    person = join(server, owner, new_email(), "member")
    path = f"/api/members/{user_id_of(person)}"
    assert owner.call("PATCH", path, json={"role": "member"}).status_code == 200
    assert person.get("/api/whoami").json()["role"] == "member"
    person.close()


def test_a_new_role_ends_the_sessions_of_that_organisation_alone(
    server: RunningServer, owner: Person, other_owner: Person
) -> None:
    email = new_email()
    here = join(server, owner, email, "member")
    user_id = user_id_of(here)
    made = other_owner.call("POST", "/api/invitations", json={"email": email, "role": "member"})
    there = Person(server)
    body = {"token": made.json()["url"].partition("token=")[2], "password": PASSWORD}
    assert there.http.post("/api/invitations/accept", json=body).status_code == 200
    assert owner.call("PATCH", f"/api/members/{user_id}", json={"role": "admin"}).status_code == 200
    assert here.get("/api/whoami").status_code == 401
    assert there.get("/api/whoami").status_code == 200
    here.close()
    there.close()


@pytest.mark.parametrize("keep", [False, True])
def test_whoever_is_removed_is_out_at_once(
    server: RunningServer, owner: Person, keep: bool
) -> None:
    person = join(server, owner, new_email(), "member")
    key = person.call("POST", "/api/keys", json={}).json()["api_key"]
    path = f"/api/members/{user_id_of(person)}?keep_keys={str(keep).lower()}"
    removed = owner.call("DELETE", path).json()
    assert removed["status"] == "removed"
    assert removed["revoked_keys"] == ([] if keep else [key.split("_")[1]])
    assert person.get("/api/whoami").status_code == 401
    assert _status(server, key) == (200 if keep else 401)
    again = person.http.post("/api/sign-in", json={"email": "x", "password": "y"})
    assert again.status_code == 401
    person.close()


def test_anyone_may_leave(server: RunningServer, owner: Person) -> None:
    email = new_email()
    person = join(server, owner, email, "viewer")
    assert person.call("DELETE", f"/api/members/{user_id_of(person)}").status_code == 200
    answer = person.http.post("/api/sign-in", json={"email": email, "password": PASSWORD})
    assert (answer.status_code, answer.json()["code"]) == (403, "no_organisation")
    person.close()


def _status(server: RunningServer, key: str) -> int:
    with web(server, Authorization=f"Bearer {key}") as client:
        return client.get("/api/whoami").status_code


# --------------------------------------------------------------------------------------------- the log


def test_the_audit_log_tells_what_was_done_and_by_whom(
    server: RunningServer, owner: Person, nobody: httpx.Client
) -> None:
    email = new_email()
    person = join(server, owner, email, "member")
    user_id = user_id_of(person)
    key_id = person.call("POST", "/api/keys", json={"label": HTML}).json()["key"]["key_id"]
    person.call("DELETE", f"/api/keys/{key_id}")
    owner.call("PATCH", f"/api/members/{user_id}", json={"role": "viewer"})
    nobody.post("/api/sign-in", json={"email": email, "password": "wrong"})
    # it is noted after its answer, in the organisations that the person is in at that moment
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and "sign_in.failed" not in _events(owner):
        time.sleep(0.05)
    person.sign_in(email).call("POST", "/api/sign-out")
    owner.call("DELETE", f"/api/members/{user_id}")
    mine, owners = f"user:{user_id}", f"user:{server.first_org.user_id}"
    wanted = {
        ("invitation.created", owners),
        ("invitation.accepted", mine),
        ("sign_in.ok", mine),
        ("key.created", mine),
        ("key.revoked", mine),
        ("member.role_changed", owners),
        ("sign_in.failed", None),
        ("sign_out", mine),
        ("member.removed", owners),
    }
    events = owner.get("/api/audit", params={"limit": 30}).json()["events"]
    events = [each for each in events if (each["event"], each["actor"]) in wanted]
    assert {(each["event"], each["actor"]) for each in events} == wanted
    assert {each["ip"] for each in events} == {"127.0.0.1"}
    failed = next(each for each in events if each["event"] == "sign_in.failed")
    assert failed["subject"] == mine
    text = str(events)
    assert PASSWORD not in text
    person.close()


def _events(owner: Person) -> set[str]:
    events = owner.get("/api/audit", params={"limit": 30}).json()["events"]
    return {each["event"] for each in events}


def test_the_audit_log_is_read_page_by_page(owner: Person, other_owner: Person) -> None:
    everything = owner.get("/api/audit", params={"limit": 1000}).json()["events"]
    assert len(everything) > 3
    ids = [each["id"] for each in everything]
    assert ids == sorted(ids, reverse=True)
    seen: list[int] = []
    size = len(ids) // 3
    before = None
    while len(seen) < len(ids):
        params = {"limit": size} if before is None else {"limit": size, "before": before}
        page = owner.get("/api/audit", params=params).json()
        seen += [each["id"] for each in page["events"]]
        before = page["next_before"]
        if before is None:
            break
    assert seen == ids
    others = other_owner.get("/api/audit", params={"limit": 1000}).json()["events"]
    assert not {each["id"] for each in others} & set(ids)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "before=-1", "before=x", f"before={'9' * 40}"]
)
def test_a_page_of_the_log_that_cannot_be_is_refused(owner: Person, query: str) -> None:
    assert owner.get(f"/api/audit?{query}").status_code == 400
