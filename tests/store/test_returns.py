"""Multi-step returns: what a loop over each state's own chain gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.records import RolloutZarrRecord
from rollbook.store.returns import returns_block
from tests.store.plain_rows import STORES, varied_records, written
from tests.store.synthetic import make_records

Array = NDArray[Any]
NAN = float("nan")


def plain_return(rewards: list[float], gamma: float) -> float:
    """A missing label adds nothing, but its step still counts for the exponent."""
    labelled = [k for k, reward in enumerate(rewards) if np.isfinite(reward)]
    return sum(gamma**k * rewards[k] for k in labelled) if labelled else NAN


def plain_returns(reader: RolloutZarrStoreReader, gamma: float) -> dict[str, Array]:
    horizon = int(reader.array("rollouts/horizon").max())
    monte_carlo, n_step = [], []
    for row in range(reader.num_rollouts):
        chain = reader.rollout(row)
        taken = chain["steps"]["selected_candidate_row_id"]
        rewards = reader.array("candidates/target_root_gain")[taken].astype(float).tolist()
        for state in range(len(rewards)):
            monte_carlo.append(plain_return(rewards[state:], gamma))
            n_step.append(
                [plain_return(rewards[state : state + n], gamma) for n in range(1, horizon + 1)]
            )
    return {
        "mc_return": np.array(monte_carlo, np.float32),
        "n_step_return": np.array(n_step, np.float32).reshape(len(n_step), horizon),
    }


@pytest.mark.slow
@STORES
@given(varied_records(), st.sampled_from([0.0, 0.5, 0.97, 1.0]))
def test_returns_are_what_a_loop_over_each_chain_gives(
    records: list[RolloutZarrRecord], gamma: float
) -> None:
    with written(records, discount_gamma=gamma) as reader:
        for view, discount in (
            (reader.returns_view(), gamma),
            (reader.returns_view(discount_gamma=0.9), 0.9),
        ):
            plain = plain_returns(reader, discount)
            assert view.keys() == plain.keys()
            for name, values in plain.items():
                np.testing.assert_allclose(view[name], values, rtol=1e-6, atol=1e-9, err_msg=name)


def test_stored_returns_are_the_rebuilt_ones() -> None:
    with written(list(make_records(8, early_fraction=0.5)), discount_gamma=0.9) as reader:
        stored, rebuilt = reader.returns_view(), reader.returns_view(discount_gamma=0.9)
        for name, values in stored.items():
            np.testing.assert_array_equal(values, rebuilt[name], err_msg=name)


def test_a_missing_label_is_skipped_while_time_goes_on() -> None:
    rewards = np.array([NAN, 1.0, NAN, 4.0], np.float32)
    view = returns_block(rewards, np.arange(4), np.full(4, 4), horizon=4, gamma=0.5)
    np.testing.assert_array_equal(view["mc_return"], np.array([1.0, 2.0, 2.0, 4.0], np.float32))
    np.testing.assert_array_equal(
        view["n_step_return"],
        np.array(
            [[NAN, 0.5, 0.5, 1.0], [1.0, 1.0, 2.0, 2.0], [NAN, 2.0, 2.0, 2.0], [4.0] * 4],
            np.float32,
        ),
    )


def test_a_chain_without_labels_has_no_return() -> None:
    view = returns_block(
        np.full(3, np.nan, np.float32), np.arange(3), np.full(3, 3), horizon=5, gamma=1.0
    )
    assert np.isnan(view["mc_return"]).all()
    assert view["n_step_return"].shape == (3, 5)
    assert np.isnan(view["n_step_return"]).all()


def test_undiscounted_root_gains_add_up_to_the_gain_of_the_whole_chain() -> None:
    with written(list(make_records(9, branching=True, horizon=4))) as reader:
        for row in range(reader.num_rollouts):
            chain = reader.rollout(row)
            taken = chain["steps"]["selected_candidate_row_id"]
            before = reader.array("candidates/target_pm_dist_before")[taken]
            after = reader.array("candidates/target_pm_dist_after")[taken]
            gain = (before[0] - after[-1]) / before[0]
            first = int(chain["step_offset"])
            np.testing.assert_allclose(chain["final_cumulative_target_root_gain"], gain, atol=1e-5)
            np.testing.assert_allclose(reader.array("returns/mc_return")[first], gain, atol=1e-5)
