"""LearnedPolicy: the policy of a training run. It scores the valid candidates of a shell; a greater score is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.candidate_keys import (
    FEATURE_NAMES_METADATA,
    FEATURES_KEY,
    SCORE_KEY,
    VALID_KEY,
)
from rollbook.contracts.policy import PolicyRevision
from rollbook.errors import ConfigurationError, InvalidValue, near_names
from rollbook.files import AnyPath
from rollbook.learned.run_folder import TrainingRunFolder, open_training_run
from rollbook.learned.training_run import TrainingRun

REMAINING = "remaining"
"""The actor feature that chooses the head: moves left, this one included."""

Scores = NDArray[np.float64]


class Heads(Protocol):
    """What a checkpoint computes. Each learner has a module here that reads its checkpoint into one."""

    def scores(
        self, features: NDArray[np.float32], valid: NDArray[np.bool_], head: NDArray[np.int64]
    ) -> Scores:
        """Scores [S, A] of the valid candidates of S states, by the head of each state (1 or more); NaN elsewhere.

        `features` is [S, A, F], with the columns of `feature_names`.
        """


class LearnedPolicy:
    """Scores candidates with the head for the number of moves that are left.

    Generation calls the object itself, replays call `act` and `act_batch`, and a gymnasium loop calls `choose`.
    """

    def __init__(self, run: TrainingRun, heads: Heads) -> None:
        self.policy_revision: PolicyRevision = run.policy_revision
        self.checkpoint_digest: str = run.checkpoint_digest
        self.horizon: int = run.horizon
        self.feature_names: tuple[str, ...] = run.feature_names
        self._heads = heads

    def __repr__(self) -> str:
        return f"LearnedPolicy({self.policy_revision.revision_id}, horizon {self.horizon})"

    def score(
        self, features: NDArray[np.float32], names: Sequence[str], valid: NDArray[np.bool_]
    ) -> Scores:
        """Scores [..., A] for features [..., A, F] whose columns have these names; NaN where not valid.

        Columns are found by name. Missing ones are refused; others are not used.
        """
        mask = np.asarray(valid, np.bool_)
        values = self._columns(np.asarray(features, np.float32), names)
        if values.shape[:-1] != mask.shape:
            raise _invalid("features", values.shape, f"{[*mask.shape]} candidates, as `valid` has")
        shells = mask.reshape(-1, mask.shape[-1])
        states = values.reshape(*shells.shape, values.shape[-1])
        found = self._heads.scores(states, shells, self._head_of(states, shells))
        return found.reshape(mask.shape)

    def __call__(
        self,
        features: NDArray[np.float32],
        names: Sequence[str],
        valid: NDArray[np.bool_],
        context: Mapping[str, Any] | None = None,
    ) -> Scores:
        """The score of each candidate of one shell, for a recipe of generation. The context is not used."""
        return self.score(features, names, valid)

    def act_batch(self, observations: Mapping[str, Any], context: Any) -> dict[str, Scores]:
        """Scores in many recorded states, for a replay."""
        for key in (FEATURES_KEY, VALID_KEY):
            if key not in observations:
                message = f"the observation has no {key!r}; a learned policy needs the actor features of a store"
                raise ConfigurationError(message=message)
        features, valid = observations[FEATURES_KEY], observations[VALID_KEY]
        return {SCORE_KEY: self.score(features, _names_in(context), valid)}

    def act(self, observation: Mapping[str, Any], context: Any) -> dict[str, Scores]:
        """`act_batch` for one state."""
        return self.act_batch(observation, context)

    def choose(self, observation: Mapping[str, Any], names: Sequence[str] | None = None) -> int:
        """The index of the valid candidate with the greatest score, for an observation of CounterfactualEnv.

        `names` are the columns of `candidate_features`; by default those of the training stores.
        """
        valid = np.asarray(observation["candidate_valid_mask"], np.bool_)
        if not valid.any():
            raise _invalid("candidate_valid_mask", valid.shape, "at least one valid candidate")
        scores = self.score(observation["candidate_features"], names or self.feature_names, valid)
        return int(np.nanargmax(scores))

    def _columns(self, features: NDArray[np.float32], names: Sequence[str]) -> NDArray[np.float32]:
        if features.ndim < 2 or features.shape[-1] != len(names):
            raise _invalid("features", features.shape, f"[…, candidates, {len(names)}]")
        if tuple(names) == self.feature_names:
            return features
        missing = [name for name in self.feature_names if name not in names]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            message = f"the policy needs the feature {missing[0]!r}{more}; {near_names(missing[0], names)}"
            raise ConfigurationError(message=message)
        return features[..., [names.index(name) for name in self.feature_names]]

    def _head_of(
        self, features: NDArray[np.float32], valid: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """The head of each state. All candidates of a state share `remaining`; the first valid one is read."""
        first = valid.argmax(axis=1) if valid.shape[1] else np.zeros(len(valid), np.int64)
        if not valid.shape[1] or REMAINING not in self.feature_names:
            return np.full(len(valid), self.horizon, np.int64)
        left = features[np.arange(len(valid)), first, self.feature_names.index(REMAINING)]
        heads: NDArray[np.int64] = np.clip(np.nan_to_num(left, nan=1), 1, self.horizon).astype(
            np.int64
        )
        return heads


def load_learned_policy(path: AnyPath | TrainingRunFolder) -> LearnedPolicy:
    """The policy of a run folder. A folder in which one byte was changed is refused."""
    folder = path if isinstance(path, TrainingRunFolder) else open_training_run(path)
    if folder.run.learner == "boosted":
        from rollbook.learned.boosted import BoostedHeads

        return LearnedPolicy(folder.run, BoostedHeads.read(folder))
    if folder.run.learner == "attention":
        from rollbook.learned.attention import AttentionHeads

        return LearnedPolicy(folder.run, AttentionHeads.read(folder))
    message = f"this release cannot load a policy of the learner {folder.run.learner!r}"
    raise ConfigurationError(message=message)


def _names_in(context: Any) -> Sequence[str]:
    record = getattr(getattr(context, "episode", None), "record", None)
    names = (getattr(record, "metadata", None) or {}).get(FEATURE_NAMES_METADATA)
    if not names:
        message = (
            f"the episode does not name its actor features (metadata {FEATURE_NAMES_METADATA!r})"
        )
        raise ConfigurationError(message=message)
    return tuple(names)


def _invalid(field: str, shape: tuple[int, ...], expected: str) -> InvalidValue:
    return InvalidValue(
        record="learned policy", field=field, value=f"of shape {list(shape)}", expected=expected
    )
