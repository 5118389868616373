"""The time that a record states. SOURCE_DATE_EPOCH replaces it, so that the same work can be repeated byte for byte."""

from __future__ import annotations

import os
import time

from rollbook.errors import ConfigurationError

VARIABLE = "SOURCE_DATE_EPOCH"
_LATEST = 2**53 // 1000
"""Seconds; later times in milliseconds are not exact in JSON."""


def now_ms() -> int:
    """Milliseconds since 1970, of now or of SOURCE_DATE_EPOCH (whole seconds)."""
    stated = os.environ.get(VARIABLE)
    if stated is None:
        return time.time_ns() // 1_000_000
    if not (stated.isascii() and stated.isdigit()) or int(stated) > _LATEST:
        raise ConfigurationError(
            message=f"{VARIABLE} is {stated!r}, expected whole seconds since 1970"
        )
    return int(stated) * 1000
