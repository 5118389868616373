"""Outcome pairs: which pairs of a run count for one outcome, and as what.

A pair counts when both sides are known and the candidate's side was measured. Beyond that:

    success          a candidate that crashed has lost, unless the baseline is known to have failed too
    reward           a candidate that crashed has lost as much as lies between the best and the worst reward of the run,
                     nothing at all (0) being one of them
    collisions       a crash says nothing
    time to goal     only where both reached it; where success is not known, a time to goal stands for it

Crashes count only beside a pair that was measured, or a baseline that is known: otherwise there is nothing they lost.

Measured pairs of one situation (same environment version, same seed) are one pair: what it gained on average, and for
success whether that is a win, a loss or neither. Running one situation thirty times is not thirty answers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.evals import EVIDENCE, HIGHER_IS_BETTER
from rollbook.scoring.result_columns import Flags, Floats, ResultColumns

_ROUNDING = 1e-12
"""Of the values: sums that were added up in another order differ by less, and that is no difference."""


@dataclass(frozen=True)
class OutcomePairs:
    metric: str
    baseline: Floats
    candidate: Floats
    """Both sides of the pairs that were measured, one per situation."""
    gains: Floats
    """How much better the candidate was, per pair, crashes after the measured ones. Above zero is better for every
    outcome, also where less is better."""
    mean_gains: Floats
    """The same before success became a win or a loss: where a situation was run often, by how much."""
    rows: NDArray[np.intp]
    row_gains: Floats
    """Of the columns, every row that is in the gains, and what it gained alone: a disaster is one, whatever the other
    runs of its situation came to."""
    crashes: int
    total: int
    """Pairs that should be here; those of one situation count once."""
    repeats: int
    """Measured pairs beyond the first of their situation."""
    kinds: tuple[str, ...]
    """Of evidence, among the pairs that were measured."""
    evidence: str
    unusable: int

    def __len__(self) -> int:
        return len(self.gains)

    @property
    def used_share(self) -> float:
        """Of the pairs that should be here. For success a crash is an answer; for anything else it is a gap."""
        used = len(self) if self.metric == "success" else len(self) - self.crashes
        return used / self.total if self.total else 0.0

    @property
    def missing(self) -> int:
        """Pairs that have no answer."""
        return max(0, self.total - round(self.used_share * self.total))


def outcome_pairs(columns: ResultColumns, metric: str, total: int) -> OutcomePairs:
    """`total` is the number of pairs of the run; outcomes that only some pairs can have count their own."""
    column = columns.outcomes[metric]
    measured = columns.complete & column.told & column.known
    if metric == "time_to_goal_s":
        both = _both_reached(columns, measured)
        measured &= both
        total = int(both.sum())
    sign = 1.0 if HIGHER_IS_BETTER[metric] else -1.0
    gains = sign * (column.candidate - column.baseline)
    size = np.abs(column.candidate) + np.abs(column.baseline)
    gains[np.abs(gains) <= _ROUNDING * size] = 0.0
    rows = np.flatnonzero(measured)
    crashed = _crashed(columns, metric, bool(len(rows)))
    seen = np.concatenate([column.baseline[rows], column.candidate[rows]])
    losses = _crash_gains(metric, seen, column.baseline[crashed])
    found = sorted(set(column.evidence[measured].tolist()))
    baseline, candidate, own = column.baseline[rows], column.candidate[rows], gains[rows]
    row_gains = mean_gains = np.concatenate([own, losses])
    repeats = 0
    groups = None if columns.situations is None else columns.situations[rows]
    if groups is not None and len(groups) > len(set(groups.tolist())):
        baseline, candidate = _averaged(groups, baseline), _averaged(groups, candidate)
        merged = _averaged(groups, own)
        repeats = len(own) - len(merged)
        mean_gains = np.concatenate([merged, losses])
    if metric != "time_to_goal_s":
        total = max(total, len(rows) + len(crashed))
    return OutcomePairs(
        metric=metric,
        baseline=baseline,
        candidate=candidate,
        gains=np.sign(mean_gains) if metric == "success" and repeats else mean_gains,
        mean_gains=mean_gains,
        rows=np.concatenate([rows, crashed]),
        row_gains=row_gains,
        crashes=len(crashed),
        total=total - repeats,
        repeats=repeats,
        kinds=tuple(EVIDENCE[kind] for kind in found),
        evidence=_evidence([EVIDENCE[kind] for kind in found], column.evidence[columns.complete]),
        unusable=column.unusable,
    )


def _averaged(groups: NDArray[np.intp], values: Floats) -> Floats:
    """The mean of each group, in the order of the groups. What rounding leaves of a sum that cancels is nothing."""
    _, group, count = np.unique(groups, return_inverse=True, return_counts=True)
    mean = np.bincount(group, values) / count
    size = np.bincount(group, np.abs(values)) / count
    mean[np.abs(mean) <= _ROUNDING * size] = 0.0
    return np.asarray(mean)


def _both_reached(columns: ResultColumns, timed: Flags) -> Flags:
    success = columns.outcomes["success"]
    told = columns.complete & success.told
    reached = told & (success.baseline == 1) & (success.candidate == 1)
    failed = (success.baseline == 0) | (told & (success.candidate == 0))
    return np.asarray(reached | (timed & ~failed))


def _crashed(columns: ResultColumns, metric: str, anything: bool) -> NDArray[np.intp]:
    if metric == "reward_total":
        return np.flatnonzero(columns.failed & anything)
    if metric == "success":
        known = np.isfinite(columns.outcomes[metric].baseline)
        return np.flatnonzero(columns.failed & (known | anything))
    return np.zeros(0, np.intp)


def _crash_gains(metric: str, seen: Floats, baseline: Floats) -> Floats:
    """`seen` is every reward of the run. The worst measured pair would not do: where all are gains, it is one too."""
    if metric == "success":
        return np.where(baseline == 0, 0.0, -1.0)
    return np.full(len(baseline), float(seen.min(initial=0.0)) - float(seen.max(initial=0.0)))


def _evidence(found: list[str], stated: NDArray[np.int8]) -> str:
    if found:
        return found[0] if len(found) == 1 else "mixed"
    return "open_loop" if EVIDENCE.index("open_loop") in stated else "not_measured"
