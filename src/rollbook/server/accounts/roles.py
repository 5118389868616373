"""Roles and scopes: who may do what in an organisation, in one table.

A person has a role. A key has a scope: it acts for a machine, and it never manages people or makes keys. Every route
names the action that it needs; `caller_of` asks for it before anything else happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

from rollbook.contracts.wire.keys import SCOPES, KeyScope
from rollbook.server.context import Caller
from rollbook.server.http.responses import Problem
from rollbook.server.queries import ROLES

Action: TypeAlias = Literal[
    "see_itself",
    "read_own",
    "read",
    "record",
    "organise",
    "evaluate",
    "delete_own",
    "delete_any",
    "change_scenarios",
    "manage_webhooks",
    "manage_retention",
    "manage_gates",
    "manage_stores",
    "see_own_keys",
    "see_all_keys",
    "make_keys",
    "revoke_own_keys",
    "revoke_any_key",
    "keep_session",
    "leave",
    "see_members",
    "invite",
    "change_roles",
    "remove_members",
    "see_audit_log",
]
ACTIONS: tuple[Action, ...] = get_args(Action)

_ADMINS = ("owner", "admin")
_RECORDERS = ("owner", "admin", "member")
_EVERYBODY = ROLES

PEOPLE_MAY: Mapping[Action, tuple[str, ...]] = MappingProxyType(
    {
        "see_itself": _EVERYBODY,
        "read_own": _EVERYBODY,
        "read": _EVERYBODY,
        "record": _RECORDERS,
        "organise": _RECORDERS,
        "evaluate": _RECORDERS,
        "delete_own": _RECORDERS,
        "delete_any": _RECORDERS,
        "change_scenarios": _RECORDERS,
        "manage_webhooks": _ADMINS,
        "manage_retention": _ADMINS,
        "manage_gates": _ADMINS,
        "manage_stores": _ADMINS,
        "see_own_keys": _EVERYBODY,
        "see_all_keys": _RECORDERS,
        "make_keys": _EVERYBODY,
        "revoke_own_keys": _EVERYBODY,
        "revoke_any_key": _ADMINS,
        "keep_session": _EVERYBODY,
        "leave": _EVERYBODY,
        "see_members": _EVERYBODY,
        "invite": _ADMINS,
        "change_roles": _ADMINS,
        "remove_members": _ADMINS,
        "see_audit_log": _ADMINS,
    }
)

KEYS_MAY: Mapping[Action, tuple[KeyScope, ...]] = MappingProxyType(
    {
        "see_itself": SCOPES,
        "read_own": SCOPES,
        "read": ("read", "write", "admin"),
        "record": ("ingest", "write", "admin"),
        "organise": ("write", "admin"),
        "evaluate": ("write", "admin"),
        "delete_own": ("write", "admin"),
        "delete_any": ("admin",),
        "change_scenarios": ("admin",),
        "manage_webhooks": ("admin",),
        "manage_retention": ("admin",),
        "manage_gates": ("admin",),
        "manage_stores": ("admin",),
        "see_own_keys": ("write", "admin"),
        "see_all_keys": ("write", "admin"),
        "make_keys": (),
        "revoke_own_keys": SCOPES,
        "revoke_any_key": ("admin",),
        "keep_session": (),
        "leave": (),
        "see_members": (),
        "invite": (),
        "change_roles": (),
        "remove_members": (),
        "see_audit_log": (),
    }
)
"""What is a key's own: the episodes and runs that it recorded; and of all keys, itself."""

MAY_GIVE: Mapping[KeyScope, tuple[str, ...]] = MappingProxyType(
    {"ingest": _RECORDERS, "read": _EVERYBODY, "write": _RECORDERS, "admin": _ADMINS}
)
"""Who may make a key with this scope: nobody gives more than they may do themselves."""


def person(org_id: str, user_id: str, role: str) -> Caller:
    return Caller(org_id=org_id, user_id=user_id, role=role, may_write=role in PEOPLE_MAY["record"])


def machine(org_id: str, key_id: str, scope: KeyScope) -> Caller:
    return Caller(
        org_id=org_id,
        key_id=key_id,
        role=scope,
        may_write=scope in KEYS_MAY["record"],
        sees_only_own=scope not in KEYS_MAY["read"],
    )


def may(caller: Caller, action: Action) -> bool:
    return caller.role in _allowed(caller, action)


def require(caller: Caller, action: Action) -> None:
    if may(caller, action):
        return
    allowed = _allowed(caller, action)
    if caller.key_id is None:
        text = (
            f"your role here is {caller.role}, and this takes one of: {', '.join(allowed)}; "
            "ask an admin of your organisation"
        )
    elif not allowed:
        text = "an API key may not do this; sign in as a person, in the browser"
    else:
        text = (
            f"this API key has the scope {caller.role}, and this takes one of: {', '.join(allowed)}; "
            "use another key, or ask an admin of your organisation for one"
        )
    raise Problem(403, "forbidden", text)


def _allowed(caller: Caller, action: Action) -> tuple[str, ...]:
    return PEOPLE_MAY[action] if caller.key_id is None else KEYS_MAY[action]


def require_own(caller: Caller, created_by: str | None, what: str) -> None:
    """May delete it: it is the caller's own, or the caller may delete what others recorded."""
    if created_by != caller.name and not may(caller, "delete_any"):
        text = f"this API key may delete only what it recorded itself, and another caller recorded this {what}"
        raise Problem(403, "forbidden", f"{text}; use a key with the scope admin")


def require_power_over(caller: Caller, *roles: str) -> None:
    """Only owners may add, change or remove owners."""
    if caller.role != "owner" and "owner" in roles:
        text = "only an owner may do this to an owner, or make someone one; ask an owner of your organisation"
        raise Problem(403, "forbidden", text)


def usual_scope(role: str) -> KeyScope:
    """Of a new key, when nobody asks for another: most keys are for a machine that records."""
    return "ingest" if role in MAY_GIVE["ingest"] else "read"


def login_scope(role: str) -> KeyScope:
    """Of a device login, when it does not ask for another: a person works with that machine."""
    return "write" if role in MAY_GIVE["write"] else "read"


def require_gift(role: str, scope: KeyScope) -> None:
    """A person with this role may make a key with this scope."""
    if role not in MAY_GIVE[scope]:
        possible = [each for each in SCOPES if role in MAY_GIVE[each]]
        text = f"a key of a {role} can have the scope {' or '.join(possible)}, not {scope}; ask an admin for such a key"
        raise Problem(403, "forbidden", text)
