"""The key with which a server signs evidence."""

from __future__ import annotations

from msgspec import Struct


class EvidenceKey(Struct, frozen=True):
    algorithm: str
    public_key: str
    """64 hexadecimal digits. It stays the same as long as the server keeps its secret."""
