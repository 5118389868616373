"""Rollout stores that an organisation registers, so that its people can look at them."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

StoreState: TypeAlias = Literal["readable", "unreadable"]
VerificationState: TypeAlias = Literal["running", "passed", "failed", "stopped"]


class RegisterStore(Struct, frozen=True, kw_only=True):
    place: str
    """A folder of the server, or `s3://bucket/prefix`. It must lie in a store root of your organisation."""
    name: str | None = None
    """Default: the last part of the place."""


class StoreVerification(Struct, frozen=True):
    state: VerificationState
    manifest_sha256: str
    """Of the store that was checked."""
    started_at: str
    ended_at: str | None
    done: int
    """Checks that have ended."""
    total: int
    violations: list[str]
    """The first of them."""
    violation_count: int


class StoreAnswer(Struct, frozen=True):
    id: str
    name: str
    place: str
    state: StoreState
    problem: str | None
    """Why it cannot be read."""
    unreadable_at: str | None
    """Since when it cannot be read."""
    added_by: str | None
    added_at: str
    manifest_sha256: str | None
    content_sha256: str | None
    rollouts: int | None
    steps: int | None
    candidates: int | None
    bytes: int | None
    verification: StoreVerification | None
    """The last check of every byte. It counts while `manifest_sha256` is the same."""
    url: str
    """Of its page."""


class StoreList(Struct, frozen=True):
    stores: list[StoreAnswer]


class StoreRemoved(Struct, frozen=True):
    id: str
    removed: Literal[True] = True
