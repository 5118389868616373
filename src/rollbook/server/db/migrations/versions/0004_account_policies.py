"""Row-level security for the tables of accounts: organisations, users, sessions, sign-in links and device logins.

Most of their rows are looked up before a tenant is known. Such a transaction names one row by its secret, its id or
its e-mail address, and the policies show it that row only.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        for statement in (*_guards(), *_POLICIES, *_expired()):
            connection.execute(sa.text(statement))


def _guards() -> list[str]:
    """FORCE, because the role that migrates owns the tables and may well be the one that serves."""
    return [
        f"ALTER TABLE {table} {guard} ROW LEVEL SECURITY"
        for table in ("organisations", "users", *_WITH_AN_END)
        for guard in ("ENABLE", "FORCE")
    ]


_WITH_AN_END = ("sessions", "sign_in_links", "device_logins")
_ORG = "current_setting('app.org', true)"
_USER = "current_setting('app.user', true)"
_LOOKUP = "current_setting('app.lookup', true)"
_POLICIES = (
    f"CREATE POLICY tenant ON organisations USING (id = {_ORG})",
    "CREATE POLICY own_organisations ON organisations FOR SELECT USING (EXISTS (SELECT 1 FROM memberships "
    f"WHERE memberships.org_id = organisations.id AND memberships.user_id = {_USER}))",
    "CREATE POLICY upkeep ON organisations FOR SELECT "
    "USING (current_setting('app.upkeep', true) = 'on')",
    "CREATE POLICY members ON users FOR SELECT USING (EXISTS (SELECT 1 FROM memberships "
    f"WHERE memberships.user_id = users.id AND memberships.org_id = {_ORG}))",
    f"CREATE POLICY looked_up ON users FOR SELECT USING ({_LOOKUP} IN (id, email))",
    f"CREATE POLICY added ON users FOR INSERT WITH CHECK (id = {_LOOKUP})",
    f"CREATE POLICY changed ON users FOR UPDATE USING (id = {_LOOKUP})",
    f"CREATE POLICY tenant ON sessions USING (org_id = {_ORG})",
    f"CREATE POLICY looked_up ON sessions FOR SELECT USING ({_LOOKUP} IN (token_hash, user_id))",
    f"CREATE POLICY ended ON sessions FOR DELETE USING ({_LOOKUP} IN (token_hash, user_id))",
    f"CREATE POLICY looked_up ON sign_in_links USING ({_LOOKUP} IN (token_hash, user_id))",
    f"CREATE POLICY looked_up ON device_logins USING ({_LOOKUP} IN (device_code_hash, user_code))",
)


def _expired() -> list[str]:
    """Upkeep names a time, and may delete what ended before it."""
    before = "expires_at_us < NULLIF(current_setting('app.ended_before', true), '')::bigint"
    return [
        f"CREATE POLICY expired_{command.lower()} ON {table} FOR {command} USING ({before})"
        for table in _WITH_AN_END
        for command in ("SELECT", "DELETE")
    ]
