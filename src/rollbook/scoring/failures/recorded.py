"""What detectors look at: the arrays of a recording, and what is known about the episode without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rollbook.scoring.failures.sample_steps import usual_step


@dataclass(frozen=True, slots=True)
class RecordedArray:
    """Rows of numbers with a clock; a column for each channel."""

    topic: str
    kind: Literal["sensor", "action"]
    names: tuple[str, ...]
    """Of the channels."""
    seconds: NDArray[np.float64]
    """From the start of the episode; never falls."""
    values: NDArray[np.float64]
    """[row, channel]."""
    has_clock: bool = True
    """Whether the times were recorded. Without a clock the rows count as evenly spaced."""
    clock_note: str | None = None
    """What is wrong with its clock."""

    @property
    def step_s(self) -> float | None:
        return usual_step(self.seconds)


@dataclass(frozen=True, slots=True)
class PictureClock:
    """When the frames of a camera were taken."""

    topic: str
    seconds: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Battery:
    """A battery in the metadata."""

    path: str
    percent: float | None


@dataclass(frozen=True, slots=True)
class JointLimits:
    lower: Sequence[float]
    upper: Sequence[float]


@dataclass(frozen=True, slots=True)
class LostReplay:
    """A result of an eval run in which this episode is the replay and its baseline did better."""

    run_id: str
    run_name: str
    what: str
    """`success` or `collisions`."""
    evidence: str
    """How the outcome was measured."""
    numbers: str


@dataclass(frozen=True, slots=True)
class FailedScenario:
    scenario_id: str
    name: str
    severity: str
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFacts:
    status: str = "ready"
    success: bool | None = None
    collisions: int | None = None
    failure_reason: str | None = None
    failure_time_s: float | None = None
    batteries: tuple[Battery, ...] = ()
    joint_limits: JointLimits | None = None
    lost_replays: tuple[LostReplay, ...] = ()
    failed_scenarios: tuple[FailedScenario, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    arrays: Sequence[RecordedArray] = ()
    pictures: Sequence[PictureClock] = field(default_factory=tuple)
