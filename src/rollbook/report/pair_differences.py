"""Pair differences: what a picture draws of every pair of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.evals import EvalResult
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.scoring.result_columns import ResultColumns

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PairDifferences:
    """One outcome of the pairs of which both sides are known, sorted by baseline id."""

    metric: Outcome
    ids: tuple[str, ...]
    baseline: Floats
    candidate: Floats
    clusters: tuple[str, ...] | None
    """Cluster of each pair. None: every pair counts alone."""
    by: str | None = None
    """The label that clusters are made of."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def deltas(self) -> Floats:
        return self.candidate - self.baseline

    @property
    def gains(self) -> Floats:
        """Above zero is better."""
        return self.deltas if OUTCOMES[self.metric].higher_is_better else -self.deltas


def pair_differences(
    results: Sequence[EvalResult],
    metric: Outcome,
    labels: Mapping[str, Mapping[str, Sequence[str]]],
    by: str | None,
) -> PairDifferences:
    """A crashed candidate has failed; its other outcomes are not known, so they are not drawn."""
    columns = ResultColumns.of(results)
    column = columns.outcomes[metric]
    candidate = column.candidate.copy()
    if metric == "success":
        candidate[columns.failed] = 0.0
    known = np.isfinite(column.baseline) & np.isfinite(candidate)
    known &= (columns.complete & column.has_evidence) | (columns.failed & (metric == "success"))
    rows = np.flatnonzero(known)
    ids = tuple(columns.ids[row] for row in rows)
    clusters = None
    if by is not None and labels:
        clusters = tuple(", ".join(labels.get(each, {}).get(by, ())) or "unknown" for each in ids)
    return PairDifferences(
        metric=metric,
        ids=ids,
        baseline=column.baseline[rows],
        candidate=candidate[rows],
        clusters=clusters,
        by=by if clusters else None,
    )
