"""Candidate ranking: several candidates on the same baselines, tested together for one outcome.

A candidate is better when it is so by the step-down test of all of them (`max_t`), and when its tail passes at the
level of its step (`bounds`). Missing pairs, situations and clusters count as in the decision of a single run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.evals import EvalResult
from rollbook.contracts.gate import Gate
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.scoring.bounds.gain_bounds import GainBounds, is_below
from rollbook.scoring.bounds.pair_clusters import PairClusters
from rollbook.scoring.labels import Labels
from rollbook.scoring.letters import letters
from rollbook.scoring.max_t import candidates_better, candidates_differ
from rollbook.scoring.outcome_pairs import OutcomePairs, outcome_pairs
from rollbook.scoring.outcome_statistics import outcome_statistics
from rollbook.scoring.result_columns import Floats, ResultColumns
from rollbook.scoring.row_clusters import row_clusters

_PLACES = {name: place for place, name in enumerate(OUTCOMES)}


@dataclass(frozen=True)
class RankedCandidate:
    gain: float
    """Mean over all pairs; above zero is better."""
    lower: float
    """The bounds of all candidates hold together. Above zero only where it is shown how much better it is."""
    p_value: float
    is_better: bool
    letters: str
    missing: int
    crashes: int


@dataclass(frozen=True)
class CandidateRanking:
    metric: Outcome
    clusters: PairClusters
    """Of the first candidate: all candidates have the same clusters."""
    cluster_by: str | None
    candidates: tuple[RankedCandidate, ...]
    """In the order in which they were given."""
    order: tuple[int, ...]
    """The best first."""


def measured_primary(runs: Sequence[Sequence[EvalResult]], gate: Gate) -> Outcome | None:
    """The first primary of the gate that every run has measured."""
    columns = [ResultColumns.of(each) for each in runs]
    for rule in gate.rules:
        if rule.role == "primary" and all(
            (each.outcomes[rule.metric].has_evidence & each.outcomes[rule.metric].known).any()
            for each in columns
        ):
            return rule.metric
    return None


def rank_candidates(
    runs: Sequence[Sequence[EvalResult]],
    gate: Gate,
    metric: Outcome,
    labels: Mapping[str, Labels],
) -> CandidateRanking:
    """Every run has a result for each of the same baselines, be it a pending one."""
    columns = [ResultColumns.of(each) for each in runs]
    clusters = row_clusters(columns[0], labels, gate)
    # rows are merged below, for all candidates alike: a crash is not merged in one run and kept apart in another
    found = [
        outcome_pairs(replace(each, situations=None), metric, gate, clusters) for each in columns
    ]
    gains = _table(found, len(columns[0]))
    used = np.flatnonzero(np.isfinite(gains).all(axis=1))
    group, first = _situations(columns, used)
    merged = np.stack([_averaged(group, column) for column in gains[used].T], axis=1)
    of_pairs = None if clusters is None else clusters.of_rows[used][first]
    worst = max(outcome_statistics(each, gate).worst_loss for each in found)
    seed = [gate.seed % 2**64, _PLACES[metric]]
    bounds = [
        GainBounds(
            gains=column,
            worst_loss=worst,
            is_success=metric == "success",
            labels=of_pairs,
            signs=np.sign(column) if metric == "success" and len(first) < len(used) else None,
            tails=gate.tails,
            level=gate.look_level,
            seed=seed,
        )
        for column in merged.T
    ]
    sums = np.stack([each.clusters.sums for each in bounds], axis=1)
    level = gate.look_level
    tested = candidates_better(sums, level, seed)
    order = tuple(np.argsort(-merged.mean(axis=0), kind="stable").tolist())
    names = letters(candidates_differ(sums, level, seed), order)
    candidates = []
    for place, (bound, pairs) in enumerate(zip(bounds, found, strict=True)):
        # The tail is tested at the level of the step. Scaled, it passes at the level of the comparison when it passes
        # there. Where the tail bound is McNemar's test, flips are the same test, and it is not made twice.
        scale = level / float(tested.levels[place])
        of_tail = 0.0 if bound.is_exact else bound.p_better * scale
        p_value = min(1.0, max(float(tested.p_values[place]), of_tail))
        is_better = is_below(p_value, level)
        lower = bound.lower(float(tested.joint_levels[place]))
        candidates.append(
            RankedCandidate(
                gain=float(bound.gains.mean()),
                lower=max(lower, 0.0) if is_better else min(lower, 0.0),
                p_value=p_value,
                is_better=is_better,
                letters=names[place],
                missing=pairs.missing_count,
                crashes=pairs.crashes,
            )
        )
    by = None if clusters is None else clusters.by
    return CandidateRanking(metric, bounds[0].clusters, by, tuple(candidates), order)


def _table(found: Sequence[OutcomePairs], rows: int) -> Floats:
    """Gains: a row for each baseline, a column for each candidate; NaN where a pair does not count."""
    gains = np.full((rows, len(found)), np.nan)
    for place, pairs in enumerate(found):
        gains[pairs.places, place] = pairs.judged
    return gains


def _situations(
    columns: Sequence[ResultColumns], used: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The pair of each used row, and the first used row of each pair. A situation that any of the runs names is one."""
    known = [each.situations for each in columns if each.situations is not None]
    start = np.min(known, axis=0) if known else np.arange(len(columns[0]))
    _, first, group = np.unique(start[used], return_index=True, return_inverse=True)
    return group, first


def _averaged(group: NDArray[np.intp], values: Floats) -> Floats:
    return np.asarray(np.bincount(group, values) / np.bincount(group))
