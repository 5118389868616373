"""API keys: create, list and revoke them; and the device login that gives a key to a command line."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, get_args

from msgspec import Meta, Struct

Label: TypeAlias = Annotated[str, Meta(max_length=200)]
KeyScope: TypeAlias = Literal["ingest", "read", "write", "admin"]
"""What a key may do. `ingest` records episodes and reads back those that it recorded; `read` reads everything;
`write` does both, and sends eval runs and their results; `admin` also changes scenarios and webhooks, and deletes what
others recorded."""
SCOPES: tuple[KeyScope, ...] = get_args(KeyScope)
DeviceText: TypeAlias = Annotated[str, Meta(max_length=1000)]


class CreateKey(Struct, frozen=True, kw_only=True):
    label: Label | None = None
    """Where the key is used, so that people can tell keys apart."""
    scope: KeyScope | None = None
    """None: what `role` says; without a role `ingest`, and `read` for the key of a viewer."""
    role: Literal["member", "viewer"] | None = None
    """The older name of the scopes `write` and `read`."""


class KeySummary(Struct, frozen=True):
    key_id: str
    key_prefix: str
    label: str | None
    scope: KeyScope | None = None
    """None: a server that knows no scopes."""


class KeyAnswer(Struct, frozen=True):
    key_id: str
    key_prefix: str
    label: str | None
    role: str
    """`viewer` for the scope `read`, else `member`."""
    created_by: str | None
    """Id of the person to whom the key belongs."""
    created_at: str
    last_used_at: str | None
    """To the minute."""
    revoked_at: str | None
    scope: KeyScope | None = None
    """None: a server that knows no scopes."""


class KeyCreated(Struct, frozen=True):
    api_key: str
    """Shown once: the server keeps only its hash."""
    key: KeyAnswer


class KeyList(Struct, frozen=True):
    keys: list[KeyAnswer]


class Ended(Struct, frozen=True):
    keys: list[str]
    webhooks: list[str]


class Left(Struct, frozen=True):
    episodes: int
    eval_runs: int
    scenarios: int
    open_uploads: int


class KeyRevoked(Struct, frozen=True):
    key_id: str
    key_prefix: str
    revoked_at: str
    status: Literal["revoked"] = "revoked"
    ended: Ended | None = None
    """What the key had made and what ended with it. None when it was revoked before."""
    left: Left | None = None
    """What the key had made and what stays, for people to look at."""


# -------------------------------------------------------------------------------------- device login


class StartLogin(Struct, frozen=True, kw_only=True):
    """Facts about the machine, shown to the person who approves the login."""

    user_agent: DeviceText | None = None
    hostname: DeviceText | None = None
    scope: KeyScope | None = None
    """What the key is to be allowed. None: `write`, and `read` where a viewer approves."""
    label: Label | None = None
    """None: the name of the machine."""


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
    key: KeyAnswer | None = None


class LoginOver(Struct, frozen=True):
    status: Literal["expired", "consumed"]
    error: str
    code: str
