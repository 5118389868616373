"""Outcome pairs: which pairs of a run count for one outcome, and with which gain.

A pair has an outcome when both sides are known and the candidate's side was measured. In addition:

    success          a crashed candidate has lost, unless the baseline is known to have failed too
    reward           a crashed candidate has the lowest reward of the range that the gate declares; without one, of
                     the rewards of the run, with 0 included
    time to goal     counts only where both reached the goal; where success is unknown, a time to goal stands for it
    collisions       a crash is a missing pair

Every other pair of the run is missing. The gate says what that means. `lost`: the candidate's missing outcome is the
worst one and the baseline's the best one, so that nobody gains by losing results. `ignore`: the pair is left out. An
outcome that no pair has is not missing: nobody measures it.

Measured pairs of one situation (which the runner names) count as one pair, with their mean gain. Thirty runs of one
situation are not thirty independent answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.decision import Interval
from rollbook.contracts.evals import EVIDENCE
from rollbook.contracts.gate import Gate
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.scoring.result_columns import Flags, Floats, ResultColumns
from rollbook.scoring.row_clusters import RowClusters

_ROUNDING = 1e-12
"""Relative. Sums that were added in another order differ by less than this, which is not a difference."""


@dataclass(frozen=True)
class OutcomePairs:
    metric: Outcome
    baseline: Floats
    candidate: Floats
    """Both sides of the measured pairs, one per situation."""
    judged: Floats
    """How much better the candidate was, per pair, in the order of the baselines' ids: measured pairs, crashes, and
    missing pairs where those count as lost. Above zero is better for every outcome, also where a lower value is
    better."""
    has_outcome: Flags
    """Which of the judged pairs are not missing."""
    places: NDArray[np.intp]
    """Row of each judged pair. Pairs without a row have numbers after the last row."""
    clusters: NDArray[np.intp] | None
    """Cluster of each judged pair. None: every pair counts alone."""
    cluster_by: str | None
    unlabelled: int
    """Rows of the run without the label that the gate names. They count as one cluster."""
    rows: NDArray[np.intp]
    """Rows of the result columns that have an outcome."""
    row_gains: Floats
    """Gain of each of these rows alone: a catastrophe counts whatever the other pairs of its situation gained."""
    crashes: int
    total: int
    """Pairs that should be measured; those of one situation count once."""
    repeats: int
    """Measured pairs beyond the first of their situation."""
    missing: Mapping[str, int]
    """Pairs without an outcome, by cause."""
    kinds: tuple[str, ...]
    """Kinds of evidence among the measured pairs."""
    evidence: str
    unusable: int
    seen: Interval
    """Lowest and highest value of the outcome in the run; of both policies."""

    def __len__(self) -> int:
        """Pairs that have an outcome."""
        return int(np.count_nonzero(self.has_outcome))

    @property
    def gains(self) -> Floats:
        """Of the pairs that have an outcome."""
        return self.judged[self.has_outcome]

    @property
    def lost(self) -> int:
        """Missing pairs that count as lost."""
        return len(self.judged) - len(self)

    @property
    def missing_count(self) -> int:
        return sum(self.missing.values())

    @property
    def used_share(self) -> float:
        """Share of the pairs that have an answer. A crash is an answer for success, and a missing pair for the rest."""
        used = len(self) if self.metric == "success" else len(self) - self.crashes
        return used / self.total if self.total else 0.0


def outcome_pairs(
    columns: ResultColumns,
    metric: Outcome,
    gate: Gate,
    clusters: RowClusters | None = None,
    *,
    rowless: int = 0,
    deleted: int = 0,
) -> OutcomePairs:
    """`rowless` is the number of pairs that have no row in the columns, `deleted` how many of them have no baseline any
    more. Time to goal counts its own pairs, since only some can have it."""
    column = columns.outcomes[metric]
    measured = columns.complete & column.has_evidence & column.known
    expected = np.ones(len(columns), bool)
    if metric == "time_to_goal_s":
        expected, rowless = _both_reached(columns, measured), 0
        measured &= expected
    rows = np.flatnonzero(measured)
    crashed = _crashed(columns, metric, bool(len(rows)))
    sign = 1.0 if OUTCOMES[metric].higher_is_better else -1.0
    gains = sign * (column.candidate - column.baseline)
    size = np.abs(column.candidate) + np.abs(column.baseline)
    gains[np.abs(gains) <= _ROUNDING * size] = 0.0
    values = np.concatenate([column.baseline, column.candidate[column.has_evidence]])
    seen = values[np.isfinite(values)]
    fill = _Fill(metric, sign, _fill_range(metric, seen, gate))
    own, merged, first = gains[rows], gains[rows], rows
    baseline, candidate = column.baseline[rows], column.candidate[rows]
    groups = None if columns.situations is None else columns.situations[rows]
    if groups is not None and len(groups) > len(set(groups.tolist())):
        _, place = np.unique(groups, return_index=True)
        baseline, candidate = _averaged(groups, baseline), _averaged(groups, candidate)
        merged, first = _averaged(groups, own), rows[place]
    repeats = len(own) - len(merged)
    losses = fill.gains(column.baseline[crashed], np.full(len(crashed), np.nan))
    missing: dict[str, int] = {}
    should = int(expected.sum()) + rowless
    lost_rows = np.zeros(0, np.intp)
    if not (len(rows) or len(crashed)):
        rowless = 0
    else:
        absent = expected & ~measured
        absent[crashed] = False
        lost_rows = np.flatnonzero(absent)
        missing = _causes(columns, metric, lost_rows, rowless, deleted)
    known = first, crashed
    if gate.missing == "lost":
        side = np.where(columns.complete & column.has_evidence, column.candidate, np.nan)
        lost = fill.gains(column.baseline[lost_rows], side[lost_rows])
        lost = np.append(lost, np.full(rowless, fill.worst))
        beyond = np.arange(len(columns), len(columns) + rowless)
        places = np.concatenate([*known, lost_rows, beyond]).astype(np.intp)
    else:
        lost = np.zeros(0)
        places = np.concatenate(known).astype(np.intp)
    order = np.argsort(places, kind="stable")
    judged = np.concatenate([merged, losses, lost])[order]
    has_outcome = (np.arange(len(judged)) < len(merged) + len(losses))[order]
    found = sorted(set(column.evidence[measured].tolist()))
    return OutcomePairs(
        metric=metric,
        baseline=baseline,
        candidate=candidate,
        judged=judged,
        has_outcome=has_outcome,
        places=places[order],
        clusters=_clusters(clusters, places[order], len(columns)),
        cluster_by=None if clusters is None else clusters.by,
        unlabelled=0 if clusters is None else clusters.unlabelled,
        rows=np.concatenate([rows, crashed]),
        row_gains=np.concatenate([own, losses]),
        crashes=len(crashed),
        total=should - repeats,
        repeats=repeats,
        missing=missing,
        kinds=tuple(EVIDENCE[kind] for kind in found),
        evidence=_evidence([EVIDENCE[kind] for kind in found], column.evidence[columns.complete]),
        unusable=column.unusable,
        seen=(float(seen.min()), float(seen.max())) if len(seen) else (0.0, 0.0),
    )


def _clusters(
    clusters: RowClusters | None, places: NDArray[np.intp], rows: int
) -> NDArray[np.intp] | None:
    """Pairs without a row have no label. They count as one cluster together."""
    if clusters is None:
        return None
    return np.append(clusters.of_rows, rows)[np.minimum(places, rows)]


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
    """Crashes count only where at least one pair was measured, or the baseline is known. Otherwise nothing was lost."""
    if metric == "reward_total":
        return np.flatnonzero(columns.crashed & any_measured)
    if metric == "success":
        known = np.isfinite(columns.outcomes[metric].baseline)
        return np.flatnonzero(columns.crashed & (known | any_measured))
    return np.zeros(0, np.intp)


# ------------------------------------------------------------------------------------ missing pairs


@dataclass(frozen=True)
class _Fill:
    """The worst case of what is missing."""

    metric: Outcome
    sign: float
    within: Interval
    """Worst and best value, where higher is better."""

    def gains(self, baseline: Floats, candidate: Floats) -> Floats:
        """Of pairs of which one side is missing, or both."""
        worst, best = self.within
        before = np.where(np.isfinite(baseline), self.sign * baseline, best)
        after = np.where(np.isfinite(candidate), self.sign * candidate, worst)
        if self.metric == "collision_count":  # at least one more than the baseline's
            after = np.where(np.isfinite(candidate), after, np.minimum(after, before - 1))
        return np.asarray(after - before)

    @property
    def worst(self) -> float:
        """Of a pair that has neither side."""
        unknown = np.full(1, np.nan)
        return float(self.gains(unknown, unknown)[0])


def _fill_range(metric: Outcome, seen: Floats, gate: Gate) -> Interval:
    """Worst and best value of an outcome; higher is better. The range of a run's rewards includes 0, because a crash
    would lose nothing where all rewards are the same."""
    if metric == "success":
        return 0.0, 1.0
    if metric == "reward_total":
        return gate.reward_range or (float(seen.min(initial=0.0)), float(seen.max(initial=0.0)))
    low, high = (float(seen.min()), float(seen.max())) if len(seen) else (0.0, 0.0)
    return -high, -low if metric == "time_to_goal_s" else 0.0


def _causes(
    columns: ResultColumns,
    metric: Outcome,
    rows: NDArray[np.intp],
    rowless: int,
    deleted: int,
) -> dict[str, int]:
    """Why these rows, and pairs without a row, have no outcome."""
    column = columns.outcomes[metric]
    failed, complete = columns.failed[rows], columns.complete[rows]
    crashed = columns.crashed[rows]
    candidate = np.isfinite(column.candidate[rows]) & column.has_evidence[rows]
    gone = min(deleted, rowless)
    counts = {
        "pending": int(np.count_nonzero(~failed & ~complete)) + rowless - gone,
        "deleted": gone,
        "infrastructure": int(np.count_nonzero(failed & ~crashed)),
        "crash": int(np.count_nonzero(crashed)),
        "candidate": int(np.count_nonzero(complete & ~candidate)),
        "baseline": int(np.count_nonzero(complete & candidate)),
    }
    return {cause: count for cause, count in counts.items() if count}


def _evidence(found: list[str], stated: NDArray[np.int8]) -> str:
    if found:
        return found[0] if len(found) == 1 else "mixed"
    return "open_loop" if EVIDENCE.index("open_loop") in stated else "not_measured"
