"""Quotas: how much an organisation may store. Its own limit has priority over the server's; None means no limit."""

from __future__ import annotations

from rollbook.errors import QuotaExceeded
from rollbook.server.queries import Scope, Usage
from rollbook.server.settings import Settings


def checked_quota(scope: Scope, settings: Settings, *, more_bytes: int = 0) -> int:
    """How many bytes one more artifact may have. Raises QuotaExceeded when the quota is exceeded.

    Called after a change, in the same transaction, which is then undone, so two concurrent changes cannot both pass.
    """
    usage = scope.quota_usage()
    episodes, allowed = quota_of(usage, settings)
    if episodes is not None and usage.episodes > episodes:
        raise QuotaExceeded(what="episodes", limit=episodes, wanted=usage.episodes)
    if allowed is None:
        return settings.artifact_limit_bytes
    if usage.bytes + more_bytes > allowed:
        raise QuotaExceeded(what="bytes", limit=allowed, wanted=usage.bytes + more_bytes)
    return min(settings.artifact_limit_bytes, allowed - usage.bytes)


def quota_of(usage: Usage, settings: Settings) -> tuple[int | None, int | None]:
    """The limits of episodes and of bytes that apply."""
    return (
        _first(usage.quota_episodes, settings.quota_episodes),
        _first(usage.quota_bytes, settings.quota_bytes),
    )


def _first(own: int | None, default: int | None) -> int | None:
    return default if own is None else own
