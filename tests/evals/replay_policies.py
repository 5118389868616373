"""Policies that tests name as `tests.evals.replay_policies:…`, so that other processes can make them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rollbook.evals import Action, Observation, ReplayEpisode, StepContext


def follow(obs: Observation) -> Action:
    """Does what was recorded: the episodes of these tests move as they sense."""
    return {"/arm/command": obs["/arm/position"]}


def shifted(obs: Observation) -> Action:
    return {"/arm/command": obs["/arm/position"] + 0.5}


def crash_on_negative(obs: Observation) -> Action:
    if float(obs["/arm/position"][0]) < 0:
        raise ValueError("a negative position")
    return follow(obs)


def sleepy(obs: Observation) -> Action:
    time.sleep(0.001)
    return follow(obs)


def die_on_negative(obs: Observation) -> Action:
    if float(obs["/arm/position"][0]) < 0:
        os._exit(9)
    return follow(obs)


def hang_on_negative(obs: Observation) -> Action:
    if float(obs["/arm/position"][0]) < 0:
        time.sleep(60)
    return follow(obs)


class Counting:
    """Has a memory, says what it was told, and knows when an episode ends."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.steps = 0

    def reset(self, episode: ReplayEpisode) -> None:
        self.seen.append(episode.id)
        self.steps = 0

    def act(self, obs: Observation, context: StepContext) -> Action:
        assert context.step == self.steps
        assert context.is_first == (self.steps == 0)
        self.steps += 1
        action: Action = {"/arm/command": obs["/arm/position"]}
        if context.is_last:
            action["_outcome"] = {"success": True, "reward_total": float(self.steps)}
        return action

    def close(self) -> None:
        if "CLOSED_FOLDER" in os.environ:
            Path(os.environ["CLOSED_FOLDER"], f"{os.getpid()}-{id(self)}").touch()


class Hanging(Counting):
    def act(self, obs: Observation, context: StepContext) -> Action:
        if float(obs["/arm/position"][0]) < 0 and context.step == 3:
            time.sleep(60)
        return super().act(obs, context)


class Batched:
    def act_batch(self, obs: dict[str, Any]) -> Action:
        return {"/arm/command": obs["/arm/position"] + 0.5}


class Chunked:
    chunk = 4

    def act(self, obs: Observation) -> Action:
        return {"/arm/command": np.tile(obs["/arm/position"], (4, 1))}


def make_counting() -> Counting:
    return Counting()


class Nested:
    policy: Callable[[Observation], Action] = staticmethod(follow)
