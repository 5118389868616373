"""FailureFinding: one sign of what went wrong in an episode, with its evidence and the moment to look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

FindingCode: TypeAlias = Literal[
    "outcome",
    "failure_reason",
    "replay_regression",
    "failing_scenario",
    "grip_lost",
    "joint_limit",
    "battery_brownout",
    "not_a_number",
    "sensor_flatline",
    "dropped_frames",
    "clock_gap",
]
Confidence: TypeAlias = Literal["high", "medium", "low"]
"""How often such a finding was right on recordings with planted faults (docs/explain/failure-analysis.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureFinding:
    code: FindingCode
    title: str
    evidence: str
    """One sentence with the numbers."""
    confidence: Confidence
    next_step: str
    """What to do or to look at next."""
    at_s: float | None = None
    """Seconds from the start of the episode; None where no moment is known."""
    until_s: float | None = None
    """Where it ends, if it lasts."""
    channel: str | None = None
    """The channel or the topic that shows it."""
