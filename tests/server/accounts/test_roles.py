"""What roles and scopes may do, asked of the functions themselves: the routes are asked in test_permissions.py."""

from __future__ import annotations

import pytest

from rollbook.contracts.wire.keys import SCOPES, KeyScope
from rollbook.server.accounts.roles import (
    KEYS_MAY,
    PEOPLE_MAY,
    Action,
    login_scope,
    machine,
    may,
    person,
    require,
    require_gift,
    require_own,
    require_power_over,
    usual_scope,
)
from rollbook.server.http.responses import Problem

ROLES = ("owner", "admin", "member", "viewer")


def refusal(of: Problem) -> tuple[int, str]:
    return of.status, of.code


@pytest.mark.parametrize("action", PEOPLE_MAY)
def test_who_may_not_do_something_is_told_who_may(action: Action) -> None:
    for role in ROLES:
        caller = person("org", "user", role)
        assert may(caller, action) == (role in PEOPLE_MAY[action])
        if may(caller, action):
            require(caller, action)
            continue
        with pytest.raises(Problem, match=f"your role here is {role}") as refused:
            require(caller, action)
        assert refusal(refused.value) == (403, "forbidden")
        assert ", ".join(PEOPLE_MAY[action]) in str(refused.value)
    for scope in SCOPES:
        caller = machine("org", "key", scope)
        assert may(caller, action) == (scope in KEYS_MAY[action])
        if may(caller, action):
            require(caller, action)
            continue
        text = f"has the scope {scope}" if KEYS_MAY[action] else "sign in as a person"
        with pytest.raises(Problem, match=text) as refused:
            require(caller, action)
        assert refusal(refused.value) == (403, "forbidden")


def test_only_an_owner_has_power_over_an_owner() -> None:
    for role in ROLES:
        caller = person("org", "user", role)
        require_power_over(caller, "admin", "member", "viewer")
        if role == "owner":
            require_power_over(caller, "owner", "member")
            continue
        with pytest.raises(Problem, match="only an owner") as refused:
            require_power_over(caller, "member", "owner")
        assert refusal(refused.value) == (403, "forbidden")


def test_a_key_that_is_not_admin_deletes_only_what_it_recorded() -> None:
    key = machine("org", "key", "write")
    require_own(key, key.name, "episode")
    require_own(machine("org", "key", "admin"), "another", "episode")
    for created_by in ("another", None):
        with pytest.raises(Problem, match="another caller recorded this episode") as refused:
            require_own(key, created_by, "episode")
        assert refusal(refused.value) == (403, "forbidden")


def test_a_new_key_has_the_scope_that_most_people_with_the_role_need() -> None:
    assert [usual_scope(role) for role in ROLES] == ["ingest", "ingest", "ingest", "read"]
    assert [login_scope(role) for role in ROLES] == ["write", "write", "write", "read"]


def test_nobody_gives_a_scope_that_is_more_than_their_role() -> None:
    given = {role: [scope for scope in SCOPES if _gives(role, scope)] for role in ROLES}
    assert given == {
        "owner": ["ingest", "read", "write", "admin"],
        "admin": ["ingest", "read", "write", "admin"],
        "member": ["ingest", "read", "write"],
        "viewer": ["read"],
    }


def _gives(role: str, scope: KeyScope) -> bool:
    try:
        require_gift(role, scope)
    except Problem as refused:
        return refusal(refused) != (403, "forbidden")
    return True
