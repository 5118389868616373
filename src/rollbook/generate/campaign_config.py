"""CampaignConfig: how a campaign divides source rows into shards, and what each shard may use."""

from __future__ import annotations

import math

import msgspec

from rollbook.generate.config_checks import expect


class CampaignConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table [campaign]. None of it changes the rollouts of a source row."""

    rows_per_shard: int = 16
    cpus_per_shard: float = 1.0
    """Cores that an engine reserves for one shard."""
    gpus_per_shard: float = 0.0
    memory_mb: int | None = None
    """Memory that an engine reserves for one shard; None for no reservation."""
    timeout_s: float | None = None
    """Longest time of one attempt at a shard; None for no limit."""
    max_retries: int = 2
    """How often a shard that failed is tried again."""
    lease_s: float = 120.0
    """A worker that shows no sign of life for this long may lose its shard to another worker."""

    def __post_init__(self) -> None:
        rules = {
            "rows_per_shard": (self.rows_per_shard >= 1, "at least 1"),
            "cpus_per_shard": (0 < self.cpus_per_shard < math.inf, "above 0"),
            "gpus_per_shard": (0 <= self.gpus_per_shard < math.inf, "at least 0"),
            "memory_mb": (self.memory_mb is None or self.memory_mb >= 1, "at least 1"),
            "timeout_s": (self.timeout_s is None or 0 < self.timeout_s < math.inf, "above 0"),
            "max_retries": (self.max_retries >= 0, "at least 0"),
            "lease_s": (1 <= self.lease_s < math.inf, "at least 1"),
        }
        for name, (holds, expected) in rules.items():
            expect(self, name, holds, expected, section="campaign")
