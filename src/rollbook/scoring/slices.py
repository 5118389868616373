"""Slices: the pairs of a run divided by task, scene, robot, tag or another label, each with its own difference.

Slices are looked at after the fact, and there are many of them, so some look bad by chance. Bounds are therefore at the
level of the gate divided by the number of slices of the label, and p-values are corrected for that number (Holm). A
slice holds the candidate only where the gate says so beforehand (`guard_slices`).

A slice uses the bounds of the run, over the clusters inside the slice, and only pairs that have an outcome: a missing
one says nothing about a slice. A slice that is one whole cluster, such as a scene, speaks about that scene only: its
pairs count one by one. No slice claims a gain, so that its interval does not allow for rare large losses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.decision import DecisionFinding, Interval, SliceSummary
from rollbook.contracts.gate import Gate, SliceGuard
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.scoring.bounds.gain_bounds import GainBounds, is_below
from rollbook.scoring.labels import Labels, label_names
from rollbook.scoring.paired_tests import holm

LEAST_TESTED = 5
"""A slice with fewer pairs is listed without bounds. It could show nothing, and would weaken the others."""
MOST_LISTED = 50
"""Slices of one label that are kept, the worst ones."""
MOST_IN_SENTENCE = 3


@dataclass(frozen=True)
class SlicedPairs:
    """One outcome of the pairs of a run that have it, with the labels of the baseline of each."""

    metric: Outcome
    bounds: GainBounds
    labels: Sequence[Labels | None]


@dataclass(frozen=True)
class SliceReport:
    slices: tuple[SliceSummary, ...] = ()
    findings: tuple[DecisionFinding, ...] = ()
    """One for each slice that holds the candidate."""

    def worst(self, level: float) -> tuple[SliceSummary, ...]:
        """The slices that were shown to be worse, the largest loss first; at most three."""
        shown = [each for each in self.slices if is_below(each.p_worse, level)]
        shown.sort(key=lambda each: _sign(each.metric) * each.delta)
        return tuple(shown[:MOST_IN_SENTENCE])


def slice_report(outcomes: Mapping[Outcome, SlicedPairs], gate: Gate, level: float) -> SliceReport:
    """Slices of the first primary that was measured, by every label that divides the pairs, and the slices that the
    gate guards. `level` is the level of the run."""
    primaries = [rule.metric for rule in gate.rules if rule.role == "primary"]
    lead = next((each for each in primaries if each in outcomes), None)
    asked = [(by, lead) for by in label_names(gate)] if lead is not None else []
    asked += [(guard.by, guard.metric) for guard in gate.guard_slices]
    guarded = {(guard.by, guard.metric) for guard in gate.guard_slices}
    found: dict[tuple[str, Outcome], list[_Slice]] = {}
    for by, metric in dict.fromkeys(asked):
        pairs = outcomes.get(metric)
        if pairs is not None:
            slices = _slices(pairs, by)
            if _divides(slices, len(pairs.labels)) or (by, metric) in guarded:
                found[by, metric] = slices
    # not at the level of the run: the ledger and looks must not ask for more before a loss holds
    vetoes = _vetoes(found, gate.guard_slices, gate.alpha)
    listed = [
        each
        for (by, metric), slices in found.items()
        for each in _summaries(by, metric, slices, level, vetoes)
    ]
    return SliceReport(tuple(listed), tuple(vetoes.values()))


# -------------------------------------------------------------------------------------- one slice


@dataclass(frozen=True)
class _Slice:
    value: str
    metric: Outcome
    bounds: GainBounds

    @property
    def pairs(self) -> int:
        return len(self.bounds.gains)

    @property
    def gain(self) -> float:
        return float(self.bounds.gains.mean())

    @property
    def is_tested(self) -> bool:
        return self.pairs >= LEAST_TESTED

    def p_worse(self, margin: float = 0.0) -> float:
        """The p-value of "the loss is larger than the margin"."""
        return self.bounds.p_worse_than(margin) if self.is_tested else 1.0

    def interval(self, level: float) -> Interval | None:
        """The two bounds of the difference in the unit of the outcome; None where one of them does not exist."""
        if not self.is_tested:
            return None
        low, high = self.bounds.typical_lower(level), self.bounds.upper(level)
        if not (math.isfinite(low) and math.isfinite(high)):
            return None
        return (low, high) if _sign(self.metric) > 0 else (-high, -low)


def _slices(pairs: SlicedPairs, by: str) -> list[_Slice]:
    """Pairs without the label are in no slice; a pair with several tags is in several."""
    places: dict[str, list[int]] = {}
    for place, labels in enumerate(pairs.labels):
        for value in labels.get(by, ()) if labels else ():
            places.setdefault(value, []).append(place)
    return [_slice(pairs, value, np.array(rows, np.intp)) for value, rows in places.items()]


def _slice(pairs: SlicedPairs, value: str, rows: NDArray[np.intp]) -> _Slice:
    whole = pairs.bounds
    clusters = None if whole.labels is None else whole.labels[rows]
    if clusters is not None and (clusters == clusters[0]).all():
        clusters = None  # one cluster: its pairs count one by one
    inside = replace(
        whole,
        gains=whole.gains[rows],
        labels=clusters,
        signs=None if whole.signs is None else whole.signs[rows],
    )
    return _Slice(value, pairs.metric, inside)


def _divides(slices: Sequence[_Slice], pairs: int) -> bool:
    """Whether a label says more than the whole run: some pairs share a value, and not all of them do."""
    shared = [each for each in slices if each.pairs > 1]
    return bool(shared) and any(each.pairs < pairs for each in slices)


def _summaries(
    by: str,
    metric: Outcome,
    slices: Sequence[_Slice],
    level: float,
    vetoes: Mapping[tuple[str, str, Outcome], DecisionFinding],
) -> Iterator[SliceSummary]:
    """The worst first; those with too few pairs to test last."""
    p_values = holm({each.value: each.p_worse() for each in slices if each.is_tested})
    corrected = level / max(1, len(p_values))
    order = sorted(
        slices,
        key=lambda each: (
            (by, each.value, metric) not in vetoes,
            not each.is_tested,
            p_values.get(each.value, 1.0),
            each.gain,
            each.value,
        ),
    )
    for each in order[:MOST_LISTED]:
        yield SliceSummary(
            by=by,
            value=each.value,
            metric=metric,
            pairs=each.pairs,
            delta=_sign(metric) * each.gain + 0.0,
            interval=each.interval(corrected),
            p_worse=p_values.get(each.value, 1.0),
            vetoes=(by, each.value, metric) in vetoes,
            slices=len(slices),
        )


# ------------------------------------------------------------------------------------- the guards


def _vetoes(
    found: Mapping[tuple[str, Outcome], Sequence[_Slice]],
    guards: Sequence[SliceGuard],
    level: float,
) -> dict[tuple[str, str, Outcome], DecisionFinding]:
    """All guarded slices are tested together, so that equal policies are held no more often than the level says."""
    tested: dict[str, tuple[SliceGuard, _Slice]] = {}
    for number, guard in enumerate(guards):
        for each in found.get((guard.by, guard.metric), ()):
            if each.pairs >= guard.least_pairs:
                tested[f"{number}:{each.value}"] = guard, each
    p_values = holm({key: each.p_worse(guard.margin) for key, (guard, each) in tested.items()})
    return {
        (guard.by, each.value, guard.metric): _veto(guard, each)
        for key, (guard, each) in tested.items()
        if is_below(p_values[key], level)
    }


def _veto(guard: SliceGuard, each: _Slice) -> DecisionFinding:
    kind = OUTCOMES[guard.metric]
    delta = kind.change_text(_sign(guard.metric) * each.gain)
    beyond = f" by more than {kind.amount_text(guard.margin)}" if guard.margin else ""
    return DecisionFinding(
        f"slice:{guard.by}={each.value}",
        f"{kind.label} got worse{beyond} where {guard.by} is {each.value} "
        f"({delta} in {each.pairs} pairs)",
    )


def _sign(metric: Outcome) -> float:
    return 1.0 if OUTCOMES[metric].higher_is_better else -1.0
