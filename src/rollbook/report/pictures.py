"""The pictures of a run, drawn from its results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollbook.contracts.decision import Rollup
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.report.belief_chart import belief_chart
from rollbook.report.confidence_sequence import BoundsOverPairs, confidence_sequence_chart
from rollbook.report.difference_chart import MOST_DRAWN, difference_chart
from rollbook.report.pair_differences import PairDifferences, pair_differences
from rollbook.report.run_report import RunReport, leading_outcome, outcome_summaries
from rollbook.report.words import count, percent

_DRAWN = ("success", "reward_total")


@dataclass(frozen=True)
class RunPictures:
    """SVG texts; empty where there is nothing to draw."""

    differences: tuple[tuple[str, str, str], ...]
    """Title, lead and picture of each outcome."""
    belief: str
    sequence: str
    sequence_lead: str

    @classmethod
    def of(cls, report: RunReport, rollup: Rollup) -> RunPictures:
        summaries = outcome_summaries(rollup)
        lead = leading_outcome(rollup)
        drawn = [
            name
            for name in OUTCOMES
            if summaries[name].n_pairs and (name in _DRAWN or name == lead)
        ]
        pairs = {name: pairs_of(report, rollup, name) for name in drawn}
        sequence = bounds_over_pairs(pairs[lead], rollup) if lead is not None else None
        return cls(
            differences=tuple(_difference(each) for each in pairs.values() if len(each)),
            belief=_belief(pairs["success"]) if "success" in pairs else "",
            sequence=confidence_sequence_chart(sequence) if sequence else "",
            sequence_lead=sequence_lead(sequence) if sequence else "",
        )


def pairs_of(report: RunReport, rollup: Rollup, metric: Outcome) -> PairDifferences:
    """One outcome of every pair, with the clusters that the decision was made with."""
    clusters = outcome_summaries(rollup)[metric].clusters
    return pair_differences(
        report.results, metric, report.labels, clusters.by if clusters else None
    )


def _difference(pairs: PairDifferences) -> tuple[str, str, str]:
    coloured = (
        f" Colours change from {pairs.by} to {pairs.by}; a bar is its mean." if pairs.by else ""
    )
    thinned = ""
    if len(pairs) > MOST_DRAWN:
        thinned = f" Of {len(pairs):,} pairs, {MOST_DRAWN} are drawn."
    label = OUTCOMES[pairs.metric].label
    return (
        f"Every pair: {label}",
        f"Candidate minus baseline of each pair, the worst at the left.{coloured}{thinned}",
        difference_chart(pairs),
    )


def _belief(pairs: PairDifferences) -> str:
    n = len(pairs)
    return belief_chart((int(pairs.baseline.sum()), n), (int(pairs.candidate.sum()), n))


def bounds_over_pairs(pairs: PairDifferences, rollup: Rollup) -> BoundsOverPairs | None:
    """None where there are too few pairs, or all are the same."""
    from rollbook.scoring.bounds.betting import watched_bounds  # loads scipy
    from rollbook.scoring.bounds.pair_clusters import PairClusters

    summary = outcome_summaries(rollup)[pairs.metric]
    worst = summary.worst_loss
    if worst is None:
        worst = (
            1.0
            if pairs.metric == "success"
            else float(np.ptp([*pairs.baseline, *pairs.candidate, 0.0]))
        )
    if len(pairs) < 2 or not worst > 0:
        return None
    alpha = rollup.decision.gate.alpha
    clusters = PairClusters.of(pairs.gains, pairs.clusters)
    low, high = watched_bounds(clusters.sums, worst, alpha, clusters.sizes)
    counted = np.cumsum(clusters.sizes)
    mean = np.cumsum(clusters.sums) / counted
    if not OUTCOMES[pairs.metric].higher_is_better:
        mean, low, high = -mean, -high, -low
    return BoundsOverPairs(pairs.metric, counted, mean, low, high, 1 - 2 * alpha)


def sequence_lead(bounds: BoundsOverPairs) -> str:
    """What the picture shows, in words."""
    return (
        f"What is not ruled out after the first pairs, at any time ({percent(bounds.level)} together, "
        f"{count(int(bounds.pairs[-1]), 'pair')}). The decision uses an interval that is read once and is narrower."
    )
