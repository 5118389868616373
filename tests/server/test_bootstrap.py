"""A new server gets one organisation with everything to begin with, and later ones as they are asked for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from rollbook.server.accounts.keys import hash_of, matches, parse_api_key
from rollbook.server.bootstrap import Bootstrapped, bootstrap, first_start, owner_link
from rollbook.server.db.engine import NOBODY, Database, Tenant
from rollbook.server.queries import (
    Scope,
    key_by_id,
    organisation_ids,
    organisations_of_user,
    set_password,
    use_sign_in_link,
)
from rollbook.server.settings import Settings
from tests.watched_files import WatchedFiles


def check_usable(database: Database, made: Bootstrapped) -> None:
    parsed = parse_api_key(made.api_key)
    assert parsed is not None
    key = database.read_now(Tenant(key_id=parsed[0]), lambda c: key_by_id(c, parsed[0]))
    assert key is not None
    assert key.org_id == made.org_id
    assert matches(made.api_key, key.secret_hash)
    memberships = database.read_now(
        Tenant(user_id=made.user_id), lambda c: organisations_of_user(c, made.user_id)
    )
    assert (made.org_id, "owner") in [(each.org_id, each.role) for each in memberships]
    link = hash_of(made.sign_in_token)
    let_in = database.write_now(NOBODY, lambda connection: use_sign_in_link(connection, link))
    assert let_in is not None
    assert (let_in.id, let_in.email) == (made.user_id, made.email)


def test_the_first_start_makes_all_one_needs_and_later_ones_nothing(database: Database) -> None:
    made = first_start(database)
    assert made is not None
    assert made.email == "owner@localhost"
    check_usable(database, made)
    assert first_start(database) is None


def test_until_the_owner_has_a_password_every_start_gives_a_new_link(database: Database) -> None:
    made = first_start(database)
    assert made is not None
    tokens = [owner_link(database) for _ in range(2)]
    assert len({made.sign_in_token, *tokens}) == 3
    for token in tokens:
        assert token is not None
        used = partial(use_sign_in_link, token_hash=hash_of(token))
        let_in = database.write_now(NOBODY, used)
        assert let_in is not None
        assert let_in.id == made.user_id
    database.write_now(NOBODY, lambda connection: set_password(connection, made.user_id, "a hash"))
    assert owner_link(database) is None


def test_of_many_first_starts_at_once_one_makes_it(database: Database) -> None:
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(lambda _: first_start(database), range(6)))
    assert sum(each is not None for each in made) == 1
    assert len(database.read_now(NOBODY, organisation_ids)) == 1


def test_another_organisation_has_an_owner_of_its_own(database: Database) -> None:
    one, other = bootstrap(database, "One"), bootstrap(database, "Other")
    for made in (one, other):
        check_usable(database, made)
    assert one.user_id != other.user_id
    assert one.email != other.email


def test_a_person_may_own_several(database: Database) -> None:
    one = bootstrap(database, "One", "Ann@Example.org")
    other = bootstrap(database, "Other", "ann@example.org")
    assert (one.user_id, one.email) == (other.user_id, "ann@example.org")
    for made in (one, other):
        check_usable(database, made)


def test_nothing_that_opens_a_door_is_in_the_database(database: Database) -> None:
    made = bootstrap(database, "One")

    def everything(scope: Scope) -> str:
        rows = [scope.keys(), scope.members(), scope.audit_events(), scope.organisation()]
        return repr(rows)

    told = database.read_now(
        Tenant(org_id=made.org_id), lambda c: everything(Scope(c, made.org_id))
    )
    secret = made.api_key.split("_", 2)[2]
    assert secret not in told
    assert made.sign_in_token not in told
    assert "organisation.created" in told


def test_the_secret_of_a_server_survives_a_power_cut(tmp_path: Path) -> None:
    """Everything that was signed with it would be lost with it."""
    with WatchedFiles(tmp_path) as watched:
        secret = Settings.load(tmp_path / "new" / "data").secret
        (path,) = (tmp_path / "new" / "data").iterdir()
        assert watched.after_power_cut(path) == secret
    assert watched.named_before_sync == []
