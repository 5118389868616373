"""Multi-step returns of every state along its chain: Monte-Carlo to the end, and over the next n rewards.

The reward of a step is the root gain of the selected candidate, so returns are in units of the error at the root. A
step without a label adds nothing, but the discount still advances. A return without any label is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.store.q_h import checked_gamma
from rollbook.store.schema import RETURNS
from rollbook.store.stored_tables import StoredTables

Array = NDArray[Any]


def returns_block(
    rewards: NDArray[np.float32],
    step_index: Array,
    num_steps: Array,
    *,
    horizon: int,
    gamma: float,
) -> dict[str, Array]:
    """Returns of states in row order, from the place of each in its chain and the length of the chain. Chains must be
    complete."""
    states = len(rewards)
    left = (num_steps - step_index).astype(np.int64)
    finite = np.isfinite(rewards)
    values = np.where(finite, rewards, 0).astype(np.float64)
    n_step = np.full((states, horizon), np.nan)
    total, labelled = np.zeros(states), np.zeros(states, np.bool_)
    every = np.arange(states)
    for k in range(horizon):
        here = left > k
        at = every[here] + k
        total[here] += gamma**k * values[at]
        labelled[here] |= finite[at]
        n_step[:, k] = np.where(labelled, total, np.nan)
    view = {
        "mc_return": n_step[:, -1] if horizon else np.full(states, np.nan),
        "n_step_return": n_step,
    }
    return {name: view[name].astype(column.numpy) for name, column in RETURNS.columns.items()}


def returns_of(store: StoredTables, discount_gamma: float) -> dict[str, Array]:
    """The whole view, computed again from the factual tables."""
    steps = store.table("steps", ("rollout_row_id", "step_index", "selected_candidate_row_id"))
    taken = steps["selected_candidate_row_id"]
    rewards = store.array("candidates/target_root_gain")[taken]
    valid = store.array("candidates/actor_action_mask")[taken]
    num_steps: Mapping[str, Array] = store.table("rollouts", ("num_steps", "horizon"))
    return returns_block(
        np.where(valid, rewards, np.float32(np.nan)),
        steps["step_index"],
        num_steps["num_steps"][steps["rollout_row_id"]],
        horizon=int(num_steps["horizon"].max(initial=1)),
        gamma=checked_gamma(discount_gamma),
    )
