"""People and organisations: sign-in, members, invitations, and the audit log."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from rollbook.contracts.wire.keys import KeySummary
from rollbook.contracts.wire.limits import LONGEST_EMAIL, LONGEST_PASSWORD

Email: TypeAlias = Annotated[str, Meta(max_length=LONGEST_EMAIL)]
Password: TypeAlias = Annotated[str, Meta(max_length=LONGEST_PASSWORD)]
Token: TypeAlias = Annotated[str, Meta(max_length=200)]
Role: TypeAlias = Literal["owner", "admin", "member", "viewer"]


# ------------------------------------------------------------------------------------------- sign-in


class SignIn(Struct, frozen=True, kw_only=True):
    """Either `token` of a link, or `email` and `password`."""

    email: Email | None = None
    password: Password | None = None
    token: Token | None = None


class PersonAnswer(Struct, frozen=True):
    id: str
    email: str
    name: str | None


class OrganisationAnswer(Struct, frozen=True):
    id: str
    name: str


class SignedIn(Struct, frozen=True):
    organisation: OrganisationAnswer
    role: str
    user: PersonAnswer
    csrf_token: str
    """Sent as `X-CSRF-Token` with every change that a session cookie authorises."""
    expires_at: str


class SignedOut(Struct, frozen=True):
    status: Literal["signed_out"] = "signed_out"


class WhoAmI(Struct, frozen=True):
    organisation: OrganisationAnswer
    role: str
    user: PersonAnswer | None
    """Null when the caller is an API key."""
    key: KeySummary | None


class ChangePassword(Struct, frozen=True, kw_only=True):
    new_password: Password
    current_password: Password | None = None
    """Not needed by an account that has no password yet."""


class ChangeOrganisation(Struct, frozen=True):
    org_id: Annotated[str, Meta(max_length=100)]


# ------------------------------------------------------------------------------------------- members


class ChangeRole(Struct, frozen=True):
    role: Role


class MemberAnswer(Struct, frozen=True):
    user_id: str
    email: str
    name: str | None
    role: str
    joined_at: str


class MemberList(Struct, frozen=True):
    members: list[MemberAnswer]


class MemberChanged(Struct, frozen=True):
    member: MemberAnswer
    revoked_keys: list[str]
    """Keys of this member that allowed more than the new role does."""


class MemberRemoved(Struct, frozen=True):
    user_id: str
    revoked_keys: list[str]
    status: Literal["removed"] = "removed"


# --------------------------------------------------------------------------------------- invitations


class Invite(Struct, frozen=True, kw_only=True):
    email: Email
    role: Role = "member"


class AcceptInvitation(Struct, frozen=True, kw_only=True):
    token: Token
    password: Password
    """The password of the account, if the address has one; otherwise the password of the new account."""
    name: Annotated[str, Meta(max_length=200)] | None = None


class InvitationAnswer(Struct, frozen=True):
    id: str
    email: str
    role: str
    created_at: str
    expires_at: str


class InvitationMade(InvitationAnswer, frozen=True):
    url: str
    """Shown once: give it to the person who is invited."""


class InvitationList(Struct, frozen=True):
    invitations: list[InvitationAnswer]


class InvitationWithdrawn(Struct, frozen=True):
    id: str
    status: Literal["withdrawn"] = "withdrawn"


# ----------------------------------------------------------------------------------------- audit log


class AuditEvent(Struct, frozen=True):
    id: int
    event: str
    actor: str | None
    """`user:…` or `key:…`."""
    subject: str | None
    detail: dict[str, Any]
    ip: str | None
    at: str


class AuditLog(Struct, frozen=True):
    events: list[AuditEvent]
    next_before: int | None
    """`before` of the next page; null on the last page."""
