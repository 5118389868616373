"""Outcomes are read where recorders write them, and taken from a policy only as what they should be."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.contracts.outcomes import OUTCOMES
from rollbook.errors import InvalidValue
from rollbook.scoring.outcomes import candidate_outcome, outcome_of

public: Any = import_module("robotrace.evals")

FIELDS = st.sampled_from(
    [*OUTCOMES, "next.success", "next.reward_sum", "reward", "total_reward", "reward_sum"]
)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.floats(-9, 9), st.text(max_size=2)
)
FLAT = st.dictionaries(FIELDS, VALUES, max_size=4)
NESTED = st.dictionaries(
    st.sampled_from(["outcome", "lerobot_episode_outcome", "hdf5_episode_outcome"]),
    st.one_of(FLAT, VALUES),
)


@settings(max_examples=300, deadline=None)
@given(flat=FLAT, nested=NESTED)
def test_what_the_public_client_reads_we_read_the_same(flat: Any, nested: Any) -> None:
    metadata = {**flat, **nested}
    ours = outcome_of(metadata)
    assert set(ours) == set(OUTCOMES)
    for name, value in public.extract_outcome(metadata).items():
        assert ours[name] == value
        assert type(ours[name]) is type(value)


@pytest.mark.parametrize(
    ("metadata", "name", "value"),
    [
        ({"total_reward": 12}, "reward_total", 12.0),
        ({"hdf5_episode_outcome": {"reward_sum": 3.5}}, "reward_total", 3.5),
        ({"hdf5_episode_outcome": {"success": True}}, "success", True),
        ({"total_reward": 12, "outcome": {"reward_total": 1}}, "reward_total", 1.0),
        ({"reward_total": float("nan"), "outcome": {"reward_total": 2}}, "reward_total", 2.0),
        ({"reward_total": 10**400}, "reward_total", None),
        ({"success": "yes"}, "success", None),
        ({"success": 1}, "success", None),
    ],
)
def test_other_recorders_are_understood_and_nothing_is_guessed(
    metadata: dict[str, Any], name: str, value: Any
) -> None:
    assert outcome_of(metadata)[name] == value


def test_numpy_scalars_become_plain_values() -> None:
    said = {
        "success": np.bool_(True),
        "reward_total": np.float32(2.5),
        "collision_count": np.int64(3),
        "time_to_goal_s": np.array(1.5),
    }
    found = candidate_outcome(said)
    assert found == {
        "success": True,
        "reward_total": 2.5,
        "collision_count": 3,
        "time_to_goal_s": 1.5,
    }
    assert [type(value) for value in found.values()] == [bool, float, int, float]


def test_what_is_not_said_is_not_there() -> None:
    assert candidate_outcome({"success": None, "reward_total": 1, "mood": "fine"}) == {
        "reward_total": 1.0
    }
    assert candidate_outcome(None) == {}
    assert candidate_outcome({}) == {}


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"success": 0.5}, "_outcome.success"),
        ({"success": "true"}, "_outcome.success"),
        ({"success": 2}, "_outcome.success"),
        ({"reward_total": float("nan")}, "_outcome.reward_total"),
        ({"reward_total": np.inf}, "_outcome.reward_total"),
        ({"reward_total": True}, "_outcome.reward_total"),
        ({"reward_total": np.array([1.0, 2.0])}, "_outcome.reward_total"),
        ({"collision_count": -1}, "_outcome.collision_count"),
        ({"collision_count": 1.5}, "_outcome.collision_count"),
        ({"time_to_goal_s": -0.1}, "_outcome.time_to_goal_s"),
        ([1, 2], "_outcome"),
    ],
)
def test_what_cannot_be_an_outcome_is_refused_by_name(said: Any, field: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        candidate_outcome(said)
    assert refused.value.field == field


def test_a_misspelt_outcome_of_a_policy_is_refused_not_left_out() -> None:
    with pytest.raises(InvalidValue, match=r"_outcome.sucess .* did you mean success\?"):
        candidate_outcome({"sucess": True})
