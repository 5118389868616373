"""Cluster: where an engine finds its workers, and what it reserves for each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rollbook.errors import ConfigurationError

_WORDS = {"CPU": "CPU", "GPU": "GPU", "memory": "MB of memory"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    address: str | None = None
    """Address of a running cluster. None for the engine's own default."""
    cpus: float = 1.0
    """Cores that are reserved for one worker."""
    gpus: float = 0.0
    memory_mb: int | None = None
    """Memory that is reserved for one worker; None for no reservation."""
    node_wait_s: float = 300.0
    """How long to wait for a node with these resources where no node has them: a cluster may grow."""

    def __post_init__(self) -> None:
        rules = {
            "cpus": (0 <= self.cpus < math.inf, "at least 0"),
            "gpus": (0 <= self.gpus < math.inf, "at least 0"),
            "memory_mb": (self.memory_mb is None or self.memory_mb >= 1, "at least 1"),
            "node_wait_s": (self.node_wait_s >= 0, "at least 0"),
        }
        for name, (holds, expected) in rules.items():
            if not holds:
                message = f"{name} is {getattr(self, name)!r}, expected {expected}"
                raise ConfigurationError(message=message)

    @property
    def needed(self) -> dict[str, float]:
        """What one worker needs, memory in megabytes. What it does not need is left out."""
        needed = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory_mb or 0}
        return {name: amount for name, amount in needed.items() if amount}

    def fits(self, node: Mapping[str, float]) -> bool:
        return all(node.get(name, 0) >= amount for name, amount in self.needed.items())

    def describe_needed(self) -> str:
        parts = [f"{amount:g} {_WORDS[name]}" for name, amount in self.needed.items()]
        return " and ".join(parts) or "no reserved resources"
