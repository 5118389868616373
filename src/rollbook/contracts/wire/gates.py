"""Gates that an organisation locks by name."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class LockGate(Struct, frozen=True, kw_only=True):
    gate: dict[str, Any]
    """Missing fields have the values of the default gate."""


class LockedGateAnswer(Struct, frozen=True):
    name: str
    gate: dict[str, Any]
    """With every field."""
    gate_digest: str
    locked_by: str | None
    locked_at: str


class LockedGateList(Struct, frozen=True):
    gates: list[LockedGateAnswer]


class GateUnlocked(Struct, frozen=True):
    name: str
    unlocked: Literal[True] = True
