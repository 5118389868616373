"""How the counterfactual figure of a run relates to its closed loop, over the pairs that have both.

In a counterfactual replay every state is one that the baseline reached, where as much is left to gain as the baseline
left. In a closed loop the candidate lives with its own choices. So the two differ in size.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from rollbook.contracts.decision import CounterfactualRelation
from rollbook.scoring.intervals import student_interval, varies
from rollbook.scoring.result_columns import Floats, ResultColumns
from rollbook.scoring.row_clusters import RowClusters

LEVEL = 0.95
_FEWEST_CLUSTERS = 2
_FEWEST_RANKS = 3


def counterfactual_relation(
    columns: ResultColumns, clusters: RowClusters | None
) -> CounterfactualRelation | None:
    """None where no pair has both figures. Pairs of one cluster are alike, and the interval allows for it."""
    rewards = columns.outcomes["reward_total"]
    chosen = columns.column("counterfactual", "chosen_total")
    both = columns.complete & rewards.in_closed_loop & rewards.known & np.isfinite(chosen)
    if not both.any():
        return None
    baseline = rewards.baseline[both]
    teacher_forced, rolled_out = chosen[both] - baseline, rewards.candidate[both] - baseline
    excess = teacher_forced - rolled_out
    number = np.arange(len(both)) if clusters is None else clusters.of_rows
    return CounterfactualRelation(
        n_pairs=int(both.sum()),
        counterfactual_delta=float(teacher_forced.mean()),
        closed_loop_delta=float(rolled_out.mean()),
        excess=float(excess.mean()),
        excess_interval=_interval(excess, number[both]),
        rank_correlation=_rank_correlation(teacher_forced, rolled_out),
    )


def _interval(values: Floats, cluster: NDArray[np.intp]) -> tuple[float, float] | None:
    """Of the mean over pairs. The spread is that of the sums over clusters."""
    names, place = np.unique(cluster, return_inverse=True)
    count = len(names)
    if count < _FEWEST_CLUSTERS or not varies(values):
        return None
    sums = np.bincount(place, values - values.mean(), minlength=count)
    # the mean is a sum over clusters, each with the weight count / n
    deviation = math.sqrt(float((sums**2).sum()) / (count - 1)) * count / len(values)
    return student_interval(float(values.mean()), deviation, count, LEVEL)


def _rank_correlation(one: Floats, other: Floats) -> float | None:
    """Spearman's, over pairs; None where one of them does not vary."""
    if len(one) < _FEWEST_RANKS or not varies(one) or not varies(other):
        return None
    return float(np.corrcoef(rankdata(one), rankdata(other))[0, 1])
