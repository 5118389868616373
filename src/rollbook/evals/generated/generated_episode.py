"""GeneratedEpisode: one rollout from the root of a stored chain, seen and judged as the chains of the store are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.candidate_keys import FEATURES_KEY, HISTORY_KEY, POSITION_KEY, VALID_KEY
from rollbook.evals.generated.store_world import ChainRoot
from rollbook.evals.store_baselines import CLOCK_KEYS, MOVE_NS, StoreBaselines
from rollbook.generate.rollout.nodes import OfferedNode

Observation = dict[str, Any]


class GeneratedEpisode:
    """A shell is offered, a candidate is taken, and its gain is measured, until the horizon or a dead end.

    Observations have the keys, types and shapes of those that `StoreBaselines` reads from the store.
    """

    def __init__(self, chains: StoreBaselines, root: ChainRoot) -> None:
        assert root.evaluator is not None
        self._evaluator = root.evaluator
        self._horizon = root.horizon
        self._width = chains.shell_width
        self._history_length = chains.history_length
        self._taken: list[NDArray[np.float32]] = []
        self.offered: OfferedNode | None = self._evaluator.offer(self._evaluator.root())
        """None after the last step."""
        self.rewards: list[np.float32] = []
        self.invalid_choices = 0

    @property
    def ended_by(self) -> str | None:
        """None while a candidate can be taken."""
        if self.offered is None:
            return "horizon"
        return None if self.offered.num_valid else "no_valid_candidate"

    @property
    def valid(self) -> NDArray[np.bool_]:
        """[A]"""
        assert self.offered is not None
        return self._padded(self.offered.candidates.mask_valid, False)

    def observation(self) -> Observation:
        assert self.offered is not None
        shell = self.offered.candidates
        assert shell.actor_features is not None
        assert shell.position_id is not None
        seen: Observation = {
            VALID_KEY: self.valid,
            POSITION_KEY: self._padded(shell.position_id, -1).astype(np.int32),
            CLOCK_KEYS[0]: np.int64(len(self.rewards) * MOVE_NS),
            FEATURES_KEY: self._padded(shell.actor_features, np.nan),
        }
        if self._history_length:
            seen[HISTORY_KEY] = self._history(shell.actor_features.shape[1])
        return seen

    def take(self, index: int) -> np.float32:
        """Moves to a candidate and returns its gain. Instead of one that is not valid the worst is taken, so that
        nobody gains by it."""
        assert self.offered is not None
        offered = self.offered
        if not (0 <= index < len(self.valid) and self.valid[index]):
            self.invalid_choices += 1
            index = self._worst(offered)
        features = offered.candidates.actor_features
        assert features is not None
        self._taken.insert(0, features[index])
        taken = self._evaluator.take(offered, index)
        self.rewards.append(np.float32(taken.labels["target_root_gain"]))
        # after the last step nothing is offered, so what the actor would know then is not computed
        last = len(self.rewards) == self._horizon
        self.offered = None if last else self._evaluator.offer(self._evaluator.child_of(taken))
        return self.rewards[-1]

    def _worst(self, offered: OfferedNode) -> int:
        gains = self._evaluator.evaluate(offered.node).labels["target_root_gain"]
        return int(np.argmin(np.where(offered.candidates.mask_valid, gains, np.inf)))

    def _history(self, features: int) -> NDArray[np.float32]:
        history = np.full((self._history_length, features), np.nan, np.float32)
        for back, each in enumerate(self._taken[: self._history_length]):
            history[back] = each
        return history

    def _padded(self, values: NDArray[Any], fill: object) -> NDArray[Any]:
        """As wide as in the store, where all shells have the width of the widest."""
        missing = self._width - len(values)
        if missing <= 0:
            return values
        return np.concatenate([values, np.full((missing, *values.shape[1:]), fill, values.dtype)])
