"""Gaps in a clock: steps that took much longer than the others. In the clock of a camera they are dropped frames."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.failures import Confidence, FailureFinding
from rollbook.scoring.failures.recorded import EpisodeFacts, Recording
from rollbook.scoring.failures.sample_steps import gap_rows, usual_step
from rollbook.scoring.failures.spans import seconds_text

REPORTED_STEPS = 5.0
"""A gap of fewer steps is counted and not reported."""
REPORTED_S = 0.05
LONG_GAP_S = 0.5
REGULAR_SHARE = 1.5
"""A clock is regular if nine of ten of its steps are at most this many usual steps. Others have no gaps: their samples
come when something happens."""
FEW_DROPPED = 2
"""Frames that any camera may lose."""
_LEAST_ROWS = 20


def clock_gap(facts: EpisodeFacts, recording: Recording) -> Iterator[FailureFinding]:
    """One finding for each clock: its longest gap."""
    seen: set[bytes] = set()
    for array in recording.arrays:
        if array.clock_note is not None:
            yield FailureFinding(
                code="clock_gap",
                title="Clock goes back",
                evidence=f"{array.topic}: {array.clock_note}.",
                confidence="medium",
                next_step="Check how the recorder takes its times: this topic is not in step with the others.",
                channel=array.topic,
            )
        if not array.has_clock:
            continue
        same = array.seconds.tobytes()  # arrays of one namespace share their clock
        if same in seen:
            continue
        seen.add(same)
        rows = _reported(array.seconds)
        if len(rows):
            yield _gap(array.topic, array.seconds, rows)


def dropped_frames(facts: EpisodeFacts, recording: Recording) -> Iterator[FailureFinding]:
    for camera in recording.pictures:
        step = usual_step(camera.seconds)
        rows = gap_rows(camera.seconds, 1.5) if _is_regular(camera.seconds) else ()
        if step is None or not len(rows):
            continue
        steps = np.diff(camera.seconds)[rows]
        lost = np.rint(steps / step).astype(int) - 1
        if lost.sum() <= FEW_DROPPED:
            continue
        worst = int(np.argmax(lost))
        at = float(camera.seconds[rows[worst]])
        share = lost.sum() / (lost.sum() + len(camera.seconds))
        yield FailureFinding(
            code="dropped_frames",
            title=f"{int(lost.sum())} frames dropped",
            evidence=f"{camera.topic} lost {int(lost.sum())} frames ({100 * share:.1f} %); the longest hole is "
            f"{seconds_text(float(steps[worst]))}, the others are {seconds_text(step)} apart.",
            confidence="medium" if steps[worst] >= LONG_GAP_S else "low",
            next_step="A policy that looks at this camera saw an old picture here.",
            at_s=at,
            until_s=at + float(steps[worst]),
            channel=camera.topic,
        )


def _is_regular(seconds: NDArray[np.float64]) -> bool:
    step = usual_step(seconds)
    if step is None or len(seconds) < _LEAST_ROWS:
        return False
    return float(np.quantile(np.diff(seconds), 0.9)) <= REGULAR_SHARE * step


def _reported(seconds: NDArray[np.float64]) -> NDArray[np.intp]:
    if not _is_regular(seconds):
        return np.zeros(0, np.intp)
    rows = gap_rows(seconds, REPORTED_STEPS)
    return rows[np.diff(seconds)[rows] >= REPORTED_S]


def _gap(topic: str, seconds: NDArray[np.float64], rows: NDArray[np.intp]) -> FailureFinding:
    steps = np.diff(seconds)
    worst = int(rows[np.argmax(steps[rows])])
    step = usual_step(seconds) or 0.0
    more = "" if len(rows) == 1 else f" There are {len(rows)} such gaps; this is the longest."
    confidence: Confidence = "medium" if steps[worst] >= LONG_GAP_S else "low"
    return FailureFinding(
        code="clock_gap",
        title=f"Clock gap of {seconds_text(float(steps[worst]))}",
        evidence=f"One step of {topic} took {seconds_text(float(steps[worst]))}, "
        f"the others {seconds_text(step)}.{more}",
        confidence=confidence,
        next_step="Look whether the robot went on moving while nothing was recorded.",
        at_s=float(seconds[worst]),
        until_s=float(seconds[worst + 1]),
        channel=topic,
    )
