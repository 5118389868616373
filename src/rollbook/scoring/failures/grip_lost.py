"""Grip lost: the effort of a gripper falls to nothing while the command to hold does not change."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.failures import FailureFinding
from rollbook.scoring.failures.recorded import EpisodeFacts, RecordedArray, Recording
from rollbook.scoring.failures.spans import seconds_text, spans

HELD_SHARE = 0.5
"""Of its high effort: a gripper that presses harder holds something."""
LOST_SHARE = 0.15
"""Of its high effort: a gripper that presses less holds nothing."""
HELD_S = 0.3
"""For how long it held before, and holds nothing after."""
FALL_S = 0.3
"""A grip is lost within this time; an ordinary release takes a command."""
COMMAND_S = 1.0
"""The command stays the same for this long before the loss, and for HELD_S after it."""
COMMAND_SHARE = 0.05
"""Of the range of the command: a smaller change is none."""
_GRIPPER = re.compile(r"grip|finger|hand", re.IGNORECASE)
_EFFORT = re.compile(r"effort|force|torque|current|pressure", re.IGNORECASE)


def grip_lost(facts: EpisodeFacts, recording: Recording) -> Iterator[FailureFinding]:
    commands = [
        (array, column)
        for array in recording.arrays
        for column, name in enumerate(array.names)
        if array.kind == "action" and _GRIPPER.search(name)
    ]
    for array in recording.arrays:
        for column, name in enumerate(array.names):
            if array.kind == "sensor" and _GRIPPER.search(name) and _EFFORT.search(name):
                yield from _losses(array, column, commands)


def _losses(
    array: RecordedArray, column: int, commands: list[tuple[RecordedArray, int]]
) -> Iterator[FailureFinding]:
    seconds, effort = array.seconds, np.abs(array.values[:, column])
    if len(seconds) < 10 or not np.isfinite(effort).all() or not commands:
        return
    high = float(np.quantile(effort, 0.95))
    if high <= 0:
        return
    held = spans(effort >= HELD_SHARE * high)
    free = spans(effort <= LOST_SHARE * high)
    for first, stop in held:
        begun, ended = float(seconds[first]), float(seconds[stop - 1])
        after = free[(free[:, 0] >= stop) & (seconds[free[:, 0]] <= ended + FALL_S)]
        lately = effort[first:stop][seconds[first:stop] >= ended - HELD_S]
        # an effort that did not change by a bit came from a dead sensor: nobody knows when the grip was lost
        if ended - begun < HELD_S or not len(after) or lately.min() == lately.max():
            continue
        lost_at = float(seconds[after[0, 0]])
        lasts = float(seconds[after[0, 1] - 1]) - lost_at
        if lasts < HELD_S or not all(_unchanged(*each, lost_at) for each in commands):
            continue
        name = array.names[column]
        before, now = (
            float(np.median(effort[first:stop])),
            float(effort[after[0, 0] : after[0, 1]].mean()),
        )
        yield FailureFinding(
            code="grip_lost",
            title="Grip lost while closed",
            evidence=f"{name} fell from {before:.3g} to {now:.3g} in {seconds_text(lost_at - ended)}; "
            "the command did not change.",
            confidence="high",
            next_step="Look at the object and the gripper at this moment: did it slip, or was it pulled out?",
            at_s=ended,
            until_s=lost_at,
            channel=name,
        )
        return


def _unchanged(command: RecordedArray, column: int, at: float) -> bool:
    values: NDArray[np.float64] = command.values[:, column]
    first, stop = np.searchsorted(command.seconds, (at - COMMAND_S, at + HELD_S))
    some = values[max(first - 1, 0) : stop]
    if not len(some) or not np.isfinite(values).all():
        return False
    span = float(values.max() - values.min())
    return float(some.max() - some.min()) <= COMMAND_SHARE * span
