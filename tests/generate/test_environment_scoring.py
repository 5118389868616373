"""Scoring only the chosen candidate: the same episodes as scoring all of them, and nothing told about the others."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.errors import ConfigurationError
from rollbook.generate.environment import CounterfactualEnv
from rollbook.generate.rollout.nodes import NodeEvaluator, RolloutTask
from rollbook.generate.row_rollouts import RowRoller
from tests.generate.test_environment import GREEDY, HORIZON, an_env, played, same, seen
from tests.generate.tiny_source import tiny_config

_SMALL = {"render_size_px": 40, "scene_samples": 1000, "target_samples": 400}
_WIDE = {"max_yaw_delta_deg": 180.0, "max_backward_step_m": 1.0}
KINDS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "every image is looked at whole": {"candidate_rules": _WIDE | {"min_hit_fraction": 1.0}},
    "rules about pixels of the target": {
        "candidate_rules": _WIDE | {"min_target_pixels": 30, "backprojection_stride": 3}
    },
    "another metric, other rays, no scene": {
        "renderer": "bvh",
        "candidate_rules": _WIDE,
        "target_scorer": {
            "render_size_px": 30,
            "metric": "face_sq",
            "truncation_m": None,
            "include_scene": False,
            "backprojection_stride": 2,
        },
    },
}


@lru_cache
def environments(kind: str) -> tuple[CounterfactualEnv, CounterfactualEnv]:
    """One that scores the chosen candidate, and one that scores all."""
    config = tiny_config(
        Path("unused"),
        **{"target_selector": {"k": 8}, "recipes": [GREEDY], "min_valid_root_candidates": 1}
        | {"target_scorer": _SMALL}
        | KINDS[kind],
    )
    return CounterfactualEnv(config), CounterfactualEnv(config, score="all")


def without_the_others(info: dict[str, Any]) -> dict[str, Any]:
    return {name: info[name] for name in info if name not in ("scored", "candidate_gains")}


EPISODES = {
    "kind": st.sampled_from(list(KINDS)),
    "seed": st.integers(0, 2**31 - 1),
    "actions": st.lists(
        st.tuples(st.integers(0, 59), st.booleans()), min_size=HORIZON, max_size=HORIZON
    ),
}
"""An action is a number, and whether it may be invalid; otherwise it counts within the valid ones."""


def play_both(kind: str, seed: int, actions: list[tuple[int, bool]]) -> None:
    env, full = environments(kind)
    (observation, info), (expected, told) = env.reset(seed=seed), full.reset(seed=seed)
    for number, any_action in actions:
        assert same(observation, expected)
        assert same(without_the_others(info), without_the_others(told))
        valid, gains = np.flatnonzero(info["action_mask"]), told["candidate_gains"]
        action = number if any_action else int(valid[number % len(valid)])
        observation, reward, terminated, truncated, info = env.step(action)
        expected, full_reward, *ended, told = full.step(action)
        assert (reward, terminated, truncated) == (full_reward, *ended)
        assert reward == (gains[action] if action in valid else -0.01)
        if terminated:
            break
    assert same(observation, expected)
    assert same(without_the_others(info), without_the_others(told))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(**EPISODES)
def test_rewards_and_observations_are_those_of_scoring_everything_to_the_last_bit(
    kind: str, seed: int, actions: list[tuple[int, bool]]
) -> None:
    play_both(kind, seed, actions)


@pytest.mark.slow  # the same with many more episodes
@settings(max_examples=150, deadline=None)
@given(**EPISODES)
def test_rewards_and_observations_are_those_of_scoring_everything_in_many_episodes(
    kind: str, seed: int, actions: list[tuple[int, bool]]
) -> None:
    play_both(kind, seed, actions)


@lru_cache
def a_task(kind: str) -> RolloutTask:
    env = environments(kind)[0]
    roller = RowRoller(env.config, env._source)
    return next(roller.tasks(env._indices[0]))


@pytest.mark.parametrize("kind", KINDS)
def test_an_offered_shell_has_the_verdicts_and_features_of_an_evaluated_one(kind: str) -> None:
    for seed in range(2):
        evaluator = NodeEvaluator(a_task(kind), seed, HORIZON)
        root = evaluator.root()
        offered, evaluated = evaluator.offer(root).candidates, evaluator.evaluate(root).candidates
        for name in ("shell_poses", "mask_valid", "invalid_reason_bitset", "actor_features"):
            assert same(getattr(offered, name), getattr(evaluated, name)), name
        assert same(offered.extras["valid_actor_mask"], evaluated.extras["valid_actor_mask"])


def test_labels_that_are_not_finite_still_make_a_candidate_invalid() -> None:
    """Without a limit of the distances, a root far away has infinite errors: then everything is scored."""
    task = a_task("as it comes")
    evaluator = NodeEvaluator(task, 0, HORIZON)
    root = evaluator.root()
    d2 = np.full_like(root.oracle.target.d2, np.inf)
    target = dataclasses.replace(root.oracle.target, d2=d2, completeness=np.inf)
    lost = dataclasses.replace(root, oracle=dataclasses.replace(root.oracle, target=target))
    with np.errstate(invalid="ignore"):
        assert evaluator.offer(lost).num_valid == 0
        assert NodeEvaluator(task, 0, HORIZON).offer(root).num_valid > 0


# --------------------------------------------------------------------------------- what is told


def test_nothing_but_the_chosen_candidate_is_scored() -> None:
    env = an_env()
    _, info = env.reset(options=seen())
    episode = env._episode
    assert episode is not None
    while not info["ended"]:
        *_, info = env.step(int(np.flatnonzero(info["action_mask"])[0]))
        assert info["scored"] == "chosen"
        assert "candidate_gains" not in info
    assert episode.evaluator.candidates_scored == 0


def test_info_tells_of_the_oracle_only_the_gains_of_what_was_taken() -> None:
    """Another oracle gives other gains, and otherwise the very same info."""
    other = an_env(target_scorer=_SMALL | {"seed": 9, "truncation_m": 0.3})
    first, second = played(an_env(), 3, **seen()), played(other, 3, **seen())
    for told, others in zip(first, second, strict=True):
        gains = {name for name in told[-1] if not same(told[-1][name], others[-1][name])}
        assert gains <= {"target_gain", "scene_gain"}
    assert first[-1][-1]["target_gain"] != second[-1][-1]["target_gain"]


def test_when_asked_info_has_the_reward_of_every_offered_action() -> None:
    env = environments("as it comes")[1]
    _, info = env.reset(seed=1)
    while not info["ended"]:
        gains, mask = info["candidate_gains"], info["action_mask"]
        assert info["scored"] == "all"
        np.testing.assert_array_equal(gains, env.labels["target_root_gain"])
        assert (np.isfinite(gains) == mask).all()
        best = int(np.nanargmax(gains))
        _, reward, *_, info = env.step(best)
        assert reward == gains[best]
    assert np.isnan(info["candidate_gains"]).all()


def test_another_way_of_scoring_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="score is 'best', expected chosen or all"):
        CounterfactualEnv(tiny_config(Path("unused")), score="best")  # type: ignore[arg-type]
