"""Battery: a supply voltage that breaks down under load, and a battery that is nearly empty."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.failures import FailureFinding
from rollbook.scoring.failures.recorded import EpisodeFacts, RecordedArray, Recording
from rollbook.scoring.failures.spans import seconds_text, spans

DIP_SHARE = 0.85
"""Below this share of the voltage a moment before, the supply has broken down."""
DEEP_SHARE = 0.7
"""A dip below this share is deep."""
BEFORE_S = 1.0
"""The voltage before a dip is the median of this time before it."""
LEAST_DIP_S = 0.02
"""A shorter dip is a wrong reading."""
LEAST_VOLTAGE = 3.0
"""A channel that stays below this is no supply voltage."""
EMPTY_PERCENT = 5.0
_VOLTAGE = re.compile(r"volt|vbat|vbus|battery.*_v$|/v_?bat", re.IGNORECASE)
_CHARGE = re.compile(r"(battery|batt|soc).*(percent|charge|soc)|state_of_charge", re.IGNORECASE)


def battery_brownout(facts: EpisodeFacts, recording: Recording) -> Iterator[FailureFinding]:
    for array in recording.arrays:
        for column, name in enumerate(array.names):
            if array.kind == "sensor" and _VOLTAGE.search(name):
                yield from _dips(array, column, name)
            elif array.kind == "sensor" and _CHARGE.search(name):
                yield from _empty(array, column, name)
    for each in facts.batteries:
        if each.percent is not None and each.percent <= EMPTY_PERCENT:
            yield FailureFinding(
                code="battery_brownout",
                title=f"Battery at {each.percent:g} %",
                evidence=f"{each.path} in the metadata says {each.percent:g} %.",
                confidence="medium",
                next_step="Charge the battery and record again before blaming the policy.",
            )


def _dips(array: RecordedArray, column: int, name: str) -> Iterator[FailureFinding]:
    volts, seconds = array.values[:, column], array.seconds
    known = np.isfinite(volts)
    if known.sum() < 10 or float(np.median(volts[known])) < LEAST_VOLTAGE:
        return
    usual = _before(seconds, volts)
    deepest: tuple[float, float, float, float] | None = None
    count = 0
    for first, stop in spans(known & (volts < DIP_SHARE * usual)):
        lasts = float(seconds[min(stop, len(seconds) - 1)] - seconds[first])
        # a slow discharge also arrives below the limit; a breakdown gets there at once
        if (
            lasts < LEAST_DIP_S
            or first == 0
            or volts[first - 1] < 0.5 * (1 + DIP_SHARE) * usual[first]
        ):
            continue
        count += 1
        low = float(np.nanmin(volts[first:stop]))
        if deepest is None or low < deepest[1]:
            deepest = float(usual[first]), low, float(seconds[first]), lasts
    if deepest is None:
        return
    before, low, at, lasts = deepest
    times = "" if count == 1 else f" It happened {count} times; this is the deepest."
    yield FailureFinding(
        code="battery_brownout",
        title=f"Voltage fell to {low:.1f} V",
        evidence=f"{name} fell from {before:.1f} to {low:.1f} V and stayed low for {seconds_text(lasts)}.{times}",
        confidence="high" if low < DEEP_SHARE * before else "medium",
        next_step="Check battery, cables and what drew the current at this moment.",
        at_s=at,
        until_s=at + lasts,
        channel=name,
    )


def _before(seconds: NDArray[np.float64], volts: NDArray[np.float64]) -> NDArray[np.float64]:
    """For every row, the median of the second before it, from one value for each half second."""
    bins = np.floor((seconds - seconds[0]) / (BEFORE_S / 2)).astype(np.int64)
    _, starts = np.unique(bins, return_index=True)
    medians = np.array(
        [
            np.nanmedian(part) if np.isfinite(part).any() else np.nan
            for part in np.split(volts, starts[1:])
        ]
    )
    # the higher of the two half seconds before: the dip itself must not lower what it is compared with
    padded = np.concatenate(([np.nan, np.nan], medians))
    higher = np.fmax(padded[:-2], padded[1:-1])
    higher[0] = medians[0]
    place = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(volts))))
    return higher[place]


def _empty(array: RecordedArray, column: int, name: str) -> Iterator[FailureFinding]:
    charge = array.values[:, column]
    known = charge[np.isfinite(charge)]
    if not known.size or known.min() < 0 or known.max() > 100 or known.max() == 0:
        return
    percent = charge * (100 if known.max() <= 1 else 1)
    low = np.flatnonzero(percent <= EMPTY_PERCENT)
    if low.size:
        at = float(array.seconds[low[0]])
        least = float(np.nanmin(percent))
        yield FailureFinding(
            code="battery_brownout",
            title=f"Battery at {least:.0f} %",
            evidence=f"{name} is at or below {EMPTY_PERCENT:g} % from {at:.2f} s on.",
            confidence="medium",
            next_step="Charge the battery and record again before blaming the policy.",
            at_s=at,
            channel=name,
        )
