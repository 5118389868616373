"""Watched bets: the e-values of a run that may be looked at after every pair and stopped at any time.

Success in pairs that count alone has a closed form, which needs only wins and losses. Rewards, and everything in
clusters, are bet on one after the other (`bounds.betting`). A cluster counts when all its pairs have a result: betting
on the rest of a cluster whose first pairs were seen would not be fair.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.gate import Gate
from rollbook.contracts.outcomes import Outcome
from rollbook.scoring.bounds.betting import watched_capital
from rollbook.scoring.paired_tests import log_e_value

Floats = NDArray[np.float64]

_ENOUGH = 1e-9
_LARGEST_LOG = 690.0
"""exp() of more would overflow."""


class WatchedBets(NamedTuple):
    """Logarithms of the capital."""

    better: float
    """Betting that the candidate is better. Missing pairs are lost, where the gate says so."""
    worse: float
    better_measured: float
    """Of the pairs that have an outcome."""

    @classmethod
    def of(
        cls,
        gains: Floats,
        has_outcome: NDArray[np.bool_],
        worst_loss: float,
        *,
        is_exact: bool,
        clusters: NDArray[np.intp] | None = None,
        unfinished: NDArray[np.intp] | None = None,
    ) -> WatchedBets:
        """`gains` are in the order of the baselines' ids. `clusters` has the cluster of each of them, `unfinished` the
        clusters of pairs that are still to come."""
        if is_exact:
            won, lost = (gains > 0).sum(), (gains < 0).sum()
            seen = gains[has_outcome]
            seen_won, seen_lost = (seen > 0).sum(), (seen < 0).sum()
            return cls(
                float(log_e_value(won, lost)),
                float(log_e_value(seen_lost, seen_won)),
                float(log_e_value(seen_won, seen_lost)),
            )
        known = _means(gains[has_outcome], _of(clusters, has_outcome), unfinished)
        judged = _means(gains, clusters, unfinished)
        return cls(
            _capital(judged, worst_loss), _capital(-known, worst_loss), _capital(known, worst_loss)
        )


class WatchedGains(NamedTuple):
    """Gains of a run that may end after any pair: of single pairs, or means of finished clusters, in the order of their
    ids. A test for one look would pass by chance at one of many."""

    judged: Floats
    measured: Floats
    """Without missing pairs."""
    worst_loss: float

    @classmethod
    def of(
        cls,
        gains: Floats,
        has_outcome: NDArray[np.bool_],
        worst_loss: float,
        clusters: NDArray[np.intp] | None,
        unfinished: NDArray[np.intp] | None,
    ) -> WatchedGains:
        return cls(
            _means(gains, clusters, unfinished),
            _means(gains[has_outcome], _of(clusters, has_outcome), unfinished),
            worst_loss,
        )

    def p_not_worse(self, margin: float) -> float:
        """The p-value of "the loss is smaller than the margin", however often one looks: 1/e-value of a bet on it."""
        return self._chance(self.judged, margin)

    def p_not_worse_measured(self, margin: float) -> float:
        return self._chance(self.measured, margin)

    def _chance(self, gains: Floats, margin: float) -> float:
        if 0 < self.worst_loss <= margin:  # nothing can lose more
            return 0.0
        return math.exp(-max(0.0, _capital(gains + margin, self.worst_loss - margin)))


def watched_metric(gate: Gate) -> Outcome | None:
    """The outcome that a sequential run bets on: the first primary whose worst loss the gate knows. It does not depend
    on what was measured, so nobody can choose it afterwards."""
    for rule in gate.rules:
        bounded = rule.metric == "reward_total" and gate.reward_range is not None
        if rule.role == "primary" and (rule.metric == "success" or bounded):
            return rule.metric
    return None


def has_crossed(log_capital: float, level: float) -> bool:
    """Whether the capital has reached 1/level."""
    return log_capital >= -math.log(level) + _ENOUGH


def e_value_of(log_capital: float) -> float:
    """Always finite: a value that is too large for a float becomes the largest power that is not."""
    return math.exp(min(_LARGEST_LOG, log_capital))


def _capital(gains: Floats, worst_loss: float) -> float:
    return float(watched_capital(gains, worst_loss)[-1]) if len(gains) else 0.0


def _of(clusters: NDArray[np.intp] | None, chosen: NDArray[np.bool_]) -> NDArray[np.intp] | None:
    return None if clusters is None else clusters[chosen]


def _means(
    gains: Floats, clusters: NDArray[np.intp] | None, unfinished: NDArray[np.intp] | None
) -> Floats:
    """Mean gain of each finished cluster, in the order in which they were finished."""
    if clusters is None:
        return gains
    done = np.ones(len(gains), bool) if unfinished is None else ~np.isin(clusters, unfinished)
    names, group = np.unique(clusters[done], return_inverse=True)
    last = np.zeros(len(names), np.intp)
    np.maximum.at(last, group, np.flatnonzero(done))
    means = np.bincount(group, gains[done]) / np.bincount(group) if len(names) else np.zeros(0)
    return np.asarray(means[np.argsort(last)])
