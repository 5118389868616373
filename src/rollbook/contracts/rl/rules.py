"""ContractRules: how strict the contracts are. Every function that makes a record takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollbook.contracts.record import checked_choice, checked_type


@dataclass(frozen=True, slots=True)
class ContractRules:
    strict: bool = True
    """Also refuse what the reference accepts: ids that v1 digests cannot tell apart, empty ids, log-probs above 0,
    artifacts without a sample in the loss, one id with two contents, a target that is older than its sources."""

    non_finite: Literal["refuse", "allow"] = "refuse"
    """NaN and infinities in float columns. Where they are allowed, digests, JSON and files keep their bits."""

    def __post_init__(self) -> None:
        checked_type(self.strict, bool, "contract rules", "strict")
        checked_choice(self.non_finite, ("refuse", "allow"), "contract rules", "non_finite")

    def cover(self, other: ContractRules) -> bool:
        """Whether everything that keeps these rules also keeps the other rules."""
        return (self.strict or not other.strict) and (
            self.non_finite == "refuse" or other.non_finite == "allow"
        )


def checked_rules(rules: ContractRules) -> ContractRules:
    checked_type(rules, ContractRules, "contract rules", "rules")
    return rules


STRICT = ContractRules()
COMPATIBLE = ContractRules(strict=False, non_finite="allow")
"""Accepts what the reference accepts, and resolves conflicts like it: the last revision and the first proof win."""
