"""Flatline: a sensor that changed with every sample stops changing by a single bit, while others go on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.failures import FailureFinding
from rollbook.scoring.failures.recorded import EpisodeFacts, RecordedArray, Recording
from rollbook.scoring.failures.spans import longest, seconds_text, spans

LEAST_FLAT_S = 0.5
LEAST_FLAT_ROWS = 20
LIVELY_SHARE = 0.9
"""A channel is lively if this share of its samples differs from the one before, outside of the flat span. Channels that
are constant or coarse by design never are."""
LEAST_LIVELY_ROWS = 20
OTHERS_MOVE_SHARE = 0.5
"""Of the samples of another channel during the span that change."""


def sensor_flatline(facts: EpisodeFacts, recording: Recording) -> Iterator[FailureFinding]:
    for array in recording.arrays:
        if array.kind != "sensor" or len(array.seconds) < LEAST_FLAT_ROWS + LEAST_LIVELY_ROWS:
            continue
        changed = (array.values[1:] != array.values[:-1]) | ~np.isfinite(array.values[1:])
        flat = {
            column: span
            for column in range(len(array.names))
            if (span := _flat_span(array.seconds, changed[:, column])) is not None
        }
        flat = {
            column: span
            for column, span in flat.items()
            if _others_move(recording.arrays, array, *span)
        }
        if flat:
            yield _finding(array, flat)


def _flat_span(
    seconds: NDArray[np.float64], changed: NDArray[np.bool_]
) -> tuple[float, float] | None:
    span = longest(spans(~changed))
    if span is None:
        return None
    first, stop = span  # rows first to stop hold one value
    lasts = float(seconds[stop] - seconds[first])
    outside = np.concatenate((changed[:first], changed[stop:]))
    if stop - first < LEAST_FLAT_ROWS or lasts < LEAST_FLAT_S:
        return None
    if len(outside) < LEAST_LIVELY_ROWS or outside.mean() < LIVELY_SHARE:
        return None
    return float(seconds[first]), float(seconds[stop])


def _others_move(
    arrays: Sequence[RecordedArray], itself: RecordedArray, begin: float, end: float
) -> bool:
    for other in arrays:
        if other is itself or other.kind != "sensor":
            continue
        first, stop = np.searchsorted(other.seconds, (begin, end))
        some = other.values[first:stop]
        if len(some) > 2 and (some[1:] != some[:-1]).mean(axis=0).max() >= OTHERS_MOVE_SHARE:
            return True
    return False


def _finding(array: RecordedArray, flat: dict[int, tuple[float, float]]) -> FailureFinding:
    """One for an array: its channels come from one device."""
    column = max(flat, key=lambda each: flat[each][1] - flat[each][0])
    begin, end = flat[column]
    is_whole = len(flat) == len(array.names)
    name = array.topic if is_whole else array.names[column]
    more = "" if is_whole or len(flat) == 1 else f" So do {len(flat) - 1} more of its channels."
    return FailureFinding(
        code="sensor_flatline",
        title=f"Sensor flat for {seconds_text(end - begin)}",
        evidence=f"{name} does not change by a bit from {begin:.2f} to {end:.2f} s; "
        f"otherwise it changes all the time.{more}",
        confidence="medium" if is_whole else "low",
        next_step="Check the driver and the cable of this sensor; a policy that uses it was blind here.",
        at_s=begin,
        until_s=end,
        channel=name,
    )
