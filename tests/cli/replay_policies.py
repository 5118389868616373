"""Candidates that test_cli_replay.py names on the command line."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np

from rollbook.evals import Action, Observation, StepContext
from tests.evals.recorded_runs import SlidingEnv


def follow(obs: Observation) -> Action:
    return {"arm/value": obs["arm/state"] + 0.1}


def troubled(obs: Observation) -> Action:
    if obs["arm/trouble"]:
        raise ValueError("trouble ahead")
    return follow(obs)


class Winning:
    """Says that it succeeds, always."""

    def act(self, obs: Observation, context: StepContext) -> Action:
        said = {"_outcome": {"success": True, "reward_total": 2.0}} if context.is_last else {}
        return {**follow(obs), **said}


winning = Winning


def slow(obs: Observation) -> Action:
    time.sleep(0.5)
    return follow(obs)


def push_towards(obs: Observation) -> Action:
    return {"action.push/value": np.clip(-obs["observation.x/value"], -1, 1)}


def first_valid(obs: Observation) -> dict[str, Any]:
    return {"/choice/index": int(np.argmax(obs["/candidates/valid"]))}


def leaving(obs: Observation) -> Action:
    sys.exit(0)


def ending(obs: Observation) -> Action:
    os._exit(0)


class Unborn(Winning):
    def __init__(self) -> None:
        sys.exit(0)


class LeavesAtTheEnd(Winning):
    def close(self) -> None:
        sys.exit(0)


class LeavingEnv(SlidingEnv):
    """The system keeps the last eight bits of an exit status, so 256 is 0."""

    def close(self) -> None:
        sys.exit(256)
