"""Members, API keys, invitations and the audit log of an organisation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from rollbook.contracts.wire.limits import LONGEST_EMAIL, LONGEST_INDEXED
from rollbook.errors import AlreadyTaken, InvalidText, LastOwner
from rollbook.server.db import tables
from rollbook.server.db.account_tables import (
    AuditRow,
    InvitationRow,
    KeyRow,
    MemberRow,
    OrganisationRow,
)
from rollbook.server.db.columns import new_id
from rollbook.server.db.rows import row_as
from rollbook.server.db.value_checks import (
    checked_choice,
    checked_object,
    checked_text,
    checked_whole,
    is_storable,
)
from rollbook.server.queries.scope import TenantScope

ROLES = ("owner", "admin", "member", "viewer")
"""From the most powerful to the least; each role may do everything that the next one may."""
LONGEST_LABEL = 200
MOST_EVENTS = 1000


def checked_email(email: str) -> str:
    """In lower case, so that one address is one person however it was typed."""
    address = checked_text("user", "email", email, LONGEST_EMAIL).strip().lower()
    name, at, host = address.rpartition("@")
    if not (name and at and host) or any(character.isspace() for character in address):
        raise InvalidText(record="user", field="email", detail="is not an e-mail address")
    return address


class PeopleQueries(TenantScope):
    # --------------------------------------------------------------------------------- organisation

    def organisation(self) -> OrganisationRow | None:
        table = tables.organisations
        row = self._connection.execute(sa.select(table).where(table.c.id == self.org_id)).first()
        return None if row is None else row_as(OrganisationRow, row)

    def rename_organisation(self, name: str) -> None:
        self._set_organisation(name=checked_text("organisation", "name", name, LONGEST_LABEL))

    def set_quota(self, *, episodes: int | None, bytes_: int | None) -> None:
        """None: the limit of the server's settings."""
        for field, limit in (("quota_episodes", episodes), ("quota_bytes", bytes_)):
            if limit is not None:
                checked_whole("organisation", field, limit)
        self._set_organisation(quota_episodes=episodes, quota_bytes=bytes_)

    def _set_organisation(self, **values: object) -> None:
        table = tables.organisations
        statement = sa.update(table).where(table.c.id == self.org_id).values(**values)
        self._connection.execute(statement)

    # -------------------------------------------------------------------------------------- members

    def members(self) -> list[MemberRow]:
        found = self._connection.execute(self._members().order_by(tables.users.c.email))
        return [row_as(MemberRow, row) for row in found]

    def member(self, user_id: str) -> MemberRow | None:
        if not is_storable(user_id):
            return None
        query = self._members().where(tables.memberships.c.user_id == user_id)
        row = self._connection.execute(query).first()
        return None if row is None else row_as(MemberRow, row)

    def add_member(self, user_id: str, role: str) -> MemberRow:
        """A person who is already a member keeps their role."""
        checked_choice("member", "role", role, ROLES)
        row = {"user_id": user_id, "role": role, "created_at_us": self._now_us()}
        self._insert_new(tables.memberships, row)
        added = self.member(user_id)
        assert added is not None, "they were added in this transaction"
        return added

    def set_role(self, user_id: str, role: str) -> MemberRow | None:
        """An organisation always keeps at least one owner."""
        checked_choice("member", "role", role, ROLES)
        if role != "owner":
            self._refuse_last_owner(user_id)
        self._update(tables.memberships, {"role": role}, user_id=user_id)
        return self.member(user_id)

    def remove_member(self, user_id: str) -> bool:
        """Takes effect at once: their sessions here end."""
        self._refuse_last_owner(user_id)
        self.end_sessions(user_id)
        return self._delete(tables.memberships, user_id=user_id) == 1

    def end_sessions(self, user_id: str) -> int:
        """Of a member, in this organisation only."""
        return self._delete(tables.sessions, user_id=user_id)

    def _members(self) -> sa.Select[Any]:
        user, membership = tables.users, tables.memberships
        return (
            sa.select(
                membership.c.user_id,
                user.c.email,
                user.c.name,
                membership.c.role,
                membership.c.created_at_us,
            )
            .join(user, user.c.id == membership.c.user_id)
            .where(self._of_tenant(membership))
        )

    def _refuse_last_owner(self, user_id: str) -> None:
        """Owners are locked, so that two of them cannot leave at the same time."""
        table = tables.memberships
        query = sa.select(table.c.user_id).where(self._of_tenant(table), table.c.role == "owner")
        query = query.with_for_update()
        if list(self._connection.execute(query).scalars()) == [user_id]:
            raise LastOwner(user_id=user_id)

    # ---------------------------------------------------------------------------------- invitations

    def invite(
        self,
        email: str,
        role: str,
        *,
        token_hash: str,
        expires_at_us: int,
        invited_by: str | None = None,
    ) -> InvitationRow:
        row: dict[str, Any] = {
            "id": new_id(),
            "email": checked_email(email),
            "role": checked_choice("invitation", "role", role, ROLES),
            "invited_by": invited_by,
            "created_at_us": self._now_us(),
            "expires_at_us": expires_at_us,
            "accepted_at_us": None,
        }
        self._insert(tables.invitations, {**row, "token_hash": token_hash})
        return InvitationRow(org_id=self.org_id, **row)

    def invitations(self) -> list[InvitationRow]:
        """Invitations that are still open."""
        table = tables.invitations
        query = (
            sa.select(table)
            .where(self._of_tenant(table), table.c.accepted_at_us.is_(None))
            .where(table.c.expires_at_us > self._now_us())
            .order_by(table.c.created_at_us.desc())
        )
        return [row_as(InvitationRow, row) for row in self._connection.execute(query)]

    def revoke_invitation(self, invitation_id: str) -> bool:
        return self._delete(tables.invitations, id=invitation_id) == 1

    def accept_invitation(self, invitation_id: str, user_id: str) -> MemberRow | None:
        """Once, and before it expires; None otherwise."""
        if not is_storable(invitation_id):
            return None
        table = tables.invitations
        now = self._now_us()
        statement = (
            sa.update(table)
            .where(self._of_tenant(table), table.c.id == invitation_id)
            .where(table.c.accepted_at_us.is_(None), table.c.expires_at_us > now)
            .values(accepted_at_us=now)
            .returning(table.c.role)
        )
        role = self._connection.execute(statement).scalar()
        return None if role is None else self.add_member(user_id, role)

    # --------------------------------------------------------------------------------------- keys

    def create_key(
        self,
        key_id: str,
        secret_hash: str,
        *,
        prefix: str = "rt",
        label: str | None = None,
        created_by: str | None = None,
    ) -> KeyRow:
        if label is not None:
            checked_text("key", "label", label, LONGEST_LABEL)
        row: dict[str, Any] = {
            "key_id": key_id,
            "prefix": prefix,
            "secret_hash": secret_hash,
            "label": label,
            "created_by": created_by,
            "created_at_us": self._now_us(),
            "last_used_at_us": None,
            "revoked_at_us": None,
        }
        if not self._insert_new(tables.api_keys, row):
            raise AlreadyTaken(what="key", value=key_id)
        return KeyRow(org_id=self.org_id, **row)

    def keys(self) -> list[KeyRow]:
        """The newest first, including revoked keys."""
        table = tables.api_keys
        query = sa.select(table).where(self._of_tenant(table))
        order = (table.c.created_at_us.desc(), table.c.key_id)
        return [row_as(KeyRow, row) for row in self._connection.execute(query.order_by(*order))]

    def key(self, key_id: str) -> KeyRow | None:
        row = self._first(tables.api_keys, key_id=key_id)
        return None if row is None else row_as(KeyRow, row)

    def revoke_key(self, key_id: str) -> KeyRow | None:
        """Revoking again changes nothing: the first time is kept."""
        self._update(
            tables.api_keys, {"revoked_at_us": self._now_us()}, key_id=key_id, revoked_at_us=None
        )
        return self.key(key_id)

    def keys_made_by_key(self, key_id: str) -> list[str]:
        """Keys that were made with this key, or with one of those. Older releases allowed it: the audit log says."""
        table = tables.audit_log
        query = (
            sa.select(table.c.actor, table.c.subject)
            .where(self._of_tenant(table), table.c.event == "key.created")
            .where(table.c.actor.startswith("key:", autoescape=True))
        )
        made: dict[str, list[str]] = {}
        for actor, subject in self._connection.execute(query):
            made.setdefault(actor, []).append(subject)
        found, ahead = [], [f"key:{key_id}"]
        while ahead:
            new = made.pop(ahead.pop(), [])
            ahead += new
            found += [each.removeprefix("key:") for each in new]
        return found

    def count_made_by(self, makers: Collection[str]) -> dict[str, int]:
        """What these callers made and what stays when their keys end, by kind."""
        episode, upload = tables.episodes, tables.uploads
        made = {
            "episodes": sa.select(sa.func.count()).where(self._made_by(episode, makers)),
            "eval_runs": sa.select(sa.func.count()).where(self._made_by(tables.eval_runs, makers)),
            "scenarios": sa.select(sa.func.count()).where(
                self._made_by(tables.verification_scenarios, makers)
            ),
            "open_uploads": sa.select(sa.func.count())
            .select_from(upload)
            .join(episode, sa.and_(episode.c.id == upload.c.episode_id, self._of_tenant(episode)))
            .where(self._of_tenant(upload), upload.c.completed_at_us.is_(None))
            .where(self._made_by(episode, makers)),
        }
        return {kind: self._connection.execute(query).scalar_one() for kind, query in made.items()}

    def _made_by(self, table: sa.Table, makers: Collection[str]) -> sa.ColumnElement[bool]:
        return sa.and_(self._of_tenant(table), table.c.created_by.in_(makers))

    # --------------------------------------------------------------------------------------- audit

    def audit(
        self,
        event: str,
        *,
        actor: str | None = None,
        subject: str | None = None,
        detail: Mapping[str, Any] | None = None,
        ip: str | None = None,
    ) -> None:
        """Records what was done, by whom, and to what. Rows are only added."""
        row: dict[str, Any] = {"event": checked_text("audit", "event", event, LONGEST_INDEXED)}
        for name, value in (("actor", actor), ("subject", subject), ("ip", ip)):
            row[name] = None if value is None else checked_text("audit", name, value)
        row["detail"] = checked_object("audit", "detail", detail or {})
        self._insert(tables.audit_log, {**row, "at_us": self._now_us()})

    def audit_events(
        self,
        limit: int = 100,
        before_id: int | None = None,
        *,
        event: str | None = None,
        about: str | None = None,
    ) -> list[AuditRow]:
        """The newest first; `before_id` of the last event gives the next page. `event` is a name, or a group such as
        `key`; `about` is who did it, or what it was done to."""
        checked_whole("audit", "limit", limit, least=1, most=MOST_EVENTS)
        table = tables.audit_log
        query = (
            sa.select(table).where(self._of_tenant(table)).order_by(table.c.id.desc()).limit(limit)
        )
        if before_id is not None:
            query = query.where(table.c.id < checked_whole("audit", "before_id", before_id))
        if not all(is_storable(each) for each in (event, about) if each is not None):
            return []
        if event is not None:
            group = table.c.event.startswith(f"{event}.", autoescape=True)
            query = query.where(sa.or_(table.c.event == event, group))
        if about is not None:
            query = query.where(sa.or_(table.c.actor == about, table.c.subject == about))
        return [row_as(AuditRow, row) for row in self._connection.execute(query)]
