"""Scorers of run folders: the policy that a training run made, known by its revision and never by its path."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from rollbook.errors import ConfigurationError
from rollbook.generate.rollout.scorers import Scorer, policy_scorer

if TYPE_CHECKING:
    from rollbook.contracts.policy import PolicyRevision

_AT = "@"
_KEPT = 8
"""A shell is scored in microseconds and a checkpoint is read in milliseconds, so policies stay in memory."""


def run_policy(path: str) -> str:
    """The policy of a run folder as `REVISION@DIGEST`, from its record alone."""
    from rollbook.learned import open_training_run

    return _name_of(open_training_run(path, verify=False).revision)


def revision_of(policy: str) -> str:
    return policy.rpartition(_AT)[0]


def digest_of_policy(policy: str) -> str:
    return policy.rpartition(_AT)[2]


@lru_cache(_KEPT)
def learned_scorer(path: str, policy: str) -> Scorer:
    """The scorer of a run folder. Refuses a folder that has another policy now, or one of whose bytes was changed."""
    from rollbook.learned import load_learned_policy

    loaded = load_learned_policy(path)
    found = _name_of(loaded.policy_revision)
    if found != policy:
        message = (
            f"the training run {path} is now {found}, the recipe was made with {policy}: "
            "leave scorer_policy out to use the new one"
        )
        raise ConfigurationError(message=message)
    return policy_scorer(loaded, revision_of(policy))


def _name_of(revision: PolicyRevision) -> str:
    return f"{revision.revision_id}{_AT}{revision.policy_digest}"
