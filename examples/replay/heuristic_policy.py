"""A policy for rollout stores that was never trained: look at what is unknown of the target, from where it is large.

It knows what the actor knows of each candidate, and chooses by the product of two features: unknown voxels of the
target that a ray passes, and the share of the image that the target's box covers.

    rollbook replay run --policy examples.replay.heuristic_policy:HeuristicPolicy …
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.evals.policies import ReplayEpisode
from rollbook.evals.store_baselines import FEATURES_KEY

UNKNOWN = "target_unknown_per_ray"
AREA = "obb_area_frac"


class HeuristicPolicy:
    """Answers a score for each candidate; the harness takes the best of those that are valid."""

    def reset(self, episode: ReplayEpisode) -> None:
        """Episodes name the features that they recorded."""
        names = [] if episode.record is None else episode.record.metadata["actor_feature_names"]
        self._unknown, self._area = names.index(UNKNOWN), names.index(AREA)

    def act_batch(self, observations: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Many steps at once: features are [steps, candidates, features]."""
        features = observations[FEATURES_KEY]
        return {"/choice/score": features[..., self._unknown] * features[..., self._area]}


class RandomPolicy:
    """Any valid candidate: what the heuristic has to be better than."""

    def reset(self, episode: ReplayEpisode) -> None:
        self._rng = np.random.default_rng(list(episode.id.encode()))

    def act(self, observation: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {"/choice/score": self._rng.random(len(observation["/candidates/valid"]))}
