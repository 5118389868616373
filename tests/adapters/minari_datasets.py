"""Minari datasets for tests, written by the package `minari` itself."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np

AnyEnv = gymnasium.Env[Any, Any]


@contextmanager
def minari_root(root: Path) -> Iterator[Any]:
    """The package, which looks for datasets in this folder."""
    with mock.patch.dict(os.environ, {"MINARI_DATASETS_PATH": str(root)}):
        import minari

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it asks for authors, links and algorithms
            yield minari


def cart_pole(**options: Any) -> AnyEnv:
    return gymnasium.make("CartPole-v1", **options)


def always_left(observation: Any) -> int:
    return 0


def balance(observation: Any) -> int:
    return int(observation[2] + observation[3] > 0)


def rollout(env: AnyEnv, policy: Callable[[Any], Any], seed: int) -> dict[str, Any]:
    """One run, as arguments of an EpisodeBuffer."""
    observation, _ = env.reset(seed=seed)
    run: dict[str, list[Any]] = {
        "observations": [observation],
        **{name: [] for name in ("actions", "rewards", "terminations", "truncations")},
    }
    while True:
        action = policy(observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        run["observations"].append(observation)
        run["actions"].append(action)
        run["rewards"].append(float(reward))
        run["terminations"].append(bool(terminated))
        run["truncations"].append(bool(truncated))
        if terminated or truncated:
            return {**run, "seed": seed}


def made_up(
    steps: int, observations: Any, actions: Any, *, terminated: bool = True, **more: Any
) -> dict[str, Any]:
    """An episode that no environment played."""
    return {
        "observations": observations,
        "actions": actions,
        "rewards": [float(i) / 4 for i in range(steps)],
        "terminations": [False] * (steps - 1) + [terminated],
        "truncations": [False] * steps,
        **more,
    }


def write(
    root: Path,
    episodes: Sequence[Mapping[str, Any]],
    *,
    name: str = "test/set-v0",
    data_format: str = "hdf5",
    env: AnyEnv | None = None,
    **options: Any,
) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    with minari_root(root) as minari:
        from minari.data_collector.episode_buffer import EpisodeBuffer

        buffers = [EpisodeBuffer(**each) for each in episodes]
        minari.create_dataset_from_buffers(
            name, buffers, env=env, data_format=data_format, **options
        )
    return root / name


def write_cart_pole(
    root: Path, *, seeds: Sequence[int] = (7, 8), data_format: str = "hdf5", **options: Any
) -> Path:
    env = cart_pole(max_episode_steps=50)
    runs = [rollout(env, balance if seed % 2 else always_left, seed) for seed in seeds]
    for run in runs:
        run["observations"] = np.array(run["observations"])
    return write(root, runs, env=env, data_format=data_format, **options)
