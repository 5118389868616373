"""The definition of the dense training view, one state at a time: what `store/q_h.py` is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.store.q_h import CANDIDATE_COLUMNS
from rollbook.store.schema import Q_H
from rollbook.store.stored_tables import StoredTables

Array = NDArray[Any]


def plain_q_h(store: StoredTables, discount_gamma: float) -> dict[str, Array]:
    """Slow, and without the optional columns."""
    steps, rollouts = store.table("steps"), store.table("rollouts")
    candidates = store.table("candidates", CANDIDATE_COLUMNS)
    width = int(steps["num_candidates"].max(initial=0))
    sizes = {"A": width}
    view = {
        name: np.full(
            (store.num_steps, *(sizes[str(size)] for size in column.shape)),
            column.fill,
            column.numpy,
        )
        for name, column in Q_H.columns.items()
        if not column.optional
    }
    for state in range(store.num_steps):
        chain = int(steps["rollout_row_id"][state])
        first = int(steps["candidate_offset"][state])
        count = int(steps["num_candidates"][state])
        rows = slice(first, first + count)
        valid = candidates["actor_action_mask"][rows]
        view["state_step_row_id"][state] = steps["step_row_id"][state]
        view["source_row_id"][state] = rollouts["source_row_id"][chain]
        view["target_row_id"][state] = rollouts["target_row_id"][chain]
        view["candidate_row_id"][state, :count] = candidates["candidate_row_id"][rows]
        view["valid_action_mask"][state, :count] = valid
        view["q_train_mask"][state, :count] = candidates["q_train_mask"][rows] & valid
        view["position_id"][state, :count] = candidates["position_id"][rows]
        view["invalid_reason_bitset"][state, :count] = candidates["invalid_reason_bitset"][rows]
        for name, source in (
            ("one_step_target_rri", "target_rri"),
            ("one_step_target_root_gain", "target_root_gain"),
        ):
            view[name][state, :count] = np.where(valid, candidates[source][rows], np.nan)
        selected = int(steps["selected_candidate_row_id"][state])
        found = np.flatnonzero(candidates["candidate_row_id"][rows] == selected)
        if not len(found):
            continue
        action = int(found[0])
        view["selected_candidate_index"][state] = action
        view["td_selected_candidate_row_id"][state] = selected
        view["td_reward"][state] = view["one_step_target_root_gain"][state, action]
        view["td_reward_target_rri"][state] = view["one_step_target_rri"][state, action]
        after = np.flatnonzero(
            (steps["rollout_row_id"] == chain)
            & (steps["step_index"] == steps["step_index"][state] + 1)
        )
        if len(after):
            view["td_next_step_row_id"][state] = steps["step_row_id"][after[0]]
            view["td_terminal_mask"][state] = False
            view["td_discount"][state] = discount_gamma
    return view
