"""Recipes: what they may say, and the suites that come with the package."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from rollbook.errors import ConfigurationError
from rollbook.generate.rollout.policies import CounterfactualSelectionPolicy
from rollbook.generate.rollout.recipes import RolloutRecipeConfig


def test_the_default_suite_is_the_four_that_seeds_name() -> None:
    suite = {recipe.name: recipe for recipe in RolloutRecipeConfig.default_suite()}
    assert list(suite) == [
        *("random_valid", "oracle_greedy", "oracle_lookahead", "temperature_softmax")
    ]
    assert {recipe.horizon for recipe in suite.values()} == {2}
    assert {recipe.seed for recipe in suite.values()} == {0}
    shapes = {name: (each.branch_factor, each.beam_width) for name, each in suite.items()}
    assert shapes == {
        "random_valid": (1, None),
        "oracle_greedy": (1, None),
        "oracle_lookahead": (2, 2),
        "temperature_softmax": (2, 2),
    }


def test_the_diverse_suite_keeps_three_chains_apart() -> None:
    suite = RolloutRecipeConfig.diverse_suite()
    assert [recipe.name for recipe in suite] == [
        *("random_valid_diverse", "oracle_lookahead_diverse", "temperature_softmax_diverse")
    ]
    for recipe in suite:
        assert (recipe.branch_factor, recipe.beam_width) == (3, 3)
        assert recipe.guards.require_sibling_strategy_diversity
        assert recipe.guards.min_sibling_distance_m == 0.2
    soft = suite[-1]
    assert (soft.selection_temperature, soft.stochastic_branch_factors) == (1.25, (2, 3))


def test_a_policy_may_be_given_by_its_name() -> None:
    recipe = RolloutRecipeConfig(name="a", selection_policy=cast(Any, "oracle_greedy"))
    assert recipe.selection_policy is CounterfactualSelectionPolicy.ORACLE_GREEDY
    with pytest.raises(ConfigurationError, match="selection_policy is 'best', expected farthest"):
        RolloutRecipeConfig(name="a", selection_policy=cast(Any, "best"))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"horizon": 0}, "horizon is 0"),
        ({"beam_width": 0}, "beam_width is 0"),
        ({"branch_factor": 0}, "branch_factor is"),
        ({"selection_temperature": 0.0}, "selection_temperature is 0.0"),
        ({"selection_temperature": float("nan")}, "selection_temperature is nan"),
        ({"min_sibling_yaw_deg": -1.0}, "min_sibling_yaw_deg is -1.0"),
        ({"stochastic_branch_probabilities": (1.0,)}, "stochastic_branch_probabilities"),
        (
            {"branch_factor_schedule": (1,), "stochastic_branch_factors": (1, 2)},
            "branch_factor_schedule",
        ),
        ({"name": ""}, "name is ''"),
        ({"horizon": 40_000}, "horizon is 40000, expected at least 1 and at most 32767"),
        ({"beam_width": 40_000}, "beam_width is 40000"),
        ({"seed": 2**63}, "seed is 9223372036854775808, expected a whole number of 64 bits"),
        ({"scorer": ""}, "scorer is ''"),
        ({"epsilon": 0.1}, "epsilon is 0.1, expected nothing: random_valid has no epsilon"),
        ({"selection_policy": "epsilon_greedy", "epsilon": 1.5}, "epsilon is 1.5, expected a prob"),
        ({"selection_policy": "epsilon_greedy", "epsilon": float("nan")}, "epsilon is nan"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_made(fields: dict[str, Any], said: str) -> None:
    given = {"name": "a", "selection_policy": "random_valid"} | fields
    with pytest.raises((ConfigurationError, msgspec.ValidationError), match=said):
        RolloutRecipeConfig(**given)


def test_epsilon_is_written_only_where_it_counts() -> None:
    """Digests of configs without it are those of releases that did not know it."""
    for recipe in RolloutRecipeConfig.default_suite():
        assert "epsilon" not in msgspec.to_builtins(recipe)
    near = RolloutRecipeConfig(name="a", selection_policy=cast(Any, "epsilon_greedy"))
    assert msgspec.to_builtins(near)["epsilon"] == 0.1
    assert msgspec.convert(msgspec.to_builtins(near), RolloutRecipeConfig) == near
