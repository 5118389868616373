"""NaN and infinity in a channel that otherwise has numbers.

Shells of candidates are not looked at: NaN has a meaning there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.candidate_keys import NAN_IS_NO_CANDIDATE
from rollbook.contracts.failures import Confidence, FailureFinding
from rollbook.scoring.failures.recorded import EpisodeFacts, RecordedArray, Recording
from rollbook.scoring.failures.spans import longest, spans

SPARSE_SHARE = 0.2
"""A channel with a larger share of NaN is sparse by design: a slow sensor in the rows of a quick one."""


def not_a_number(facts: EpisodeFacts, recording: Recording) -> Iterator[FailureFinding]:
    for array in recording.arrays:
        finite = np.isfinite(array.values)
        if finite.all() or _is_of_candidates(array):
            continue
        found = [
            each
            for column in range(len(array.names))
            if (each := _finding(array, column, ~finite[:, column])) is not None
        ]
        if found:
            yield min(found, key=lambda each: each.at_s or 0.0)


def _is_of_candidates(array: RecordedArray) -> bool:
    return all(
        any(name == key or name.startswith(f"{key}/") for key in NAN_IS_NO_CANDIDATE)
        for name in array.names
    )


def _finding(array: RecordedArray, column: int, bad: NDArray[np.bool_]) -> FailureFinding | None:
    values = array.values[:, column]
    infinite = np.isinf(values)
    nan = bad & ~infinite
    rows = bad.copy()
    if not infinite.any():
        if nan.mean() > SPARSE_SHARE and not _is_one_run(nan):
            return None
        first_value = int(np.argmin(bad)) if not bad.all() else len(bad)
        rows[:first_value] = False  # a sensor that has not started yet
    span = longest(spans(rows))
    if span is None:
        return None
    first, stop = span
    what = "infinite" if infinite[first:stop].any() else "NaN"
    total = int(rows.sum())
    to_the_end = stop == len(bad)
    last = float(array.seconds[stop - 1])
    lasts = "to the end" if to_the_end else f"to {last:.2f} s"
    confidence: Confidence = "high" if array.kind == "action" or what == "infinite" else "medium"
    name = array.names[column]
    return FailureFinding(
        code="not_a_number",
        title=f"{'Action' if array.kind == 'action' else 'Sensor'} is {what}",
        evidence=f"{name} is {what} from {array.seconds[first]:.2f} s {lasts}; "
        f"{total:,} of {len(bad):,} samples are not numbers.",
        confidence=confidence,
        next_step="A command that is not a number reaches the controller: look at the policy's input just before."
        if array.kind == "action"
        else "Look at what the policy did with this value.",
        at_s=float(array.seconds[first]),
        until_s=last,
        channel=name,
    )


def _is_one_run(bad: NDArray[np.bool_]) -> bool:
    """Apart from the rows before the first value: it had values, and then no more."""
    started = int(np.argmin(bad))
    return not bad.all() and len(spans(bad[started:])) == 1
