"""Outcome pairs: which pairs of a run count for one outcome, and with which gain.

A pair counts when both sides are known and the candidate's side was measured. In addition:

    success          a crashed candidate has lost, unless the baseline is known to have failed too
    reward           a crashed candidate has lost the difference between the best and the worst reward of the run; a
                     reward of 0 is included in that range
    time to goal     counts only where both reached the goal; where success is unknown, a time to goal stands for it
    others           a crash is a missing pair

Crashes count only where at least one pair was measured, or the baseline is known. Otherwise nothing was lost.

Measured pairs of one situation (same environment version, same seed) count as one pair, with their mean gain. For
success this is a win, a loss or neither. Thirty runs of one situation are not thirty independent answers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.evals import EVIDENCE
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.scoring.result_columns import Flags, Floats, ResultColumns

_ROUNDING = 1e-12
"""Relative. Sums that were added in another order differ by less than this, which is not a difference."""


@dataclass(frozen=True)
class OutcomePairs:
    metric: Outcome
    baseline: Floats
    candidate: Floats
    """Both sides of the measured pairs, one per situation."""
    gains: Floats
    """How much better the candidate was, per pair, crashes after the measured ones. Above zero is better for every
    outcome, also where a lower value is better."""
    mean_gains: Floats
    """The same, before success of a situation with several pairs becomes a win or a loss."""
    rows: NDArray[np.intp]
    """Rows of the result columns that are in the gains."""
    row_gains: Floats
    """Gain of each of these rows alone: a catastrophe counts whatever the other pairs of its situation gained."""
    crashes: int
    total: int
    """Pairs that should be measured; those of one situation count once."""
    repeats: int
    """Measured pairs beyond the first of their situation."""
    kinds: tuple[str, ...]
    """Kinds of evidence among the measured pairs."""
    evidence: str
    unusable: int

    def __len__(self) -> int:
        return len(self.gains)

    @property
    def used_share(self) -> float:
        """Share of the pairs that have an answer. A crash is an answer for success, and a missing pair for the rest."""
        used = len(self) if self.metric == "success" else len(self) - self.crashes
        return used / self.total if self.total else 0.0

    @property
    def missing(self) -> int:
        """Pairs without an answer."""
        return max(0, self.total - round(self.used_share * self.total))


def outcome_pairs(columns: ResultColumns, metric: Outcome, total: int) -> OutcomePairs:
    """`total` is the number of pairs of the run. Time to goal counts its own, since only some pairs can have it."""
    column = columns.outcomes[metric]
    measured = columns.complete & column.has_evidence & column.known
    if metric == "time_to_goal_s":
        both = _both_reached(columns, measured)
        measured &= both
        total = int(both.sum())
    sign = 1.0 if OUTCOMES[metric].higher_is_better else -1.0
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
    """Mean of each group, in the order of the groups. Rounding errors of a sum that cancels become zero."""
    _, group, count = np.unique(groups, return_inverse=True, return_counts=True)
    mean = np.bincount(group, values) / count
    size = np.bincount(group, np.abs(values)) / count
    mean[np.abs(mean) <= _ROUNDING * size] = 0.0
    return np.asarray(mean)


def _both_reached(columns: ResultColumns, timed: Flags) -> Flags:
    success = columns.outcomes["success"]
    measured = columns.complete & success.has_evidence
    reached = measured & (success.baseline == 1) & (success.candidate == 1)
    failed = (success.baseline == 0) | (measured & (success.candidate == 0))
    return np.asarray(reached | (timed & ~failed))


def _crashed(columns: ResultColumns, metric: Outcome, any_measured: bool) -> NDArray[np.intp]:
    if metric == "reward_total":
        return np.flatnonzero(columns.failed & any_measured)
    if metric == "success":
        known = np.isfinite(columns.outcomes[metric].baseline)
        return np.flatnonzero(columns.failed & (known | any_measured))
    return np.zeros(0, np.intp)


def _crash_gains(metric: Outcome, seen: Floats, baseline: Floats) -> Floats:
    """`seen` holds every reward of the run. The worst measured pair would not do: it can be a gain."""
    if metric == "success":
        return np.where(baseline == 0, 0.0, -1.0)
    return np.full(len(baseline), float(seen.min(initial=0.0)) - float(seen.max(initial=0.0)))


def _evidence(found: list[str], stated: NDArray[np.int8]) -> str:
    if found:
        return found[0] if len(found) == 1 else "mixed"
    return "open_loop" if EVIDENCE.index("open_loop") in stated else "not_measured"
