"""The dense training view, computed from the factual tables: one state per step, actions padded to the widest shell.

`q_h_block` works on whole columns. The tests compare it with a plain definition that builds one state at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import InvalidNumber
from rollbook.store.schema import Q_H
from rollbook.store.stored_tables import StoredTables

Array = NDArray[Any]
Columns = Mapping[str, Array]

STEP_COLUMNS = (
    "step_row_id",
    "rollout_row_id",
    "step_index",
    "selected_candidate_row_id",
    "num_candidates",
    "candidate_offset",
)
ROLLOUT_COLUMNS = ("source_row_id", "target_row_id", "num_steps")
CANDIDATE_COLUMNS = (
    "candidate_row_id",
    "actor_action_mask",
    "q_train_mask",
    "position_id",
    "target_rri",
    "target_root_gain",
    "invalid_reason_bitset",
)
"""Poses are left out: they are most of the table, and the view does not contain them."""


def checked_gamma(gamma: float) -> float:
    if not 0 <= gamma < np.inf:
        raise InvalidNumber(
            record="q_h", field="discount_gamma", value=repr(gamma), expected="a finite number >= 0"
        )
    return float(gamma)


def q_h_block(
    steps: Columns, rollouts: Columns, candidates: Columns, *, width: int, gamma: float
) -> dict[str, Array]:
    """The states of neighbouring steps. `candidates` has exactly their rows; `rollouts` has all rows of the store."""
    states = len(steps["step_row_id"])
    chain = steps["rollout_row_id"]
    dense = _Dense(steps["num_candidates"].astype(np.int64), width)
    valid = dense.spread("valid_action_mask", candidates["actor_action_mask"])
    gains = _where(valid, dense.spread("one_step_target_root_gain", candidates["target_root_gain"]))
    rri = _where(valid, dense.spread("one_step_target_rri", candidates["target_rri"]))
    chosen = (steps["selected_candidate_row_id"] - steps["candidate_offset"]).astype(np.int64)
    inside = (chosen >= 0) & (chosen < steps["num_candidates"])
    column = np.where(inside, chosen, 0)
    every = np.arange(states)
    following = inside & (steps["step_index"] + 1 < rollouts["num_steps"][chain])
    view = {
        "state_step_row_id": steps["step_row_id"],
        "source_row_id": rollouts["source_row_id"][chain],
        "candidate_row_id": dense.spread("candidate_row_id", candidates["candidate_row_id"]),
        "valid_action_mask": valid,
        "q_train_mask": dense.spread("q_train_mask", candidates["q_train_mask"]) & valid,
        "target_row_id": rollouts["target_row_id"][chain],
        "selected_candidate_index": np.where(inside, chosen, -1),
        "position_id": dense.spread("position_id", candidates["position_id"]),
        "one_step_target_rri": rri,
        "one_step_target_root_gain": gains,
        "invalid_reason_bitset": dense.spread(
            "invalid_reason_bitset", candidates["invalid_reason_bitset"]
        ),
        "td_selected_candidate_row_id": np.where(inside, steps["selected_candidate_row_id"], -1),
        "td_reward": np.where(inside, gains[every, column], np.nan)
        if width
        else np.full(states, np.nan),
        "td_reward_target_rri": np.where(inside, rri[every, column], np.nan)
        if width
        else np.full(states, np.nan),
        "td_next_step_row_id": np.where(following, steps["step_row_id"] + 1, -1),
        "td_terminal_mask": ~following,
        "td_discount": np.where(following, gamma, 0.0),
    }
    if "actor_features" in candidates:
        view["actor_features"] = dense.spread("actor_features", candidates["actor_features"])
    return {
        name: view[name].astype(Q_H.columns[name].numpy, copy=False)
        for name in Q_H.columns
        if name in view
    }


class _Dense:
    """Puts candidate rows into an array of states x actions. If all shells are equally wide, this is a reshape."""

    def __init__(self, counts: NDArray[np.int64], width: int) -> None:
        self._shape = (len(counts), width)
        self._full = bool((counts == width).all())
        if not self._full:
            ends = np.cumsum(counts)
            self._state = np.repeat(np.arange(len(counts)), counts)
            self._action = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(
                ends - counts, counts
            )

    def spread(self, name: str, values: Array) -> Array:
        shape = (*self._shape, *values.shape[1:])
        if self._full:
            return values.reshape(shape)
        dense = np.full(shape, Q_H.columns[name].fill, Q_H.columns[name].numpy)
        dense[self._state, self._action] = values
        return dense


def _where(valid: Array, values: Array) -> Array:
    return np.where(valid, values, np.float32(np.nan))


def q_h_of(store: StoredTables, discount_gamma: float) -> dict[str, Array]:
    """The whole view, computed again from the factual tables."""
    names = list(CANDIDATE_COLUMNS)
    if store.has("candidates/actor_features"):
        names.append("actor_features")
    counts = store.array("steps/num_candidates")
    return q_h_block(
        store.table("steps", STEP_COLUMNS),
        store.table("rollouts", ROLLOUT_COLUMNS),
        store.table("candidates", names),
        width=int(counts.max(initial=0)),
        gamma=checked_gamma(discount_gamma),
    )


def q_h_for_gamma(store: StoredTables, discount_gamma: float) -> dict[str, Array]:
    """The stored view with another discount. Only `td_discount` depends on gamma."""
    view = store.table("q_h")
    return {**view, "td_discount": discount_of(view["td_terminal_mask"], discount_gamma)}


def discount_of(terminal: Array, discount_gamma: float) -> Array:
    """`td_discount` of states: gamma, and 0 at the end of a chain."""
    gamma = np.float32(checked_gamma(discount_gamma))
    return np.where(terminal, np.float32(0), gamma).astype(np.float32)
