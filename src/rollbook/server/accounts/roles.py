"""Roles: who may do what in an organisation, in one table.

A key acts for a machine: it records, reads, and manages the keys of its owner. Only people manage people.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

from rollbook.server.context import Caller
from rollbook.server.http.responses import Problem
from rollbook.server.queries import ROLES

Action: TypeAlias = Literal[
    "read",
    "record",
    "keep_own_keys",
    "see_all_keys",
    "revoke_any_key",
    "see_members",
    "invite",
    "change_roles",
    "remove_members",
    "see_audit_log",
    "manage_webhooks",
]
ACTIONS: tuple[Action, ...] = get_args(Action)

_ADMINS = ("owner", "admin")
_RECORDERS = ("owner", "admin", "member")
_EVERYBODY = ROLES

PEOPLE_MAY: Mapping[Action, tuple[str, ...]] = MappingProxyType(
    {
        "read": _EVERYBODY,
        "record": _RECORDERS,
        "keep_own_keys": _EVERYBODY,
        "see_all_keys": _RECORDERS,
        "revoke_any_key": _ADMINS,
        "see_members": _EVERYBODY,
        "invite": _ADMINS,
        "change_roles": _ADMINS,
        "remove_members": _ADMINS,
        "see_audit_log": _ADMINS,
        "manage_webhooks": _ADMINS,
    }
)
"""The keys of a viewer are read-only."""

KEYS_MAY: Mapping[Action, tuple[str, ...]] = MappingProxyType(
    {
        "read": ("member", "viewer"),
        "record": ("member",),
        "keep_own_keys": ("member",),
        "see_all_keys": ("member",),
        "revoke_any_key": (),
        "see_members": (),
        "invite": (),
        "change_roles": (),
        "remove_members": (),
        "see_audit_log": (),
        "manage_webhooks": (),
    }
)


def may(caller: Caller, action: Action) -> bool:
    table = KEYS_MAY if caller.key_id is not None else PEOPLE_MAY
    return caller.role in table[action]


def require(caller: Caller, action: Action) -> None:
    if may(caller, action):
        return
    if caller.key_id is not None and not KEYS_MAY[action]:
        text = "an API key may not do this; sign in as a person, in the browser"
    else:
        allowed = ", ".join((KEYS_MAY if caller.key_id is not None else PEOPLE_MAY)[action])
        text = f"your role here is {caller.role}, and this takes one of: {allowed}; ask an admin of your organisation"
    raise Problem(403, "forbidden", text)


def require_power_over(caller: Caller, *roles: str) -> None:
    """Only owners may add, change or remove owners."""
    if caller.role != "owner" and "owner" in roles:
        text = "only an owner may do this to an owner, or make someone one; ask an owner of your organisation"
        raise Problem(403, "forbidden", text)


def key_role(role: str) -> str:
    """The greatest role of a key made by a person with this role."""
    return "viewer" if role == "viewer" else "member"
