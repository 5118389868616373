"""Lookups before a tenant is known: users, sessions, links, device logins, and keys by their id.

These tables hold no data of a tenant except a reference to it. Each row is found by a secret, or by an id that only its
owner knows. On PostgreSQL row-level security hides them too, so each function first names the row that it is about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from rollbook.contracts.wire.keys import KeyScope
from rollbook.contracts.wire.limits import LONGEST_TEXT
from rollbook.errors import AlreadyTaken
from rollbook.server.db import statements, tables
from rollbook.server.db.account_tables import (
    DeviceLoginRow,
    InvitationRow,
    KeyRow,
    MembershipRow,
    OrganisationRow,
    SessionRow,
    UserRow,
)
from rollbook.server.db.columns import new_id, now_us
from rollbook.server.db.rows import AnyRow, row_as
from rollbook.server.db.value_checks import checked_text, is_storable
from rollbook.server.queries.people import LONGEST_LABEL, checked_email

TOUCH_EVERY_US = 60_000_000
"""The last use of a key is stored to the minute: a key in constant use costs one write a minute."""


def _look_up(connection: sa.Connection, table: sa.Table, **equal: str) -> AnyRow | None:
    (value,) = equal.values()
    name_row(connection, value)
    return statements.first(connection, table, equal)


def name_row(connection: sa.Connection, value: str) -> None:
    """By its secret, its id or its e-mail address: the policies show no other row of these tables to a transaction
    without a tenant. Holds until the transaction ends or names another row."""
    if is_storable(value):
        _set(connection, "app.lookup", value)


def _set(connection: sa.Connection, setting: str, value: str) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.set_config(setting, value, True)))


# ------------------------------------------------------------------------------------ organisations


def create_organisation(
    connection: sa.Connection,
    org_id: str,
    name: str,
    *,
    quota_bytes: int | None = None,
    quota_episodes: int | None = None,
) -> OrganisationRow:
    """In a transaction of `Tenant(org_id=org_id)`: its first rows already belong to it."""
    row: dict[str, Any] = {
        "id": org_id,
        "name": checked_text("organisation", "name", name, LONGEST_LABEL),
        "quota_bytes": quota_bytes,
        "quota_episodes": quota_episodes,
        "created_at_us": now_us(),
    }
    connection.execute(sa.insert(tables.organisations), row)
    connection.execute(sa.insert(tables.usage), {"org_id": org_id, "episodes": 0, "bytes": 0})
    return OrganisationRow(**row)


def organisation_ids(connection: sa.Connection) -> list[str]:
    """For upkeep, which visits the tenants one by one, each in its own transaction."""
    _set(connection, "app.upkeep", "on")
    return list(
        connection.execute(
            sa.select(tables.organisations.c.id).order_by(tables.organisations.c.created_at_us)
        ).scalars()
    )


def organisations_of_user(connection: sa.Connection, user_id: str) -> list[MembershipRow]:
    """In a transaction of `Tenant(user_id=user_id)`. The oldest membership comes first."""
    if not is_storable(user_id):
        return []
    organisation, membership = tables.organisations, tables.memberships
    query = (
        sa.select(
            organisation.c.id.label("org_id"),
            organisation.c.name.label("org_name"),
            membership.c.role,
        )
        .join(membership, membership.c.org_id == organisation.c.id)
        .where(membership.c.user_id == user_id)
        .order_by(membership.c.created_at_us, organisation.c.id)
    )
    return [row_as(MembershipRow, row) for row in connection.execute(query)]


# -------------------------------------------------------------------------------------------- users


def create_user(
    connection: sa.Connection,
    email: str,
    *,
    name: str | None = None,
    password_hash: str | None = None,
) -> UserRow:
    row: dict[str, Any] = {
        "id": new_id(),
        "email": checked_email(email),
        "name": None if name is None else checked_text("user", "name", name, LONGEST_LABEL),
        "password_hash": password_hash,
        "created_at_us": now_us(),
    }
    name_row(connection, row["id"])
    if not statements.insert_new(connection, tables.users, row):
        raise AlreadyTaken(what="e-mail address", value=row["email"])
    return UserRow(**row)


def user_by_id(connection: sa.Connection, user_id: str) -> UserRow | None:
    row = _look_up(connection, tables.users, id=user_id)
    return None if row is None else row_as(UserRow, row)


def user_by_email(connection: sa.Connection, email: str) -> UserRow | None:
    row = _look_up(connection, tables.users, email=email.strip().lower())
    return None if row is None else row_as(UserRow, row)


def set_password(connection: sa.Connection, user_id: str, password_hash: str | None) -> bool:
    """Ends every session of the user, so that a stolen session is useless."""
    delete_sessions_of(connection, user_id)
    changed = {"password_hash": password_hash}
    name_row(connection, user_id)
    return statements.update(connection, tables.users, changed, {"id": user_id}) == 1


# ----------------------------------------------------------------------------------------- sessions


def create_session(
    connection: sa.Connection,
    token_hash: str,
    user_id: str,
    org_id: str,
    *,
    csrf_token: str,
    expires_at_us: int,
) -> SessionRow:
    """In a transaction of `Tenant(org_id=org_id)`."""
    row: dict[str, Any] = {
        "token_hash": token_hash,
        "user_id": user_id,
        "org_id": org_id,
        "csrf_token": csrf_token,
        "created_at_us": now_us(),
        "expires_at_us": expires_at_us,
    }
    connection.execute(sa.insert(tables.sessions), row)
    return SessionRow(**row)


def session_by_hash(
    connection: sa.Connection, token_hash: str, at_us: int | None = None
) -> SessionRow | None:
    """None after it has expired."""
    row = _look_up(connection, tables.sessions, token_hash=token_hash)
    if row is None or row.expires_at_us <= (at_us or now_us()):
        return None
    return row_as(SessionRow, row)


def delete_session(connection: sa.Connection, token_hash: str) -> bool:
    name_row(connection, token_hash)
    return statements.delete(connection, tables.sessions, {"token_hash": token_hash}) == 1


def delete_sessions_of(connection: sa.Connection, user_id: str) -> int:
    name_row(connection, user_id)
    return statements.delete(connection, tables.sessions, {"user_id": user_id})


def delete_expired(connection: sa.Connection, before_us: int) -> int:
    """Sessions, links and device logins that ended before this time."""
    _set(connection, "app.ended_before", str(before_us))
    ended = 0
    for table in (tables.sessions, tables.sign_in_links, tables.device_logins):
        statement = sa.delete(table).where(table.c.expires_at_us < before_us)
        ended += connection.execute(statement).rowcount
    return ended


# ----------------------------------------------------------------------------- links and invitations


def create_sign_in_link(
    connection: sa.Connection, token_hash: str, user_id: str, *, expires_at_us: int
) -> None:
    row = {"token_hash": token_hash, "user_id": user_id, "expires_at_us": expires_at_us}
    name_row(connection, user_id)
    connection.execute(sa.insert(tables.sign_in_links), row)


def use_sign_in_link(
    connection: sa.Connection, token_hash: str, at_us: int | None = None
) -> UserRow | None:
    """The user whom the link signs in, once and before it expires; None otherwise, also for the slower of two
    concurrent uses."""
    if not is_storable(token_hash):
        return None
    name_row(connection, token_hash)
    table = tables.sign_in_links
    now = at_us or now_us()
    statement = (
        sa.update(table)
        .where(table.c.token_hash == token_hash, table.c.used_at_us.is_(None))
        .where(table.c.expires_at_us > now)
        .values(used_at_us=now)
        .returning(table.c.user_id)
    )
    user_id = connection.execute(statement).scalar()
    return None if user_id is None else user_by_id(connection, user_id)


def withdraw_sign_in_links(connection: sa.Connection, user_id: str) -> int:
    """Deletes the unused links of a user; returns how many."""
    name_row(connection, user_id)
    return statements.delete(
        connection, tables.sign_in_links, {"user_id": user_id, "used_at_us": None}
    )


def invitation_by_hash(
    connection: sa.Connection, token_hash: str, at_us: int | None = None
) -> InvitationRow | None:
    """In a transaction of `Tenant(invitation_hash=token_hash)`; None after it was accepted or has expired."""
    row = statements.first(connection, tables.invitations, {"token_hash": token_hash})
    if row is None or row.accepted_at_us is not None or row.expires_at_us <= (at_us or now_us()):
        return None
    return row_as(InvitationRow, row)


# ------------------------------------------------------------------------------------ device logins


def create_device_login(
    connection: sa.Connection,
    device_code_hash: str,
    user_code: str,
    *,
    expires_at_us: int,
    hostname: str | None = None,
    user_agent: str | None = None,
    ip: str | None = None,
    scope: KeyScope | None = None,
    label: str | None = None,
) -> DeviceLoginRow:
    """`scope` and `label` are those of the key that it asks for; None leaves them to the server."""
    about = {"hostname": hostname, "user_agent": user_agent, "ip": ip, "label": label}
    row: dict[str, Any] = {
        "user_code": user_code,
        "status": "pending",
        **{name: None if text is None else _storable_text(text) for name, text in about.items()},
        "user_id": None,
        "org_id": None,
        "key_id": None,
        "created_at_us": now_us(),
        "expires_at_us": expires_at_us,
        "scope": scope,
    }
    name_row(connection, device_code_hash)
    if not statements.insert_new(
        connection, tables.device_logins, {"device_code_hash": device_code_hash, **row}
    ):
        raise AlreadyTaken(what="device code", value=user_code)
    return DeviceLoginRow(**row)


def _storable_text(text: str) -> str:
    """A text that a machine sends about itself. It is only displayed: characters that cannot be stored are dropped, not
    refused."""
    kept = (
        text if is_storable(text) else text.encode("utf-8", "replace").decode().replace("\x00", "")
    )
    return kept[: LONGEST_TEXT // 10]


def device_login(
    connection: sa.Connection, device_code_hash: str, at_us: int | None = None
) -> DeviceLoginRow | None:
    row = _look_up(connection, tables.device_logins, device_code_hash=device_code_hash)
    return None if row is None else _row_at(row, at_us)


def device_login_by_user_code(
    connection: sa.Connection, user_code: str, at_us: int | None = None
) -> DeviceLoginRow | None:
    row = _look_up(connection, tables.device_logins, user_code=user_code)
    return None if row is None else _row_at(row, at_us)


def _row_at(row: AnyRow, at_us: int | None) -> DeviceLoginRow:
    """A login that nobody decided or fetched in time has expired; no row needs to be written for that."""
    late = row.expires_at_us <= (at_us or now_us())
    status = "expired" if late and row.status in ("pending", "approved") else row.status
    return row_as(DeviceLoginRow, row, status=status)


def decide_device_login(
    connection: sa.Connection,
    user_code: str,
    *,
    approved: bool,
    user_id: str,
    org_id: str,
    at_us: int | None = None,
) -> DeviceLoginRow | None:
    """Once, while the login is pending; None otherwise."""
    decision = "approved" if approved else "denied"
    values = {"status": decision, "user_id": user_id, "org_id": org_id}
    return _move_device_login(connection, {"user_code": user_code}, "pending", values, at_us)


def consume_device_login(
    connection: sa.Connection, device_code_hash: str, *, key_id: str, at_us: int | None = None
) -> DeviceLoginRow | None:
    """The one time that an approved login gives a key; None otherwise."""
    found = {"device_code_hash": device_code_hash}
    values = {"status": "consumed", "key_id": key_id}
    return _move_device_login(connection, found, "approved", values, at_us)


def _move_device_login(
    connection: sa.Connection,
    found: Mapping[str, str],
    status: str,
    values: dict[str, Any],
    at_us: int | None,
) -> DeviceLoginRow | None:
    if not statements.can_be_stored(found):
        return None
    name_row(connection, *found.values())
    table = tables.device_logins
    statement = (
        sa.update(table)
        .where(*(table.c[name] == value for name, value in found.items()))
        .where(table.c.status == status)
        .where(table.c.expires_at_us > (at_us or now_us()))
        .values(**values)
        .returning(table)
    )
    row = connection.execute(statement).first()
    return None if row is None else row_as(DeviceLoginRow, row)


# --------------------------------------------------------------------------------------------- keys


def key_by_id(connection: sa.Connection, key_id: str) -> KeyRow | None:
    """In a transaction of `Tenant(key_id=key_id)`. Also returns revoked keys: the caller decides whether one counts."""
    row = statements.first(connection, tables.api_keys, {"key_id": key_id})
    return None if row is None else row_as(KeyRow, row)


def touch_key(connection: sa.Connection, key_id: str, at_us: int | None = None) -> bool:
    """Stores that a key was used; False when that was stored within the last minute. Runs in a transaction of the key
    or of its tenant, and may be skipped when `needs_touch` says so."""
    if not is_storable(key_id):
        return False
    table = tables.api_keys
    now = at_us or now_us()
    last = table.c.last_used_at_us
    statement = (
        sa.update(table)
        .where(table.c.key_id == key_id)
        .where(sa.or_(last.is_(None), last <= now - TOUCH_EVERY_US))
        .values(last_used_at_us=now)
    )
    return connection.execute(statement).rowcount == 1


def needs_touch(key: KeyRow, at_us: int | None = None) -> bool:
    """Decides without the database: most requests then write nothing."""
    if key.last_used_at_us is None:
        return True
    return key.last_used_at_us <= (at_us or now_us()) - TOUCH_EVERY_US
