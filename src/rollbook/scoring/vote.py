"""Vote: the plain summary that every client of the protocol knows. Means, deltas, and a majority of signs.

The vote ignores uncertainty: it says "ship" for about a third of all candidates that are equal to the baseline. Follow
the decision instead. Failed rows are not in these means, as other clients expect; the decision counts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rollbook.contracts.decision import MetricMeans, Recommendation
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.scoring.result_columns import Floats, OutcomeColumn, ResultColumns


class Vote(NamedTuple):
    means: Mapping[Outcome, MetricMeans]
    better_count: int
    metric_total: int

    @property
    def recommend(self) -> Recommendation:
        """More than half of what was measured is better. A tie holds, and so does a run without any delta."""
        return "ship" if 2 * self.better_count > self.metric_total else "hold"


def vote(columns: ResultColumns) -> Vote:
    means = {
        name: _means(columns, columns.outcomes[name], kind.higher_is_better)
        for name, kind in OUTCOMES.items()
    }
    signs = [each.delta_is_better for each in means.values()]
    return Vote(means, signs.count(True), len(signs) - signs.count(None))


def mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None


def _means(columns: ResultColumns, column: OutcomeColumn, higher_is_better: bool) -> MetricMeans:
    """Both means over the same pairs. Without a pair each side has a mean of its own, and there is no delta."""
    paired = columns.complete & column.known
    if not paired.any():
        sides = (column.baseline[columns.complete], column.candidate[columns.complete])
        baseline, candidate = (mean(side[np.isfinite(side)]) for side in sides)
        return MetricMeans(baseline=baseline, candidate=candidate)
    before, after = float(column.baseline[paired].mean()), float(column.candidate[paired].mean())
    delta = after - before
    better = delta > 0 if higher_is_better else delta < 0
    return MetricMeans(baseline=before, candidate=after, delta=delta, delta_is_better=better)
