"""The one shape of every answer with a status of 400 or above."""

from __future__ import annotations

from msgspec import Struct


class ErrorAnswer(Struct, frozen=True):
    error: str
    """What happened, and what to do about it."""
    code: str
    """Stable; programs compare this."""
