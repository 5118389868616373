"""Account pages with many keys and members, and with hostile names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import sqlalchemy as sa

from rollbook.server.db.engine import Tenant
from rollbook.server.db.open import open_database
from rollbook.server.queries import Scope, create_user
from tests.portal.hostile_text import HOSTILE, assert_harmless
from tests.server.people import House, Person, join
from tests.server.running import Access
from tests.server.shared_server import new_organisation

KEYS, MEMBERS = 1000, 400


@pytest.fixture(scope="module")
def access(sqlite_house: House) -> Access:
    """An organisation with as many keys as one may have."""
    made = new_organisation(sqlite_house.server)
    folder = sqlite_house.server.data_dir
    with closing(open_database(f"sqlite:///{folder / 'rollbook.db'}")) as database:

        def fill(connection: sa.Connection) -> None:
            scope = Scope(connection, made.org_id)
            for number in range(KEYS - 1):
                scope.create_key(f"{made.org_id[-5:]}{number:05}", "0" * 64, label=f"arm {number}")
            for number in range(MEMBERS):
                address = f"person-{number}@{made.org_id}.example"
                user = create_user(connection, address)
                scope.add_member(user.id, "viewer")

        database.write_now(Tenant(org_id=made.org_id), fill)
    return made


@pytest.fixture(scope="module")
def owner(sqlite_house: House, access: Access) -> Iterator[Person]:
    person = Person(sqlite_house.server).sign_in_by_link(access)
    yield person
    person.close()


@pytest.mark.parametrize("path", ["/keys", "/members"])
def test_a_long_list_is_a_short_page_with_a_search(owner: Person, path: str) -> None:
    page = owner.get(path)
    assert len(page.content) < 150_000
    assert "are shown" in page.text


def test_any_key_and_any_member_is_found(owner: Person) -> None:
    found = owner.get("/keys", params={"q": "ARM 777"}).text
    assert "arm 777" in found
    assert "arm 776" not in found
    found = owner.get("/members", params={"q": "person-333@"}).text
    assert "person-333@" in found
    assert "person-332@" not in found
    for hostile in HOSTILE:
        assert_harmless(owner.get("/keys", params={"q": hostile}).text, hostile)
        assert_harmless(owner.get("/members", params={"q": hostile}).text, hostile)


def test_a_question_shows_the_name_of_what_ends_as_text(
    sqlite_house: House, owner: Person, access: Access
) -> None:
    revoked = owner.get("/api/keys").json()["keys"][-1]["key_id"]
    owner.call("DELETE", f"/api/keys/{revoked}")
    made = owner.call("POST", "/api/keys", json={"label": HOSTILE[0], "scope": "read"}).json()
    asked = owner.get(f"/keys/{made['key']['key_id']}/revoke")
    assert_harmless(asked.text, HOSTILE[0])
    assert owner.get("/api/keys").json()["keys"][0]["revoked_at"] is None, "asking changes nothing"
    assert owner.get(f"/keys/{revoked}/revoke").status_code == 404, "it is revoked already"


def test_whoever_belongs_to_two_organisations_switches_between_them(
    sqlite_house: House, owner: Person
) -> None:
    email = "both@accounts.example"
    person = join(sqlite_house.server, owner, email, "viewer")
    invited = sqlite_house.owner.call(
        "POST", "/api/invitations", json={"email": email, "role": "member"}
    )
    body = {"token": invited.json()["url"].partition("token=")[2]}
    joined = person.http.post(
        "/api/invitations/accept", json={**body, "password": "four unrelated words here"}
    )
    person.csrf = joined.json()["csrf_token"]
    here = person.get("/api/whoami").json()["organisation"]
    page = person.get("/portal/organisations").text
    assert "you are here" in page
    other = owner.get("/api/whoami").json()["organisation"]
    before = dict(person.http.cookies)
    switched = person.submit("/portal/organisations", org_id=other["id"])
    assert (switched.status_code, switched.headers["location"]) == (303, "/portal")
    assert dict(person.http.cookies) != before, "a new session"
    assert person.get("/api/whoami").json()["organisation"] == other
    assert here["id"] != other["id"]
    person.close()
