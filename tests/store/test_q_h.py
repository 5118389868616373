"""The dense view: its fast path says what the plain definition says, and facts alone rebuild it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError, InvalidNumber
from rollbook.store.config import RolloutZarrStoreConfig
from rollbook.store.q_h import q_h_of
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.records import RolloutZarrRecord
from rollbook.store.schema import Q_H
from tests.store.plain_q_h import plain_q_h
from tests.store.plain_rows import STORES, varied_records, written
from tests.store.synthetic import make_records, spec_fixture_records

Array = NDArray[Any]


def assert_same(first: dict[str, Array], second: dict[str, Array]) -> None:
    assert first.keys() == second.keys()
    for name, values in first.items():
        assert values.dtype == second[name].dtype, name
        np.testing.assert_array_equal(values, second[name], err_msg=name)


def plain_features(reader: RolloutZarrStoreReader) -> dict[str, Array]:
    """Of every action, one state at a time."""
    if not reader.has("candidates/actor_features"):
        return {}
    features = reader.array("candidates/actor_features")
    width = int(reader.array("steps/num_candidates").max())
    dense = np.full((reader.num_steps, width, features.shape[1]), np.nan, np.float32)
    for state in range(reader.num_steps):
        shell = reader.candidates(state)["actor_features"]
        dense[state, : len(shell)] = shell
    return {"actor_features": dense}


@pytest.mark.slow
@STORES
@given(varied_records(), st.sampled_from([0.0, 0.5, 0.97, 1.0, 1.5]))
def test_the_fast_path_says_what_the_plain_definition_says(
    records: list[RolloutZarrRecord], gamma: float
) -> None:
    with written(records, discount_gamma=gamma) as reader:
        plain = {**plain_q_h(reader, gamma), **plain_features(reader)}
        assert_same(q_h_of(reader, gamma), plain)
        assert_same(reader.q_h_view(), plain)
        assert_same(
            reader.q_h_view(discount_gamma=0.25),
            {**plain_q_h(reader, 0.25), **plain_features(reader)},
        )


def test_another_gamma_changes_the_discount_and_nothing_else() -> None:
    with written(list(make_records(4, candidates=(2, 9))), discount_gamma=0.9) as reader:
        stored, rebuilt = reader.q_h_view(), reader.q_h_view(discount_gamma=0.5)
        assert_same(
            {**stored, "td_discount": stored["td_discount"] * 0},
            {**rebuilt, "td_discount": rebuilt["td_discount"] * 0},
        )
        ongoing = ~stored["td_terminal_mask"]
        assert (stored["td_discount"][ongoing] == np.float32(0.9)).all()
        assert (rebuilt["td_discount"][ongoing] == np.float32(0.5)).all()
        assert (rebuilt["td_discount"][~ongoing] == 0).all()


def test_the_view_says_what_it_is() -> None:
    with written(list(make_records(3, candidates=(2, 9), horizon=3)), discount_gamma=0.9) as reader:
        attrs = reader.root["q_h"].attrs
        assert attrs["state_count"] == reader.num_steps == len(reader.array("q_h/td_reward"))
        assert attrs["max_candidates"] == reader.array("steps/num_candidates").max()
        assert (attrs["horizon"], attrs["discount_gamma"]) == (3, 0.9)
        assert attrs["reward_metric"] == "target_root_gain"
        assert attrs["td_semantics"] == "selected_transition_only"
        assert set(reader.q_h_view()) == {
            n for n, column in Q_H.columns.items() if not column.optional
        }


def test_masks_are_false_and_ids_unknown_in_padding() -> None:
    with written(list(make_records(6, candidates=(2, 9), valid_fraction=0.7))) as reader:
        view = reader.q_h_view()
        counts = reader.array("steps/num_candidates")
        padding = np.arange(view["candidate_row_id"].shape[1]) >= counts[:, None]
        assert padding.any()
        assert not view["valid_action_mask"][padding].any()
        assert not view["q_train_mask"][padding].any()
        assert (view["candidate_row_id"][padding] == -1).all()
        assert (view["invalid_reason_bitset"][padding] == 0).all()
        assert np.isnan(view["one_step_target_root_gain"][padding]).all()
        assert not (view["q_train_mask"] & ~view["valid_action_mask"]).any()
        assert np.isfinite(view["one_step_target_root_gain"][view["q_train_mask"]]).all()


def test_transitions_lead_to_the_next_step_of_the_same_chain() -> None:
    with written(
        list(make_records(4, early_fraction=0.5, horizon=4)), discount_gamma=0.9
    ) as reader:
        view, steps = reader.q_h_view(), reader.table("steps")
        selected = steps["selected_candidate_row_id"]
        np.testing.assert_array_equal(view["td_selected_candidate_row_id"], selected)
        following = view["td_next_step_row_id"]
        ongoing = ~view["td_terminal_mask"]
        assert ongoing.any()
        assert not ongoing.all()
        np.testing.assert_array_equal(ongoing, following >= 0)
        np.testing.assert_array_equal(ongoing, view["td_discount"] > 0)
        assert (
            steps["rollout_row_id"][following[ongoing]] == steps["rollout_row_id"][ongoing]
        ).all()
        assert (steps["step_index"][following[ongoing]] == steps["step_index"][ongoing] + 1).all()


def test_the_reward_is_the_root_gain_not_the_state_relative_one() -> None:
    with written(spec_fixture_records(depth=False, crops=False)) as reader:
        view = reader.q_h_view()
        taken = reader.array("steps/selected_candidate_row_id")
        np.testing.assert_array_equal(
            view["td_reward"], reader.array("candidates/target_root_gain")[taken]
        )
        np.testing.assert_allclose(view["td_reward"], view["td_reward_target_rri"] + 10)


@pytest.mark.parametrize("gamma", [-0.1, np.nan, np.inf])
def test_an_impossible_gamma_is_refused(tmp_path: Path, gamma: float) -> None:
    with pytest.raises(InvalidNumber, match="discount_gamma"):
        RolloutZarrStoreConfig(store_dir=tmp_path / "s", discount_gamma=gamma)
    with written(spec_fixture_records(depth=False, crops=False)) as reader:
        with pytest.raises(InvalidNumber, match="discount_gamma"):
            reader.q_h_view(discount_gamma=gamma)
        with pytest.raises(InvalidNumber, match="discount_gamma"):
            reader.returns_view(discount_gamma=gamma)


@pytest.mark.parametrize("least", [1, 900, 4096])
def test_chunks_hold_at_least_the_states_that_were_asked_for(tmp_path: Path, least: int) -> None:
    records = list(make_records(250, candidates=20, features=64, horizon=4))
    with written(records, q_h_chunk_states=least) as reader:
        assert reader.root["q_h"].attrs["chunk_states"] == least
        metadata = json.loads((reader.store_dir / "q_h/actor_features/zarr.json").read_bytes())
        rows = metadata["chunk_grid"]["configuration"]["chunk_shape"][0]
        assert min(least, reader.num_steps) <= rows <= reader.num_steps
        assert (rows < reader.num_steps) == (least < reader.num_steps)
        assert_same(reader.q_h_view(), q_h_of(reader, 1.0))
    with pytest.raises(ConfigurationError, match="q_h_chunk_states is 0"):
        RolloutZarrStoreConfig(store_dir=tmp_path, q_h_chunk_states=0)
