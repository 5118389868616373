"""Members, roles, invitations, keys and the audit log of an organisation."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from rollbook.errors import (
    AlreadyTaken,
    InvalidNumber,
    InvalidText,
    InvalidValue,
    LastOwner,
    Refusal,
)
from rollbook.server.db import tables
from rollbook.server.db.columns import new_id
from rollbook.server.db.engine import NOBODY, Database, Tenant
from rollbook.server.queries import (
    Scope,
    create_session,
    create_user,
    invitation_by_hash,
    organisations_of_user,
    session_by_hash,
)
from tests.server.tenants import Organisation, in_seconds, new_organisation


@pytest.fixture
def org(shared_database: Database) -> Organisation:
    return new_organisation(shared_database)


def someone(org: Organisation) -> str:
    email = f"{new_id()}@example.org"
    return org.database.write_now(NOBODY, lambda connection: create_user(connection, email)).id


# ------------------------------------------------------------------------------------------ members


def test_members_have_one_role_each(org: Organisation) -> None:
    user = someone(org)
    assert org.write(lambda scope: scope.add_member(user, "viewer")).role == "viewer"
    assert org.write(lambda scope: scope.add_member(user, "owner")).role == "viewer"
    changed = org.write(lambda scope: scope.set_role(user, "admin"))
    assert changed is not None
    assert changed.role == "admin"
    assert {member.user_id for member in org.read(lambda scope: scope.members())} == {
        user,
        org.owner_id,
    }
    assert org.write(lambda scope: scope.remove_member(user))
    assert not org.write(lambda scope: scope.remove_member(user))
    assert org.read(lambda scope: scope.member(user)) is None


def test_a_role_that_does_not_exist_is_refused(org: Organisation) -> None:
    for call in (
        lambda scope: scope.add_member(org.owner_id, "king"),
        lambda scope: scope.set_role(org.owner_id, "king"),
        lambda scope: scope.invite("a@b.org", "king", token_hash="t", expires_at_us=1),
    ):
        with pytest.raises(InvalidValue, match="owner, admin, member, viewer"):
            org.write(call)


def test_the_last_owner_stays(org: Organisation) -> None:
    for call in (
        lambda scope: scope.remove_member(org.owner_id),
        lambda scope: scope.set_role(org.owner_id, "admin"),
    ):
        with pytest.raises(LastOwner):
            org.write(call)
    second = someone(org)
    org.write(lambda scope: scope.add_member(second, "owner"))
    assert org.write(lambda scope: scope.remove_member(org.owner_id))
    with pytest.raises(LastOwner):
        org.write(lambda scope: scope.remove_member(second))


def test_two_owners_cannot_leave_at_the_same_time(org: Organisation) -> None:
    second = someone(org)
    org.write(lambda scope: scope.add_member(second, "owner"))
    leaving, go_on = threading.Event(), threading.Event()

    def leave_slowly(scope: Scope) -> bool:
        left = scope.remove_member(org.owner_id)
        leaving.set()
        assert go_on.wait(10)
        return left

    with ThreadPoolExecutor(2) as pool:
        first_leaves = pool.submit(org.write, leave_slowly)
        assert leaving.wait(10)
        second_leaves = pool.submit(org.write, lambda scope: scope.remove_member(second))
        with pytest.raises(TimeoutError):
            second_leaves.result(0.2)
        go_on.set()
        assert first_leaves.result()
        assert isinstance(second_leaves.exception(), LastOwner)
    assert [member.user_id for member in org.read(lambda scope: scope.members())] == [second]


def test_whoever_is_removed_is_signed_out_here_and_nowhere_else(org: Organisation) -> None:
    elsewhere = new_organisation(org.database)
    user = someone(org)
    for each in (org, elsewhere):
        each.write(lambda scope: scope.add_member(user, "member"))
        org.database.write_now(
            Tenant(org_id=each.org_id),
            lambda connection, org_id=each.org_id: create_session(  # type: ignore[misc]
                connection,
                f"hash of {org_id}",
                user,
                org_id,
                csrf_token="c",
                expires_at_us=in_seconds(60),
            ),
        )
    org.write(lambda scope: scope.remove_member(user))
    for each, signed_in in ((org, False), (elsewhere, True)):
        found = org.database.read_now(
            NOBODY,
            lambda connection, org_id=each.org_id: session_by_hash(connection, f"hash of {org_id}"),  # type: ignore[misc]
        )
        assert (found is not None) is signed_in


def test_a_user_sees_their_organisations_before_choosing_one(org: Organisation) -> None:
    other = new_organisation(org.database, "Other")
    user = someone(org)
    org.write(lambda scope: scope.add_member(user, "member"))
    other.write(lambda scope: scope.add_member(user, "viewer"))
    found = org.database.read_now(
        Tenant(user_id=user), lambda connection: organisations_of_user(connection, user)
    )
    assert [(each.org_id, each.org_name, each.role) for each in found] == [
        (org.org_id, "Acme", "member"),
        (other.org_id, "Other", "viewer"),
    ]


# -------------------------------------------------------------------------------------- invitations


def invited(org: Organisation, token_hash: str, **more: Any) -> Any:
    options = {"token_hash": token_hash, "expires_at_us": in_seconds(60), **more}
    return org.write(lambda scope: scope.invite("New@Example.org ", "member", **options))


def by_hash(org: Organisation, token_hash: str) -> Any:
    return org.database.read_now(
        Tenant(invitation_hash=token_hash),
        lambda connection: invitation_by_hash(connection, token_hash),
    )


def test_an_invitation_is_accepted_once(org: Organisation) -> None:
    token_hash = new_id()
    sent = invited(org, token_hash, invited_by=org.owner_id)
    assert sent.email == "new@example.org"
    assert by_hash(org, token_hash) == sent == org.read(lambda scope: scope.invitations())[0]
    user, late = someone(org), someone(org)
    member = org.write(lambda scope: scope.accept_invitation(sent.id, user))
    assert member is not None
    assert member.role == "member"
    assert org.write(lambda scope: scope.accept_invitation(sent.id, late)) is None
    assert by_hash(org, token_hash) is None
    assert org.read(lambda scope: scope.invitations()) == []


def test_an_invitation_that_is_late_or_revoked_is_worth_nothing(org: Organisation) -> None:
    late = invited(org, late_hash := new_id(), expires_at_us=in_seconds(-1))
    assert by_hash(org, late_hash) is None
    assert org.write(lambda scope: scope.accept_invitation(late.id, org.owner_id)) is None
    revoked = invited(org, revoked_hash := new_id())
    assert org.write(lambda scope: scope.revoke_invitation(revoked.id))
    assert not org.write(lambda scope: scope.revoke_invitation(revoked.id))
    assert by_hash(org, revoked_hash) is None


@pytest.mark.parametrize(
    "email", ["", "nobody", "@host", "name@", "a b@c.org", "a\x00@b.org", "x" * 321 + "@b.org", 7]
)
def test_what_is_no_address_is_refused(org: Organisation, email: Any) -> None:
    with pytest.raises(Refusal, match="email"):
        org.write(lambda scope: scope.invite(email, "member", token_hash="t", expires_at_us=1))


# --------------------------------------------------------------------------------------------- keys


def test_keys_are_listed_the_newest_first_and_stay_when_revoked(org: Organisation) -> None:
    first, second = new_id()[-10:], new_id()[-10:]
    org.at(1000, lambda scope: scope.create_key(first, "h1", label="robot"))
    org.at(2000, lambda scope: scope.create_key(second, "h2", prefix="rb", created_by="u"))
    gone = org.at(3000, lambda scope: scope.revoke_key(first))
    assert gone is not None
    assert gone.revoked_at_us == 3000
    assert org.at(4000, lambda scope: scope.revoke_key(first)) == gone
    listed = org.read(lambda scope: scope.keys())
    assert [(key.key_id, key.prefix, key.revoked_at_us) for key in listed] == [
        (second, "rb", None),
        (first, "rt", 3000),
    ]


def test_a_key_id_is_given_once_in_the_whole_server(org: Organisation) -> None:
    other = new_organisation(org.database)
    key_id = new_id()[-10:]
    org.write(lambda scope: scope.create_key(key_id, "h"))
    with pytest.raises(AlreadyTaken, match="key"):
        other.write(lambda scope: scope.create_key(key_id, "h"))
    with pytest.raises(InvalidText, match="label"):
        org.write(lambda scope: scope.create_key("k", "h", label="x" * 201))


# -------------------------------------------------------------------------------------------- audit


def test_the_audit_log_tells_the_newest_first(org: Organisation) -> None:
    for number in range(5):
        org.at(
            number,
            lambda scope, number=number: scope.audit(  # type: ignore[misc]
                "key.created", actor="u", subject=f"k{number}", detail={"n": number}, ip="::1"
            ),
        )
    newest = org.read(lambda scope: scope.audit_events(limit=2))
    assert [(row.subject, row.detail, row.at_us) for row in newest] == [
        ("k4", {"n": 4}, 4),
        ("k3", {"n": 3}, 3),
    ]
    rest = org.read(lambda scope: scope.audit_events(before_id=newest[-1].id))
    assert [row.subject for row in rest] == ["k2", "k1", "k0"]
    with pytest.raises(InvalidNumber, match="limit"):
        org.read(lambda scope: scope.audit_events(limit=0))


def test_nothing_in_the_audit_log_can_be_changed_on_postgresql(postgres_database: Database) -> None:
    org = new_organisation(postgres_database)
    org.write(lambda scope: scope.audit("key.created"))
    for statement in (sa.update(tables.audit_log).values(event="x"), sa.delete(tables.audit_log)):
        changed = postgres_database.write_now(
            Tenant(org_id=org.org_id),
            lambda connection, statement=statement: connection.execute(statement).rowcount,  # type: ignore[misc]
        )
        assert changed == 0
    assert [row.event for row in org.read(lambda scope: scope.audit_events())] == ["key.created"]


# ------------------------------------------------------------------------------------- organisation


def test_an_organisation_can_be_renamed_and_limited(org: Organisation) -> None:
    org.write(lambda scope: scope.rename_organisation("New <b>name</b>"))
    org.write(lambda scope: scope.set_quota(episodes=5, bytes_=10**15))
    found = org.read(lambda scope: scope.organisation())
    assert found is not None
    assert (found.name, found.quota_episodes, found.quota_bytes) == ("New <b>name</b>", 5, 10**15)
    with pytest.raises(InvalidNumber):
        org.write(lambda scope: scope.set_quota(episodes=-1, bytes_=None))
