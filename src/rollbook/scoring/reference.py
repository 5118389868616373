"""ActionReference: the distribution of the recorded actions of a set of baselines, per channel.

The distance between two actions needs a unit. The unit of a channel is its spread in the recordings, measured by a
method that a few extreme steps do not change. "Out of distribution" is outside the range of nearly all recorded steps.
A channel that never moved has no unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.streams import CLOCK_FIELD
from rollbook.digest import checksum
from rollbook.scoring.actions import Array, Arrays, key_parts

Floats = NDArray[np.float64]

FEWEST_ROWS = 5
"""Finite values that a channel needs for a range."""
MOST_ROWS = 16_384
"""Rows kept per key, drawn evenly from all steps. A quantile of 0.5 % still rests on 80 of them."""
OUTER_QUANTILES = (0.005, 0.995)
MARGIN = 0.1
"""Share of the range added on both sides, so that it reaches three standard deviations of a normal distribution."""
_AT_ONCE = 64
_MAD_TO_SIGMA = 1.482602218505602
_IQR_TO_SIGMA = 0.7413011092528010
_ROUNDING = 1e-9
"""A spread below this share of the values is rounding, not movement."""


@dataclass(frozen=True)
class ChannelRows:
    """Recorded steps of one key at one size. Many steps are thinned evenly; the extremes are those of all steps."""

    values: Floats
    """[n, size]"""
    priority: Floats
    """Random number of each row. Rows with the lowest are kept, so that the order of merging does not matter."""
    low: Floats
    high: Floats
    steps: int

    @classmethod
    def of(cls, values: Floats) -> ChannelRows:
        seed = int(checksum(values.tobytes()), 16)
        priority = np.random.default_rng(seed).random(len(values))
        finite = np.isfinite(values)
        low = np.min(values, axis=0, initial=np.inf, where=finite)
        high = np.max(values, axis=0, initial=-np.inf, where=finite)
        return cls(values, priority, low, high, len(values))._thinned()

    @classmethod
    def joined(cls, parts: Sequence[ChannelRows]) -> ChannelRows:
        return cls(
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.priority for part in parts]),
            np.min([part.low for part in parts], axis=0),
            np.max([part.high for part in parts], axis=0),
            sum(part.steps for part in parts),
        )._thinned()

    def _thinned(self) -> ChannelRows:
        if len(self.values) <= MOST_ROWS:
            return self
        kept = np.argpartition(self.priority, MOST_ROWS)[:MOST_ROWS]
        return ChannelRows(self.values[kept], self.priority[kept], self.low, self.high, self.steps)

    @cached_property
    def spread(self) -> Spread:
        return _spread(self)


@dataclass(frozen=True)
class Spread:
    """Per channel. A channel that never moved has NaN as scale and range; one with too few steps has NaN as range."""

    location: Floats
    scale: Floats
    low: Floats
    high: Floats

    @property
    def constant(self) -> NDArray[np.bool_]:
        """Channels that never moved in the recordings."""
        return np.isfinite(self.location) & np.isnan(self.scale)


@dataclass(frozen=True)
class ActionReference:
    """All baselines together. The order of merging makes no difference, so it can be built in parts."""

    rows: Mapping[tuple[str, int], ChannelRows] = field(default_factory=dict)
    """By key and size: a key that was recorded in two sizes has two entries."""
    episodes: int = 0

    @classmethod
    def of(cls, baselines: Iterable[Arrays]) -> ActionReference:
        """From any number of baselines. They are read one after the other, and only the kept rows stay in memory."""
        found, each = cls(), iter(baselines)
        while part := [cls.of_one(baseline) for baseline in islice(each, _AT_ONCE)]:
            found = found.merged(*part)
        return found

    @classmethod
    def of_one(cls, baseline: Arrays) -> ActionReference:
        flat = {key: numbers_of(baseline[key]) for key in numeric_keys(baseline)}
        rows = {(key, each.shape[1]): ChannelRows.of(each) for key, each in flat.items()}
        return cls(rows, 1)

    def merged(self, *others: ActionReference) -> ActionReference:
        parts: dict[tuple[str, int], list[ChannelRows]] = {}
        for each in (self, *others):
            for key, rows in each.rows.items():
                parts.setdefault(key, []).append(rows)
        joined = {key: ChannelRows.joined(rows) for key, rows in parts.items()}
        return ActionReference(joined, self.episodes + sum(each.episodes for each in others))

    def spread(self, key: str, size: int) -> Spread | None:
        found = self.rows.get((key, size))
        return None if found is None else found.spread


def numeric_keys(baseline: Arrays) -> list[str]:
    """Keys of actions with one row per step."""
    return [key for key in action_keys(baseline) if baseline[key].ndim]


def action_keys(baseline: Arrays) -> list[str]:
    """Keys of actions: in a namespace, not a clock, and real numbers. Truth values are not numbers."""
    return [
        key
        for key, array in baseline.items()
        if "/" in key and key_parts(key)[1] != CLOCK_FIELD and array.dtype.kind in "iufm"
    ]


def numbers_of(array: Array) -> Floats:
    """The array as float64, of shape [steps, channels]."""
    width = int(np.prod(array.shape[1:], dtype=np.int64))
    return array.astype(np.float64).reshape(len(array), width)


# ------------------------------------------------------------------------------------------ spread


def _spread(rows: ChannelRows) -> Spread:
    """The scale is the first that is not zero of median absolute deviation, interquartile range, standard deviation.

    A gripper that is open in nine of ten steps has a median deviation of zero, but it is not constant.
    """
    values = np.where(np.isfinite(rows.values), rows.values, np.nan)
    width = values.shape[1]
    count = np.count_nonzero(~np.isnan(values), axis=0)
    known = count >= 1
    location, scale, low, high = (np.full(width, np.nan) for _ in range(4))
    if known.any():
        seen = values[:, known]
        quantiles = np.nanquantile(seen, [0.25, 0.5, 0.75, *OUTER_QUANTILES], axis=0)
        location[known] = quantiles[1]
        scale[known] = _scale(seen, quantiles, rows.low[known], rows.high[known])
        low[known], high[known] = _range(quantiles[3:], rows.low[known], rows.high[known])
    unknown = (count < FEWEST_ROWS) | np.isnan(scale)
    low[unknown] = high[unknown] = np.nan
    return Spread(location, scale, low, high)


def _scale(seen: Floats, quantiles: Floats, low: Floats, high: Floats) -> Floats:
    deviation = np.nanmedian(np.abs(seen - quantiles[1]), axis=0) * _MAD_TO_SIGMA
    iqr = (quantiles[2] - quantiles[0]) * _IQR_TO_SIGMA
    floor = np.maximum(np.abs(low), np.abs(high)) * _ROUNDING
    scale = np.where(
        deviation > floor, deviation, np.where(iqr > floor, iqr, np.nanstd(seen, axis=0))
    )
    scale = np.where(
        scale > floor, scale, high - low
    )  # it moved only in steps that were thinned out
    return np.where(scale > floor, scale, np.nan)


def _range(outer: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """The range of nearly all steps with a margin; the range of all steps where nearly all have the same value."""
    width = outer[1] - outer[0]
    floor = np.maximum(np.abs(low), np.abs(high)) * _ROUNDING
    still = width <= floor
    below = np.where(still, low, outer[0] - MARGIN * width)
    above = np.where(still, high, outer[1] + MARGIN * width)
    return below, above
