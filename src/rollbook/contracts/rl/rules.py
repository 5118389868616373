"""ContractRules: how much the contracts refuse. Passed whole to whatever makes a record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ContractRules:
    strict: bool = True
    """Refuse more than the reference does: ids that v1 digests cannot tell apart, empty ids, log-probs above 0,
    artifacts with nothing to learn from, one id with two contents, a target older than its sources."""

    non_finite: Literal["refuse", "allow"] = "refuse"
    """NaN and infinities in float columns. Allowed ones keep their bits in digests, JSON and files."""


STRICT = ContractRules()
COMPATIBLE = ContractRules(strict=False, non_finite="allow")
"""Accepts whatever the reference accepts and resolves conflicts as it does: last revision, first proof."""
