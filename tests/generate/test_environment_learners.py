"""Learners in the environment: vector environments, stable-baselines3, and an example that learns."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from numpy.typing import NDArray

from rollbook.generate.environment import CounterfactualEnv
from tests.generate.test_environment import GREEDY, same
from tests.generate.tiny_source import tiny_config


def two_environments() -> list[partial[CounterfactualEnv]]:
    return [partial(CounterfactualEnv, tiny_config(Path("unused"), recipes=[GREEDY]))] * 2


def first_valid(masks: NDArray[Any]) -> NDArray[np.int64]:
    return np.asarray(np.argmax(masks, axis=1), np.int64)


def told(envs: Any, steps: int = 5) -> list[Any]:
    """What a vector environment tells over more than one episode."""
    try:
        observation, info = envs.reset(seed=[4, 5])
        found: list[Any] = [(observation, info["row"])]
        for _ in range(steps):
            observation, rewards, ended, _, info = envs.step(first_valid(info["action_mask"]))
            found.append((observation, rewards, ended, info["target_gain"]))
    finally:
        envs.close()
    return found


def test_environments_side_by_side_give_the_episodes_of_each() -> None:
    observation, *_ = told(SyncVectorEnv(two_environments()), 1)[0]
    for number, seed in enumerate((4, 5)):
        alone, _ = two_environments()[0]().reset(seed=seed)
        assert same({name: observation[name][number] for name in alone}, alone)


@pytest.mark.slow  # starts two processes, each of which loads the kernels
def test_spawned_processes_tell_the_same_as_one_process() -> None:
    one, spawned = (SyncVectorEnv, partial(AsyncVectorEnv, context="spawn"))
    assert same(told(one(two_environments())), told(spawned(two_environments())))


@pytest.mark.slow  # starts two processes and imports torch
def test_stable_baselines_takes_the_spaces_and_the_masks_of_spawned_processes() -> None:
    vectors = pytest.importorskip("stable_baselines3.common.vec_env")
    masking = pytest.importorskip("sb3_contrib.common.maskable.utils")
    envs = vectors.SubprocVecEnv(two_environments(), "spawn")
    try:
        envs.seed(4)
        observation = envs.reset()
        masks = masking.get_action_masks(envs)
        assert np.array_equal(masks, observation["candidate_valid_mask"].astype(bool))
        for _ in range(4):
            actions = first_valid(masking.get_action_masks(envs))
            observation, rewards, _, _ = envs.step(actions)
            assert np.isfinite(rewards).all()
        alone, _ = two_environments()[0]().reset(seed=4)
    finally:
        envs.close()
    assert observation["candidate_features"].shape == (2, *alone["candidate_features"].shape)


@pytest.mark.slow  # trains for about half a minute
def test_the_example_learns_to_look_better_than_chance_in_flats_it_has_not_seen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("sb3_contrib")
    from examples.learn_in_environment import main

    low, high = main(flats=48, steps=2880, episodes=96)
    printed = capsys.readouterr().out
    assert 0 < low < high < 1
    assert f"95 % interval {low:+.3f} to {high:+.3f}: better than chance" in printed
