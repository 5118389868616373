"""Creates the first organisation, its owner, an API key and a sign-in link when a new server starts."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import sqlalchemy as sa

from rollbook.errors import AlreadyTaken
from rollbook.server.accounts.keys import hash_of, new_api_key
from rollbook.server.db.columns import new_id, now_us
from rollbook.server.db.engine import NOBODY, Database, Tenant
from rollbook.server.queries import (
    Scope,
    UserRow,
    create_organisation,
    create_sign_in_link,
    create_user,
    organisation_ids,
    user_by_email,
    user_by_id,
)

SIGN_IN_LINK_LASTS_S = 24 * 3600
_FIRST_EMAIL = "owner@localhost"
_ONE_AT_A_TIME = 0x526F6C6C626F6F74
"""When several processes start on a new database, one of them creates the first organisation."""


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """`api_key` and `sign_in_token` are only here: the database stores their hashes."""

    org_id: str
    user_id: str
    email: str
    api_key: str
    sign_in_token: str


def bootstrap(db: Database, org_name: str, email: str | None = None) -> Bootstrapped:
    """Creates another organisation. Its owner is the user with the e-mail address, or a new user when none is given."""
    org_id = new_id()
    return db.write_now(
        Tenant(org_id=org_id), lambda connection: _make(connection, org_id, org_name, email)
    )


def first_start(
    db: Database, org_name: str = "Rollbook", email: str | None = None
) -> Bootstrapped | None:
    """Bootstraps an empty database; None when an organisation exists."""
    org_id = new_id()

    def make_if_empty(connection: sa.Connection) -> Bootstrapped | None:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ONE_AT_A_TIME)))
        if organisation_ids(connection):
            return None
        return _make(connection, org_id, org_name, email)

    return db.write_now(Tenant(org_id=org_id), make_if_empty)


def owner_link(db: Database) -> str | None:
    """The token of a new sign-in link, while no owner of the first organisation has a password: without a link nobody
    could sign in. None as soon as one has."""
    org_id, *_ = db.read_now(NOBODY, organisation_ids)

    def make(connection: sa.Connection) -> str | None:
        members = Scope(connection, org_id).members()
        owners = [user_by_id(connection, each.user_id) for each in members if each.role == "owner"]
        if not owners or any(each is None or each.password_hash for each in owners):
            return None
        token = secrets.token_urlsafe(32)
        owner = next(each for each in members if each.role == "owner")
        _create_link(connection, token, owner.user_id)
        return token

    return db.write_now(Tenant(org_id=org_id), make)


def _create_link(connection: sa.Connection, token: str, user_id: str) -> None:
    expires_at_us = now_us() + SIGN_IN_LINK_LASTS_S * 1_000_000
    create_sign_in_link(connection, hash_of(token), user_id, expires_at_us=expires_at_us)


def _make(connection: sa.Connection, org_id: str, org_name: str, email: str | None) -> Bootstrapped:
    scope = Scope(connection, org_id)
    create_organisation(connection, org_id, org_name)
    owner = _owner(connection, email, org_id)
    scope.add_member(owner.id, "owner")
    api_key, key_id, secret_hash = new_api_key()
    prefix = api_key.split("_", 1)[0]
    scope.create_key(key_id, secret_hash, prefix=prefix, label="first key", created_by=owner.id)
    token = secrets.token_urlsafe(32)
    _create_link(connection, token, owner.id)
    scope.audit("organisation.created", actor=owner.id, subject=org_id, detail={"key_id": key_id})
    return Bootstrapped(org_id, owner.id, owner.email, api_key, token)


def _owner(connection: sa.Connection, email: str | None, org_id: str) -> UserRow:
    if email is not None:
        return user_by_email(connection, email) or create_user(connection, email)
    try:
        return create_user(connection, _FIRST_EMAIL)
    except AlreadyTaken:
        return create_user(connection, f"owner-{org_id[-12:]}@localhost")
