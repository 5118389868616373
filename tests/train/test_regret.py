"""Regret of scores, compared with a plain loop over states."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollbook.train.regret import RegretMeasure, head_metrics


def plain_regret(gain: NDArray[Any], scores: NDArray[Any]) -> float:
    lost = []
    for state, rated in zip(gain, scores, strict=True):
        known = np.flatnonzero(np.isfinite(state))
        if len(known) >= 2:
            chosen = max(known, key=lambda at: (rated[at], -at))
            lost.append(state[known].max() - state[chosen])
    return float(np.mean(lost)) if lost else 0.0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 6), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_regret_is_the_mean_loss_over_states_with_a_choice(
    states: int, width: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    gain = np.where(rng.random((states, width)) < 0.3, np.nan, rng.normal(size=(states, width)))
    scores = rng.integers(0, 3, (states, width)).astype(float)
    measure = RegretMeasure(gain)
    assert np.isclose(measure.of(scores), plain_regret(gain, scores))
    assert measure.of(np.nan_to_num(gain, nan=9.0)) == 0.0
    assert measure.of_random() >= 0.0
    plain = [len(set(state[np.isfinite(state)].tolist())) > 1 for state in gain]
    assert measure.differs.tolist() == plain


def test_where_nothing_can_be_lost_no_gap_is_closed() -> None:
    alike = RegretMeasure(np.full((3, 7), 0.3))
    metrics = head_metrics(1, 5, alike.of(np.zeros((3, 7))), alike.of_random())
    assert metrics["head_1_gap_closed"] == 0.0
