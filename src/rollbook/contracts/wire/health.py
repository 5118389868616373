"""The answer of `/healthz` and `/readyz`."""

from __future__ import annotations

from msgspec import Struct


class Health(Struct, frozen=True):
    status: str
