"""Vote: the plain summary that every client of the protocol knows. Means, deltas, and a majority of signs.

It has no uncertainty in it, and says "ship" of every third or fourth equal policy; `decision` is what to go by. Rows
that failed are not in these means, which is what other clients expect; the decision counts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from rollbook.contracts.evals import HIGHER_IS_BETTER, OUTCOMES, SUMMARY_KEYS
from rollbook.scoring.result_columns import Floats, OutcomeColumn, ResultColumns


def vote(columns: ResultColumns) -> dict[str, Any]:
    """Five objects and the count of those that moved the right way."""
    summary: dict[str, Any] = {
        SUMMARY_KEYS[name]: _means(columns, columns.outcomes[name], HIGHER_IS_BETTER[name])
        for name in OUTCOMES
    }
    signs = [each["delta_is_better"] for each in summary.values()]
    summary["ood_action_share"] = {
        "baseline": None,
        "candidate": mean(columns.numbers("ood_action_share")),
        "delta": None,
        "delta_is_better": None,
    }
    better, total = signs.count(True), len(signs) - signs.count(None)
    summary |= {"better_count": better, "metric_total": total, "recommend": majority(better, total)}
    return summary


def majority(better: int, total: int) -> Literal["ship", "hold"]:
    """More than half of what was measured; a tie holds, and so does nothing at all."""
    return "ship" if 2 * better > total else "hold"


def mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None


def _means(columns: ResultColumns, column: OutcomeColumn, higher: bool) -> Mapping[str, Any]:
    """Both means over the same pairs; without a pair each side has its own, and there is no delta."""
    paired = columns.complete & column.known
    if not paired.any():
        sides = [column.baseline[columns.complete], column.candidate[columns.complete]]
        alone = [mean(side[np.isfinite(side)]) for side in sides]
        return _object(alone[0], alone[1], None, None)
    baseline = float(column.baseline[paired].mean())
    candidate = float(column.candidate[paired].mean())
    delta = candidate - baseline
    return _object(baseline, candidate, delta, delta > 0 if higher else delta < 0)


def _object(
    baseline: float | None, candidate: float | None, delta: float | None, better: bool | None
) -> dict[str, Any]:
    return {
        "baseline": baseline,
        "candidate": candidate,
        "delta": delta,
        "delta_is_better": better,
    }
