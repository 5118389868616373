"""A forgotten password, reset by whoever runs the server, while it runs and while it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollbook.errors import ConfigurationError
from rollbook.server.accounts.keys import hash_of
from rollbook.server.accounts.password_reset import RESET_LINK_LASTS_S, reset_password
from rollbook.server.bootstrap import bootstrap
from rollbook.server.db.columns import new_id, now_us
from rollbook.server.db.engine import NOBODY, Database, Tenant
from rollbook.server.queries import (
    Scope,
    create_user,
    set_password,
    use_sign_in_link,
    user_by_email,
)
from tests.command import rollbook
from tests.server.people import PASSWORD, House, Person, house, join

__all__ = ["house"]
HOUR_US = RESET_LINK_LASTS_S * 1_000_000


def _used(database: Database, token: str, at_us: int | None = None) -> bool:
    return (
        database.write_now(NOBODY, lambda c: use_sign_in_link(c, hash_of(token), at_us)) is not None
    )


def test_the_password_and_older_links_end_and_every_organisation_is_told(
    shared_database: Database,
) -> None:
    email = f"ann@{new_id()}.example"
    made = [bootstrap(shared_database, name, email) for name in ("One", "Other")]
    shared_database.write_now(NOBODY, lambda c: set_password(c, made[0].user_id, "a hash"))
    reset = reset_password(shared_database, email.upper())
    assert (reset.user_id, reset.email) == (made[0].user_id, email)
    user = shared_database.read_now(NOBODY, lambda c: user_by_email(c, email))
    assert user is not None
    assert user.password_hash is None
    for each in made:
        assert not _used(shared_database, each.sign_in_token)
        events = shared_database.read_now(
            Tenant(org_id=each.org_id),
            lambda c, org_id=each.org_id: Scope(c, org_id).audit_events(1),  # type: ignore[misc]
        )
        assert [(event.event, event.actor, event.subject) for event in events] == [
            ("password.reset", "operator", f"user:{reset.user_id}")
        ]
    assert not _used(shared_database, reset.sign_in_token, now_us() + HOUR_US + 1)
    assert _used(shared_database, reset.sign_in_token)
    assert not _used(shared_database, reset.sign_in_token)


def test_who_is_not_there_or_belongs_nowhere_gets_no_link(shared_database: Database) -> None:
    with pytest.raises(ConfigurationError, match="nobody with the e-mail address"):
        reset_password(shared_database, "nobody@example.com")
    alone = f"alone@{new_id()}.example"
    shared_database.write_now(NOBODY, lambda c: create_user(c, alone))
    with pytest.raises(ConfigurationError, match="belongs to no organisation"):
        reset_password(shared_database, alone)


def test_the_link_leads_to_a_new_password_while_the_server_runs(house: House) -> None:
    email = f"forgetful@{new_id()}.example"
    person = join(house.server, house.owner, email, "member")
    place: list[object] = ["--data", house.server.data_dir]
    if "database_url" in house.server.overrides:
        place += ["--database", house.server.overrides["database_url"]]
    ended = rollbook(
        "server", "reset-password", *place, "--public-url", house.server.base_url, email, "--json"
    )
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert said["user"]["email"] == email
    assert person.get("/api/whoami").status_code == 401, "signed out"
    wrong = person.http.post("/api/sign-in", json={"email": email, "password": PASSWORD})
    assert wrong.status_code == 401

    link = said["sign_in_link"]
    assert link.startswith(f"{house.server.base_url}/sign-in?token=")
    again = Person(house.server)
    assert again.get(link).status_code == 200
    token = link.partition("token=")[2].partition("&")[0]
    again.sign_in_by_token(token)
    changed = again.call(
        "POST", "/api/password", json={"new_password": "five other words than before"}
    )
    assert changed.status_code == 200, changed.text
    Person(house.server).sign_in(email, "five other words than before").close()
    events = house.owner.get("/api/audit").json()["events"]
    assert ("password.reset", "operator") in [(each["event"], each["actor"]) for each in events]
    again.close()
    person.close()


def test_it_says_what_to_do_with_the_link(tmp_path: Path) -> None:
    made = json.loads(
        rollbook("server", "bootstrap", "--data", tmp_path, "--org", "Acme", "--json").stdout
    )
    ended = rollbook("server", "reset-password", "--data", tmp_path, made["user"]["email"])
    assert ended.returncode == 0
    assert "all sessions have ended" in ended.stdout
    assert "valid for 60 minutes: http://127.0.0.1:8321/sign-in?token=" in ended.stdout
    assert ended.stdout.rstrip().endswith("&next=/password")
    unknown = rollbook("server", "reset-password", "--data", tmp_path, "no@example.com", "--json")
    assert unknown.returncode == 2
    assert "no@example.com" in json.loads(unknown.stderr)["error"]
