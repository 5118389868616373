"""Lets the policy of a training run play in rollbook's environment, and chance from the same roots.

    pip install 'rollbook[generate,gym,train]'
    python -m examples.play_learned_policy runs/first free_shell.toml --split val --episodes 10

`runs/first` is the folder of `rollbook train run`, and the TOML file is a config of `rollbook generate run`. Choose a
split on which the policy was not trained.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from rollbook.generate import CounterfactualEnv, RolloutDatasetWriterConfig
from rollbook.learned import load_learned_policy

Chooser = Callable[[dict[str, Any]], int]
"""An action for an observation."""


def play(environment: CounterfactualEnv, choose: Chooser, seed: int) -> float:
    """The gain of one episode: the share of the target's error that its moves remove."""
    observation, info = environment.reset(seed=seed)
    ended = False
    while not ended:
        observation, _, ended, _, info = environment.step(choose(observation))
    return float(info["target_gain"])


def main(given: Sequence[str] | None = None) -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("run", help="folder of a training run")
    arguments.add_argument("config", help="TOML file of generation")
    arguments.add_argument("--split", default="val")
    arguments.add_argument("--episodes", type=int, default=10)
    options = arguments.parse_args(given)

    config = RolloutDatasetWriterConfig.from_toml(options.config)
    source = msgspec.structs.replace(config.source, split=options.split)
    environment = CounterfactualEnv(dataclasses.replace(config, source=source))
    policy = load_learned_policy(options.run)
    rng = np.random.default_rng(0)

    def by_chance(observation: dict[str, Any]) -> int:
        return int(rng.choice(np.flatnonzero(observation["candidate_valid_mask"])))

    seeds = range(options.episodes)
    learned = [play(environment, policy.choose, seed) for seed in seeds]
    chance = [play(environment, by_chance, seed) for seed in seeds]
    for seed, (one, other) in enumerate(zip(learned, chance, strict=True)):
        print(f"episode {seed}: learned {one:.3f}, chance {other:.3f}")
    print(f"mean of {len(seeds)}: learned {np.mean(learned):.3f}, chance {np.mean(chance):.3f}")


if __name__ == "__main__":
    main()
