"""Joint limits: a joint beyond its limits, or one that runs into a stop at full speed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.failures import FailureFinding
from rollbook.scoring.failures.recorded import EpisodeFacts, JointLimits, RecordedArray, Recording
from rollbook.scoring.failures.sample_steps import GAP_STEPS
from rollbook.scoring.failures.spans import longest, seconds_text, spans

BEYOND_SHARE = 0.001
"""Of the range of a joint: how far beyond its limit a reading may be."""
STOPPED_S = 0.3
"""A joint that stays at its extreme for this long after a sudden stop has run into something."""
FAST_SHARE = 0.2
"""Of the highest speed of the joint: a stop from less than this is an ordinary one."""
BRAKE_SHARE = 0.7
"""Of its speed a moment before: a joint that is slower when it arrives has braked."""
BRAKE_S = 0.1
STILL_SHARE = 0.002
"""Of the range that the joint covers: less movement is none."""
_LEAST_ROWS = 20
_POSITIONS = re.compile(
    r"joint.*(pos|angle|/q\b|value)|/joint_states$|qpos|joint_pos", re.IGNORECASE
)


def joint_limit(facts: EpisodeFacts, recording: Recording) -> Iterator[FailureFinding]:
    for array in recording.arrays:
        if array.kind != "sensor" or not _POSITIONS.search(array.topic):
            continue
        limits = facts.joint_limits
        if limits is not None and len(limits.lower) == len(limits.upper) == len(array.names):
            yield from _beyond(array, limits)
        elif limits is None:
            yield from _stops(array)


def _beyond(array: RecordedArray, limits: JointLimits) -> Iterator[FailureFinding]:
    for column, name in enumerate(array.names):
        values = array.values[:, column]
        lower, upper = limits.lower[column], limits.upper[column]
        slack = BEYOND_SHARE * (upper - lower)
        for what, limit, over in (
            ("upper", upper, values - upper),
            ("lower", lower, lower - values),
        ):
            span = longest(spans(over > slack))
            if span is None:
                continue
            first, stop = span
            most = float(np.nanmax(over[first:stop]))
            lasts = float(array.seconds[stop - 1] - array.seconds[first])
            yield FailureFinding(
                code="joint_limit",
                title="Joint beyond its limit",
                evidence=f"{name} is up to {most:.3g} beyond its {what} limit of {limit:.3g}, "
                f"for {seconds_text(lasts)}.",
                confidence="high",
                next_step="Check the limits of the controller and the actions just before.",
                at_s=float(array.seconds[first]),
                until_s=float(array.seconds[stop - 1]),
                channel=name,
            )


def _stops(array: RecordedArray) -> Iterator[FailureFinding]:
    step = array.step_s
    if step is None or len(array.seconds) < _LEAST_ROWS:
        return
    for column, name in enumerate(array.names):
        values = array.values[:, column]
        if not np.isfinite(values).all():
            continue
        low, high = float(values.min()), float(values.max())
        near = STILL_SHARE * (high - low)
        if near <= 0:
            continue
        steps = np.diff(array.seconds)
        speed = np.abs(np.diff(values)) / np.maximum(steps, 0.5 * step)
        speed[steps > GAP_STEPS * step] = 0.0  # nobody knows how it moved in a gap
        fastest = float(np.quantile(speed, 0.99))  # not the jump of a reset
        for what, extreme in (("greatest", high), ("smallest", low)):
            for first, stop in spans(np.abs(values - extreme) <= near):
                lasts = float(array.seconds[stop - 1] - array.seconds[first])
                if lasts >= STOPPED_S and _ran_into(speed, int(first), int(stop), step, fastest):
                    yield FailureFinding(
                        code="joint_limit",
                        title="Joint stopped at full speed",
                        evidence=f"{name} stopped within {seconds_text(2 * step)} at its {what} value "
                        f"{extreme:.3g} without braking, and stayed there for {seconds_text(lasts)}.",
                        confidence="low",
                        next_step="Give joint_limits in the metadata, so that a breach can be told from a stop.",
                        at_s=float(array.seconds[first]),
                        until_s=float(array.seconds[stop - 1]),
                        channel=name,
                    )
                    break


def _ran_into(
    speed: NDArray[np.float64], first: int, stop: int, step_s: float, fastest: float
) -> bool:
    """Whether the joint arrived at row `first` fast and without braking, and stayed until `stop`."""
    before = first - max(3, round(BRAKE_S / step_s))
    if before < 2:
        return False
    # means of two steps: one alone is as much noise as movement
    arrived = float(speed[first - 2 : first].mean())
    was = float(speed[before - 2 : before].mean())
    stayed = float(speed[first + 1 : stop - 1].mean()) if stop - first > 2 else 0.0
    return arrived >= max(FAST_SHARE * fastest, BRAKE_SHARE * was) and stayed < 0.1 * arrived
