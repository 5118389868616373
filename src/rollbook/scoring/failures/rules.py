"""Rules: what each detector looks for, and how often it is right on recordings with planted faults."""

from __future__ import annotations

from dataclasses import dataclass

from rollbook.contracts.failures import FindingCode


@dataclass(frozen=True, slots=True)
class Rule:
    code: FindingCode
    looks_for: str
    precision: float | None = None
    """At least this share of its findings is right; None for what is stated, where nothing is inferred. A test measures
    it, on the recordings of tests/scoring/failure_recordings.py."""
    recall: float | None = None
    """It finds at least this share of the planted faults."""


RULES: tuple[Rule, ...] = (
    Rule("outcome", "the outcome in the metadata, or a recording that ended as failed"),
    Rule("failure_reason", "the reason that the recorder wrote down"),
    Rule("replay_regression", "a replay that was measured worse than its baseline"),
    Rule("failing_scenario", "a replay that did not pass its scenario"),
    Rule("grip_lost", "a gripper whose effort ends while its command stays", 0.95, 0.95),
    Rule("joint_limit", "a joint beyond its limits, or one that stops without braking", 0.90, 0.93),
    Rule(
        "battery_brownout", "a supply voltage that breaks down, a battery that is empty", 0.95, 0.88
    ),
    Rule("not_a_number", "NaN or infinity in a channel that has numbers otherwise", 0.98, 0.98),
    Rule("sensor_flatline", "a lively sensor that does not change by a bit", 0.95, 0.93),
    Rule("dropped_frames", "frames missing in the clock of a camera", 0.95, 0.93),
    Rule("clock_gap", "a step that took much longer than the others", 0.95, 0.95),
)
