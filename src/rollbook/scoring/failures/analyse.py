"""Analyse: every detector over one episode, and its findings in the order in which to look at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeAlias

import numpy as np

from rollbook.contracts.failures import FailureFinding
from rollbook.scoring.failures.battery import battery_brownout
from rollbook.scoring.failures.clock_gaps import clock_gap, dropped_frames
from rollbook.scoring.failures.flatline import sensor_flatline
from rollbook.scoring.failures.grip_lost import grip_lost
from rollbook.scoring.failures.joint_limit import joint_limit
from rollbook.scoring.failures.not_a_number import not_a_number
from rollbook.scoring.failures.recorded import EpisodeFacts, Recording
from rollbook.scoring.failures.stated import (
    failing_scenario,
    failure_reason,
    outcome,
    replay_regression,
)

Detector: TypeAlias = "Callable[[EpisodeFacts, Recording], Iterator[FailureFinding]]"

ANALYZER_VERSION = "1.1"
"""Changes whenever a detector would find something else."""
MOST_OF_ONE = 5
"""Findings of one detector that are kept: a recording in which everything is NaN needs no list of it."""

DETECTORS: tuple[Detector, ...] = (
    outcome,
    failure_reason,
    replay_regression,
    failing_scenario,
    grip_lost,
    joint_limit,
    battery_brownout,
    not_a_number,
    sensor_flatline,
    dropped_frames,
    clock_gap,
)
"""What is said comes before what is inferred."""
_STATED = 4
_CONFIDENCE = {"high": 0, "medium": 1, "low": 2}


def analyse(facts: EpisodeFacts, recording: Recording) -> list[FailureFinding]:
    """What is stated first; then by confidence, and the findings nearest to the failure first."""
    with np.errstate(
        all="ignore"
    ):  # numbers near the limits of a float overflow; they are compared all the same
        found = [
            (position >= _STATED, finding)
            for position, detector in enumerate(DETECTORS)
            for finding in islice(detector(facts, recording), MOST_OF_ONE)
        ]

    def place(each: tuple[bool, FailureFinding]) -> tuple[bool, int, float]:
        is_inferred, finding = each
        if finding.at_s is None:
            distance = float("inf")
        elif facts.failure_time_s is None:
            distance = finding.at_s
        else:
            distance = abs(finding.at_s - facts.failure_time_s)
        return is_inferred, _CONFIDENCE[finding.confidence], distance

    return [finding for _, finding in sorted(found, key=place)]
