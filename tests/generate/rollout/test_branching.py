"""Branch counts and beams."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.errors import ConfigurationError
from rollbook.generate.rollout.branching import BranchSchedule, beam

NAN = math.nan


def counts(schedule: BranchSchedule, steps: int, seed: int = 0) -> list[int]:
    rng = np.random.default_rng(seed)
    return [schedule.count(step, rng) for step in range(steps)]


def test_without_more_said_every_node_keeps_the_branch_factor() -> None:
    assert counts(BranchSchedule(), 3) == [1, 1, 1]
    assert counts(BranchSchedule(branch_factor=4), 3) == [4, 4, 4]


def test_a_schedule_goes_step_by_step_and_its_last_entry_goes_on() -> None:
    schedule = BranchSchedule(branch_factor=7, branch_factor_schedule=(3, 2, 1))
    assert counts(schedule, 5) == [3, 2, 1, 1, 1]


def test_drawn_counts_come_as_often_as_their_weights_say() -> None:
    schedule = BranchSchedule(
        stochastic_branch_factors=(1, 2, 5), stochastic_branch_probabilities=(2.0, 0.0, 6.0)
    )
    drawn = counts(schedule, 4000)
    assert drawn == counts(schedule, 4000)
    assert drawn != counts(schedule, 4000, seed=1)
    assert set(drawn) == {1, 5}
    assert drawn.count(5) / 4000 == pytest.approx(0.75, abs=0.03)


def test_drawn_counts_are_equally_likely_without_weights() -> None:
    drawn = counts(BranchSchedule(stochastic_branch_factors=(2, 3)), 4000)
    assert drawn.count(2) / 4000 == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    ("schedule", "used"),
    [
        (BranchSchedule(branch_factor=2), 0),
        (BranchSchedule(branch_factor_schedule=(2, 1)), 0),
        (BranchSchedule(stochastic_branch_factors=(2, 3)), 1),
    ],
)
def test_only_drawn_counts_use_the_generator_once_per_node(
    schedule: BranchSchedule, used: int
) -> None:
    rng, same = np.random.default_rng(5), np.random.default_rng(5)
    schedule.count(0, rng)
    same.random(used)
    assert rng.bit_generator.state == same.bit_generator.state


@pytest.mark.parametrize(
    ("given_fields", "field"),
    [
        ({"branch_factor": 0}, "branch_factor"),
        ({"branch_factor_schedule": ()}, "branch_factor_schedule"),
        ({"branch_factor_schedule": (2, 0)}, "branch_factor_schedule"),
        ({"stochastic_branch_factors": ()}, "stochastic_branch_factors"),
        ({"stochastic_branch_factors": (1, -2)}, "stochastic_branch_factors"),
        (
            {"branch_factor_schedule": (2,), "stochastic_branch_factors": (2,)},
            "branch_factor_schedule",
        ),
        ({"stochastic_branch_probabilities": (1.0,)}, "stochastic_branch_probabilities"),
        *(
            (
                {"stochastic_branch_factors": (1, 2), "stochastic_branch_probabilities": weights},
                "stochastic_branch_probabilities",
            )
            for weights in [
                (),
                (1.0,),
                (0.5, 0.25, 0.25),
                (1.5, -0.5),
                (0.0, 0.0),
                (NAN, 1.0),
                (1.0, NAN),
                (1.0, math.inf),
                (1e308, 1e308),
            ]
        ),
    ],
)
def test_branching_that_cannot_be_is_refused_by_name(
    given_fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^recipe.{field} is"):
        BranchSchedule(**given_fields)


def test_a_schedule_is_read_from_plain_values() -> None:
    plain = {"stochastic_branch_factors": [2, 3], "stochastic_branch_probabilities": [1, 3]}
    schedule = msgspec.convert(plain, BranchSchedule)
    assert set(counts(schedule, 100)) == {2, 3}
    assert msgspec.convert(msgspec.to_builtins(schedule), BranchSchedule) == schedule


# --------------------------------------------------------------------------------------------- beam


@pytest.mark.parametrize(
    ("scores", "width", "kept"),
    [
        ([], 2, []),
        ([1.0, NAN, 0.0], None, [0, 1, 2]),
        ([1.0, NAN, 0.0], 3, [0, 1, 2]),
        ([2.0, 1.0, 3.0], 2, [0, 2]),
        ([2.0, 1.0, 3.0], 1, [2]),
        ([0.0, 1.0, -0.0, 1.0, 0.0], 2, [1, 3]),
        ([NAN, -5.0, NAN, 0.0], 2, [1, 3]),
        ([NAN, -math.inf, NAN], 1, [1]),
        ([-math.inf, 0.0, math.inf], 2, [1, 2]),
    ],
)
def test_a_beam_keeps_the_best_in_their_order(
    scores: list[float], width: int | None, kept: list[int]
) -> None:
    assert beam(scores, width, np.random.default_rng(0)).tolist() == kept


@settings(max_examples=80)
@given(
    scores=st.lists(st.one_of(st.just(NAN), st.integers(-3, 3).map(float)), max_size=15),
    width=st.integers(1, 16),
)
def test_nothing_left_out_is_better_than_what_a_beam_keeps(scores: list[float], width: int) -> None:
    kept = beam(scores, width, np.random.default_rng(1)).tolist()
    out = [index for index in range(len(scores)) if index not in kept]
    rank = [(math.isnan(score), -score if score == score else 0) for score in scores]
    assert len(kept) == min(width, len(scores))
    assert kept == sorted(set(kept))
    assert all(rank[inside] <= rank[outside] for inside in kept for outside in out)


@pytest.mark.parametrize("score", [0.0, -2.0, math.inf, NAN])
def test_of_equal_chains_each_is_kept_as_often_as_another(score: float) -> None:
    rng = np.random.default_rng(2)
    kept = np.concatenate([beam([score] * 6, 2, rng) for _ in range(3000)])
    assert np.bincount(kept, minlength=6) == pytest.approx(1000, abs=120)


def test_of_equal_chains_a_beam_keeps_those_with_the_greater_tie_break() -> None:
    scores, ties = [1.0, 2.0, 1.0, 1.0, 0.0], [0.1, 0.0, 0.3, 0.2, 9.0]
    assert beam(scores, 3, np.random.default_rng(3), ties).tolist() == [1, 2, 3]


def test_a_beam_without_width_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"recipe\.beam_width is 0"):
        beam([1.0], 0, np.random.default_rng(0))
