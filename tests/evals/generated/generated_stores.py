"""A rollout store of the tiny source, and policies that are rolled out from its roots."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.candidate_keys import CHOICE_KEY, FEATURES_KEY, SCORE_KEY, VALID_KEY
from rollbook.evals.policies.policy import ReplayEpisode, StepContext
from rollbook.evals.store_baselines import StoreBaselines
from tests.generate.tiny_source import tiny_config, tiny_source

_FOLDER = tempfile.TemporaryDirectory(prefix="generated-stores-")
RECIPES = [
    {"name": "random", "selection_policy": "random_valid", "horizon": 3, "seed": 5},
    {"name": "greedy", "selection_policy": "oracle_greedy", "horizon": 2},
]
SOURCE = tiny_source

Observation = dict[str, NDArray[Any]]


@lru_cache
def generated_store() -> Path:
    """Two chains of each of two roots. Written once for all tests; read-only."""
    path = Path(_FOLDER.name) / "rollouts.zarr"
    tiny_config(path, recipes=RECIPES).setup_target().run()
    return path


class Widest:
    """The valid candidate with the greatest sum of features."""

    def act_batch(self, observations: Observation) -> Observation:
        return {SCORE_KEY: np.nansum(observations[FEATURES_KEY], axis=-1)}


class Recorded:
    """Repeats what the store says that the baseline chose. Only a trusted policy can know the row."""

    def __init__(self) -> None:
        self._chains = StoreBaselines(generated_store())
        self.seen: list[Observation] = []

    def reset(self, episode: ReplayEpisode) -> None:
        assert episode.record is not None
        row = episode.record.metadata["rollout"]["rollout_row_id"]
        self._chosen = self._chains.actions(row)[CHOICE_KEY]

    def act(self, observation: Observation, context: StepContext) -> dict[str, Any]:
        self.seen.append(observation)
        return {CHOICE_KEY: self._chosen[context.step]}


def never_valid(observation: Observation) -> dict[str, Any]:
    return {CHOICE_KEY: int(np.flatnonzero(~observation[VALID_KEY])[0])}


def out_of_range(observation: Observation) -> dict[str, Any]:
    return {CHOICE_KEY: 10_000}


def no_choice(observation: Observation) -> dict[str, Any]:
    return {SCORE_KEY: np.full(len(observation[VALID_KEY]), np.nan)}
