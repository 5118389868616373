"""Users, sessions, links, device logins and keys, which are looked up before a tenant is known."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rollbook.errors import AlreadyTaken, Refusal
from rollbook.server import queries
from rollbook.server.db.columns import new_id, now_us
from rollbook.server.db.engine import NOBODY, Database, Tenant
from tests.server.tenants import Organisation, in_seconds, new_organisation

UNSTORABLE = ["\x00", "\ud800", "a\x00@b.org"]


@pytest.fixture
def org(shared_database: Database) -> Organisation:
    return new_organisation(shared_database)


@pytest.fixture
def ask(shared_database: Database) -> Any:
    """`ask(function, argument, …)` in a transaction of nobody."""

    def asked(function: Any, *arguments: Any, **options: Any) -> Any:
        return shared_database.write_now(
            NOBODY, lambda connection: function(connection, *arguments, **options)
        )

    return asked


# -------------------------------------------------------------------------------------------- users


def test_an_address_is_one_user_however_it_is_typed(ask: Any) -> None:
    email = f"{new_id()}@Example.ORG"
    made = ask(queries.create_user, f" {email} ", name="A", password_hash="h")
    assert ask(queries.user_by_email, email.upper()) == made == ask(queries.user_by_id, made.id)
    with pytest.raises(AlreadyTaken, match="address"):
        ask(queries.create_user, email.lower())


@pytest.mark.parametrize("text", [*UNSTORABLE, "unknown", ""])
def test_who_is_not_known_is_none(ask: Any, text: str) -> None:
    assert ask(queries.user_by_email, text) is None
    assert ask(queries.user_by_id, text) is None
    assert ask(queries.session_by_hash, text) is None
    assert ask(queries.use_sign_in_link, text) is None
    assert ask(queries.device_login, text) is None
    assert ask(queries.device_login_by_user_code, text) is None
    assert ask(queries.key_by_id, text) is None
    assert ask(queries.invitation_by_hash, text) is None
    assert not ask(queries.delete_session, text)
    assert not ask(queries.touch_key, text)


def test_a_name_that_cannot_be_kept_is_refused(ask: Any) -> None:
    with pytest.raises(Refusal, match="name"):
        ask(queries.create_user, f"{new_id()}@b.org", name="\x00")


# ----------------------------------------------------------------------------------------- sessions


def session(org: Organisation, seconds: float = 60) -> str:
    token_hash = new_id()
    org.database.write_now(
        Tenant(org_id=org.org_id),
        lambda connection: queries.create_session(
            connection,
            token_hash,
            org.owner_id,
            org.org_id,
            csrf_token="c",
            expires_at_us=in_seconds(seconds),
        ),
    )
    return token_hash


def test_a_session_lasts_until_it_ends(ask: Any, org: Organisation) -> None:
    token_hash = session(org)
    found = ask(queries.session_by_hash, token_hash)
    assert (found.user_id, found.org_id, found.csrf_token) == (org.owner_id, org.org_id, "c")
    assert ask(queries.session_by_hash, token_hash, at_us=in_seconds(61)) is None
    assert ask(queries.delete_session, token_hash)
    assert ask(queries.session_by_hash, token_hash) is None
    assert ask(queries.session_by_hash, session(org, seconds=-1)) is None


def test_a_new_password_ends_every_session(ask: Any, org: Organisation) -> None:
    tokens = [session(org) for _ in range(3)]
    assert ask(queries.set_password, org.owner_id, "new hash")
    assert [ask(queries.session_by_hash, token) for token in tokens] == [None, None, None]
    assert ask(queries.user_by_id, org.owner_id).password_hash == "new hash"
    assert not ask(queries.set_password, "unknown", "hash")


def test_what_has_ended_is_cleared_away(ask: Any, org: Organisation) -> None:
    kept, late = session(org), session(org, seconds=-10)
    assert ask(queries.delete_expired, now_us()) >= 1
    assert ask(queries.session_by_hash, kept) is not None
    assert ask(queries.session_by_hash, late, at_us=in_seconds(-20)) is None


# -------------------------------------------------------------------------------------------- links


def test_a_link_lets_in_once(ask: Any, org: Organisation) -> None:
    ask(queries.create_sign_in_link, token := new_id(), org.owner_id, expires_at_us=in_seconds(60))
    assert ask(queries.use_sign_in_link, token).id == org.owner_id
    assert ask(queries.use_sign_in_link, token) is None


def test_a_link_that_is_late_lets_nobody_in(ask: Any, org: Organisation) -> None:
    ask(queries.create_sign_in_link, token := new_id(), org.owner_id, expires_at_us=in_seconds(-1))
    assert ask(queries.use_sign_in_link, token) is None


def test_of_many_who_use_a_link_at_once_one_gets_in(ask: Any, org: Organisation) -> None:
    ask(queries.create_sign_in_link, token := new_id(), org.owner_id, expires_at_us=in_seconds(60))
    start = threading.Barrier(6)

    def use(_: int) -> Any:
        start.wait(10)
        return ask(queries.use_sign_in_link, token)

    with ThreadPoolExecutor(6) as pool:
        assert sum(user is not None for user in pool.map(use, range(6))) == 1


# ------------------------------------------------------------------------------------ device logins


def device(ask: Any, seconds: float = 600, **about: Any) -> tuple[str, str]:
    code_hash, user_code = new_id(), new_id()[-9:]
    ask(
        queries.create_device_login,
        code_hash,
        user_code,
        expires_at_us=in_seconds(seconds),
        **about,
    )
    return code_hash, user_code


def decide(ask: Any, org: Organisation, user_code: str, approved: bool = True) -> Any:
    return ask(
        queries.decide_device_login,
        user_code,
        approved=approved,
        user_id=org.owner_id,
        org_id=org.org_id,
    )


def test_a_device_login_goes_from_pending_to_consumed(ask: Any, org: Organisation) -> None:
    code_hash, user_code = device(ask, hostname="robot", user_agent="cli", ip="::1")
    pending = ask(queries.device_login, code_hash)
    assert pending == ask(queries.device_login_by_user_code, user_code)
    assert (pending.status, pending.hostname, pending.org_id) == ("pending", "robot", None)
    assert ask(queries.consume_device_login, code_hash, key_id="k") is None
    approved = decide(ask, org, user_code)
    assert (approved.status, approved.org_id, approved.user_id) == (
        "approved",
        org.org_id,
        org.owner_id,
    )
    assert decide(ask, org, user_code, approved=False) is None
    consumed = ask(queries.consume_device_login, code_hash, key_id="k")
    assert (consumed.status, consumed.key_id) == ("consumed", "k")
    assert ask(queries.consume_device_login, code_hash, key_id="k2") is None
    assert ask(queries.device_login, code_hash).status == "consumed"


def test_a_denied_login_stays_denied(ask: Any, org: Organisation) -> None:
    code_hash, user_code = device(ask)
    assert decide(ask, org, user_code, approved=False).status == "denied"
    assert decide(ask, org, user_code) is None
    assert ask(queries.consume_device_login, code_hash, key_id="k") is None
    assert ask(queries.device_login, code_hash, at_us=in_seconds(601)).status == "denied"


def test_a_login_that_is_late_has_expired(ask: Any, org: Organisation) -> None:
    code_hash, user_code = device(ask, seconds=-1)
    assert ask(queries.device_login, code_hash).status == "expired"
    assert decide(ask, org, user_code) is None
    approved_hash, approved_code = device(ask)
    decide(ask, org, approved_code)
    late = in_seconds(601)
    assert ask(queries.device_login, approved_hash, at_us=late).status == "expired"
    assert ask(queries.consume_device_login, approved_hash, key_id="k", at_us=late) is None


def test_a_code_is_shown_to_one_machine_only(ask: Any) -> None:
    _, user_code = device(ask)
    with pytest.raises(AlreadyTaken, match="device code"):
        ask(queries.create_device_login, new_id(), user_code, expires_at_us=in_seconds(1))


def test_whatever_a_machine_says_of_itself_is_kept_as_far_as_it_can_be(ask: Any) -> None:
    code_hash, _ = device(ask, hostname="a\x00b\ud800c", user_agent="x" * 100_000)
    kept = ask(queries.device_login, code_hash)
    assert kept.hostname == "ab?c"
    assert len(kept.user_agent) == 1000


def test_of_many_polls_at_once_one_gets_the_key(ask: Any, org: Organisation) -> None:
    code_hash, user_code = device(ask)
    decide(ask, org, user_code)
    start = threading.Barrier(6)

    def poll(number: int) -> Any:
        start.wait(10)
        return ask(queries.consume_device_login, code_hash, key_id=f"k{number}")

    with ThreadPoolExecutor(6) as pool:
        assert sum(login is not None for login in pool.map(poll, range(6))) == 1


# --------------------------------------------------------------------------------------------- keys


def test_a_key_is_found_by_its_public_part_alone(org: Organisation) -> None:
    key_id = new_id()[-10:]
    made = org.write(lambda scope: scope.create_key(key_id, "secret hash"))
    find = org.database.read_now
    assert find(Tenant(key_id=key_id), lambda c: queries.key_by_id(c, key_id)) == made
    org.write(lambda scope: scope.revoke_key(key_id))
    revoked = find(Tenant(key_id=key_id), lambda c: queries.key_by_id(c, key_id))
    assert revoked is not None
    assert revoked.revoked_at_us is not None


def test_the_last_use_is_noted_once_a_minute(org: Organisation) -> None:
    key_id = new_id()[-10:]
    made = org.write(lambda scope: scope.create_key(key_id, "h"))
    start = now_us()

    def touch(seconds: int) -> bool:
        return org.database.write_now(
            Tenant(key_id=key_id),
            lambda connection: queries.touch_key(connection, key_id, start + seconds * 1_000_000),
        )

    assert queries.needs_touch(made)
    assert [touch(seconds) for seconds in (0, 1, 59, 60, 61)] == [True, False, False, True, False]
    used = org.read(lambda scope: scope.key(key_id))
    assert used is not None
    assert used.last_used_at_us == start + 60_000_000
    assert not queries.needs_touch(used, start + 119_000_000)
    assert queries.needs_touch(used, start + 120_000_000)
