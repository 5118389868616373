"""API keys: create, list and revoke them; and the device login that gives a key to a command line."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

Label: TypeAlias = Annotated[str, Meta(max_length=200)]
DeviceText: TypeAlias = Annotated[str, Meta(max_length=1000)]


class CreateKey(Struct, frozen=True, kw_only=True):
    label: Label | None = None
    """Where the key is used, so that people can tell keys apart."""
    role: Literal["member", "viewer"] | None = None
    """`viewer` only reads. None: the highest role that the caller may give."""


class KeySummary(Struct, frozen=True):
    key_id: str
    key_prefix: str
    label: str | None


class KeyAnswer(Struct, frozen=True):
    key_id: str
    key_prefix: str
    label: str | None
    role: str
    created_by: str | None
    created_at: str
    last_used_at: str | None
    """To the minute."""
    revoked_at: str | None


class KeyCreated(Struct, frozen=True):
    api_key: str
    """Shown once: the server keeps only its hash."""
    key: KeyAnswer


class KeyList(Struct, frozen=True):
    keys: list[KeyAnswer]


class KeyRevoked(Struct, frozen=True):
    key_id: str
    key_prefix: str
    revoked_at: str
    status: Literal["revoked"] = "revoked"


# -------------------------------------------------------------------------------------- device login


class StartLogin(Struct, frozen=True, kw_only=True):
    """Facts about the machine, shown to the person who approves the login."""

    user_agent: DeviceText | None = None
    hostname: DeviceText | None = None


class LoginStarted(Struct, frozen=True):
    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    interval: int
    expires_in: int


class PollLogin(Struct, frozen=True):
    device_code: Annotated[str, Meta(max_length=200)]


class LoginPolled(Struct, frozen=True, omit_defaults=True):
    """The answer `approved` has the key, once."""

    status: Literal["pending", "approved", "denied"]
    interval: int | None = None
    api_key: str | None = None
    base_url: str | None = None
    client_id: str | None = None
    """Id of the organisation."""
    user_email: str | None = None


class LoginOver(Struct, frozen=True):
    status: Literal["expired", "consumed"]
    error: str
    code: str
