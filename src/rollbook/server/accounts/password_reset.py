"""A forgotten password: the operator removes it and hands over a link to sign in and set a new one."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import partial

import sqlalchemy as sa

from rollbook.errors import ConfigurationError
from rollbook.server.accounts.keys import hash_of
from rollbook.server.db.columns import now_us
from rollbook.server.db.engine import NOBODY, Database, Tenant
from rollbook.server.queries import (
    Scope,
    create_sign_in_link,
    organisations_of_user,
    set_password,
    user_by_email,
    withdraw_sign_in_links,
)

RESET_LINK_LASTS_S = 3600


@dataclass(frozen=True, slots=True)
class PasswordReset:
    """`sign_in_token` is only here: the database stores its hash."""

    user_id: str
    email: str
    sign_in_token: str
    expires_at_us: int


def reset_password(db: Database, email: str) -> PasswordReset:
    """Removes the password, and ends every session and every other sign-in link of the user. API keys stay, because
    they belong to the organisation. The audit log of each of the user's organisations records the reset."""
    user = db.read_now(NOBODY, lambda connection: user_by_email(connection, email))
    if user is None:
        message = (
            f"there is nobody with the e-mail address {email!r}; an admin of theirs can invite them"
        )
        raise ConfigurationError(message=message)
    theirs = db.read_now(Tenant(user_id=user.id), lambda c: organisations_of_user(c, user.id))
    if not theirs:
        message = (
            f"{email} belongs to no organisation and could not sign in; an admin can invite them"
        )
        raise ConfigurationError(message=message)
    token, expires_at_us = secrets.token_urlsafe(32), now_us() + RESET_LINK_LASTS_S * 1_000_000

    def note(connection: sa.Connection, org_id: str) -> None:
        Scope(connection, org_id).audit(
            "password.reset", actor="operator", subject=f"user:{user.id}"
        )

    def reset(connection: sa.Connection, org_id: str) -> None:
        note(connection, org_id)
        set_password(connection, user.id, None)
        withdraw_sign_in_links(connection, user.id)
        create_sign_in_link(connection, hash_of(token), user.id, expires_at_us=expires_at_us)

    # a transaction sees one organisation; the last one makes the change, so that every log has it
    *others, last = [each.org_id for each in theirs]
    for org_id in others:
        db.write_now(Tenant(org_id=org_id), partial(note, org_id=org_id))
    db.write_now(Tenant(org_id=last), partial(reset, org_id=last))
    return PasswordReset(user.id, user.email, token, expires_at_us)
