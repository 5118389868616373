"""A policy for rollout stores without training: look at unknown parts of the target from where the target is large.

It uses what the actor knows of each candidate. Its score is the product of two features: the unknown voxels of the
target along a ray, and the share of the image that the box of the target covers.

    rollbook replay run --policy examples.replay.heuristic_policy:HeuristicPolicy …
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.evals import ReplayEpisode

UNKNOWN = "target_unknown_per_ray"
AREA = "obb_area_frac"


class HeuristicPolicy:
    """Answers with a score for each candidate; the harness chooses the best valid one."""

    def reset(self, episode: ReplayEpisode) -> None:
        """Reads the names of the features from the episode."""
        names = [] if episode.record is None else episode.record.metadata["actor_feature_names"]
        self._unknown, self._area = names.index(UNKNOWN), names.index(AREA)

    def act_batch(self, observations: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Many steps at once: features are [steps, candidates, features]."""
        features = observations["/candidates/features"]
        return {"/choice/score": features[..., self._unknown] * features[..., self._area]}


class RandomPolicy:
    """Chooses a random valid candidate. The heuristic has to be better than this."""

    def reset(self, episode: ReplayEpisode) -> None:
        self._rng = np.random.default_rng(list(episode.id.encode()))

    def act(self, observation: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {"/choice/score": self._rng.random(len(observation["/candidates/valid"]))}
