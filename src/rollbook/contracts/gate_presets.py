"""Gate presets: three gates by name, for those who do not want to write one.

docs/explain/statistics.md has a table of what each asks, how often it ships equal and worse policies, and its power.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from rollbook.contracts.gate import Gate, MetricRule
from rollbook.errors import ConfigurationError


class GatePreset(NamedTuple):
    gate: Gate
    about: str


def _with_margin(margin: float) -> tuple[MetricRule, ...]:
    success, *others = Gate().rules
    return (replace(success, margin=margin), *others)


GATE_PRESETS: Mapping[str, GatePreset] = MappingProxyType(
    {
        "quick": GatePreset(
            Gate(alpha=0.10, n_min=20, rules=_with_margin(0.15)),
            "For work in progress: one of ten equal policies may ship.",
        ),
        "default": GatePreset(Gate(), "For most changes: one of twenty equal policies may ship."),
        "strict": GatePreset(
            Gate(
                alpha=0.01,
                n_min=100,
                least_clusters=20,
                tails="proven",
                ledger="decide",
                rules=_with_margin(0.05),
            ),
            "For a release: one of a hundred equal policies may ship, and every earlier run on the same baselines "
            "makes it harder.",
        ),
    }
)


def gate_preset(name: str, *, reward: bool = False) -> Gate:
    """The gate of this name. `reward`: for rewards alone, where nothing is a success or a failure."""
    found = GATE_PRESETS.get(name)
    if found is None:
        known = ", ".join(GATE_PRESETS)
        raise ConfigurationError(
            message=f"there is no gate preset {name!r}; the presets are {known}"
        )
    return replace(found.gate, rules=Gate.for_reward().rules) if reward else found.gate
