"""Metrics of one episode: the distance between the candidate's actions and the recorded ones.

There are two families. `action_l2_distance` and `ood_action_share` are defined by the public client and equal its
values, oddities included. `compare_actions` measures the same in units of each channel, against a whole set of
baselines, and reports what could not be compared. Neither says better or worse: only "changed".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.evals import EVIDENCE_KEY
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.contracts.streams import CLOCK_FIELD
from rollbook.errors import InvalidValue
from rollbook.scoring.actions import (
    ActionColumn,
    ActionColumns,
    Array,
    Arrays,
    Rows,
    SizedRows,
    key_parts,
    policy_key,
)
from rollbook.scoring.reference import (
    ActionReference,
    ChannelRows,
    Floats,
    Spread,
    action_keys,
    numbers_of,
    numeric_keys,
)

OUT_OF_DISTRIBUTION = 3.0
"""Standard deviations, in the compatible metric."""
_FEWEST_ROWS = 5
_LEAST_DEVIATION = 1e-9
_STILL = 1e-6
"""Tolerance for a channel that never moved: a network never returns exactly the same number for it."""
_FARTHEST = 1e150
"""Limit for distances, so that their squares stay finite."""
MOST_TOP_STEPS = 5
MOST_NAMES = 20
"""Keys that could not be paired, per list."""

# --------------------------------------------------------------------------------- the compatible two


def action_l2_distance(baseline: Arrays, candidate: ActionColumns) -> float | None:
    """Euclidean distance over all paired keys, averaged over the steps that have a pair.

    NaN when a compared value is NaN. None when nothing could be compared.
    """
    keys = numeric_keys(baseline)
    if not keys or not candidate.steps:
        return None
    steps = min(candidate.steps, *(len(baseline[key]) for key in keys))
    squares, paired = np.zeros(steps), np.zeros(steps, np.bool_)
    with np.errstate(all="ignore"):
        for key in keys:
            recorded = numbers_of(baseline[key][:steps])
            for sized in _answers(key, recorded.shape[1], candidate):
                rows, values = _rows_before(steps, sized)
                difference = recorded[rows] - values
                squares[rows] += np.einsum("ij,ij->i", difference, difference)
                paired[rows] = True
        return float(np.mean(np.sqrt(squares[paired]))) if paired.any() else None


def ood_action_share(baseline: Arrays, candidate: ActionColumns) -> float | None:
    """Share of the candidate's steps with a channel more than three deviations from this baseline's mean.

    A channel that never moved gets a deviation of 1, and NaN never counts as far. The public client defines it so;
    `compare_actions` has a stricter measure.
    """
    outside, counted = (np.zeros(candidate.steps, np.bool_) for _ in range(2))
    for key in numeric_keys(baseline):
        column = candidate.columns.get(policy_key(key))
        if column is None or len(baseline[key]) < _FEWEST_ROWS:
            continue
        _check_numbers(key, column)
        counted[column.rows] = True
        sized = column.of_size(math.prod(baseline[key].shape[1:]))
        if sized is not None and sized.values.size:
            outside[sized.rows] |= _out_of_distribution(
                baseline[key].astype(np.float64), sized.values
            )
    return float(np.count_nonzero(outside) / np.count_nonzero(counted)) if counted.any() else None


def _out_of_distribution(recorded: Floats, values: Array) -> NDArray[np.bool_]:
    with np.errstate(all="ignore"):
        mean, deviation = recorded.mean(axis=0).ravel(), recorded.std(axis=0).ravel()
        deviation = np.where(deviation < _LEAST_DEVIATION, 1.0, deviation)
        z = np.abs((values.astype(np.float64) - mean) / deviation)
        far: NDArray[np.bool_] = z.max(axis=1) > OUT_OF_DISTRIBUTION
        return far


def _answers(key: str, size: int, candidate: ActionColumns) -> Iterator[SizedRows]:
    """Values for a recorded key: those under its name, and at steps without it, those under its namespace."""
    named = candidate.columns.get(policy_key(key))
    if named is not None:
        _check_numbers(key, named)
        if (sized := named.of_size(size)) is not None:
            yield sized
    shorthand = candidate.columns.get(key_parts(key)[0])
    if shorthand is None:
        return
    _check_numbers(key, shorthand)
    sized = shorthand.of_size(size)
    if sized is not None and named is not None:
        free = ~np.isin(sized.rows, named.named)
        sized = SizedRows(sized.rows[free], sized.values[free])
    if sized is not None:
        yield sized


def _rows_before(steps: int, sized: SizedRows) -> tuple[Rows, Floats]:
    values = sized.values.astype(np.float64)
    if len(sized.rows) and sized.rows[-1] >= steps:
        kept = int(np.searchsorted(sized.rows, steps))
        return sized.rows[:kept], values[:kept]
    return sized.rows, values


def _check_numbers(key: str, column: ActionColumn) -> None:
    if not column.numeric:
        kinds = sorted({str(each.values.dtype) for each in column.by_size.values()})
        raise InvalidValue(
            record="action", field=key, value=f"of type {', '.join(kinds)}", expected="numbers"
        )


# ----------------------------------------------------------------------------- in units of each channel


@dataclass(frozen=True)
class ActionComparison:
    """Recorded and candidate actions, step by step. A step's distance is the root mean square over moving channels."""

    per_step: Floats
    """Distance in units of each channel's spread; NaN where nothing was compared."""
    ood: NDArray[np.bool_]
    ranged: NDArray[np.bool_]
    """Steps whose values could be compared with a range."""
    nonfinite: NDArray[np.bool_]
    baseline_nonfinite: NDArray[np.bool_]
    constant_changed: NDArray[np.bool_]
    """Steps at which the candidate moved a channel that never moved in the recordings."""
    constant_channels: int
    paired_keys: int
    unpaired: Mapping[str, list[str]]
    reference: str
    reference_episodes: int
    t_ns: NDArray[np.int64] | None

    def as_metrics(self) -> dict[str, Any]:
        distances = self.per_step[np.isfinite(self.per_step)]
        ranged = int(np.count_nonzero(self.ranged))
        return {
            "scaled_distance": _summary(distances),
            "ood_share": int(np.count_nonzero(self.ood)) / ranged if ranged else None,
            "reference": self.reference,
            "reference_episodes": self.reference_episodes,
            "paired_keys": self.paired_keys,
            "unpaired": {name: keys[:MOST_NAMES] for name, keys in self.unpaired.items()},
            "unpaired_count": sum(map(len, self.unpaired.values())),
            "steps_compared": len(distances),
            "nonfinite_steps": int(np.count_nonzero(self.nonfinite)),
            "baseline_nonfinite_steps": int(np.count_nonzero(self.baseline_nonfinite)),
            "constant_channels": self.constant_channels,
            "constant_changed_steps": int(np.count_nonzero(self.constant_changed)),
            "top": self.top(),
        }

    def top(self) -> list[dict[str, Any]]:
        """The steps that differ most, largest distance first. Steps that do not differ are left out."""
        distance = np.where(np.isfinite(self.per_step), self.per_step, 0.0)
        order = np.argsort(-distance, kind="stable")[:MOST_TOP_STEPS]
        clock = self.t_ns
        return [
            {
                "step": int(step),
                "t_ns": int(clock[step]) if clock is not None and step < len(clock) else None,
                "distance": float(distance[step]),
            }
            for step in order
            if distance[step] > 0
        ]


def compare_actions(
    baseline: Arrays,
    candidate: ActionColumns,
    reference: ActionReference | None = None,
    *,
    t_ns: NDArray[np.int64] | None = None,
) -> ActionComparison:
    """Compare with the baseline step by step, in units and ranges of `reference`, by default of the baseline alone.

    `t_ns` holds the time of each step, by default from the clock of the recorded actions.
    """
    known = ActionReference.of_one(baseline) if reference is None else reference
    sums = _Sums(candidate.steps)
    paired: list[str] = []
    other_shape: list[str] = []
    answered: set[str] = set()
    constant = 0
    for key in numeric_keys(baseline):
        size = math.prod(baseline[key].shape[1:])
        found = list(_answers(key, size, candidate))
        names = {policy_key(key), key_parts(key)[0]} & candidate.columns.keys()
        answered |= names
        if any(candidate.columns[name].by_size.keys() - {size} for name in names):
            other_shape.append(key)
        if any(len(each.rows) for each in found):
            paired.append(key)
            recorded = numbers_of(baseline[key])
            spread = known.spread(key, size) or ChannelRows.of(recorded).spread
            constant += int(np.count_nonzero(spread.constant))
            for each in found:
                sums.add(recorded, each, spread)
    silent = [key for key in action_keys(baseline) if key not in paired and key not in other_shape]
    extra = [str(key) for key in candidate.columns if key not in answered]
    unpaired = {"baseline_only": silent, "candidate_only": extra, "shape": other_shape}
    return sums.comparison(
        constant_channels=constant,
        paired_keys=len(paired),
        unpaired=unpaired,
        reference="episode" if reference is None else "set",
        reference_episodes=known.episodes,
        t_ns=_clock(baseline, paired) if t_ns is None else t_ns,
    )


class _Sums:
    """Sums and flags of each step, added up key by key."""

    def __init__(self, steps: int) -> None:
        self.squares = np.zeros(steps)
        self.channels = np.zeros(steps, np.int64)
        self.flags: dict[str, Any] = {
            name: np.zeros(steps, np.bool_)
            for name in ("ood", "ranged", "nonfinite", "baseline_nonfinite", "constant_changed")
        }

    def add(self, recorded: Floats, answers: SizedRows, spread: Spread) -> None:
        with np.errstate(all="ignore"):
            self._measure(recorded, answers, spread)
            self._compare_with_range(answers, spread)

    def _measure(self, recorded: Floats, answers: SizedRows, spread: Spread) -> None:
        rows, values = _rows_before(len(recorded), answers)
        theirs, moving = recorded[rows], np.isfinite(spread.scale)
        known = np.isfinite(theirs) & moving
        scaled = np.where(known, (values - theirs) / np.where(moving, spread.scale, 1.0), 0.0)
        scaled = np.clip(scaled, -_FARTHEST, _FARTHEST)
        self.squares[rows] += np.einsum("ij,ij->i", scaled, scaled)
        self.channels[rows] += np.count_nonzero(known, axis=1)
        self.flags["baseline_nonfinite"][rows] |= ~np.isfinite(theirs).all(axis=1)

    def _compare_with_range(self, answers: SizedRows, spread: Spread) -> None:
        rows, values = answers.rows, answers.values.astype(np.float64)
        ranged = np.isfinite(spread.low)
        finite = np.isfinite(values)
        outside = ranged & ((values < spread.low) | (values > spread.high))
        self.flags["nonfinite"][rows] |= ~finite.all(axis=1)
        if ranged.any():
            self.flags["ranged"][rows] = True
            self.flags["ood"][rows] |= outside.any(axis=1) | ~finite.all(axis=1)
        still = spread.constant
        moved = np.abs(values - spread.location) > _STILL * np.maximum(np.abs(spread.location), 1.0)
        self.flags["constant_changed"][rows] |= (still & moved).any(axis=1)

    def comparison(self, **facts: Any) -> ActionComparison:
        compared = (self.channels > 0) & ~self.flags["nonfinite"]
        with np.errstate(all="ignore"):
            per_step = np.where(compared, np.sqrt(self.squares / self.channels), np.nan)
        return ActionComparison(per_step, **self.flags, **facts)


def _clock(baseline: Arrays, keys: list[str]) -> NDArray[np.int64] | None:
    """Times of the recorded actions, from the first key that has a clock."""
    for key in keys:
        clock = baseline.get(f"{key_parts(key)[0]}/{CLOCK_FIELD}")
        if clock is not None and clock.ndim == 1 and clock.dtype.kind in "iu":
            return clock.astype(np.int64)
    return None


def _summary(distances: Floats) -> dict[str, float | None]:
    if not len(distances):
        return dict.fromkeys(("mean", "p50", "p95", "max"))
    p50, p95 = np.quantile(distances, [0.5, 0.95])
    found = {"mean": distances.mean(), "p50": p50, "p95": p95, "max": distances.max()}
    return {name: _finite(float(value)) for name, value in found.items()}


# --------------------------------------------------------------------------------------- all metrics


def result_metrics(
    *,
    baseline: Mapping[str, Any],
    candidate: Mapping[str, Any],
    evidence: Mapping[str, str],
    l2: float | None,
    ood: float | None,
    step_count: int,
    **extra: Any,
) -> dict[str, Any]:
    """The metrics of one result as they cross the wire: eleven keys that every client knows, then our own.

    An unknown outcome of the candidate is null and not measured, whatever the baseline's outcome is.
    """
    blob: dict[str, Any] = {}
    for name in OUTCOMES:
        blob[f"{name}_baseline"] = baseline.get(name)
        blob[f"{name}_candidate"] = candidate.get(name)
    blob |= {"action_l2_distance": _finite(l2), "ood_action_share": _finite(ood)}
    blob["step_count"] = step_count
    blob[EVIDENCE_KEY] = {
        name: evidence.get(name, "asserted") if candidate.get(name) is not None else "not_measured"
        for name in OUTCOMES
    } | {"actions": evidence.get("actions", "not_measured" if l2 is None else "open_loop")}
    return blob | extra


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
