"""Card of a store or a collection in a notebook: its counts, and its policies with their mean gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.notebook import card, table
from rollbook.store.views.store_view import StoreView

MOST_LISTED = 8
"""Stores and policies that are listed. A store with more policies shows those with the most rollouts."""
MOST_READ = 100_000
"""Rollouts up to which the gains of all policies are read for a card."""

POLICY_COLUMNS = ("policy_id", "num_steps", "final_cumulative_target_root_gain")
"""Columns of `rollouts` that the list of policies is made of."""


def store_card(
    title: str, store: StoreView, facts: Sequence[tuple[str, object]], *parts: str
) -> str:
    counts = f"{store.num_rollouts:,} rollouts, {store.num_steps:,} steps, {store.num_candidates:,} candidates"
    made_of = f"{store.num_targets:,} targets in {store.num_sources:,} source rows"
    return card(title, [("contents", counts), ("made from", made_of), *facts], *parts)


def policies_table(rollouts: Mapping[str, NDArray[Any]], words: Sequence[str]) -> str:
    """One row per policy. `rollouts` has POLICY_COLUMNS, and its policies are codes of `words`."""
    policy, steps, gain = (rollouts[name] for name in POLICY_COLUMNS)
    known = policy >= 0
    chains = np.bincount(policy[known], minlength=len(words))
    lengths = np.bincount(policy[known], steps[known], minlength=len(words))
    measured = known & np.isfinite(gain)
    gains = np.bincount(policy[measured], gain[measured], minlength=len(words))
    counted = np.bincount(policy[measured], minlength=len(words))
    order = np.argsort(-chains, kind="stable")[: np.count_nonzero(chains)]
    rows = [
        (
            words[code],
            int(chains[code]),
            float(lengths[code] / chains[code]),
            float(gains[code] / counted[code]) if counted[code] else None,
        )
        for code in order[:MOST_LISTED].tolist()
    ]
    more = len(order) - len(rows)
    heads = ("policy", "rollouts", "steps per rollout", "mean target root gain")
    return table(heads, rows, f"and {more:,} more" if more else "")
